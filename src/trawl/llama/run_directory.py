"""The directory in which the processes of one user meet over one embedded server: its files, their locks, and what they
say. What the two sides do with them is `rendezvous`.

    gate             locked for moments by whoever joins, starts or ends the server, so that these never overlap
    server.lock      locked by the server as long as it lives; the process that starts it locks the file and the server
                     inherits it open, so that there is no moment in between
    server.json      where the running server is, or why it could not start; only the server writes it
    server.log       its output
    leases/*.lease   one for each lease, locked by the process that holds it, modified at every use

All locks are those of flock(2): the kernel lets go of them when a process ends, however it ends. No process id found in
a file is ever trusted.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trawl.errors import ModelUnavailable

FORMAT = 1
"""Of `server.json`; raised when an older trawl could no longer use a newer one's server."""
MAX_STATE_BYTES = 4096
MAX_ERROR_CHARS = 500

GATE, LOCK, STATE, LOG, LEASES = "gate", "server.lock", "server.json", "server.log", "leases"
_SUFFIX = ".lease"
_LOOPBACK = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}", re.ASCII)
_KEY = re.compile(r"[!-~]{16,200}", re.ASCII)


class OpenFile:
    """A file descriptor that is closed in forked copies of this process: there it would keep a lock that nobody holds.

    Only ever closed, never unlocked: unlocking in a copy would unlock it for the original.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @property
    def is_open(self) -> bool:
        """False after `close`, and in a forked copy."""
        return self in _open

    def close(self) -> None:
        """May be called again, and in a forked copy, where it does nothing."""
        with _guard:
            if self in _open:
                _open.remove(self)
                os.close(self.fd)

    def try_lock(self, operation: int = fcntl.LOCK_EX) -> bool:
        """Whether the lock was to be had at once."""
        try:
            fcntl.flock(self.fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_open: set[OpenFile] = set()
_guard = threading.RLock()
"""Held over a fork, so that the copy never sees a file that is open and not yet listed."""


def _close_in_copy() -> None:
    for file in _open:
        with suppress(OSError):  # somebody has closed all files of the process
            os.close(file.fd)
    _open.clear()
    _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_in_copy)


def _opened(path: str | Path, flags: int, dir_fd: int | None = None) -> OpenFile:
    """`path` itself, never what a link there points to; and never waiting for the other end of a pipe."""
    with _guard:
        file = OpenFile(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=dir_fd))
        _open.add(file)
        return file


# What server.json says


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    url: str
    key: str = field(repr=False)
    pid: int
    model: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Why there is no server that can be used."""

    error: str


State = Running | Failed


def dump_state(state: State) -> bytes:
    """The content of `server.json`."""
    return json.dumps({"format": FORMAT, **asdict(state)}).encode()


def parse_state(content: bytes) -> State | None:
    """What `server.json` says; None when it says nothing that can be understood."""
    if len(content) > MAX_STATE_BYTES:
        return None
    try:
        match json.loads(content):
            case {"format": int(number)} if number != FORMAT:
                return Failed("the one that runs belongs to another version of trawl")
            case {"format": int(), "error": str(error)}:
                return Failed(error[:MAX_ERROR_CHARS])
            case {"format": int(), "url": str(url), "key": str(key), "pid": int(pid), "model": str(model)}:
                # No address but this machine's: what is sent there is the text of pages.
                if _LOOPBACK.fullmatch(url) and _KEY.fullmatch(key) and pid > 1:
                    return Running(url, key, pid, model)
    except (ValueError, RecursionError):
        pass
    return None


# The directory


class RunDirectory:
    """The run directory at `path`, created when it is missing, and held open.

    All its files are reached through the open directory: whoever can write to a folder above it cannot put another
    one in its place behind our back.

    Raises:
        ModelUnavailable: it is a link, belongs to somebody else, or others may write to it.
        OSError: it cannot be created or opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise _refused(path, "is not a directory of its own")
        self._directory = _opened(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = os.fstat(self._directory.fd)
            if found.st_uid != os.geteuid():
                raise _refused(path, "belongs to another user")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise _refused(path, "can be written by others")
            os.fchmod(self._directory.fd, 0o700)
            with suppress(FileExistsError):
                os.mkdir(LEASES, 0o700, dir_fd=self._directory.fd)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """May be called again."""
        self._directory.close()

    def open(self, name: str, flags: int = os.O_RDWR | os.O_CREAT) -> OpenFile:
        return _opened(name, flags, self._directory.fd)

    def remove(self, name: str) -> None:
        """Removes a file; that it is not there is as good."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._directory.fd)

    def server_lives(self) -> bool:
        """Whether a server runs, or is just starting or ending."""
        file = self.open(LOCK)
        try:
            # Shared: two that look at the same time must not take each other for a server.
            return not file.try_lock(fcntl.LOCK_SH)
        finally:
            file.close()

    def is_locked_by(self, lock_fd: int) -> bool:
        """Whether the lock that counts is the one on this open file: the directory, or the file, may have been removed
        and made anew."""
        try:
            return os.path.samestat(os.fstat(lock_fd), os.stat(LOCK, dir_fd=self._directory.fd))
        except FileNotFoundError:
            return False

    def read_state(self) -> State | None:
        """What the server, or the last one, said of itself."""
        return parse_state(self._read(STATE, MAX_STATE_BYTES + 1))

    def write_state(self, state: State) -> None:
        temporary = f".{STATE}-{secrets.token_hex(4)}"
        file = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(file.fd, dump_state(state))
            os.replace(temporary, STATE, src_dir_fd=self._directory.fd, dst_dir_fd=self._directory.fd)
        except BaseException:
            self.remove(temporary)
            raise
        finally:
            file.close()

    def last_words(self) -> str:
        """The last line of the server's log, shortened; empty when there is none."""
        lines = self._read(LOG, 4096, from_end=True).decode("utf-8", "replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")

    def _read(self, name: str, most: int, *, from_end: bool = False) -> bytes:
        """At most `most` bytes of a file; nothing when it is missing or no regular file."""
        try:
            file = self.open(name, os.O_RDONLY)
        except OSError:
            return b""
        try:
            found = os.fstat(file.fd)
            if not stat.S_ISREG(found.st_mode):
                return b""
            return os.pread(file.fd, most, max(0, found.st_size - most) if from_end else 0)
        finally:
            file.close()

    # Leases

    def new_lease(self) -> LeaseFile:
        """A lease of this process."""
        name = f"{LEASES}/{secrets.token_hex(8)}"
        file = self.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Only now does it count as a lease: a server that looks never sees one that is not locked yet.
            os.rename(name, name + _SUFFIX, src_dir_fd=self._directory.fd, dst_dir_fd=self._directory.fd)
        except BaseException:
            self.remove(name)
            file.close()
            raise
        return LeaseFile(self, name + _SUFFIX, file)

    def has(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def held_leases(self) -> dict[str, int]:
        """The leases that living processes hold, with the time of their last use as the file system counts it. What
        the others have left is removed."""
        held = {}
        try:
            folder = self.open(LEASES, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return {}
        try:
            with os.scandir(folder.fd) as entries:
                names = [entry.name for entry in entries if entry.name.endswith(_SUFFIX)]
        finally:
            folder.close()
        for name in names:
            with suppress(OSError):  # a folder, a link, or gone by now
                file = self.open(f"{LEASES}/{name}", os.O_RDONLY)
                try:
                    if file.try_lock(fcntl.LOCK_SH):
                        self.remove(f"{LEASES}/{name}")
                    else:
                        held[name] = os.fstat(file.fd).st_mtime_ns
                finally:
                    file.close()
        return held

    def end_leases(self) -> None:
        """Takes all leases away: their holders can tell that the server has ended, and was not killed."""
        for name in self.held_leases():
            self.remove(f"{LEASES}/{name}")


class LeaseFile:
    """The file that stands for one lease of this process; see `RunDirectory.new_lease`."""

    def __init__(self, directory: RunDirectory, name: str, file: OpenFile) -> None:
        self._directory = directory
        self._name = name
        self._file = file

    def touch(self) -> None:
        if self._file.is_open:
            os.utime(self._file.fd)

    def stands(self) -> bool:
        """Whether it is neither released nor taken away by the server."""
        return self._file.is_open and self._directory.has(self._name)

    def release(self) -> None:
        """May be called again, and in a forked copy, where it does nothing."""
        if self._file.is_open:
            try:
                self._directory.remove(self._name)
            finally:
                self._file.close()


def _refused(path: Path, why: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the folder {path}, where processes share the embedded server, {why}",
        hint="Remove it, or set TRAWL_RUNTIME_DIR to a folder that is yours alone.",
    )
