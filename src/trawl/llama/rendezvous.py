"""How the processes of one user share one embedded server: at most one runs, started by the first that needs it and
ended when nobody does. Both sides of it: clients join or start (`lease_server`), the server watches who is left
(`SharedServer`). Where they meet, and by which files, is `run_directory`.

A client joins while it holds the gate, and the server ends while it holds the gate: a lease taken from a running server
keeps it running. A server that dies without a word is noticed by its lock.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trawl.deadline import Deadline
from trawl.errors import ModelUnavailable
from trawl.llama.models import E5
from trawl.llama.run_directory import GATE, LOCK, LOG, STATE, Failed, LeaseFile, OpenFile, RunDirectory, Running

START_SECONDS = 30.0
"""For loading. Measured: 1.5 s with the model in the cache, 3 s when it has to be converted, on two cores."""
IDLE_SECONDS = 600.0
"""A lease that has not been used for so long no longer keeps the server."""
GRACE_SECONDS = 6.0
"""How long the server stays without a lease: commands that follow each other find it warm. It has to be gone within
10 s of the last lease."""
LOOK_SECONDS = 1.0
"""Between two looks of the server at its leases; one takes 0.1 ms."""
POLL_SECONDS = 0.02
"""Between two attempts of a client at a lock or at the state file: a wait without a thread, which can be cancelled."""
MAX_LOG_BYTES = 2**20


# The client's side


@dataclass(slots=True)
class Lease:
    """The right to use the shared server, until released or until this process ends."""

    url: str
    key: str = field(repr=False)
    pid: int
    """Of the server."""
    _directory: RunDirectory = field(repr=False)
    _file: LeaseFile = field(repr=False)
    _owner: int = field(default_factory=os.getpid, repr=False)

    def touch(self) -> None:
        """Says that the server is in use; to be called with every request. Quick."""
        self._file.touch()

    def check(self) -> None:
        """Raises `ModelUnavailable` in a process forked from the one that holds the lease."""
        if os.getpid() != self._owner:
            raise ModelUnavailable("the embedded server was leased by the process this one was forked from")

    def server_state(self) -> Literal["running", "ended", "crashed"]:
        """What has become of this lease's server: `ended` when it ended in order (idle, or told to) or the lease is
        released, `crashed` when it was killed or died, also when another one runs by now.

        A process that is just being killed holds its lock for some milliseconds after its connections are broken, and
        counts as running.
        """
        try:
            if not self._file.stands():
                return "ended"
            lives, state = self._directory.server_lives(), self._directory.read_state()
        except OSError:
            return "crashed"
        return "running" if lives and isinstance(state, Running) and state.key == self.key else "crashed"

    def release(self) -> None:
        """Gives the lease back. Quick, and harmless when repeated or after a fork."""
        with suppress(OSError):  # the folder is gone or cannot be written any more: the lock is given up all the same
            self._file.release()
        self._directory.close()


async def lease_server(
    cache_dir: Path, runtime_dir: Path, deadline: Deadline, *, starting: Callable[[], None] | None = None
) -> Lease:
    """Joins this user's server, or starts it.

    Starting takes 1 to 3 s. A caller that gives up does not stop it: the next one finds it ready, and without any it
    ends by itself.

    Args:
        cache_dir: where the model is kept.
        runtime_dir: where processes meet; the server has a folder of its own in it.
        deadline: when to give up waiting.
        starting: called when this call has to start the server, before it waits.

    Raises:
        ModelUnavailable: it could not start (with its last words), is not ready in time, or the folder is not safe.
    """
    path = runtime_dir / run_name()
    try:
        directory = RunDirectory(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unusable(path, error) from error
    try:
        return await _lease(directory, cache_dir, deadline, starting)
    except OSError as error:
        directory.close()
        raise _unusable(path, error) from error
    except BaseException:
        directory.close()
        raise


def _unusable(path: Path, error: OSError | ValueError) -> ModelUnavailable:
    return ModelUnavailable(
        f"the embedded server cannot be shared through {path}: {getattr(error, 'strerror', None) or error}",
        hint="Set TRAWL_RUNTIME_DIR to a folder that is yours alone and can be written.",
    )


def run_name() -> str:
    """Name of the run directory; processes whose model file differs must not meet."""
    return f"llama-{E5.name}-{E5.sha256[:12]}"


async def _lease(
    directory: RunDirectory, cache_dir: Path, deadline: Deadline, starting: Callable[[], None] | None
) -> Lease:
    while True:
        file, launched = await _join(directory, cache_dir, deadline)
        try:
            if launched and starting:
                starting()
            running = await _ready(directory, launched, deadline)
            if running:
                return Lease(running.url, running.key, running.pid, directory, file)
            if launched:
                words = directory.last_words()
                raise ModelUnavailable(f"the embedded server ended while starting: {words or 'no word why'}")
        except BaseException:
            file.release()
            raise
        # The one that was joined has died or been told to end: the next round finds its successor, or starts it.
        file.release()
        await asyncio.sleep(POLL_SECONDS)


async def _join(
    directory: RunDirectory, cache_dir: Path, deadline: Deadline
) -> tuple[LeaseFile, subprocess.Popen[bytes] | None]:
    """A lease of whatever server there is, and the process if it had to be started."""
    gate = directory.open(GATE)
    try:
        await _lock(gate, deadline, directory)
        file = directory.new_lease()
        try:
            if directory.server_lives():
                return file, None
            lock = directory.open(LOCK)
            try:
                await _lock(lock, deadline, directory)  # others look at it now and then
                return file, _start(directory, cache_dir, lock)
            finally:
                lock.close()
        except BaseException:
            file.release()
            raise
    finally:
        gate.close()


async def _ready(
    directory: RunDirectory, launched: subprocess.Popen[bytes] | None, deadline: Deadline
) -> Running | None:
    """The server once it is ready; None when it has ended before."""
    began = time.monotonic()
    while True:
        lives = directory.server_lives()
        match directory.read_state():
            case Running() as running if lives:
                return running
            case Failed(error):
                raise ModelUnavailable(f"the embedded server did not start: {error}")
        if not lives:
            return None
        waited = time.monotonic() - began
        if waited >= START_SECONDS and launched:
            _kill(launched)
        if waited >= START_SECONDS or not deadline.remaining():
            raise ModelUnavailable(f"the embedded server is not ready after {waited:.1f} s")
        await asyncio.sleep(POLL_SECONDS)


def _start(directory: RunDirectory, cache_dir: Path, lock: OpenFile) -> subprocess.Popen[bytes]:
    """Starts a server, which inherits the lock. The gate is held."""
    # -P: what lies in the working directory must not be imported.
    command = [sys.executable or "", "-P", "-m", "trawl.llama.embedded", "--port", "0"]
    command += ["--cache-dir", str(cache_dir.absolute()), "--shared", str(directory.path)]
    command += ["--lock-fd", str(lock.fd), "--start-seconds", str(START_SECONDS)]
    command += ["--idle-seconds", str(IDLE_SECONDS), "--grace-seconds", str(GRACE_SECONDS)]
    # It outlives whoever starts it, and has a key of its own.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    directory.remove(STATE)
    log = directory.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    try:
        process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log.fd,
            stderr=subprocess.STDOUT,
            pass_fds=[lock.fd],
            start_new_session=True,  # Ctrl-C in this terminal is not for it, nor is the terminal's end
        )
    except OSError as error:
        raise ModelUnavailable(f"the embedded server cannot be started: {error.strerror}") from error
    finally:
        log.close()
    try:
        # What is started detaches at once; the process that did so has to be reaped.
        threading.Thread(target=process.wait, name="trawl-embedded-start", daemon=True).start()
    except RuntimeError as error:  # no more threads, or the interpreter is ending
        _kill(process)
        raise ModelUnavailable(f"the embedded server cannot be started: {error}") from error
    return process


async def _lock(file: OpenFile, deadline: Deadline, directory: RunDirectory) -> None:
    while not file.try_lock():
        if not deadline.remaining():
            raise ModelUnavailable(f"another process is starting or joining the embedded server in {directory.path}")
        await asyncio.sleep(POLL_SECONDS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a server that this process has just started; it leads, or is in, the session of `process`."""
    with suppress(ProcessLookupError, PermissionError):  # the latter on macOS, when it is dead but not reaped
        os.killpg(process.pid, signal.SIGKILL)


# The server's side


class SharedServer:
    """What a server does to be shared.

    Args:
        path: of the run directory.
        lock_fd: the open lock file it has inherited.
        idle_seconds: see `IDLE_SECONDS`.
        grace_seconds: see `GRACE_SECONDS`.
    """

    def __init__(self, path: Path, lock_fd: int, idle_seconds: float, grace_seconds: float) -> None:
        self._lock_fd = lock_fd
        self._directory = RunDirectory(path)
        self._uses = Uses(idle_seconds)
        self._grace_seconds = grace_seconds
        self._unused_since = time.monotonic()

    def fail(self, error: str) -> None:
        """Tells the clients why it will never be ready."""
        with suppress(OSError):  # they read the log as well
            self._directory.write_state(Failed(error))

    def serve(self, running: Running, stopped: int) -> None:
        """Tells the clients that it is ready. Returns when nobody uses it any more, or when the file `stopped` can be
        read; the clients have been told then, and the process has to end at once.

        Raises:
            ModelUnavailable: the run directory cannot be used.
        """
        try:
            self._is_unused()  # whoever waits for it counts, and may be quick
            self._directory.write_state(running)
        except OSError as error:
            raise ModelUnavailable(f"{self._directory.path} cannot be used: {error.strerror}") from error
        while not select.select([stopped], [], [], LOOK_SECONDS)[0]:
            with suppress(OSError):  # out of files, a full disk: the next look may go better
                if not self._directory.is_locked_by(self._lock_fd):
                    return  # nobody finds this server any more, and what is there is not its own
                if self._is_unused() and self._closes_the_gate():
                    break
                self._tidy(running)
        with suppress(OSError):
            self._directory.remove(STATE)
            self._directory.end_leases()

    def _is_unused(self) -> bool:
        now = time.monotonic()
        if self._uses.in_use(self._directory.held_leases(), now):
            self._unused_since = now
        return now - self._unused_since > self._grace_seconds

    def _closes_the_gate(self) -> bool:
        """Whether nobody is joining; the gate stays closed until the process ends."""
        gate = self._directory.open(GATE)
        ends = False
        try:
            # Somebody may have joined since the last look.
            ends = gate.try_lock() and self._is_unused()
        finally:
            if not ends:
                gate.close()
        return ends

    def _tidy(self, running: Running) -> None:
        """Mends the state file if something else has touched it, and keeps the log small."""
        if self._directory.read_state() != running:
            self._directory.write_state(running)
        if os.fstat(1).st_size > MAX_LOG_BYTES:
            os.ftruncate(1, 0)


class Uses:
    """Which leases are in use, by a clock that nobody sets: times of files are only compared with themselves."""

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._seen: dict[str, tuple[int, float]] = {}

    def in_use(self, held: Mapping[str, int], now: float) -> bool:
        """Whether one of the leases that are `held` (name: modification time) has been used within the idle time."""
        self._seen = {
            name: self._seen[name] if name in self._seen and self._seen[name][0] == modified else (modified, now)
            for name, modified in held.items()
        }
        return any(now - used < self._idle_seconds for _, used in self._seen.values())
