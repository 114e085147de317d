"""One large file whose size and hash are known beforehand, brought into its place whole or not at all.

    target there and right? done
      │ lock        one downloader per target, the others wait
      │ room        free space for what is missing
      │ part        what an earlier run left is hashed and continued
      │ ask         Range and If-Range; what the answer says of itself is judged before a byte is taken
      │ take        bytes into `<target>.part` and into the hash, never more than the file has
      │ again       a connection that broke is continued, an answer that is wrong is an error
      ▼
    size and hash right: fsync, rename

All bytes come through the HTTP client and so through its guard. The hash decides in the end: from which server, mirror
or earlier run a byte came does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Final

from trawl.deadline import Deadline
from trawl.errors import DeadlineExceeded, FetchError, NetworkError
from trawl.net.http import HttpClient, HttpStream

READ_BYTES: Final = 2**20
LEAST_BYTES: Final = 64 * 2**10
"""What has to come within `Patience.silence`: below 2 kB/s a large file takes days, so a trickle is a stall."""
MAX_CONNECTIONS: Final = 1000
"""In all, for a server that gives one byte each time."""
LONGEST_PAUSE: Final = 20.0
LOCK_POLL_SECONDS: Final = 0.2
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
WEB_PAGE: Final = frozenset({"text/html", "application/xhtml+xml"})

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19}|\*)")
_NUMBER = re.compile(r"\d{1,19}")

Progress = Callable[[int, int], None]
"""Takes the bytes that are there and the bytes in all."""
Tell = Callable[[str], None]
"""Takes one line for the person who waits."""


class NotTheFile(NetworkError):
    """What the server gives is not the file that was asked for; asking again is no use."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is borne with."""

    silence: float = 30.0
    """Seconds without an answer, or without `LEAST_BYTES` of the body."""
    tries: int = 5
    """Connections in a row that bring nothing."""
    pause: float = 0.5
    """Seconds before the next connection, doubled with each that brings nothing."""


async def download(
    url: str,
    target: Path,
    *,
    size: int,
    sha256: str,
    client: HttpClient,
    progress: Progress = lambda _done, _size: None,
    tell: Tell = lambda _line: None,
    patience: Patience = Patience(),
) -> None:
    """Brings `url` to `target`; returns at once when the right file is there already.

    What has come so far stays in `<target>.part` when this fails or is cancelled, and is continued next time; only a
    part that cannot be right is deleted. `asyncio.timeout` around the call bounds the whole.

    Args:
        url: http or https; the client's policy says where it may lead.
        target: its folder is made when it is missing.
        size: bytes of the file.
        sha256: of the file, hexadecimal, lower case.
        client: who asks.
        progress: called on the event loop as bytes come.
        tell: called with what a person may wonder about: waiting, connecting anew.
        patience: with the server.

    Raises:
        GuardRefused: the URL or a redirect leads where the policy does not allow.
        NetworkError, TooManyRedirects: the server cannot be reached, breaks off again and again, or has another file
            (`NotTheFile`).
        FetchError: the file cannot be kept: no room, no permission.
    """
    try:
        for place in (target.parent.parent, target.parent):  # the mode holds for the last part of a path only
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with _only_one(target, tell):
            if not await _is_right(target, size, sha256):
                wanted = _Wanted(url, size, sha256)
                await _Download(wanted, target, client, progress, tell, patience).run()
    except OSError as error:
        raise FetchError(f"{target} cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class _Wanted:
    url: str
    size: int
    sha256: str


class _Again(Exception):
    """Worth another connection, after `wait` seconds at the earliest."""

    def __init__(self, error: NetworkError, *, stalled: bool = False, wait: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.stalled = stalled
        self.wait = wait


class _CannotContinue(Exception):
    """The server has no rest for the part."""


class _Download:
    """One run: the part on disk, its hash, and what is known of the server's file."""

    def __init__(
        self, wanted: _Wanted, target: Path, client: HttpClient, progress: Progress, tell: Tell, patience: Patience
    ) -> None:
        self._wanted = wanted
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self._client = client
        self._progress = progress
        self._tell = tell
        self._patience = patience
        self._hash = hashlib.sha256()
        self._done = 0
        self._etag = ""
        self._answered = False
        self._inherited = False
        """The part begins with what an earlier run left."""
        self._started_over = False

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            if not self._done:
                self._part.unlink(missing_ok=True)

    async def _run(self) -> None:
        with self._part.open("ab") as file:
            await self._inherit(file)
            self._check_room()
            await self._fill(file)
            if self._inherited and not self._has_hash():
                self._start_over(file, "what an earlier run left does not belong to this file")
                await self._fill(file)
            if not self._has_hash():
                self._part.unlink()
                raise NotTheFile(
                    f"the file has another SHA-256 than expected ({self._hash.hexdigest()}) and was deleted",
                    url=self._wanted.url,
                    hint="Someone changed it on the way or at its source: do not use it.",
                )
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        self._part.replace(self._target)
        _sync_folder(self._target.parent)

    async def _inherit(self, file: BinaryIO) -> None:
        if self._part.stat().st_size > self._wanted.size:
            file.truncate(0)
        async for piece in _read(self._part):
            self._hash.update(piece)
            self._done += len(piece)
        self._inherited = self._done > 0

    def _check_room(self) -> None:
        missing = self._wanted.size - self._done
        free = shutil.disk_usage(self._target.parent).free
        if missing > free:
            raise FetchError(
                f"not enough room in {self._target.parent}: {missing / 1e6:,.0f} MB are still to come, "
                f"{free / 1e6:,.0f} MB are free"
            )

    async def _fill(self, file: BinaryIO) -> None:
        """Connects until the part has its full size."""
        in_vain = 0
        for _ in range(MAX_CONNECTIONS):
            before = self._done
            self._progress(self._done, self._wanted.size)
            if self._done == self._wanted.size:
                return
            try:
                await self._connect(file)
            except _CannotContinue as problem:
                self._start_over(file, str(problem))
            except _Again as problem:
                in_vain = in_vain + 1 if problem.stalled or self._done <= before else 0
                # Without any answer in this run there is no network or no server: whoever waits is told at once.
                if in_vain >= self._patience.tries or not self._answered:
                    raise problem.error from problem.error.__cause__
                pause = max(min(self._patience.pause * 2**in_vain, LONGEST_PAUSE), problem.wait)
                self._tell(f"{problem.error.message}; asking again in {pause:.1f} s")
                await asyncio.sleep(pause)
        raise NetworkError(f"the connection broke {MAX_CONNECTIONS} times", url=self._wanted.url)

    async def _connect(self, file: BinaryIO) -> None:
        """One connection: asks for what is missing and takes what comes."""
        silence = self._patience.silence
        headers = {"accept": "*/*", "user-agent": "trawl"}
        if self._done:
            headers |= {"range": f"bytes={self._done}-"} | ({"if-range": self._etag} if self._etag else {})
        try:
            async with self._client.stream(
                self._wanted.url, deadline=Deadline.after(silence), silence=silence, headers=headers
            ) as answer:
                self._answered = True
                start = _start_of_body(answer, self._done, self._wanted)
                if start < self._done:
                    self._start_over(file, "the server does not continue downloads")
                self._etag = _strong_etag(answer)
                await self._take(answer, file)
        except NotTheFile:
            raise
        except (TimeoutError, DeadlineExceeded) as error:
            silent = NetworkError(f"the server sent too little for {silence:.0f} s", url=self._wanted.url)
            raise _Again(silent, stalled=True) from error
        except NetworkError as error:
            raise _Again(error) from error
        if self._done < self._wanted.size:
            raise _Again(NetworkError("the server ended before the file did", url=self._wanted.url))

    async def _take(self, answer: HttpStream, file: BinaryIO) -> None:
        loop = asyncio.get_running_loop()
        recent = 0
        async with asyncio.timeout(self._patience.silence) as stall:
            async for piece in answer.pieces:
                if self._done + len(piece) > self._wanted.size:
                    self._part.unlink()
                    raise NotTheFile(f"the server sends more than {self._wanted.size} bytes", url=answer.final_url)
                file.write(piece)
                self._hash.update(piece)
                self._done += len(piece)
                self._progress(self._done, self._wanted.size)
                recent += len(piece)
                if recent >= LEAST_BYTES:
                    recent = 0
                    stall.reschedule(loop.time() + self._patience.silence)

    def _start_over(self, file: BinaryIO, why: str) -> None:
        """Forgets what is there.

        Raises:
            NotTheFile: for the second time.
        """
        if self._started_over:
            raise NotTheFile(f"{why}, and has broken off again", url=self._wanted.url)
        self._tell(f"{why}; starting over")
        file.truncate(0)
        self._hash = hashlib.sha256()
        self._done = 0
        self._etag = ""
        self._inherited = False
        self._started_over = True

    def _has_hash(self) -> bool:
        return self._hash.hexdigest() == self._wanted.sha256


def _start_of_body(answer: HttpStream, offset: int, wanted: _Wanted) -> int:
    """Which byte of the file the body begins with, when everything from `offset` on was asked for.

    Raises:
        _Again, _CannotContinue, NotTheFile: the body is of no use.
    """
    status, headers = answer.status, answer.headers
    if status in PASSING:
        raise _Again(NetworkError(f"the server answers {_named(status)}", url=wanted.url), wait=_retry_after(headers))
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
        raise _CannotContinue("the server has nothing more of this file")
    if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        raise NotTheFile(f"the server answers {_named(status)}", url=answer.final_url)
    if answer.content_type in WEB_PAGE:
        raise NotTheFile(f"a web page ({answer.content_type}) came instead of the file", url=answer.final_url)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise NotTheFile("the file came compressed although that was not asked for", url=answer.final_url)
    if status == HTTPStatus.OK:
        length = headers.get("content-length", "")
        if length and length != str(wanted.size):
            raise NotTheFile(
                f"the server's file has {length[:20]} bytes instead of {wanted.size}", url=answer.final_url
            )
        return 0
    given = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    if not offset:
        raise NotTheFile("the server gives only a part of the file", url=answer.final_url)
    if not given or int(given[1]) != offset or given[2] not in ("*", str(wanted.size)):
        raise _CannotContinue("the server continues another file")
    return offset


def _strong_etag(answer: HttpStream) -> str:
    """Only a strong one may stand in If-Range (RFC 9110, section 13.1.5)."""
    etag = answer.headers.get("etag", "")
    return etag if re.fullmatch(r'"[\x21\x23-\x7e]{0,256}"', etag) else ""


def _retry_after(headers: Mapping[str, str]) -> float:
    value = headers.get("retry-after", "")
    return min(float(value), LONGEST_PAUSE) if _NUMBER.fullmatch(value) else 0.0


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


async def _is_right(path: Path, size: int, sha256: str) -> bool:
    if not _has_size(path, size):
        return False
    digest = hashlib.sha256()
    async for piece in _read(path):
        digest.update(piece)
    return digest.hexdigest() == sha256


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


async def _read(path: Path) -> AsyncIterator[bytes]:
    """The file in pieces, read beside the loop: a disk may be slow."""
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, READ_BYTES):
            yield piece


@contextlib.asynccontextmanager
async def _only_one(target: Path, tell: Tell) -> AsyncIterator[None]:
    """Waits until no other process downloads `target`; the kernel lets go of the lock however the process ends."""
    with target.with_name(f"{target.name}.lock").open("ab") as file:
        if not _locked(file):
            tell("another process is downloading this file; waiting for it")
            while not _locked(file):  # noqa: ASYNC110 (the kernel's lock tells nobody when it is free)
                await asyncio.sleep(LOCK_POLL_SECONDS)
        yield


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
