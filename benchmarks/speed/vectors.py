"""What keeping vectors costs and gives: 100 of them read and written, beside one JSON file for each.

    python benchmarks/speed/vectors.py [--kept N] [--dimension N] [--rounds N]

N vectors are kept already. Peer in the same run, in turns: a folder with a JSON file per vector, written beside and
renamed, which is what older caches of this kind do. Wall clock in milliseconds, medians; bytes on disk per vector.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from trawl.store.database import Database
from trawl.store.vectors import VectorStore

AT_ONCE = 100
ROOM = 2**40
LONG = 10**9


class JsonFolder:
    """The peer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, texts: list[str], vectors: np.ndarray) -> None:
        for text, vector in zip(texts, vectors, strict=True):
            path = self._path(text)
            part = path.with_suffix(".part")
            part.write_text(json.dumps({"schema": 1, "embedding": vector.tolist()}))
            part.replace(path)

    def get(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array(json.loads(self._path(t).read_text())["embedding"], np.float32) for t in texts]

    def _path(self, text: str) -> Path:
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=int, default=20_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options.kept, options.dimension, options.rounds))


async def measure(folder: Path, kept: int, dimension: int, rounds: int) -> None:
    random = np.random.default_rng(0)
    database = Database(folder / "store.sqlite3")
    store, peer = VectorStore(database, ROOM, LONG), JsonFolder(folder)
    for start in range(0, kept, AT_ONCE):
        texts, vectors = some(random, f"kept {start}", dimension)
        store.put("space", texts, vectors)
        peer.put(texts, vectors)
    await database.flush(600)
    ours: dict[str, list[float]] = {"write": [], "read": []}
    theirs: dict[str, list[float]] = {"write": [], "read": []}
    for turn in range(rounds):
        texts, vectors = some(random, f"new {turn}", dimension)
        began = time.perf_counter()
        store.put("space", texts, vectors)
        await database.flush(60)
        note(ours["write"], began)
        began = time.perf_counter()
        assert all(vector is not None for vector in await store.get("space", texts))
        note(ours["read"], began)
        began = time.perf_counter()
        peer.put(texts, vectors)
        note(theirs["write"], began)
        began = time.perf_counter()
        peer.get(texts)
        note(theirs["read"], began)
    await database.aclose()
    total = kept + rounds * AT_ONCE
    for name, times, size in (
        ("trawl", ours, on_disk(folder, "store.sqlite3*")),
        ("a JSON file each", theirs, on_disk(folder, "*.json")),
    ):
        print(
            f"{name:18} write {median(times['write']):7.2f} ms   read {median(times['read']):7.2f} ms"
            f"   {size / total:8.0f} bytes a vector"
        )


def some(random: np.random.Generator, name: str, dimension: int) -> tuple[list[str], np.ndarray]:
    vectors = random.standard_normal((AT_ONCE, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [f"{name}, passage {i}" for i in range(AT_ONCE)], vectors


def note(times: list[float], began: float) -> None:
    times.append((time.perf_counter() - began) * 1000)


def on_disk(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob(pattern))


if __name__ == "__main__":
    main()
