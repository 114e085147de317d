"""Vectors of texts, kept between calls and shared by processes: which text, which model, when it was last used.

A text is known by its keyed hash and never stored. A vector is kept as float16, which halves its size; so that a first
call and a repeated one rank alike, callers rank by `rounded` vectors in both.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from trawl.store.database import PAGE_BYTES, VALUE_BYTES, Damaged, Database, StoreUnavailable, reclaim

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = Sequence[NDArray[np.floating[Any]]] | NDArray[np.floating[Any]]

TRIM_TO = 0.8
"""The share of the size bound that trimming leaves (contracts A.6)."""
TRIM_EVERY = 1 / 16
"""Trimming looks at the size again after this share of the bound was written by this process."""
TOUCH_SECONDS = 10.0
"""How long uses are collected before they are written."""
ROUNDING = 2**-10
"""The most that rounding to float16 may move a vector, relative to its length. Half precision has 11 significant bits
(IEEE 754), an error of 2**-12 on average; one that moves further is out of its range and stays as it is."""

_KEY_BYTES = 16
_SUM_BYTES = 4
# Of the row beside the vector, and of both indexes: see `disk_bytes`.
_ROW_BYTES = 36
_INDEX_BYTES = 60
_KEYS_PER_STATEMENT = 500  # SQLite before 3.32 allows 999 variables
_ROWS_PER_TRIM = 2000
_MOST_TOUCHES = 100_000

_SCHEMA = {
    "vectors": "CREATE TABLE vectors (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, used INTEGER NOT NULL,"
    " size INTEGER NOT NULL, vector BLOB NOT NULL)",
    # Holds the size too, so that adding up sizes reads the index alone.
    "vectors_by_use": "CREATE INDEX vectors_by_use ON vectors (used, size)",
}

# Numbers that damage has made: they would spoil every sum and every order.
_REMOVE_IMPOSSIBLE = """
    DELETE FROM vectors WHERE id IN (
        SELECT id FROM vectors
        WHERE typeof(used) != 'integer' OR typeof(size) != 'integer' OR used < 0 OR size NOT BETWEEN 0 AND ?
    )"""


@dataclass(frozen=True, slots=True)
class VectorCounters:
    """What this process did since the store was made.

    `evictions` are entries dropped for age or room. `errors` are lookups and writes that were not carried out, and
    entries that were found damaged.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    errors: int = 0


@dataclass(slots=True)
class _State:
    """What one process remembers; a forked child begins with none of it."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("hits", "misses", "evictions", "errors"), 0))
    unwritten: dict[bytes, bytes] = field(default_factory=dict)
    """Entries on their way to the file: found like those in it."""
    touched: dict[bytes, int] = field(default_factory=dict)
    """When entries were last used, as far as the file does not know it yet."""
    touched_since: float = 0.0
    written: int | None = None
    """Bytes written since the last look at the size; None before the first."""
    trimmed_at: float = 0.0

    def count(self, what: str, by: int = 1) -> None:
        with self.lock:
            self.counts[what] += by


class VectorStore:
    """A bounded cache of vectors. Nothing it does is an error for the caller: what cannot be read is a miss, what
    cannot be written is lost.

    Args:
        max_bytes: of entries on disk, trimmed to `TRIM_TO` of it, least recently used first; 0 or less: off.
        ttl_seconds: how long an unused entry is good; 0 or less: off.
    """

    def __init__(self, database: Database, max_bytes: int, ttl_seconds: float) -> None:
        self._database = database
        self._max_bytes = max_bytes
        self._ttl_ms = int(ttl_seconds * 1000)
        self._of_process = _State()
        if self.enabled:
            database.register(_SCHEMA, self._write_touches_soon)

    @property
    def enabled(self) -> bool:
        return self._max_bytes > 0 and self._ttl_ms > 0

    @property
    def counters(self) -> VectorCounters:
        state = self._state()
        with state.lock:
            return VectorCounters(**state.counts)

    async def get(
        self, space: str, texts: Sequence[str], *, dimension: int | None = None
    ) -> list[NDArray[np.float32] | None]:
        """The vector of every text, None for those that are not kept.

        Args:
            space: whatever makes vectors comparable (model, backend, prefix, dimension); only its hash is used.
            dimension: if given, entries of another one are dropped.
        """
        if not self.enabled or not texts:
            return [None] * len(texts)
        state = self._state()
        found: list[NDArray[np.float32] | None]
        try:
            found = await self._database.read(partial(self._look_up, state, space, tuple(texts), dimension))
        except StoreUnavailable:
            state.count("errors")
            found = [None] * len(texts)
        hits = sum(vector is not None for vector in found)
        state.count("hits", hits)
        state.count("misses", len(found) - hits)
        if state.touched and time.monotonic() - state.touched_since > TOUCH_SECONDS:
            self._write_touches_soon()
        return found

    def put(self, space: str, texts: Sequence[str], vectors: Vectors) -> None:
        """Keep the vector of every text, later: it is queued. A vector that is not finite, or out of the range of
        float16, is not kept.

        Raises:
            ValueError: there are not as many vectors as texts, or they differ in dimension.
        """
        if len(texts) != len(vectors):
            raise ValueError(f"{len(texts)} texts but {len(vectors)} vectors")
        if not self.enabled or not texts:
            return
        state = self._state()
        halves, good = _halves(vectors)
        entries = {
            key: _packed(key, half.tobytes())
            for key, half, is_good in zip(_keys(space, texts), halves, good, strict=True)
            if is_good
        }
        if not entries:
            return
        state.unwritten.update(entries)
        cost = sum(disk_bytes(len(packed)) for packed in entries.values())
        done = self._database.write(partial(self._write, state, entries, _now()), cost)
        if done is None:
            _forget(state.unwritten, entries)
            state.count("errors")
        else:
            done.add_done_callback(partial(_settled, state, entries))

    def _state(self) -> _State:
        if self._of_process.pid != os.getpid():
            self._of_process = _State()
        return self._of_process

    def _write_touches_soon(self) -> None:
        state = self._state()
        if state.touched:
            state.touched_since = time.monotonic()
            self._database.write(partial(_write_touches, state))

    # What follows runs in the threads of the database.

    def _look_up(
        self, state: _State, space: str, texts: tuple[str, ...], dimension: int | None, connection: sqlite3.Connection
    ) -> list[NDArray[np.float32] | None]:
        keys = _keys(space, texts)
        now = _now()
        packed = {key: entry for key in keys if (entry := state.unwritten.get(key)) is not None}
        stored = dict(self._stored(state, connection, [key for key in set(keys) if key not in packed], now))
        packed.update(stored)
        vectors = _unpacked(packed, dimension)
        damaged = [key for key in packed if key not in vectors]
        if damaged:
            state.count("errors", len(damaged))
            self._database.write(partial(_remove, damaged))
        if len(state.touched) < _MOST_TOUCHES:
            if not state.touched:
                state.touched_since = time.monotonic()
            state.touched.update(dict.fromkeys((key for key in stored if key in vectors), now))
        return [vectors.get(key) for key in keys]

    def _stored(
        self, state: _State, connection: sqlite3.Connection, keys: list[bytes], now: int
    ) -> Iterator[tuple[bytes, bytes]]:
        for some in _in_parts(keys):
            marks = ",".join("?" * len(some))
            for key, used, packed in connection.execute(
                f"SELECT key, used, vector FROM vectors WHERE key IN ({marks})",  # noqa: S608
                some,
            ):
                last_used = max(used if isinstance(used, int) else 0, state.touched.get(key, 0))
                if last_used >= now - self._ttl_ms:
                    yield key, packed

    def _write(self, state: _State, entries: dict[bytes, bytes], now: int, connection: sqlite3.Connection) -> None:
        rows = [(key, now, disk_bytes(len(packed)), packed) for key, packed in entries.items()]
        connection.executemany(
            "INSERT INTO vectors (key, used, size, vector) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
            " SET used = excluded.used, size = excluded.size, vector = excluded.vector",
            rows,
        )
        size = sum(row[2] for row in rows)
        first = state.written is None
        state.written = (state.written or 0) + size
        age = time.monotonic() - state.trimmed_at
        if first or state.written >= self._max_bytes * TRIM_EVERY or age * 1000 > max(self._ttl_ms / 4, 60_000):
            state.written, state.trimmed_at = 0, time.monotonic()
            self._database.write(partial(self._trim, state, self._max_bytes))

    def _trim(self, state: _State, bound: float, connection: sqlite3.Connection) -> None:
        """Drop what is too old, and if there is more than `bound`, what goes beyond `TRIM_TO`. A bounded piece of work,
        which queues the next one: other processes wait meanwhile."""
        _write_touches(state, connection)
        now = _now()
        connection.execute(_REMOVE_IMPOSSIBLE, (VALUE_BYTES,))
        # A clock that was wrong must not make entries immortal.
        connection.execute("UPDATE vectors SET used = ? WHERE used > ?", (now, now + 60_000))
        (total,) = connection.execute("SELECT total(size) FROM vectors").fetchone()
        floor = self._max_bytes * TRIM_TO
        to_free = total - floor if total > bound else 0.0
        oldest = connection.execute("SELECT id, used, size FROM vectors ORDER BY used LIMIT ?", (_ROWS_PER_TRIM,))
        doomed = []
        for row, used, size in oldest.fetchall():
            if used >= now - self._ttl_ms and to_free <= 0:
                break
            doomed.append((row,))
            to_free -= size
        if doomed and connection.executemany("DELETE FROM vectors WHERE id = ?", doomed).rowcount != len(doomed):
            raise Damaged("an index tells of entries that are not there")
        state.count("evictions", len(doomed))
        if reclaim(connection) or len(doomed) == _ROWS_PER_TRIM:
            self._database.write(partial(self._trim, state, floor if to_free > 0 else self._max_bytes))


def _settled(state: _State, entries: dict[bytes, bytes], done: Future[None]) -> None:
    """The write of `entries` is over, whether they are in the file or not."""
    _forget(state.unwritten, entries)
    if done.cancelled() or done.exception() is not None:
        state.count("errors")


def rounded(vectors: Vectors) -> NDArray[np.float32]:
    """What `VectorStore.get` will give for `vectors`: rounded to float16. Those that float16 cannot hold, and which are
    therefore not kept, stay as they are."""
    import numpy as np

    halves, good = _halves(vectors)
    return np.where(good[..., None], halves.astype(np.float32), np.asarray(vectors, dtype=np.float32))


def disk_bytes(blob_bytes: int) -> int:
    """What an entry takes on disk, its part of the page's unused end included: within 2 % of what 100,000 entries of
    384 and of 1,024 dimensions took."""
    row = blob_bytes + _ROW_BYTES
    rows_per_page = PAGE_BYTES // row
    return (PAGE_BYTES // rows_per_page if rows_per_page else row + PAGE_BYTES) + _INDEX_BYTES


def _halves(vectors: Vectors) -> tuple[NDArray[np.float16], NDArray[np.bool_]]:
    """The vectors in half precision, and which of them it holds well enough."""
    import numpy as np

    exact = np.asarray(vectors, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        halves = exact.astype("<f2")
        # In double precision: the square of a large float32 is no float32.
        moved = np.linalg.norm(halves.astype(np.float64) - exact, axis=-1)
        length = np.linalg.norm(exact.astype(np.float64), axis=-1)
        return halves, np.isfinite(length) & (moved <= ROUNDING * length)


def _keys(space: str, texts: Sequence[str]) -> list[bytes]:
    """The key of every text in `space`."""
    secret = hashlib.blake2b(space.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return [
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=secret, digest_size=_KEY_BYTES).digest()
        for text in texts
    ]


def _packed(key: bytes, half: bytes) -> bytes:
    """A blob with a checksum over key and vector: damage on disk must not rank pages, nor one text's vector another."""
    return zlib.crc32(half, zlib.crc32(key)).to_bytes(_SUM_BYTES, "little") + half


def _unpacked(packed: dict[bytes, Any], dimension: int | None) -> dict[bytes, NDArray[np.float32]]:
    """The vectors of the blobs that are sound."""
    import numpy as np

    sound: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, blob in packed.items():
        if not isinstance(blob, bytes):
            continue
        half = blob[_SUM_BYTES:]
        fits = len(half) == 2 * dimension if dimension else half and len(half) % 2 == 0
        if fits and _packed(key, half) == blob:
            sound.setdefault(len(half), []).append((key, half))
    vectors: dict[bytes, NDArray[np.float32]] = {}
    for length, entries in sound.items():
        matrix = np.frombuffer(b"".join(half for _, half in entries), dtype="<f2").reshape(-1, length // 2)
        finite = np.isfinite(matrix).all(axis=1)
        for (key, _), row, is_finite in zip(entries, matrix.astype(np.float32), finite, strict=True):
            if is_finite:
                vectors[key] = row
    return vectors


def _write_touches(state: _State, connection: sqlite3.Connection) -> None:
    touched = dict(state.touched)
    for some in _in_parts(list(touched)):
        connection.executemany(
            "UPDATE vectors SET used = ? WHERE key = ? AND used < ?", [(touched[k], k, touched[k]) for k in some]
        )
    _forget(state.touched, touched)


def _remove(keys: list[bytes], connection: sqlite3.Connection) -> None:
    connection.executemany("DELETE FROM vectors WHERE key = ?", [(key,) for key in keys])


def _forget(remembered: dict[bytes, Any], done: dict[bytes, Any]) -> None:
    """Drop what is done, unless something newer took its place."""
    for key, value in done.items():
        if remembered.get(key) is value:
            remembered.pop(key, None)


def _in_parts(keys: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(keys), _KEYS_PER_STATEMENT):
        yield keys[start : start + _KEYS_PER_STATEMENT]


def _now() -> int:
    """Milliseconds by the clock that processes share."""
    return time.time_ns() // 1_000_000
