"""The process that runs the embedded server, as seen by its parent: started on first use, one for all engines of this
process, gone with the last of them.

The child is watched by a thread rather than by an event loop: engines in one process have loops of their own, and the
child must outlive the loop of whichever engine came first. It ends when the pipe to its stdin closes, so nothing the
parent dies of leaves it behind.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from trawl.deadline import Deadline
from trawl.errors import ModelUnavailable
from trawl.llama.embedded import REPORT

START_SECONDS = 30.0
"""Measured: 1.5 s with the model in the cache, 3 s when it has to be converted, on two cores."""
KEPT_LOG_BYTES = 4096
"""The end of the child's output, for the message when it fails."""

_lock = threading.RLock()
_current: _Child | None = None
_children: set[_Child] = set()
"""All that run; besides the current one there may be one that is just dying."""
_hooks_registered = False


@dataclass(slots=True)
class Lease:
    """The right to use the embedded server, until released."""

    url: str
    key: str = field(repr=False)
    pid: int
    """Of the server."""
    _child: _Child = field(repr=False)
    _owner: int = field(default_factory=os.getpid, repr=False)
    _released: bool = field(default=False, repr=False)

    def check(self) -> None:
        """Raises `ModelUnavailable` in a process forked from the one that holds the lease."""
        if os.getpid() != self._owner:
            raise ModelUnavailable("the embedded server belongs to the process this one was forked from")

    def release(self) -> None:
        """Gives the lease back; the last one stops the server. Quick, and harmless when repeated or after a fork."""
        if not self._released and os.getpid() == self._owner:
            self._released = True
            self._child.leave()


async def lease_server(cache_dir: Path, deadline: Deadline) -> Lease:
    """Joins the server of this process, or starts it.

    Starting takes 1 to 3 s and is given up when the last caller that waits gives up: who has less time than that never
    gets a server, and should wait for it apart from the call (with a deadline of its own).

    Raises:
        ModelUnavailable: it ended while starting (with its last words), or is not ready in time.
    """
    child = _join(cache_dir)
    try:
        await _settled(child, deadline)
        url = child.ready.result(timeout=0)
    except BaseException:
        child.leave()
        raise
    return Lease(url=url, key=child.key, pid=child.process.pid, _child=child)


async def _settled(child: _Child, deadline: Deadline) -> None:
    """Waits until the child is ready or has failed."""
    if child.ready.done():
        return
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def wake(_: Future[str]) -> None:
        # The loop may be closed by now: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(event.set)

    child.ready.add_done_callback(wake)
    allowed = child.started + START_SECONDS - time.monotonic()
    seconds = max(0.0, min(deadline.remaining(), allowed))
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        raise ModelUnavailable(f"the embedded server is not ready after {child.age():.1f} s") from None


def _join(cache_dir: Path) -> _Child:
    global _current, _hooks_registered
    with _lock:
        if not _hooks_registered:
            # Held over a fork, so that the copy never sees a child half registered.
            os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)
            atexit.register(_stop_all)
            _hooks_registered = True
        if _current is None or not _current.usable():
            _current = _Child(cache_dir)
        _current.leases += 1
        return _current


def _after_fork() -> None:
    """In a forked process: let go of the parent's children without touching them."""
    global _current
    for child in _children:
        child.forget()
    _children.clear()
    _current = None
    _lock.release()


def _stop_all() -> None:
    with _lock:
        for child in list(_children):
            child.stop()


class _Child:
    """One running server. Its thread reads its output (a full pipe would block it) and reaps it when it ends."""

    def __init__(self, cache_dir: Path) -> None:
        self.key = secrets.token_urlsafe(24)
        self.leases = 0
        self.started = time.monotonic()
        self.ready: Future[str] = Future()
        self._silent = False
        # -P: what lies in the working directory must not be imported.
        command = [sys.executable or "", "-P", "-m", "trawl.llama.embedded", "--leased", "--port", "0"]
        command += ["--cache-dir", str(cache_dir.absolute())]
        try:
            stdin, self._lifeline = os.pipe()
        except OSError as error:
            raise ModelUnavailable(f"the embedded server cannot be started: {error.strerror}") from error
        try:
            self.process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent
            )
        except OSError as error:
            os.close(self._lifeline)
            raise ModelUnavailable(f"the embedded server cannot be started: {error.strerror}") from error
        finally:
            os.close(stdin)
        _children.add(self)
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended already: its thread says why
                os.write(self._lifeline, self.key.encode() + b"\n")
            threading.Thread(target=self._watch, name="trawl-embedded-server", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self.stop()
            raise ModelUnavailable(f"the embedded server cannot be watched: {error}") from error

    def age(self) -> float:
        return time.monotonic() - self.started

    def usable(self) -> bool:
        """Whether it runs and has not failed; a start that takes too long counts as failed."""
        # While the watching thread waits for the end, `poll` knows nothing: it cannot ask at the same time.
        if self._silent or self.process.poll() is not None:
            return False
        return self.ready.exception() is None if self.ready.done() else self.age() < START_SECONDS

    def leave(self) -> None:
        """One lease less; without any the server is stopped."""
        with _lock:
            self.leases -= 1
            if self.leases <= 0:
                self.stop()

    def stop(self) -> None:
        """Ends the process; it has no state, so that killing it is the quick and sure way."""
        global _current
        with _lock:
            if _current is self:
                _current = None
            if self not in _children:
                return
            _children.discard(self)
            self.process.kill()
            os.close(self._lifeline)
            with contextlib.suppress(subprocess.TimeoutExpired):  # uninterruptible in the kernel: its thread reaps it
                self.process.wait(timeout=5)

    def forget(self) -> None:
        os.close(self._lifeline)
        # It is not this process's child: `Popen` must neither wait for it nor warn.
        self.process.returncode = 0

    def _watch(self) -> None:
        output = self.process.stdout
        assert output is not None  # noqa: S101 (asked for above)
        kept = b""
        with output:
            while piece := os.read(output.fileno(), 65536):
                kept += piece
                if not self.ready.done():
                    self._read_report(kept)
                kept = kept[-KEPT_LOG_BYTES:]
        self._silent = True
        code = self.process.wait()
        if not self.ready.done():
            self.ready.set_exception(ModelUnavailable(f"the embedded server {_how_it_ended(code, kept)}"))

    def _read_report(self, text: bytes) -> None:
        for line in text.splitlines(keepends=True):
            if not line.startswith(REPORT) or not line.endswith(b"\n"):
                continue
            report = json.loads(line[len(REPORT) :])
            if "url" in report:
                self.ready.set_result(report["url"])
            else:
                self.ready.set_exception(ModelUnavailable(f"the embedded server did not start: {report['error']}"))
            return


def _how_it_ended(code: int, output: bytes) -> str:
    if code == -signal.SIGILL:
        return "ended while starting: this CPU lacks AVX2"
    lines = output.decode("utf-8", "replace").split("\n")
    last_words = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "no word why")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"ended while starting ({how}): {last_words}"
