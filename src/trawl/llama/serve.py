"""`trawl serve-models`: llama-servers for embedding and reranking that somebody watches in a terminal.

    which model, which file     a name of the catalogue or a path
      │ which program           `llama-server` on PATH, else the embedded one
      │ are the ports free      and if not, who answers there
      ▼
    one process each, until /health is 200; then until cancelled; when one ends, all end

Command lines and environments are made by pure functions. A server outlives neither this nor its sibling.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal

from trawl.deadline import Deadline
from trawl.errors import ModelError, ModelUnavailable, UsageError
from trawl.llama.client import LlamaClient
from trawl.llama.listening import try_to_listen
from trawl.llama.models import BGE_M3, BGE_RERANKER, CATALOGUE, E5, ModelSpec, NamedModel, model_spec
from trawl.llama.weights import ensure_e5, path_of, state_of

Kind = Literal["embed", "rerank"]

START_SECONDS: Final = 300.0
"""A model of 600 MB took 2 s from a warm disk; from a slow one, with everything else busy, minutes."""
HEALTH_POLL_SECONDS: Final = 0.2
WHO_SECONDS: Final = 2.0
"""For whoever holds a port to say what it is."""
END_SECONDS: Final = 3.0
"""Between SIGTERM and SIGKILL: llama-server waits for answers in progress, and nobody else does."""
KEPT_OUTPUT_BYTES: Final = 4096
PROGRAM_HINT: Final = "Install llama.cpp so that llama-server is on PATH, or trawl[embedded] (Linux, x86-64)."
TASKS: Final[Mapping[Kind, str]] = {"embed": "embedding", "rerank": "reranking"}


@dataclass(frozen=True, slots=True)
class ModelServer:
    """One server as it shall run."""

    kind: Kind
    spec: ModelSpec
    file: Path
    port: int
    host: str = "127.0.0.1"
    threads: int | None = None
    key: str = field(default="", repr=False)
    """What clients must send; empty: nothing."""

    @property
    def url(self) -> str:
        """Where a client on this machine finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 (what listens everywhere)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it; of a name other than localhost that is not known."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False


class ServerEnded(ModelUnavailable):
    """A server ended that should run on. `output` is the last it wrote."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


# What shall run


def chosen(kind: Kind, wanted: str | None, cache_dir: Path) -> tuple[ModelSpec, Path] | None:
    """The model to serve and its file.

    Args:
        kind: what for.
        wanted: a name of the catalogue or the path of a GGUF file; None: bge-m3, else multilingual-e5-small, and
            bge-reranker-v2-m3, as far as they are there.
        cache_dir: where models are kept.

    Returns:
        None when nothing was named and no reranker is there.

    Raises:
        UsageError: no such name or file, or a model for something else.
        ModelUnavailable: its file is not there, damaged, or cannot be made.
    """
    model = CATALOGUE.get(wanted) if wanted else _default(kind, cache_dir)
    if model:
        if model.kind != kind:
            raise UsageError(f"{model.name} is a model for {TASKS[model.kind]}, not for {TASKS[kind]}")
        return model.spec, _file_of(model, cache_dir)
    if not wanted:
        return None
    path = Path(wanted).expanduser()
    if not path.is_file():
        names = ", ".join(name for name, known in CATALOGUE.items() if known.kind == kind)
        raise UsageError(f"{wanted} is neither a file nor a model that is known", hint=f"Known for this: {names}.")
    return model_spec(path.name), path.absolute()


def _default(kind: Kind, cache_dir: Path) -> NamedModel | None:
    best = BGE_M3 if kind == "embed" else BGE_RERANKER
    # A damaged one is chosen too: that it cannot be used must be told, not passed over.
    if state_of(best, cache_dir) != "not pulled":
        return best
    return E5 if kind == "embed" else None


def _file_of(model: NamedModel, cache_dir: Path) -> Path:
    if model.repo is None:
        return ensure_e5(cache_dir)
    state = state_of(model, cache_dir)
    if state != "present":
        raise ModelUnavailable(f"{model.name} is {state}", hint=f"Get it with: trawl models pull {model.name}")
    return path_of(model, cache_dir)


def program(path: str | None = None) -> list[str]:
    """How llama-server is called here; `path` stands for PATH.

    Raises:
        ModelUnavailable: it is not installed, nor is what the embedded one needs.
    """
    if found := shutil.which("llama-server", path=path):
        return [found]
    if find_spec("xllamacpp") is None:
        raise ModelUnavailable("there is no llama-server on this machine", hint=PROGRAM_HINT)
    # -P: what lies in the working directory must not be imported.
    return [sys.executable, "-P", "-m", "trawl.llama.embedded"]


def command_line(program: Sequence[str], server: ModelServer) -> list[str]:
    """The whole command for one server.

    Embedding and reranking compute all tokens of an input at once, so the batch is as large as the longest input; and
    one slot gives an input the whole context. The key is in `environment`: others can read command lines.
    """
    tokens = str(server.spec.max_tokens)
    task = ["--embeddings"] if server.kind == "embed" else ["--reranking"]
    pooling = "rank" if server.kind == "rerank" else server.spec.pooling
    return [
        *program,
        *("--model", str(server.file), "--alias", server.spec.name),
        *("--host", server.host, "--port", str(server.port)),
        *task,
        *(("--pooling", pooling) if pooling else ()),
        *("--ctx-size", tokens, "--batch-size", tokens, "--ubatch-size", tokens, "--parallel", "1"),
        *(("--threads", str(server.threads)) if server.threads else ()),
    ]


def environment(server: ModelServer, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` as one server shall see it: with its own key only, by the name llama-server reads and by that the
    embedded one reads."""
    kept = {name: value for name, value in environ.items() if not name.endswith("_API_KEY")}
    keys = {"LLAMA_API_KEY": server.key, "TRAWL_EMBED_API_KEY": server.key} if server.key else {}
    # Idle OpenMP threads that spin took 6 of 7 embeddings per second on two busy cores.
    return {"OMP_WAIT_POLICY": "passive"} | kept | keys


def settings_line(server: ModelServer) -> str:
    """What a shell has to be told so that trawl uses this server."""
    prefix = f"TRAWL_{server.kind.upper()}"
    return f"export {prefix}_URL={server.url}/v1 {prefix}_MODEL={shlex.quote(server.spec.name)}"


# Running it


async def check_ports(servers: Sequence[ModelServer]) -> None:
    """Whether all can listen where they shall.

    Raises:
        UsageError: two want the same port.
        ModelUnavailable: a port is taken, with what answers there, or cannot be listened on.
    """
    if len({server.port for server in servers}) < len(servers):
        raise UsageError("both servers cannot have the same port")
    for server in servers:
        where = f"port {server.port} of {server.host}"
        try:
            try_to_listen(server.host, server.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ModelUnavailable(f"{where} cannot be listened on: {error.strerror or error}") from None
            raise await _taken(server, where) from None
        except ValueError:
            raise UsageError(f"{server.host} is not an address to listen on") from None


async def _taken(server: ModelServer, where: str) -> ModelUnavailable:
    other = f"choose another port with --{server.kind}-port."
    if models := await _models_on(server):
        return ModelUnavailable(f"{where} is taken by a model server with {models}", hint=f"Use that, or {other}")
    return ModelUnavailable(
        f"{where} is taken by something that is no model server, or wants another key",
        hint=f"End what runs there, or {other}",
    )


async def _models_on(server: ModelServer) -> str:
    """What is served where `server` should be; empty when that is no model server, or not one for our key."""
    client = LlamaClient(server.url, server.key or None)
    try:
        models = await client.models(Deadline.after(WHO_SECONDS))
    except ModelError:
        return ""
    finally:
        await client.aclose()
    return ", ".join(model.id for model in models)[:200]


async def serve(servers: Sequence[ModelServer], program: Sequence[str], ready: Callable[[ModelServer], None]) -> None:
    """Runs the servers until it is cancelled or one of them ends, which ends the others.

    Args:
        servers: what to run.
        program: how llama-server is called.
        ready: told of each server that is healthy.

    Raises:
        ServerEnded: one ended by itself.
        ModelUnavailable: one cannot be started or does not become healthy.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(_tend(server, program, ready))
    except* ModelError as failures:
        raise failures.exceptions[0] from None


async def _tend(server: ModelServer, program: Sequence[str], ready: Callable[[ModelServer], None]) -> None:
    async with _running(server, program) as (process, output):
        ended = asyncio.create_task(_ended(server, process, output))
        healthy = asyncio.create_task(_healthy(server))
        try:
            await asyncio.wait({ended, healthy}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                healthy.result()
                ready(server)
            raise await ended
        finally:
            await _cancelled(ended, healthy)


@asynccontextmanager
async def _running(
    server: ModelServer, program: Sequence[str]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.Task[bytes]]]:
    """The process and the end of its output; when left, it and whatever it started are gone."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command_line(program, server),
            env=environment(server, os.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for us, and the group can be ended as a whole
            preexec_fn=_end_with_parent(),
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelUnavailable(f"{program[0]} cannot be started: {why}", hint=PROGRAM_HINT) from error
    output = asyncio.create_task(_last_output(process))
    try:
        yield process, output
    finally:
        try:
            await _end(process)
        finally:
            await _cancelled(output)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        _signal_group(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
    finally:
        _signal_group(process, signal.SIGKILL)
        await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS: the latter for a group of zombies
        os.killpg(process.pid, number)


def _end_with_parent() -> Callable[[], None] | None:
    """Linux: what the child runs to be ended by the kernel when this process is killed; None elsewhere."""
    if sys.platform != "linux":
        return None
    set_option, parent_death_signal = ctypes.CDLL(None).prctl, 1
    return lambda: set_option(parent_death_signal, signal.SIGKILL, 0, 0, 0)


async def _last_output(process: asyncio.subprocess.Process) -> bytes:
    """Reads all it writes (a full pipe would block it) and gives the end of that."""
    assert process.stdout is not None  # noqa: S101 (asked for above)
    kept = b""
    while piece := await process.stdout.read(65536):
        kept = (kept + piece)[-KEPT_OUTPUT_BYTES:]
    return kept


async def _ended(server: ModelServer, process: asyncio.subprocess.Process, output: asyncio.Task[bytes]) -> ServerEnded:
    code = await process.wait()
    # What it started may hold the pipe open.
    await asyncio.wait({output}, timeout=1.0)
    words = output.result().decode("utf-8", "replace").strip() if output.done() else ""
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return ServerEnded(f"the server for {TASKS[server.kind]} ({server.spec.name}) ended {how}", words)


async def _healthy(server: ModelServer) -> None:
    deadline = Deadline.after(START_SECONDS)
    client = LlamaClient(server.url, server.key or None)
    try:
        while deadline.remaining():
            with suppress(ModelError):  # it does not listen yet
                if await client.healthy(deadline):
                    return
            await asyncio.sleep(HEALTH_POLL_SECONDS)
    finally:
        await client.aclose()
    raise ModelUnavailable(f"{server.spec.name} is not ready after {START_SECONDS:.0f} s", url=server.url)
