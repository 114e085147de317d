"""The database's files on disk: private from birth, opened under a lock, set aside when damaged.

SQLite guards what is inside a database; nothing guards the names. A connection that opens the database just before it
is renamed, and its write-ahead log just after, would mix two databases. So a connection is opened, and a damaged
database is moved away, only by the holder of the lock file beside it. The lock is flock's, which ends with its holder.

Nothing here opens the database itself once it may be in use: closing any descriptor of a file drops all locks that the
process holds on it (POSIX), SQLite's included.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

LOCK_SECONDS = 2.0
"""How long the lock file is waited for. Its holders need milliseconds."""
MOST_SET_ASIDE = 3
"""Damaged databases kept for whoever wants to look at them; the oldest give way."""

_COMPANIONS = ("-wal", "-shm", "-journal")
_POLL_SECONDS = 0.01

# Shared memory of the write-ahead log does not reach the other machine.
_NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "vboxsf", "virtiofs"}
)

Identity = tuple[int, int]
"""Device and inode: tells a database from the one that later has its name."""


def identity(path: Path) -> Identity | None:
    """Which file has this name now; None when there is none.

    Raises:
        OSError: it cannot be seen, or it is no regular file (a pipe would hang whoever opens it).
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is not a regular file")
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def opening(path: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock under which the database at `path` is opened or moved. Makes its folder (0700) if needed.

    Raises:
        OSError: the folder or the lock cannot be made or taken within `seconds`.
    """
    _make_folder(path.parent)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(PermissionError):
            os.fchmod(lock, 0o600)
        _take(lock, path, time.monotonic() + seconds)
        try:
            yield
        finally:
            # Unlocked by name and not only by closing: a child forked meanwhile shares the descriptor.
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def make_private(path: Path) -> Identity:
    """See to it that the database at `path` exists and only its owner may read it; call it under `opening`.

    SQLite gives its companion files the mode of the database, whatever the umask.

    Raises:
        OSError: the file cannot be made, or what is there is no file.
    """
    found = identity(path)
    if found is None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for file in (path, *_companions(path)):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_IMODE(file.stat().st_mode) != 0o600:
                file.chmod(0o600)
    made = found or identity(path)
    if made is None:
        raise FileNotFoundError(f"{path} vanished while it was made")
    return made


def set_aside(path: Path) -> Path:
    """Rename the database with its companions and return its new name; call it under `opening`.

    Raises:
        OSError: the folder does not allow it.
    """
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = path.with_name(f"{path.name}.damaged-{stamp}-{time.time_ns() % 10**9:09d}")
    path.rename(aside)
    for suffix in _COMPANIONS:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    kept = sorted(p for p in path.parent.glob(f"{path.name}.damaged-*") if not p.name.endswith(_COMPANIONS))
    for old in kept[:-MOST_SET_ASIDE]:
        for file in (old, *_companions(old)):
            file.unlink(missing_ok=True)
    return aside


def is_on_network(path: Path) -> bool:
    """Whether `path` lies on a network file system, as far as the system tells (Linux; elsewhere False)."""
    try:
        device = path.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return file_system(f"{os.major(device)}:{os.minor(device)}", mounts) in _NETWORK_FILE_SYSTEMS


def file_system(device: str, mounts: str) -> str | None:
    """The type of the file system on `device` ("8:1"), read from the text of Linux's `mountinfo` (proc(5))."""
    for line in mounts.splitlines():
        place, _, kind = line.partition(" - ")
        fields = place.split()
        if len(fields) > 2 and fields[2] == device and kind:
            return kind.split()[0]
    return None


def _companions(path: Path) -> list[Path]:
    return [Path(f"{path}{suffix}") for suffix in _COMPANIONS]


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)


def _take(lock: int, path: Path, until: float) -> None:
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError(f"another process holds {path}.lock") from None
            time.sleep(_POLL_SECONDS)
