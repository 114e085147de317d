"""`trawl serve-models`: llama-servers for embedding and reranking, run in this terminal until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from trawl.cli.common import ConfigFile, progress, settings_from, told
from trawl.llama.models import EMBED_PORT, RERANK_PORT
from trawl.safety.framing import showable

if TYPE_CHECKING:
    from pydantic import SecretStr

    from trawl.llama.serve import Kind, ModelServer

OUTPUT_LINES = 15
"""Of a server that ended."""

Port = Annotated[int, typer.Option(min=1, max=65535)]


def serve_models(
    embed: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Default: bge-m3 if it is here, else multilingual-e5-small.")
    ] = None,
    rerank: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Default: bge-reranker-v2-m3 if it is here.")
    ] = None,
    embed_port: Port = EMBED_PORT,
    rerank_port: Port = RERANK_PORT,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    threads: Annotated[int | None, typer.Option(min=1, max=512, help="For each server; default: its own.")] = None,
    config: ConfigFile = None,
) -> None:
    """Run llama-server for embedding and reranking until Ctrl-C.

    Clients must send the keys in TRAWL_EMBED_API_KEY and TRAWL_RERANK_API_KEY, where these are set.
    """
    from trawl.llama.models import BGE_RERANKER
    from trawl.llama.serve import ModelServer, chosen

    with told():
        settings = settings_from(config)
        asked: list[tuple[Kind, str | None, int, SecretStr | None]] = [
            ("embed", embed, embed_port, settings.embed_api_key),
            ("rerank", rerank, rerank_port, settings.rerank_api_key),
        ]
        servers = []
        for kind, wanted, port, key in asked:
            if found := chosen(kind, wanted, settings.cache_dir):
                servers.append(ModelServer(kind, *found, port, host, threads, key.get_secret_value() if key else ""))
            else:
                typer.echo(f"no reranker is here (trawl models pull {BGE_RERANKER.name}): embedding only", err=True)
        asyncio.run(_serve(servers))


async def _serve(servers: list[ModelServer]) -> None:
    """Runs them until a signal; Ctrl-C is the usual end, not a failure."""
    from trawl.llama.serve import ServerEnded, check_ports, program, serve

    command = program()
    await check_ports(servers)
    loading = {server.kind for server in servers}
    with ExitStack() as spinner:
        spinner.enter_context(progress("loading " + " and ".join(server.spec.name for server in servers)))

        def ready(server: ModelServer) -> None:
            loading.discard(server.kind)
            if not loading:
                spinner.close()
                _print_addresses(servers)

        try:
            await _until_signal(serve(servers, command, ready))
        except ServerEnded as ended:
            spinner.close()
            for line in showable(ended.output).splitlines()[-OUTPUT_LINES:]:
                typer.echo(f"  {line}", err=True)
            raise


async def _until_signal(work: Coroutine[None, None, None]) -> None:
    task = asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whoever had it ignored (nohup) wants it so.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def _print_addresses(servers: list[ModelServer]) -> None:
    from trawl.llama.serve import settings_line

    for server in servers:
        typer.echo(f"{server.spec.name} answers on {server.url}")
    for server in servers:
        typer.echo(settings_line(server))
    if any(not server.key and not server.is_local for server in servers):
        typer.echo("others in your network can use these servers: there is no key (TRAWL_EMBED_API_KEY)", err=True)
    typer.echo("Ctrl-C ends it.", err=True)
