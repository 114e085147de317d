"""Servers that somebody watches: the right commands, and none that outlives the other or whoever started them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.llama.conftest import reply, serving
from tests.llama.tiny_models import make_reranker
from trawl.deadline import Deadline
from trawl.errors import ModelUnavailable, UsageError
from trawl.llama import serve as module
from trawl.llama.client import LlamaClient
from trawl.llama.models import BGE_M3, BGE_RERANKER, E5, model_spec
from trawl.llama.serve import (
    ModelServer,
    ServerEnded,
    check_ports,
    chosen,
    command_line,
    environment,
    program,
    serve,
    settings_line,
)
from trawl.llama.weights import ensure_e5, path_of

EMBED = ModelServer("embed", BGE_M3.spec, Path("/models/bge.gguf"), 8081)
RERANK = ModelServer("rerank", BGE_RERANKER.spec, Path("/models/rank.gguf"), 8083, threads=3, key="s3cret")


def options(command: list[str]) -> dict[str, str]:
    """The flags that have a value, with it."""
    return {a: b for a, b in itertools.pairwise(command) if a.startswith("--") and not b.startswith("--")}


def test_embedding_has_a_batch_for_the_longest_input() -> None:
    command = command_line(["llama-server"], EMBED)
    assert command[0] == "llama-server"
    assert "--embeddings" in command
    given = options(command)
    assert given == {
        "--model": "/models/bge.gguf",
        "--alias": "bge-m3",
        "--host": "127.0.0.1",
        "--port": "8081",
        "--pooling": "cls",
        "--ctx-size": "8192",
        "--batch-size": "8192",
        "--ubatch-size": "8192",
        "--parallel": "1",
    }


def test_reranking_has_rank_pooling_whatever_is_known_of_the_model() -> None:
    for spec in (BGE_RERANKER.spec, model_spec("some-reranker.gguf")):
        command = command_line(["a", "b"], ModelServer("rerank", spec, Path("/m"), 1))
        assert command[:2] == ["a", "b"]
        assert "--reranking" in command
        assert "--embeddings" not in command
        assert options(command)["--pooling"] == "rank"


def test_threads_are_named_only_when_they_are_given() -> None:
    assert options(command_line([], RERANK))["--threads"] == "3"
    assert "--threads" not in command_line([], EMBED)


def test_pooling_is_left_to_the_file_when_it_is_not_known() -> None:
    assert "--pooling" not in command_line([], ModelServer("embed", model_spec("x"), Path("/m"), 1))


def test_the_key_goes_by_the_environment_only_and_no_other_key_does() -> None:
    assert "s3cret" not in " ".join(command_line([], RERANK))
    assert "s3cret" not in repr(RERANK)
    given = {"PATH": "/bin", "TRAWL_EMBED_API_KEY": "other", "LLAMA_API_KEY": "third", "X_API_KEY": "x"}
    made = environment(RERANK, given)
    assert made["PATH"] == "/bin"
    assert {made["LLAMA_API_KEY"], made["TRAWL_EMBED_API_KEY"]} == {"s3cret"}
    assert not any("API_KEY" in name for name in environment(EMBED, given))
    assert environment(EMBED, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"
    assert environment(EMBED, {})["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    ("host", "url", "local"),
    [
        ("127.0.0.1", "http://127.0.0.1:8081", True),
        ("localhost", "http://localhost:8081", True),
        ("0.0.0.0", "http://127.0.0.1:8081", False),
        ("::", "http://[::1]:8081", False),
        ("::1", "http://[::1]:8081", True),
        ("192.168.0.7", "http://192.168.0.7:8081", False),
        ("my-host", "http://my-host:8081", False),
    ],
)
def test_where_a_client_finds_it(host: str, url: str, local: bool) -> None:
    server = ModelServer("embed", BGE_M3.spec, Path("/m"), 8081, host)
    assert (server.url, server.is_local) == (url, local)


def test_the_line_for_the_shell() -> None:
    assert settings_line(EMBED) == "export TRAWL_EMBED_URL=http://127.0.0.1:8081/v1 TRAWL_EMBED_MODEL=bge-m3"
    odd = ModelServer("rerank", model_spec("a b$(x).gguf"), Path("/m"), 8083)
    assert settings_line(odd).endswith("TRAWL_RERANK_MODEL='a b$(x).gguf'")


def sparse(path: Path, size: int) -> None:
    """A file of this size that takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.embedded
def test_without_a_name_the_best_that_is_here_is_chosen(cache_dir: Path, tmp_path: Path) -> None:
    path_of(E5, tmp_path).parent.mkdir()
    path_of(E5, tmp_path).symlink_to(ensure_e5(cache_dir))
    assert chosen("embed", None, tmp_path) == (E5.spec, path_of(E5, tmp_path))
    assert chosen("rerank", None, tmp_path) is None
    sparse(path_of(BGE_M3, tmp_path), BGE_M3.size)
    sparse(path_of(BGE_RERANKER, tmp_path), BGE_RERANKER.size)
    assert chosen("embed", None, tmp_path) == (BGE_M3.spec, path_of(BGE_M3, tmp_path))
    assert chosen("rerank", None, tmp_path) == (BGE_RERANKER.spec, path_of(BGE_RERANKER, tmp_path))
    assert chosen("embed", "multilingual-e5-small", tmp_path) == (E5.spec, path_of(E5, tmp_path))


def test_a_damaged_file_is_told_and_not_passed_over(tmp_path: Path) -> None:
    sparse(path_of(BGE_M3, tmp_path), BGE_M3.size - 1)
    for wanted in (None, "bge-m3"):
        with pytest.raises(ModelUnavailable, match=r"bge-m3 is damaged.*trawl models pull bge-m3"):
            chosen("embed", wanted, tmp_path)


def test_what_is_named_but_not_here_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"not pulled.*trawl models pull bge-reranker-v2-m3"):
        chosen("rerank", "bge-reranker-v2-m3", tmp_path)
    with pytest.raises(UsageError, match=r"neither a file nor .* bge-reranker-v2-m3"):
        chosen("rerank", str(tmp_path / "none.gguf"), tmp_path)
    with pytest.raises(UsageError, match="neither"):
        chosen("rerank", str(tmp_path), tmp_path)


def test_a_model_for_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for embedding, not for reranking"):
        chosen("rerank", "bge-m3", tmp_path)


def test_a_file_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bge-m3-Q4_K.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    found = chosen("embed", "bge-m3-Q4_K.gguf", tmp_path)
    assert found == (model_spec("bge-m3-Q4_K.gguf"), tmp_path / "bge-m3-Q4_K.gguf")


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_llama_server_on_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = executable(tmp_path / "llama-server", "#!/bin/sh\n")
    assert program(str(tmp_path)) == [str(own)]
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ModelUnavailable, match=r"llama\.cpp"):
        program(str(tmp_path / "empty"))


# Running


@pytest.fixture
def port() -> int:
    return free_port()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def script(folder: Path, body: str) -> list[str]:
    """A program in place of llama-server."""
    return [str(executable(folder / "llama-server", f"#!{sys.executable}\nimport os, sys, time\n{body}\n"))]


def descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = descendants()
    yield
    assert descendants() <= before


async def test_a_taken_port_is_told_with_what_answers_there() -> None:
    async with serving({"/v1/models": lambda _: reply({"data": [{"id": "some-model"}]})}) as there:
        taken = ModelServer("embed", E5.spec, Path("/m"), int(there.url.rpartition(":")[2].split("/")[0]))
        with pytest.raises(ModelUnavailable, match=r"taken by a model server with some-model.*--embed-port"):
            await check_ports([taken])
    async with serving({}) as there:
        taken = ModelServer("rerank", E5.spec, Path("/m"), int(there.url.rpartition(":")[2].split("/")[0]))
        with pytest.raises(ModelUnavailable, match=r"no model server.*--rerank-port"):
            await check_ports([taken])


async def test_a_silent_holder_of_the_port_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHO_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ModelUnavailable, match="is taken"):
        await check_ports([ModelServer("embed", E5.spec, Path("/m"), silent.getsockname()[1])])


async def test_ports_that_cannot_be_had_are_told(port: int) -> None:
    with pytest.raises(UsageError, match="same port"):
        await check_ports([ModelServer(kind, E5.spec, Path("/m"), port) for kind in ("embed", "rerank")])
    for host in ("203.0.113.7", "no-such-host.invalid", "a..b"):
        with pytest.raises((ModelUnavailable, UsageError), match="listen"):
            await check_ports([ModelServer("embed", E5.spec, Path("/m"), port, host)])
    await check_ports([ModelServer("embed", E5.spec, Path("/m"), port)])


async def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path, port: int) -> None:
    failing = script(tmp_path, "print('x' * 100_000); print('no such model', file=sys.stderr); sys.exit(3)")
    with pytest.raises(ServerEnded, match=r"embedding \(multilingual-e5-small\) ended with exit code 3") as caught:
        await serve([ModelServer("embed", E5.spec, Path("/m"), port)], failing, lambda _: None)
    assert "no such model" in caught.value.output
    assert len(caught.value.output) <= module.KEPT_OUTPUT_BYTES


async def test_a_program_that_cannot_be_run_is_told(tmp_path: Path, port: int) -> None:
    broken = executable(tmp_path / "llama-server", "no interpreter line")
    for command in ([str(tmp_path / "none")], [str(broken)]):
        with pytest.raises(ModelUnavailable, match="cannot be started"):
            await serve([ModelServer("embed", E5.spec, Path("/m"), port)], command, lambda _: None)


FAKE = """
import http.server, json, signal
args = dict(zip(sys.argv, sys.argv[1:]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"status": "ok"}')
    def log_message(self, *_): pass
"""


async def test_one_that_dies_ends_the_other(tmp_path: Path) -> None:
    dying = FAKE + "print('out of memory', flush=True)\n"
    dying += "server = http.server.HTTPServer(('127.0.0.1', int(args['--port'])), Handler)\n"
    dying += "server.timeout = 0.1\nwhile not ('--reranking' in sys.argv and os.path.exists(args['--model'])):\n"
    dying += "    server.handle_request()\nos.kill(os.getpid(), 9)"
    end = tmp_path / "end"
    servers = [ModelServer("embed", E5.spec, end, free_port()), ModelServer("rerank", E5.spec, end, free_port())]
    ready: list[str] = []

    def note(server: ModelServer) -> None:
        ready.append(server.kind)
        if len(ready) == 2:
            end.touch()

    with pytest.raises(ServerEnded, match=r"reranking .*ended by signal 9") as caught:
        await asyncio.wait_for(serve(servers, script(tmp_path, dying), note), 20)
    assert sorted(ready) == ["embed", "rerank"]
    assert "out of memory" in caught.value.output


async def test_what_ignores_sigterm_and_what_it_started_are_ended(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 0.3)
    stubborn = FAKE + "import subprocess\nsignal.signal(15, signal.SIG_IGN)\n"
    stubborn += "subprocess.Popen([sys.executable, '-c', 'import time, signal; signal.signal(15, signal.SIG_IGN);"
    stubborn += "time.sleep(60)'])\nhttp.server.HTTPServer(('127.0.0.1', int(args['--port'])), Handler).serve_forever()"
    ready = asyncio.Event()
    running = asyncio.create_task(
        serve([ModelServer("embed", E5.spec, Path("/m"), port)], script(tmp_path, stubborn), lambda _: ready.set())
    )
    await ready.wait()
    assert len(descendants()) >= 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_cancelling_while_it_loads_leaves_nothing(tmp_path: Path, port: int) -> None:
    loading = script(tmp_path, "time.sleep(60)")
    server = ModelServer("embed", E5.spec, Path("/m"), port)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(serve([server], loading, lambda _: None), 0.5)


async def test_one_that_never_gets_ready_is_given_up(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.5)
    loading = script(tmp_path, "time.sleep(60)")
    with pytest.raises(ModelUnavailable, match="not ready after"):
        await serve([ModelServer("embed", E5.spec, Path("/m"), port)], loading, lambda _: None)


@pytest.mark.embedded
async def test_real_servers_embed_and_rerank_with_keys(cache_dir: Path, tmp_path: Path) -> None:
    make_reranker(tmp_path / "tiny-reranker.gguf")
    embed = ModelServer("embed", E5.spec, ensure_e5(cache_dir), free_port(), key="one", threads=1)
    found = chosen("rerank", str(tmp_path / "tiny-reranker.gguf"), cache_dir)
    assert found is not None
    rerank = ModelServer("rerank", *found, free_port(), key="two")
    ready: asyncio.Queue[ModelServer] = asyncio.Queue()
    await check_ports([embed, rerank])
    running = asyncio.create_task(serve([embed, rerank], program(os.devnull), ready.put_nowait))
    try:
        async with asyncio.timeout(60):
            for _ in range(2):
                await ready.get()
        async with contextlib.AsyncExitStack() as clients:
            deadline = Deadline.after(30)
            embedder = LlamaClient(embed.url, "one")
            clients.push_async_callback(embedder.aclose)
            reranker = LlamaClient(rerank.url, "two")
            clients.push_async_callback(reranker.aclose)
            assert [model.id for model in await embedder.models(deadline)] == ["multilingual-e5-small"]
            assert [model.id for model in await reranker.models(deadline)] == ["tiny-reranker.gguf"]
            # As long as the model takes: an input must fit into one batch.
            tokens = await embedder.tokenize("word " * 2000, deadline)
            (vector,) = await embedder.embed("x", [tokens[: E5.spec.max_tokens]], deadline)
            assert len(vector) == E5.spec.dimension
            assert len(await reranker.rerank("x", "what is it", ["a", "b", "c"], deadline)) == 3
            with pytest.raises(ModelUnavailable):
                await check_ports([embed])
            assert not any("one" in process.cmdline() for process in psutil.Process().children())
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    with contextlib.closing(socket.socket()) as probe:
        assert probe.connect_ex(("127.0.0.1", embed.port)) != 0
