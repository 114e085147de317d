"""Readers of native code (PDF) in a child process that is killed at the deadline, on cancelling, or when it runs away.

    body ─> scratch file ─> python -m trawl._worker ─> scratch file ─> Document

Files in memory instead of pipes: nothing to pump, nothing that blocks, and the kernel bounds what the child writes.
A plain `subprocess` instead of `multiprocessing`: scripts that use trawl need no main guard.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, get_args

from trawl.deadline import Deadline
from trawl.errors import DeadlineExceeded, ExtractionError
from trawl.types import Block, BlockKind, Document, Link

MEMORY = 1_536 * 2**20
"""Address space of the child in bytes. PyMuPDF takes 0.2 GB to start, pages of pictures some hundred MB more."""
MAX_SECONDS = 60.0
MAX_ANSWER = 64 * 2**20
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL")
_KINDS = frozenset(get_args(BlockKind))


def read_isolated(kind: str, body: bytes, *, url: str = "", deadline: Deadline) -> Document:
    """`body` read by the reader for `kind` ("pdf") in a child process.

    Raises:
        ExtractionError: it cannot be read, or the child crashed.
        DeadlineExceeded: time ran out; the child is gone.
    """
    with _prepared(kind, body, url, deadline) as job:
        child = subprocess.Popen(job.argv, **job.options)  # noqa: S603 - our own interpreter and module
        try:
            code = child.wait(deadline.remaining())
        except subprocess.TimeoutExpired:
            raise _too_slow(kind, url) from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        return job.document(code)


async def aread_isolated(kind: str, body: bytes, *, url: str = "", deadline: Deadline) -> Document:
    """The same without blocking the event loop; cancelling kills the child."""
    with _prepared(kind, body, url, deadline) as job:
        child = await asyncio.create_subprocess_exec(*job.argv, **job.options)
        try:
            async with asyncio.timeout(deadline.remaining()):
                code = await child.wait()
        except TimeoutError:
            raise _too_slow(kind, url) from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await asyncio.shield(child.wait())
        return await asyncio.to_thread(job.document, code)


@dataclass(frozen=True, slots=True)
class _Job:
    kind: str
    body: bytes
    url: str
    argv: tuple[str, ...]
    options: dict[str, Any]
    answer: BinaryIO

    def document(self, code: int) -> Document:
        if code != 0:
            raise self._crash(code)
        self.answer.seek(0)
        raw = self.answer.read(MAX_ANSWER + 1)
        try:
            return _document(json.loads(raw), self.url)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ExtractionError(f"the {self.kind} reader gave an answer that cannot be used", url=self.url) from error

    def _crash(self, code: int) -> ExtractionError | DeadlineExceeded:
        if -code in (signal.SIGALRM, signal.SIGXCPU):
            return _too_slow(self.kind, self.url)
        if code < 0:
            with contextlib.suppress(ValueError):
                return ExtractionError(f"the {self.kind} reader crashed ({signal.Signals(-code).name})", url=self.url)
        return ExtractionError(f"the {self.kind} reader ended with exit status {code}", url=self.url)


@contextlib.contextmanager
def _prepared(kind: str, body: bytes, url: str, deadline: Deadline) -> Iterator[_Job]:
    seconds = min(deadline.check(f"reading the {kind}", url), MAX_SECONDS)
    request = {"url": url, "seconds": seconds, "memory": MEMORY}
    with _scratch("in") as given, _scratch("out") as answer:
        try:
            given.write(json.dumps(request).encode() + b"\n" + body)
            given.seek(0)
        except OSError as error:
            raise ExtractionError(f"no room for reading the {kind}: {error.strerror}", url=url) from error
        yield _Job(
            kind, body, url, _command(kind),
            {
                "stdin": given, "stdout": answer, "stderr": subprocess.DEVNULL, "env": _environment(),
                "cwd": tempfile.gettempdir(), "start_new_session": True,
            },
            answer,
        )  # fmt: skip


def _command(kind: str) -> tuple[str, ...]:
    # -P: a file named json.py in the working directory is not ours.
    return (sys.executable, "-P", "-m", "trawl._worker", kind)


def _environment() -> dict[str, str]:
    """What the child needs to start, and nothing else: keys and tokens of the user stay here."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    modules = [path for path in sys.path if path and os.path.isabs(path)]  # noqa: PTH117 - entries are strings
    return kept | {"PYTHONPATH": os.pathsep.join(modules), "PYTHONNOUSERSITE": "1"}


@contextlib.contextmanager
def _scratch(name: str) -> Iterator[BinaryIO]:
    """A file in memory where the system has them, else an unnamed one on disk."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create(f"trawl-{name}"), "w+b") as file:
            yield file
    else:
        with tempfile.TemporaryFile() as file:
            yield file


def _document(answer: dict[str, Any], url: str) -> Document:
    """The child's answer checked and put together: what read a hostile file is not trusted either."""
    if "error" in answer:
        raise ExtractionError(str(answer["error"])[:500], url=url, hint=str(answer.get("hint", ""))[:200])
    source = answer["source"]
    if not isinstance(source, str):
        raise TypeError("source")
    end = len(source)
    return Document(
        source=source,
        blocks=tuple(_block(*fields, limit=end) for fields in answer["blocks"]),
        url=url,
        title=str(answer["title"]),
        content_type=str(answer["content_type"]),
        metadata={str(k): v for k, v in answer["metadata"].items()},
        links=tuple(_link(*fields, limit=end) for fields in answer["links"]),
        document_id=str(answer["document_id"]),
        warnings=tuple(str(w) for w in answer["warnings"]),
    )


def _block(kind: str, start: int, stop: int, text: str, level: int, page: int | None, *, limit: int) -> Block:
    if kind not in _KINDS or not 0 <= start <= stop <= limit or not isinstance(text, str):
        raise ValueError("block")
    return Block(kind, start, stop, text, level=int(level), page=None if page is None else int(page))  # type: ignore[arg-type]


def _link(start: int, stop: int, url: str, text: str, *, limit: int) -> Link:
    if not 0 <= start <= stop <= limit or not url.startswith(("http://", "https://")):
        raise ValueError("link")
    return Link(start, stop, url, str(text))


def _too_slow(kind: str, url: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"time is up while reading the {kind}", url=url, hint="Give a longer timeout.")
