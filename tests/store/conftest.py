"""A store in a folder of its own, and vectors to put into it."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from trawl.store.database import Database
from trawl.store.vectors import VectorStore

MIB = 2**20


def vectors_of(texts: list[str], dimension: int = 384) -> np.ndarray:
    """A unit vector per text, always the same one for the same text."""
    made = [np.random.default_rng(zlib.crc32(t.encode("utf-8", "surrogatepass"))).normal(size=dimension) for t in texts]
    return np.asarray([v / np.linalg.norm(v) for v in made], dtype=np.float32).reshape(len(texts), dimension)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "store.sqlite3"


@pytest.fixture
async def open_store(path: Path) -> AsyncIterator[Callable[..., VectorStore]]:
    """Makes vector stores, each over a database of its own (`store.database`), and closes them in the end."""
    opened: list[Database] = []

    def make(where: Path = path, max_bytes: int = 64 * MIB, ttl: float = 3600) -> tuple[VectorStore, Database]:
        database = Database(where)
        opened.append(database)
        return VectorStore(database, max_bytes, ttl), database

    yield make
    for database in opened:
        await database.aclose()
