"""A large file comes whole or not at all, whatever the server and the network do in between."""
# ruff: noqa: ASYNC240 (small files of the test)

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import random
import re
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.net.wire import Request, Server, deaf_listeners, reply, serve
from trawl.errors import FetchError, GuardRefused, NetworkError, TooManyRedirects
from trawl.net import download as module
from trawl.net.dialer import Dialer
from trawl.net.download import NotTheFile, Patience, download
from trawl.net.guard import Policy
from trawl.net.http import HttpClient
from trawl.settings import Settings

BODY = random.Random(3).randbytes(700_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
QUICK = Patience(silence=5, tries=3, pause=0.01)
SOON = Patience(silence=0.6, tries=2, pause=0.01)


@dataclass
class Hub:
    """A server of one file. `cuts` are the bytes after which connections break, one by one; then it serves whole."""

    body: bytes = BODY
    cuts: Iterator[int] = field(default_factory=lambda: iter(()))
    ranges: bool = True
    etag: str = '"e"'
    first: list[bytes] = field(default_factory=list)
    """Answers given before any other, as they are."""
    chunked: bool = False
    port: int = 0
    asked: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/model.gguf"

    def starts(self) -> list[str | None]:
        return [request.header("range") for request in self.asked]

    async def answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.asked.append(request)
        if self.first:
            writer.write(self.first.pop(0))
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", request.header("range") or "bytes=0-")[1])
        unchanged = (request.header("if-range") or self.etag) == self.etag
        if request.header("range") and start >= len(self.body) and self.ranges:
            writer.write(reply("416 Range Not Satisfiable", content_range=f"bytes */{len(self.body)}"))
            return
        if not self.ranges or not unchanged:
            start = 0
        rest = self.body[start:]
        head = f"HTTP/1.1 {'206 Partial Content' if start else '200 OK'}\r\nETag: {self.etag}\r\n"
        if start:
            head += f"Content-Range: bytes {start}-{len(self.body) - 1}/{len(self.body)}\r\n"
        if self.chunked:
            head += "Transfer-Encoding: chunked\r\n\r\n"
            writer.write(head.encode() + f"{len(rest):x}\r\n".encode() + rest + b"\r\n0\r\n\r\n")
            return
        writer.write(f"{head}Content-Length: {len(rest)}\r\n\r\n".encode())
        cut = next(self.cuts, None)
        writer.write(rest if cut is None else rest[:cut])
        await writer.drain()
        if cut is not None:
            writer.close()


@contextlib.asynccontextmanager
async def hub(**options: Any) -> AsyncIterator[Hub]:
    it = Hub(**options)
    async with serve(it.answer) as server:
        it.port = server.port
        yield it
        assert await server.idle(), "a connection was left open"


@contextlib.asynccontextmanager
async def client_for(port: int) -> AsyncIterator[HttpClient]:
    async with HttpClient(Dialer(Policy.of([f"127.0.0.1:{port}"])), settings=Settings()) as client:
        yield client


async def fetch(it: Hub, target: Path, **options: Any) -> list[str]:
    """What the user was told; the file must be there afterwards, and nothing else but the lock."""
    told: list[str] = []
    async with client_for(it.port) as client:
        given = {"size": len(BODY), "sha256": SHA256, "patience": QUICK, "tell": told.append} | options
        await download(it.url, target, client=client, **given)
    assert target.read_bytes() == BODY
    assert sorted(p.name for p in target.parent.iterdir()) == ["model.gguf", "model.gguf.lock"]
    return told


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "model.gguf"


def part(target: Path) -> Path:
    return target.with_name("model.gguf.part")


async def test_the_file_comes_and_progress_is_told(target: Path) -> None:
    seen: list[tuple[int, int]] = []
    async with hub() as it:
        assert await fetch(it, target, progress=lambda done, size: seen.append((done, size))) == []
    assert seen[0] == (0, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)
    assert it.asked[0].header("accept-encoding") == "identity"
    assert target.parent.stat().st_mode & 0o077 == 0


async def test_the_right_file_is_not_asked_for_again(target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(BODY)
    async with hub() as it:
        await fetch(it, target)
    assert it.asked == []


@pytest.mark.parametrize("damaged", [BODY[:-1], BODY[:-1] + bytes([BODY[-1] ^ 1]), b""])
async def test_a_damaged_file_is_replaced(target: Path, damaged: bytes) -> None:
    target.parent.mkdir()
    target.write_bytes(damaged)
    async with hub() as it:
        await fetch(it, target)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("etag", ['"e"', 'W/"e"'])
async def test_a_connection_that_breaks_anywhere_is_continued(target: Path, seed: int, etag: str) -> None:
    dice = random.Random(seed)
    async with hub(cuts=iter([dice.randrange(1, 100_000) for _ in range(6)]), etag=etag) as it:
        told = await fetch(it, target)
    assert len(it.asked) == 7
    assert len(told) == 6
    assert it.starts()[0] is None
    assert all(it.starts()[1:])
    assert {request.header("if-range") for request in it.asked[1:]} == {'"e"' if etag == '"e"' else None}


async def test_what_an_earlier_run_left_is_continued(target: Path) -> None:
    target.parent.mkdir()
    part(target).write_bytes(BODY[:123_456])
    async with hub() as it:
        await fetch(it, target)
    assert it.starts() == ["bytes=123456-"]


@pytest.mark.parametrize("left", [b"x" * 5000, b"x" * len(BODY), BODY + b"more"])
async def test_what_an_earlier_run_left_of_another_file_is_forgotten(target: Path, left: bytes) -> None:
    target.parent.mkdir()
    part(target).write_bytes(left)
    async with hub() as it:
        await fetch(it, target)
    assert it.starts()[-1] is None


async def test_a_whole_part_needs_no_server(target: Path) -> None:
    target.parent.mkdir()
    part(target).write_bytes(BODY)
    async with hub() as it:
        await fetch(it, target)
    assert it.asked == []


async def test_a_server_without_ranges_starts_over_once(target: Path) -> None:
    async with hub(ranges=False, cuts=iter([300_000])) as it:
        told = await fetch(it, target)
    assert any("starting over" in line for line in told)
    async with hub(ranges=False, cuts=iter([1000] * 9)) as it:
        target.unlink()
        with pytest.raises(NotTheFile, match="does not continue"):
            await fetch(it, target)
    assert len(it.asked) == 3


async def test_a_file_that_changed_meanwhile_starts_over(target: Path) -> None:
    async with hub(cuts=iter([200_000])) as it:
        first = it.answer

        async def changing(request: Request, writer: asyncio.StreamWriter) -> None:
            it.etag = f'"{len(it.asked)}"'
            await first(request, writer)

        async with serve(changing) as server:
            it.port = server.port
            await fetch(it, target)
    assert it.asked[1].header("if-range") == '"0"'


@pytest.mark.parametrize(
    "rest",
    [
        reply("416 Range Not Satisfiable"),
        reply("206 Partial Content", b"x" * 10, content_range="bytes 5-14/700000"),
        reply("206 Partial Content", b"x" * 10, content_range="bytes 1000-1009/1010"),
        reply("206 Partial Content", b"x" * 10, content_range="lines 1-2/3"),
        reply("206 Partial Content", b"x" * 10),
    ],
)
async def test_a_rest_that_does_not_fit_starts_over(target: Path, rest: bytes) -> None:
    target.parent.mkdir()
    part(target).write_bytes(BODY[:1000])
    async with hub(first=[rest]) as it:
        await fetch(it, target)
    assert it.starts() == ["bytes=1000-", None]
    target.unlink()
    part(target).write_bytes(BODY[:1000])
    async with hub(first=[rest, b"HTTP/1.1 200 OK\r\nContent-Length: 700000\r\n\r\nabc", rest], cuts=iter([3])) as it:
        with pytest.raises(NetworkError):
            await fetch(it, target, patience=SOON)
    assert not target.exists()


@pytest.mark.parametrize("wrong", [b"", b"short", BODY + b"and more", BODY[:-1]])
async def test_another_size_is_refused_before_a_byte_is_taken(target: Path, wrong: bytes) -> None:
    async with hub(body=wrong) as it:
        with pytest.raises(NotTheFile, match=f"has {len(wrong)} bytes instead of 700000"):
            await fetch(it, target)
    assert [p.suffix for p in target.parent.iterdir()] == [".lock"]
    assert len(it.asked) == 1


async def test_more_than_announced_is_cut(target: Path) -> None:
    async with hub(body=BODY + b"x" * 10_000_000, chunked=True) as it:
        with pytest.raises(NotTheFile, match="more than 700000"):
            await fetch(it, target)
    assert not target.exists()
    assert not part(target).exists()


async def test_less_than_announced_ends_in_an_error(target: Path) -> None:
    async with hub(body=BODY[:5000], chunked=True) as it:
        with pytest.raises(NetworkError):
            await fetch(it, target)
    assert not target.exists()
    assert len(it.asked) <= 5


async def test_a_wrong_hash_deletes_the_part_and_says_so(target: Path) -> None:
    other = bytes([BODY[0] ^ 1]) + BODY[1:]
    async with hub(body=other) as it:
        with pytest.raises(NotTheFile, match="SHA-256") as caught:
            await fetch(it, target)
    assert hashlib.sha256(other).hexdigest() in str(caught.value)
    assert [p.suffix for p in target.parent.iterdir()] == [".lock"]


async def test_a_wrong_hash_leaves_the_file_that_was_there(target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"an older one")
    async with hub(body=b"x" * len(BODY)) as it:
        with pytest.raises(NotTheFile):
            await fetch(it, target)
    assert target.read_bytes() == b"an older one"


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "404 Not Found", "410 Gone", "418 x", "304 x"])
async def test_a_refusal_is_told_at_once(target: Path, status: str) -> None:
    async with hub(first=[reply(status, b"<h1>no</h1>", content_type="text/html")] * 9) as it:
        with pytest.raises(NotTheFile, match=f"answers {status[:3]}"):
            await fetch(it, target)
    assert len(it.asked) == 1


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable", "500 x", "502 x"])
async def test_a_busy_server_is_asked_again(target: Path, status: str) -> None:
    async with hub(first=[reply(status, retry_after="0")] * 2) as it:
        await fetch(it, target)
    target.unlink()
    async with hub(first=[reply(status, retry_after="Wed, 21 Oct 2026 07:28:00 GMT")] * 9) as it:
        with pytest.raises(NetworkError, match=f"answers {status[:3]}"):
            await fetch(it, target)
    assert len(it.asked) == QUICK.tries


def test_a_busy_server_says_when(target: Path) -> None:
    assert module._retry_after({"retry-after": "3"}) == 3
    assert module._retry_after({"retry-after": "86400"}) == module.LONGEST_PAUSE
    assert module._retry_after({"retry-after": "-1"}) == 0


@pytest.mark.parametrize("length", [700_000, 40, None])
async def test_a_web_page_is_not_the_file(target: Path, length: int | None) -> None:
    page = b"<html>please log in</html>".ljust(length or 40)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
    framing = b"Content-Length: %d\r\n\r\n" % length if length else b"Transfer-Encoding: chunked\r\n\r\n28\r\n"
    async with hub(first=[head + framing + page]) as it:
        with pytest.raises(NotTheFile, match="web page"):
            await fetch(it, target)


async def test_a_compressed_answer_is_refused(target: Path) -> None:
    async with hub(first=[reply("200 OK", BODY, content_encoding="gzip")]) as it:
        with pytest.raises(NotTheFile, match="compressed"):
            await fetch(it, target)


async def test_a_server_that_falls_silent_is_left(target: Path) -> None:
    silent = b"HTTP/1.1 200 OK\r\nContent-Length: 700000\r\n\r\n" + BODY[:2000]
    rest = b"HTTP/1.1 206 x\r\nContent-Range: bytes 2000-699999/700000\r\nContent-Length: 698000\r\n\r\n"
    async with hub(first=[silent]) as it:
        await fetch(it, target, patience=SOON)
    assert it.starts() == [None, "bytes=2000-"]
    target.unlink()
    async with hub(first=[silent, rest, rest, rest, rest]) as it:
        with pytest.raises(NetworkError, match="too little for"):
            await fetch(it, target, patience=SOON)
    assert part(target).read_bytes() == BODY[:2000], "kept for the next time"


async def test_a_trickle_counts_as_silence(target: Path) -> None:
    async def trickle(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 700000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serve(trickle) as server:
        it = Hub(port=server.port)
        with pytest.raises(NetworkError):
            await asyncio.wait_for(fetch(it, target, patience=SOON), 10)


async def test_nobody_there_is_told_at_once(target: Path) -> None:
    async with serve(Hub().answer) as server:
        port = server.port
    with pytest.raises(NetworkError, match="nothing listens"):
        await fetch(Hub(port=port), target, patience=Patience(pause=100))


async def test_a_server_that_goes_away_in_the_middle_is_waited_for(target: Path) -> None:
    it = Hub(cuts=iter([100_000]))
    told: asyncio.Queue[str] = asyncio.Queue()
    async with serve(it.answer) as server:
        it.port = server.port
        patient = Patience(tries=8, pause=0.05)
        running = asyncio.create_task(fetch(it, target, tell=told.put_nowait, patience=patient))
        await told.get()
    await told.get()
    back = Server(it.answer)
    listener = await asyncio.start_server(back.handle, "127.0.0.1", it.port)
    await running
    listener.close()
    assert await back.idle()


async def test_a_redirect_is_followed_and_the_range_goes_along(target: Path) -> None:
    async with hub(cuts=iter([1000])) as it:

        async def elsewhere(_: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(reply("302 Found", location=it.url))

        async with serve(elsewhere) as front:
            policy = Policy.of([f"127.0.0.1:{front.port}", f"127.0.0.1:{it.port}"])
            async with HttpClient(Dialer(policy), settings=Settings()) as client:
                url = f"http://127.0.0.1:{front.port}/x"
                await download(url, target, size=len(BODY), sha256=SHA256, client=client, patience=QUICK)
    assert target.read_bytes() == BODY
    assert it.starts() == [None, "bytes=1000-"]
    assert it.asked[1].header("if-range") == '"e"'


async def test_a_redirect_to_a_private_address_is_refused(target: Path) -> None:
    async with deaf_listeners() as (port, _):
        for place in (f"http://127.0.0.1:{port}/", f"http://[::1]:{port}/", f"http://localhost:{port}/"):
            async with hub(first=[reply("302 Found", location=place)]) as it:
                with pytest.raises(GuardRefused):
                    await fetch(it, target)
    assert not target.exists()


async def test_a_circle_of_redirects_ends(target: Path) -> None:
    async with hub(first=[reply("302 Found", location="/model.gguf")] * 20) as it:
        with pytest.raises(TooManyRedirects):
            await fetch(it, target)


async def test_no_room_is_told_before_anything_is_asked(target: Path) -> None:
    async with hub() as it:
        with pytest.raises(FetchError, match="not enough room"):
            await fetch(it, target, size=10**18)
    assert it.asked == []


async def test_a_full_disk_in_the_middle_is_told(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.parent.mkdir()
    part(target).symlink_to("/dev/full")
    monkeypatch.setattr(module, "_read", nothing)
    async with hub() as it:
        with pytest.raises(FetchError, match="No space left"):
            await fetch(it, target)


async def nothing(_: Path) -> AsyncIterator[bytes]:
    """/dev/full reads as endless zeros."""
    return
    yield b""


async def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    async with hub() as it:
        with pytest.raises(FetchError, match="cannot be written"):
            await fetch(it, tmp_path / "models" / "model.gguf")


async def test_cancelling_keeps_what_came_and_leaves_nothing_running(target: Path) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 700000\r\n\r\n" + BODY[:300_000]
    arrived = asyncio.Event()
    async with hub(first=[half]) as it:

        def progress(done: int, _: int) -> None:
            if done == 300_000:
                arrived.set()

        running = asyncio.create_task(fetch(it, target, progress=progress, patience=Patience()))
        await arrived.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert part(target).read_bytes() == BODY[:300_000]
        await fetch(it, target)
    assert it.starts() == [None, "bytes=300000-"]


async def test_two_at_once_download_once(target: Path) -> None:
    async with hub() as it:
        told = await asyncio.gather(fetch(it, target), fetch(it, target), fetch(it, target))
    assert len(it.asked) == 1
    assert sum("waiting" in line for lines in told for line in lines) == 2


async def test_another_process_is_waited_for_and_its_death_is_noticed(target: Path) -> None:
    target.parent.mkdir()
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'ab')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(flush=True)\n"
        "time.sleep(60)",
        str(target.with_name("model.gguf.lock")),
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    await holder.stdout.readline()
    waiting = asyncio.Event()
    async with hub() as it:
        running = asyncio.create_task(fetch(it, target, tell=lambda _: waiting.set()))
        await waiting.wait()
        assert it.asked == []
        holder.kill()
        await holder.wait()
        await running


async def test_a_cancelled_waiter_lets_go(target: Path) -> None:
    target.parent.mkdir()
    with target.with_name("model.gguf.lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        async with hub() as it:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fetch(it, target), 0.3)
    async with hub() as it:
        await fetch(it, target)


async def test_messages_hold_no_secrets(target: Path) -> None:
    async with hub(first=[reply("404 Not Found")]) as it, client_for(it.port) as client:
        with pytest.raises(NotTheFile) as caught:
            await download(f"{it.url}?token=s3cret", target, size=1, sha256="0" * 64, client=client, patience=QUICK)
    assert "s3cret" not in str(caught.value)
