"""One SQLite file for all processes of a user: who may write when, and what happens when the file is no good.

    read(job)  ── reading lane, a few threads ──  BEGIN            ┐
                                                                   ├─ the file; a connection per thread
    write(job) ── writing lane, one thread ─────  BEGIN IMMEDIATE  ┘  (all that is queued goes into one transaction)

Everything in the file can be made again. So nothing that happens to it is an error for the caller:

- damaged: set aside under a lock, with a warning, and a new one is begun, also in the middle of use;
- full disk, no permission, no folder: one warning, then nothing is read (or written) for a while;
- made by a newer trawl, or by another program: left alone, with a warning;
- replaced or removed by somebody: noticed by its inode, opened anew.

What is in the tables is the business of their owners (`vectors.py`), who `register` them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from trawl.errors import TrawlError
from trawl.store import files
from trawl.store.lanes import Job, Lane, no_fork, watch_forks

log = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA_VERSION = 1
"""`user_version` of the file. One that is lower has its tables made anew, one that is higher is left alone. A further
table needs no new version, a changed one does."""
APPLICATION_ID = 0x7472776C
"""`application_id` of the file ("trwl"): another program's database is never touched."""

READ_SECONDS = 5.0
"""After which a read is given up: the file system hangs."""
WRITE_SECONDS = 10.0
"""How long a write keeps trying while other processes write."""
POLL_SECONDS = 0.01
CLOSE_SECONDS = 2.0
"""How long closing waits for what is queued."""
REST_SECONDS = 60.0
"""How long nothing is tried after the file could not be used."""
QUEUE_BYTES = 64 * 2**20
"""Of writes that wait; what comes on top is not stored."""
PAGE_BYTES = 16384
"""Of the file's pages. With these 100,000 vectors of 1,024 dimensions (2,048 bytes) took 2,392 bytes each, with pages
of 8 KB 2,785, because only three fit into one; writing a hundred was not slower."""
VALUE_BYTES = 32 * 2**20
"""Of one value or row: a length beyond is damage, and must not become memory."""

_BUSY_SECONDS = 1.0
_READERS = 2
_WRITES_AT_ONCE = 256
_REPEATS = 2
_JOURNAL_BYTES = 16 * 2**20
_RECLAIMED_PAGES = 1000

# Primary result codes (sqlite.org/rescode.html) that a sound file of ours cannot give.
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG})
_DAMAGE_BEHIND_A_GENERIC_CODE = ("no such table", "no such column", "has no column", "unsupported file format")
_CONTENTION = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_REASONS = {
    **dict.fromkeys(_CONTENTION, "other processes keep it locked"),
    sqlite3.SQLITE_FULL: "the disk is full or failing",
    sqlite3.SQLITE_IOERR: "the disk is full or failing",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "it cannot be opened",
}


class StoreUnavailable(TrawlError):
    """The file cannot be used now. Only the owners of tables meet it; for them it means: not stored, not found."""

    stage = "store"


class Damaged(sqlite3.DatabaseError):
    """For jobs to raise: what they found cannot be in a sound file."""


class _NotOurs(StoreUnavailable):
    """The file is sound, but it is not for this program to touch."""


class _VersionChanged(StoreUnavailable):
    """Another process gave the file another schema while we had it open."""


class Database:
    """Access to the file for any number of event loops, threads and processes. Opens nothing until it is used.

    Args:
        path: of the file; its folder is made if need be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._schema: dict[str, str] = {}
        self._farewells: list[Callable[[], None]] = []
        self._warned: set[str] = set()
        self._closed = False
        self._lanes = _Lanes(self)

    def register(self, schema: Mapping[str, str], farewell: Callable[[], None] | None = None) -> None:
        """Have tables and indexes, by name with the statement that creates each; `farewell` runs before closing and may
        still write."""
        self._schema.update(schema)
        if farewell is not None:
            self._farewells.append(farewell)

    async def read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `job`, which sees one state of the file and runs in a thread.

        Raises:
            StoreUnavailable: always to be expected.
        """
        lanes = self._lanes_here()
        done: Future[T] = Future()
        if self._closed or lanes.rests(lanes.reading) or not lanes.reading.add(Job(job, done)):
            raise StoreUnavailable("the store is not in use now")
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await asyncio.wrap_future(done)
        except TimeoutError:
            lanes.rest(lanes.reading)
            raise self._unavailable(f"it did not answer within {READ_SECONDS:g} s") from None

    def write(self, job: Callable[[sqlite3.Connection], None], cost: int = 0) -> Future[None] | None:
        """Queue `job`; it runs in the writing thread, in a transaction that it shares with other jobs, and again if
        that transaction has to be repeated.

        Args:
            cost: bytes of memory that it holds until then.

        Returns:
            What is done once the job is committed or failed, or None: it was not taken, because the store is closed,
            not usable now, or too much is waiting.
        """
        lanes = self._lanes_here()
        done: Future[None] = Future()
        if self._closed or lanes.rests(lanes.writing) or not lanes.writing.add(Job(job, done, cost)):
            return None
        return done

    async def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until what was queued before is written; False when it is not after `seconds`."""
        done = self.write(lambda _: None)
        if done is None:
            return False
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.wrap_future(done)
                return True
        return False

    async def aclose(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write what is queued, drop what is not written after `seconds`, and let go of the file. Idempotent."""
        until = time.monotonic() + seconds
        for lane in self._closing():
            # Polled: when the interpreter is ending there is no new thread to wait in.
            while not lane.join(0) and time.monotonic() < until:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            lane.clear()

    def _closing(self) -> tuple[Lane[_Seat], ...]:
        """The lanes, which have been told to end."""
        lanes = self._lanes_here()
        if not self._closed:
            for farewell in self._farewells:
                farewell()
        self._closed = True
        lanes.writing.close()
        lanes.reading.close()
        return lanes.writing, lanes.reading

    def _lanes_here(self) -> _Lanes:
        """The lanes of this process: a forked child opens the file anew."""
        if self._lanes.pid != os.getpid():
            _left_to_the_parent.append(self._lanes)
            self._lanes = _Lanes(self)
        return self._lanes

    def _unavailable(self, reason: str) -> StoreUnavailable:
        """The error for `reason`, of which the user is told once."""
        if reason not in self._warned:
            self._warned.add(reason)
            log.warning("the store %s is not used for now: %s", self._path, reason)
        return StoreUnavailable(reason)

    # What follows runs in the threads of the lanes.

    def _serve_read(self, seat: _Seat, jobs: list[Job]) -> None:
        for job in jobs:
            if job.done.set_running_or_notify_cancel():
                self._settle(self._lanes.reading, [job], partial(self._read_one, seat, job))

    def _read_one(self, seat: _Seat, job: Job) -> list[Any]:
        return [self._attempt(seat, "BEGIN", job.run)]

    def _serve_writes(self, seat: _Seat, jobs: list[Job]) -> None:
        jobs = [job for job in jobs if job.done.set_running_or_notify_cancel()]

        def all_jobs(connection: sqlite3.Connection) -> list[Any]:
            return [job.run(connection) for job in jobs]

        self._settle(self._lanes.writing, jobs, partial(self._write_patiently, seat, all_jobs))

    def _write_patiently(self, seat: _Seat, work: Callable[[sqlite3.Connection], T]) -> T:
        until = time.monotonic() + WRITE_SECONDS
        while True:
            try:
                return self._attempt(seat, "BEGIN IMMEDIATE", work)
            except sqlite3.OperationalError as error:
                if _code(error) not in _CONTENTION or self._closed or time.monotonic() > until:
                    raise

    def _settle(self, lane: Lane[_Seat], jobs: list[Job], results: Callable[[], list[Any]]) -> None:
        """Give every job its result, or all of them the error that stopped them."""
        try:
            for job, result in zip(jobs, results(), strict=True):
                job.done.set_result(result)
            return
        except StoreUnavailable as error:
            unavailable = self._unavailable(f"{error.message}. {error.hint}".strip())
            self._lanes.rest(lane)
        except sqlite3.Error as error:
            unavailable = self._unavailable(_REASONS.get(_code(error), str(error)))
            if _code(error) not in _CONTENTION:
                self._lanes.rest(lane)
        except OSError as error:
            unavailable = self._unavailable(str(error))
            self._lanes.rest(lane)
        except Exception as error:
            log.exception("the store failed")
            unavailable = StoreUnavailable(type(error).__name__)
        for job in jobs:
            job.done.set_exception(unavailable)

    def _attempt(self, seat: _Seat, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` in a transaction; again when the file turns out to be damaged, or to have changed its schema, which
        may be how damage shows first."""
        for _ in range(_REPEATS):
            try:
                return self._transact(seat, begin, work)
            except _VersionChanged:
                continue
            except sqlite3.Error as error:
                if not _is_damage(error):
                    raise
                self._set_aside(seat.identity, error)
        return self._transact(seat, begin, work)

    def _transact(self, seat: _Seat, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with no_fork():
            try:
                connection = seat.open(self._file(), self._schema)
                with _transaction(connection, begin):
                    return work(connection)
            except (sqlite3.Error, _VersionChanged) as error:
                if isinstance(error, _VersionChanged) or _code(error) not in _CONTENTION:
                    seat.close()
                raise

    def _set_aside(self, damaged: files.Identity | None, error: sqlite3.Error) -> None:
        path = self._file()
        with no_fork(), files.opening(path):
            if files.identity(path) != damaged:
                return  # somebody else saw it too, and was quicker
            aside = files.set_aside(path)
        log.warning("the store %s was damaged (%s): it is now %s, and a new one is begun", path, error, aside)

    def _file(self) -> Path:
        """The file behind any link: SQLite names the companion files after it, and so must whoever renames them."""
        return Path(os.path.realpath(self._path))


class _Lanes:
    """The queues and threads of one process, and until when each of them rests."""

    def __init__(self, database: Database) -> None:
        self.pid = os.getpid()
        self.reading: Lane[_Seat] = Lane(
            "trawl-store-read", _Seat, database._serve_read, threads=_READERS, room=QUEUE_BYTES
        )
        self.writing: Lane[_Seat] = Lane(
            "trawl-store-write", _Seat, database._serve_writes, batch=_WRITES_AT_ONCE, room=QUEUE_BYTES
        )
        self._rests_until: dict[Lane[_Seat], float] = {}

    def rest(self, lane: Lane[_Seat]) -> None:
        self._rests_until[lane] = time.monotonic() + REST_SECONDS

    def rests(self, lane: Lane[_Seat]) -> bool:
        return time.monotonic() < self._rests_until.get(lane, 0.0)


_left_to_the_parent: list[_Lanes] = []
"""Lanes of the parent process in a forked child: kept, so that nothing ever closes their connections here."""


class _Seat:
    """The connection of one thread and the file it leads to."""

    def __init__(self) -> None:
        watch_forks()
        self.connection: sqlite3.Connection | None = None
        self.identity: files.Identity | None = None
        self._tables = 0

    def open(self, path: Path, schema: Mapping[str, str]) -> sqlite3.Connection:
        """A connection to the file that now has the name `path`, with the tables of `schema`.

        Raises:
            OSError, sqlite3.Error, StoreUnavailable: it cannot be used.
        """
        if self.connection is not None:
            if files.identity(path) == self.identity and len(schema) == self._tables:
                return self.connection
            self.close()
        with files.opening(path):
            self.identity = files.make_private(path)
            connection = _connect(path)
            try:
                _prepare(connection, schema, on_network=files.is_on_network(path))
            except BaseException:
                connection.close()
                raise
        self.connection, self._tables = connection, len(schema)
        return connection

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def reclaim(connection: sqlite3.Connection) -> bool:
    """Give disk space back if a quarter of the file is unused, a bounded piece per call; True when there is more."""
    unused, pages = _pragma(connection, "freelist_count"), _pragma(connection, "page_count")
    if unused * 4 < pages:
        return False
    for _ in range(min(unused, _RECLAIMED_PAGES)):
        # One by one: of a larger number Python before 3.12 carries out the first step only.
        connection.execute("PRAGMA incremental_vacuum(1)")
    return unused > _RECLAIMED_PAGES


def _connect(path: Path) -> sqlite3.Connection:
    # mode=rw: the file has been made with its mode; one that vanished must not come back with another.
    uri = f"file:{quote(os.fsencode(path))}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    connection.text_factory = bytes  # no text is stored; damaged text must not fail to decode
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
    return connection


def _prepare(connection: sqlite3.Connection, schema: Mapping[str, str], *, on_network: bool) -> None:
    for setting in (
        "trusted_schema = OFF",  # what stands in a file's schema is not to run
        "cell_size_check = ON",
        "mmap_size = 0",  # a file that shrinks under a map ends the process (SIGBUS)
        "temp_store = MEMORY",
        "synchronous = NORMAL",
        f"journal_size_limit = {_JOURNAL_BYTES}",
    ):
        connection.execute(f"PRAGMA {setting}").fetchall()
    version = _pragma(connection, "user_version")
    existing = _names(connection)
    if _pragma(connection, "application_id") != APPLICATION_ID and (version or existing):
        raise _NotOurs("it is the database of another program", hint="Name another file.")
    if version > SCHEMA_VERSION:
        raise _NotOurs("a newer version of trawl made it", hint="Update trawl, or name another file.")
    if not existing:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _set_journal(connection, "DELETE" if on_network else "WAL")
    if version != SCHEMA_VERSION or not existing.issuperset(schema):
        _create(connection, schema)


def _set_journal(connection: sqlite3.Connection, mode: str) -> None:
    """Use `mode`, else what works anywhere. When neither does, using the file will tell why."""
    for wanted in (mode, "DELETE"):
        with suppress(sqlite3.OperationalError):
            connection.execute(f"PRAGMA journal_mode = {wanted}").fetchall()
            return


def _create(connection: sqlite3.Connection, schema: Mapping[str, str]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _pragma(connection, "user_version") != SCHEMA_VERSION:
            for table in _names(connection, "table"):
                connection.execute('DROP TABLE "{}"'.format(table.replace('"', '""')))
        existing = _names(connection)
        for name, statement in schema.items():
            if name not in existing:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        if _pragma(connection, "user_version") != SCHEMA_VERSION:
            raise _VersionChanged("another version of trawl is changing it")
        yield
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _names(connection: sqlite3.Connection, kind: str = "%") -> set[str]:
    rows = connection.execute(
        r"SELECT name FROM sqlite_master WHERE type LIKE ? AND name NOT LIKE 'sqlite\_%' ESCAPE '\'", (kind,)
    )
    return {name.decode(errors="replace") for (name,) in rows}


def _code(error: sqlite3.Error) -> int:
    """The primary result code; that of a generic error when the error is not SQLite's own."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _is_damage(error: sqlite3.Error) -> bool:
    if isinstance(error, Damaged):
        return True
    if _code(error) == sqlite3.SQLITE_ERROR:
        return any(words in str(error) for words in _DAMAGE_BEHIND_A_GENERIC_CODE)
    # A read past the end of the file: it lacks pages that its log or header tells of.
    return _code(error) in _DAMAGE or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHORT_READ
