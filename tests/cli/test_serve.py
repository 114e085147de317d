"""`trawl serve-models` as a shell sees it: addresses, exit codes, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.cli.command import started, trawl, wait_until
from tests.llama.tiny_models import make_reranker
from trawl.llama.weights import embedded_missing, ensure_e5


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def ports() -> list[str]:
    return ["--embed-port", str(free_port()), "--rerank-port", str(free_port())]


@pytest.fixture(scope="module")
def e5_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing := embedded_missing():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("models")
    ensure_e5(folder)
    return folder


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    while not lines or word not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()[1]
    return [line.strip() for line in lines]


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 0),
        (signal.SIGTERM, 0),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux ends them")),
    ],
)
def test_both_serve_until_a_signal_and_nothing_is_left(
    e5_cache: Path, tmp_path: Path, ports: list[str], number: signal.Signals, code: int
) -> None:
    reranker = tmp_path / "tiny-reranker.gguf"
    make_reranker(reranker)
    with started("serve-models", "--rerank", str(reranker), *ports, "--threads", "1", cache=e5_cache) as process:
        lines = lines_until(process, "TRAWL_RERANK_URL")
        assert lines == [
            f"multilingual-e5-small answers on http://127.0.0.1:{ports[1]}",
            f"tiny-reranker.gguf answers on http://127.0.0.1:{ports[3]}",
            f"export TRAWL_EMBED_URL=http://127.0.0.1:{ports[1]}/v1 TRAWL_EMBED_MODEL=multilingual-e5-small",
            f"export TRAWL_RERANK_URL=http://127.0.0.1:{ports[3]}/v1 TRAWL_RERANK_MODEL=tiny-reranker.gguf",
        ]
        for port in (ports[1], ports[3]):
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).status == 200
        servers = below(process)
        assert len(servers) == 2
        process.send_signal(number)
        assert process.wait(10) == code
        assert psutil.wait_procs(servers, timeout=5)[1] == []


@pytest.mark.embedded
def test_ctrl_c_while_the_models_load_leaves_nothing(e5_cache: Path, ports: list[str]) -> None:
    with started("serve-models", *ports, cache=e5_cache) as process:
        wait_until(lambda: below(process))
        servers = below(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert psutil.wait_procs(servers, timeout=5)[1] == []
        assert process.communicate()[0] == ""


@pytest.mark.embedded
def test_a_llama_server_on_the_path_is_used_and_a_key_is_asked_for(
    e5_cache: Path, tmp_path: Path, ports: list[str]
) -> None:
    asked = tmp_path / "asked"
    own = tmp_path / "bin" / "llama-server"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\necho "$@" > {asked}\nexec {sys.executable} -m trawl.llama.embedded "$@"\n')
    own.chmod(0o700)
    environ = {"PATH": f"{own.parent}:{os.environ['PATH']}", "TRAWL_EMBED_API_KEY": "s3cret"}
    with started("serve-models", *ports, cache=e5_cache, **environ) as process:
        lines_until(process, "TRAWL_EMBED_URL")
        assert "--embeddings" in asked.read_text()
        assert "s3cret" not in asked.read_text()
        url = f"http://127.0.0.1:{ports[1]}/v1/models"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=10)
        request = urllib.request.Request(url, headers={"Authorization": "Bearer s3cret"})
        assert urllib.request.urlopen(request, timeout=10).status == 200
        again = trawl("serve-models", *ports, cache=e5_cache, **environ)
        assert again.returncode == 1
        assert "taken by a model server with multilingual-e5-small" in again.stderr
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert process.returncode == 0
        assert "trawl models pull bge-reranker-v2-m3" in err


@pytest.mark.embedded
def test_one_that_is_killed_ends_the_other(e5_cache: Path, tmp_path: Path, ports: list[str]) -> None:
    reranker = tmp_path / "tiny-reranker.gguf"
    make_reranker(reranker)
    with started("serve-models", "--rerank", str(reranker), *ports, "--threads", "1", cache=e5_cache) as process:
        lines_until(process, "TRAWL_RERANK_URL")
        victim, other = sorted(below(process), key=lambda child: "--embeddings" in child.cmdline())
        victim.kill()
        _, err = process.communicate(timeout=10)
        assert process.returncode == 1
        assert "the server for reranking (tiny-reranker.gguf) ended by signal 9" in err
        assert not other.is_running()


@pytest.mark.embedded
def test_a_file_that_is_no_model_is_told_with_the_servers_words(tmp_path: Path, ports: list[str]) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    run = trawl("serve-models", "--embed", str(tmp_path / "bad.gguf"), *ports, cache=tmp_path / "cache")
    assert run.returncode == 1
    assert "not a model file" in run.stderr
    assert "ended with exit code 1" in run.stderr
    assert "Traceback" not in run.stderr


def test_what_cannot_be_served_is_said_before_anything_starts(tmp_path: Path, ports: list[str]) -> None:
    for args, code, said in (
        (["--embed", "nonsense"], 2, "neither a file"),
        (["--embed", "bge-reranker-v2-m3"], 2, "for reranking, not for embedding"),
        (["--embed", "bge-m3"], 1, "trawl models pull bge-m3"),
        (["--embed-port", "0"], 2, "embed-port"),
    ):
        run = trawl("serve-models", *ports, *args, cache=tmp_path / "cache")
        assert run.returncode == code, run.stderr
        assert said in run.stderr
