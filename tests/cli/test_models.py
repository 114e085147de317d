"""`trawl models` as a shell sees it: output, exit codes, and what is left when it is stopped."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.command import started, trawl, wait_until
from tests.replay import Endless
from trawl.llama.models import BGE_M3, BGE_RERANKER, E5
from trawl.llama.weights import embedded_missing, path_of

needs_embedded = pytest.mark.skipif(bool(embedded_missing()), reason=embedded_missing() or "there")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


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
