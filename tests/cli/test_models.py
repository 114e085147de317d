"""`trawl models` and `trawl serve-models` as a shell sees them: output, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.llama.tiny_models import make_reranker
from tests.replay import Endless
from trawl.llama.models import BGE_M3, BGE_RERANKER, E5
from trawl.llama.weights import embedded_missing, ensure_e5, path_of

COMMAND = [sys.executable, "-c", "from trawl.cli import main; main()"]
needs_embedded = pytest.mark.skipif(bool(embedded_missing()), reason=embedded_missing() or "there")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def trawl(*args: str, cache: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TRAWL_CACHE_DIR": str(cache), **env},
    )


def sparse(path: Path, size: int) -> Path:
    """A file of this size that takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_the_list_has_every_model_with_its_state(cache: Path) -> None:
    sparse(path_of(BGE_M3, cache), BGE_M3.size)
    sparse(path_of(BGE_RERANKER, cache), 7)
    run = trawl("models", "list", cache=cache)
    assert run.returncode == 0
    e5, bge, rerank = run.stdout.splitlines()
    assert e5.split()[:7] == ["multilingual-e5-small", "embed", "74", "MB", "MIT", "not", "pulled"]
    assert bge.split() == ["bge-m3", "embed", "635", "MB", "MIT", "present", str(path_of(BGE_M3, cache))]
    assert rerank.split()[:6] == ["bge-reranker-v2-m3", "rerank", "636", "MB", "Apache-2.0", "damaged"]
    rows = json.loads(trawl("models", "list", "--json", cache=cache).stdout)
    assert [row["state"] for row in rows] == ["not pulled", "present", "damaged"]
    assert rows[1]["path"] == str(path_of(BGE_M3, cache))


def test_the_path_is_printed_only_for_what_is_there(cache: Path) -> None:
    absent = trawl("models", "path", "bge-m3", cache=cache)
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "trawl models pull bge-m3" in absent.stderr
    path = sparse(path_of(BGE_M3, cache), BGE_M3.size)
    assert trawl("models", "path", "bge-m3", cache=cache).stdout == f"{path}\n"
    sparse(path, 9)
    damaged = trawl("models", "path", "bge-m3", cache=cache)
    assert (damaged.returncode, damaged.stdout) == (1, "")
    assert "damaged" in damaged.stderr


@pytest.mark.parametrize("command", ["pull", "path", "verify"])
def test_an_unknown_name_lists_the_known_ones(cache: Path, command: str) -> None:
    run = trawl("models", command, "bge-m4", cache=cache)
    assert run.returncode == 2
    assert "multilingual-e5-small, bge-m3, bge-reranker-v2-m3" in run.stderr
    assert "Traceback" not in run.stderr


@needs_embedded
def test_the_embedded_model_is_pulled_verified_and_mended(cache: Path) -> None:
    pulled = trawl("models", "pull", "multilingual-e5-small", cache=cache)
    assert (pulled.returncode, pulled.stdout) == (0, f"{path_of(E5, cache)}\n")
    assert trawl("models", "verify", cache=cache).returncode == 0
    with path_of(E5, cache).open("r+b") as file:
        file.seek(40_000_000)
        file.write(b"\xff\x00\xff")
    verified = trawl("models", "verify", cache=cache)
    assert verified.returncode == 1
    assert "multilingual-e5-small is damaged: trawl models pull" in verified.stdout
    assert trawl("models", "pull", "multilingual-e5-small", cache=cache).returncode == 0
    assert trawl("models", "verify", "multilingual-e5-small", cache=cache).returncode == 0


def test_verifying_by_name_what_is_not_here_fails(cache: Path) -> None:
    assert trawl("models", "verify", "bge-m3", cache=cache).returncode == 1
    assert trawl("models", "verify", cache=cache).returncode == 0


# Pulling from a mirror on loopback, named in HF_ENDPOINT

ADDRESS = f"/{BGE_M3.repo}/resolve/{BGE_M3.revision}/{BGE_M3.file}"


def test_a_mirror_that_is_down_leaves_the_user_with_something_to_do(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    run = trawl("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=f"http://127.0.0.1:{port}")
    assert run.returncode == 4
    assert "nothing listens" in run.stderr
    assert "HF_ENDPOINT" in run.stderr
    assert str(path_of(BGE_M3, cache)) in run.stderr
    assert [p.suffix for p in (cache / "models").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 404}, "answers 404"),
        ({"content_type": "text/html"}, "web page"),
        ({"content_type": "application/octet-stream"}, f"has 5 bytes instead of {BGE_M3.size}"),
    ],
)
def test_a_mirror_with_something_else_is_told(web, cache: Path, answer: dict, said: str) -> None:
    web.add(f"http://127.0.0.1:{web.http_port}{ADDRESS}", b"hello", **answer)
    run = trawl("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=f"http://127.0.0.1:{web.http_port}/")
    assert run.returncode == 4
    assert said in run.stderr
    assert not path_of(BGE_M3, cache).exists()


def test_a_mirror_may_be_private_but_not_lead_to_another_private_host(web, cache: Path) -> None:
    web.add(
        f"http://127.0.0.1:{web.http_port}{ADDRESS}", b"", status=302, headers={"Location": "http://127.0.0.1:9/file"}
    )
    run = trawl("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=f"http://127.0.0.1:{web.http_port}")
    assert run.returncode == 3
    assert "after a redirect" in run.stderr
    assert "allow_private" not in run.stderr, "there is no such option here"


@pytest.mark.parametrize("endpoint", ["http://u:s3cret@127.0.0.1", "http://127.0.0.1:99999", "http://h/?k=s3cret"])
def test_an_endpoint_that_is_none_is_a_usage_error(cache: Path, endpoint: str) -> None:
    run = trawl("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=endpoint)
    assert run.returncode == 2
    assert "HF_ENDPOINT" in run.stderr
    assert "s3cret" not in run.stderr


@pytest.fixture
def endless(web) -> str:
    """A mirror that sends what may be the right file, without end."""
    url = f"http://127.0.0.1:{web.http_port}"
    fault = Endless(filler=b"x" * 20_000, interval_s=0.02)
    web.add(url + ADDRESS, b"x" * 100_000, content_type="application/octet-stream", fault=fault)
    return url


def part_of(cache: Path) -> Path:
    return path_of(BGE_M3, cache).with_name(f"{BGE_M3.file}.part")


def has_begun(cache: Path) -> bool:
    return part_of(cache).exists() and part_of(cache).stat().st_size >= 100_000


def test_ctrl_c_keeps_what_has_come_and_the_next_time_goes_on_from_there(web, endless: str, cache: Path) -> None:
    with started("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=endless) as process:
        wait_until(lambda: has_begun(cache))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, "")
    assert "stopped" in err
    assert "Traceback" not in err
    kept = part_of(cache).stat().st_size
    web.add(endless + ADDRESS, b"", status=404)
    assert trawl("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=endless).returncode == 4
    assert web.requests[-1].headers["range"] == f"bytes={kept}-"
    assert part_of(cache).stat().st_size == kept


def test_a_second_pull_waits_and_says_so(endless: str, cache: Path) -> None:
    with started("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=endless):
        wait_until(lambda: has_begun(cache))
        with started("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=endless) as second:
            assert "another process is downloading" in second.stderr.readline()


def test_a_person_sees_a_bar_and_a_script_does_not(endless: str, cache: Path) -> None:
    main, terminal = pty.openpty()
    with started("models", "pull", "bge-m3", cache=cache, stderr=terminal, HF_ENDPOINT=endless, TERM="xterm"):
        os.close(terminal)
        seen = b""
        while b"MB" not in seen:
            seen += os.read(main, 4096)
    os.close(main)
    assert b"bge-m3" in seen
    with started("models", "pull", "bge-m3", cache=cache, HF_ENDPOINT=endless) as process:
        wait_until(lambda: has_begun(cache))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10)[1] == "stopped\n"


# Serving


@contextmanager
def started(*args: str, cache: Path, stderr: int = subprocess.PIPE, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A running command; afterwards it and everything it started are gone."""
    environ = {**os.environ, "TRAWL_CACHE_DIR": str(cache), **env}
    process = subprocess.Popen(
        [*COMMAND, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ
    )
    try:
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for each in (process, *children):
            each.kill()
        process.communicate(timeout=10)


def wait_until(true, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


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
def test_a_file_that_is_no_model_is_told_with_the_servers_words(tmp_path: Path, cache: Path, ports: list[str]) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    run = trawl("serve-models", "--embed", str(tmp_path / "bad.gguf"), *ports, cache=cache)
    assert run.returncode == 1
    assert "not a model file" in run.stderr
    assert "ended with exit code 1" in run.stderr
    assert "Traceback" not in run.stderr


def test_what_cannot_be_served_is_said_before_anything_starts(cache: Path, ports: list[str]) -> None:
    for args, code, said in (
        (["--embed", "nonsense"], 2, "neither a file"),
        (["--embed", "bge-reranker-v2-m3"], 2, "for reranking, not for embedding"),
        (["--embed", "bge-m3"], 1, "trawl models pull bge-m3"),
        (["--embed-port", "0"], 2, "embed-port"),
    ):
        run = trawl("serve-models", *ports, *args, cache=cache)
        assert run.returncode == code, run.stderr
        assert said in run.stderr
