"""Damage, crowding, kill -9, full disks and missing rights: at most an entry is lost, and the caller never notices."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.store.conftest import MIB, vectors_of
from trawl.store import files
from trawl.store.vectors import rounded

ROOT = Path(__file__).parents[2]
TEXTS = [f"text {n}" for n in range(400)]


def vectors_are_right(found, texts) -> bool:
    """Whatever was found is the right vector."""
    expected = rounded(vectors_of(texts))
    return all(v is None or np.array_equal(v, e) for v, e in zip(found, expected, strict=True))


async def works(store, database) -> bool:
    store.put("after", ["new"], vectors_of(["new"]))
    written = await database.flush(5)
    found = await store.get("after", ["new"])
    return written and found[0] is not None and vectors_are_right(found, ["new"])


def set_aside(path: Path) -> list[Path]:
    return sorted(p for p in path.parent.glob("*.damaged-*") if not p.name.endswith(("-wal", "-shm")))


@pytest.fixture
async def full(open_store, path) -> Path:
    """The path of a closed store that holds `TEXTS`."""
    store, database = open_store()
    store.put("space", TEXTS, vectors_of(TEXTS))
    await database.flush()
    await database.aclose()
    return path


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def middle(path: Path, page: bytes) -> None:
    """`page` in place of every third page, but not of the first ones, which tell what the file is."""
    size = path.stat().st_size
    for start in range(size // 4 // 16384 * 16384, size, 3 * 16384):
        overwrite(path, start, page[: size - start])


UNREADABLE = {
    "text": lambda p: p.write_text("This is no database at all.\n" * 1000),
    "a few bytes": lambda p: p.write_bytes(b"xyz"),
    "zeros": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "noise": lambda p: p.write_bytes(np.random.default_rng(1).bytes(p.stat().st_size)),
    "header gone": lambda p: overwrite(p, 0, b"\xff" * 100),
    "first page gone": lambda p: overwrite(p, 100, b"\xff" * 16000),
    "format number": lambda p: overwrite(p, 44, b"\xff" * 4),
    "half a page left": lambda p: os.truncate(p, 8000),
}
PARTLY = {
    "cut in the middle": lambda p: os.truncate(p, p.stat().st_size // 2),
    "cut within a page": lambda p: os.truncate(p, p.stat().st_size - 5000),
    "noise in the middle": lambda p: middle(p, np.random.default_rng(2).bytes(16384)),
    "zeros in the middle": lambda p: middle(p, bytes(16384)),
    "ones in the middle": lambda p: middle(p, b"\xff" * 16384),
    "an older version in the header, ones in the middle": lambda p: (
        overwrite(p, 60, bytes(4)),
        middle(p, b"\xff" * 16384),
    ),
    "a log of noise": lambda p: p.with_name(p.name + "-wal").write_bytes(b"garbage" * 10_000),
    "shared memory of noise": lambda p: p.with_name(p.name + "-shm").write_bytes(b"garbage" * 5000),
    "a journal of noise": lambda p: p.with_name(p.name + "-journal").write_bytes(b"garbage" * 5000),
    "emptied": lambda p: os.truncate(p, 0),
}


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_unreadable_file_is_set_aside_with_a_word_about_where_and_a_new_one_begun(
    full, open_store, damage, caplog
):
    damage(full)
    damaged = full.read_bytes()
    store, database = open_store()
    assert vectors_are_right(await store.get("space", TEXTS), TEXTS)
    assert await works(store, database)
    (aside,) = set_aside(full)
    assert aside.read_bytes() == damaged
    assert aside.stat().st_mode & 0o777 == 0o600
    assert [str(aside) in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("damage", PARTLY.values(), ids=PARTLY)
async def test_damage_found_only_on_use_costs_entries_and_nothing_else(full, open_store, damage):
    damage(full)
    store, database = open_store()
    for text in TEXTS:
        assert vectors_are_right(await store.get("space", [text]), [text])
    store.put("space", TEXTS, vectors_of(TEXTS))
    assert await works(store, database)
    found = await store.get("space", TEXTS)
    assert vectors_are_right(found, TEXTS)
    store.put("space", TEXTS, vectors_of(TEXTS))
    await database.flush()
    assert all(v is not None for v in await store.get("space", TEXTS))


@pytest.mark.parametrize("damage", {**UNREADABLE, **PARTLY}.values(), ids={**UNREADABLE, **PARTLY})
async def test_damage_in_the_middle_of_use_is_survived_by_everyone_who_has_it_open(full, open_store, damage):
    if damage is PARTLY["shared memory of noise"]:
        pytest.skip("shared memory in use is the processes' own memory; SQLite offers no defence")
    users = [open_store() for _ in range(2)]
    for store, database in users:
        await store.get("space", TEXTS[:10])
        store.put("space", ["more"], vectors_of(["more"]))
        await database.flush()
    damage(full)
    for _ in range(3):
        for store, database in users:
            assert vectors_are_right(await store.get("space", TEXTS), TEXTS)
            store.put("space", TEXTS[:100], vectors_of(TEXTS[:100]))
            await database.flush()
    for store, database in users:
        assert await works(store, database)


async def test_who_comes_second_with_the_news_of_damage_moves_nothing(full, open_store):
    """Both have it open and find the damage; the lock is held until both wait for it."""
    users = [open_store() for _ in range(2)]
    for store, _ in users:
        await store.get("space", TEXTS[:1])
    middle(full, b"\xff" * 16384)
    with files.opening(full):
        finding = [asyncio.create_task(store.get("space", TEXTS)) for store, _ in users]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in finding)
    await asyncio.gather(*finding)
    for store, database in users:
        assert await works(store, database)
    assert len(set_aside(full)) == 1


@pytest.mark.parametrize("statement", ["DROP TABLE vectors", "ALTER TABLE vectors DROP COLUMN vector"])
async def test_a_table_that_is_not_what_it_should_be_is_begun_anew(full, open_store, statement):
    connection = sqlite3.connect(full)
    connection.execute("DROP INDEX vectors_by_use")
    connection.execute(statement)
    connection.close()
    store, database = open_store()
    await store.get("space", TEXTS)
    assert await works(store, database)


async def test_an_empty_file_is_a_new_store(open_store, path, caplog):
    path.parent.mkdir()
    path.touch(mode=0o644)
    store, database = open_store()
    assert await works(store, database)
    assert path.stat().st_mode & 0o777 == 0o600
    assert caplog.records == []


async def degrades(store, database, caplog) -> bool:
    """Every call goes on without cache, and there is one warning."""
    for number in range(3):
        store.put("space", [f"a{number}"], vectors_of(["a"]))
        await database.flush(1)
        await store.get("space", ["unknown"])
    return len([r for r in caplog.records if r.name.startswith("trawl")]) == 1


PLACES = {
    "a folder at the path": lambda p: p.mkdir(parents=True),
    "a pipe at the path": lambda p: (p.parent.mkdir(), os.mkfifo(p)),
    "a file where the folder should be": lambda p: p.parent.write_text("x"),
    "a link that leads to itself": lambda p: (p.parent.mkdir(), p.symlink_to(p)),
    "a folder in place of the log": lambda p: p.with_name(p.name + "-wal").mkdir(parents=True),
    "a folder in place of the lock": lambda p: p.with_name(p.name + ".lock").mkdir(parents=True),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
async def test_a_place_that_cannot_hold_a_store_means_no_cache_and_one_warning(open_store, path, place, caplog):
    place(path)
    store, database = open_store()
    assert await degrades(store, database, caplog)
    assert await store.get("space", ["a0"]) == [None]


async def test_a_read_only_folder_means_no_cache_and_one_warning(open_store, path, caplog):
    path.parent.mkdir(mode=0o500)
    if os.access(path.parent, os.W_OK):
        pytest.skip("this user may write anywhere")
    store, database = open_store()
    assert await degrades(store, database, caplog)


async def test_a_read_only_file_of_ours_is_made_writable(open_store, full):
    full.chmod(0o400)
    store, database = open_store()
    assert vectors_are_right(await store.get("space", TEXTS), TEXTS)
    assert await works(store, database)
    assert full.stat().st_mode & 0o777 == 0o600


async def test_it_is_tried_again_after_a_rest(open_store, path, monkeypatch, caplog):
    path.parent.write_text("in the way")
    store, database = open_store()
    assert await degrades(store, database, caplog)
    path.parent.unlink()
    assert not await works(store, database)
    database._lanes._rests_until.clear()
    assert await works(store, database)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, timeout=10
    )
    if not mounted or mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=10)


async def test_a_full_disk_ends_writing_with_one_warning_and_reading_goes_on(open_store, small_disk, caplog):
    store, database = open_store(small_disk / "store.sqlite3")
    store.put("space", TEXTS[:50], vectors_of(TEXTS[:50]))
    assert await database.flush()
    for number in range(60):
        texts = [f"{number} {n}" for n in range(50)]
        store.put("more", texts, vectors_of(texts))
        await database.flush()
    assert all(v is not None for v in await store.get("space", TEXTS[:50]))
    assert len(caplog.records) == 1
    assert "disk is full" in caplog.text
    assert set_aside(small_disk / "store.sqlite3") == []
    await database.aclose()


async def test_a_disk_that_is_full_from_the_beginning_means_no_cache_and_one_warning(open_store, small_disk, caplog):
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    store, database = open_store(small_disk / "cache" / "store.sqlite3")
    assert await degrades(store, database, caplog)


PRELUDE = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.store.conftest import vectors_of
from trawl.store.database import Database
from trawl.store.vectors import VectorStore, rounded
import numpy as np
database = Database(Path(sys.argv[1])); store = VectorStore(database, 64 * 2**20, 3600)
who = sys.argv[3]
"""
LIMITED = """
async def main():
    for number in range(60):
        texts = [f"{number} {n}" for n in range(50)]
        store.put("space", texts, vectors_of(texts)); await database.flush(); await store.get("space", texts)
    await database.aclose()
asyncio.run(main()); print("fine", store.counters.errors > 0)
"""
CROWD = """
async def main():
    print("ready", flush=True); sys.stdin.readline()
    for number in range(15):
        texts = [f"{who} {number} {n}" for n in range(20)]
        store.put("space", texts, vectors_of(texts))
        found = await store.get("space", [f"{other} {number} {n}" for other in range(4) for n in range(20)])
        for at, vector in enumerate(found):
            text = f"{at // 20} {number} {at % 20}"
            assert vector is None or np.array_equal(vector, rounded(vectors_of([text]))[0]), text
    assert await database.flush(20)
    await database.aclose()
    print("lost", store.counters.errors)
asyncio.run(main())
"""
WRITE_FOR_EVER = """
async def main():
    number = 0
    while True:
        texts = [f"{number} {n}" for n in range(50)]
        store.put("space", texts, vectors_of(texts)); await database.flush()
        number += 1
        if number == 2: print("writing", flush=True)
asyncio.run(main())
"""


def start(code: str, path: Path, who: object = 0, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(path), str(ROOT), str(who)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_a_limit_on_file_size_is_like_a_full_disk(path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))

    with start(LIMITED, path, preexec_fn=limit) as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "fine True\n"), err
    assert err.count("the store") == 1


def crowd(path: Path) -> list[tuple[int, str, str]]:
    """Four processes that write and read at the same time: exit codes, output, errors."""
    processes = [start(CROWD, path, who) for who in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return [(*process.communicate(timeout=60), process.returncode) for process in processes]


async def test_processes_that_begin_a_store_together_lose_nothing(open_store, path):
    for out, err, code in crowd(path):
        assert (code, out, err) == (0, "lost 0\n", "")
    store, _ = open_store()
    texts = [f"{who} {number} {n}" for who in range(4) for number in range(15) for n in range(20)]
    found = await store.get("space", texts)
    assert all(v is not None for v in found)
    assert vectors_are_right(found, texts)


@pytest.mark.parametrize("damage", [UNREADABLE["zeros"], PARTLY["noise in the middle"]], ids=["zeros", "noise"])
async def test_processes_that_find_damage_together_set_one_file_aside(open_store, full, damage):
    damage(full)
    results = crowd(full)
    assert [(code, out) for out, _, code in results] == [(0, "lost 0\n")] * 4, results
    assert len(set_aside(full)) == 1
    assert sum(err.count("was damaged") for _, err, _ in results) == 1
    store, _ = open_store()
    texts = [f"{who} {number} {n}" for who in range(4) for number in range(15) for n in range(20)]
    assert all(v is not None for v in await store.get("space", texts))


async def test_a_writer_killed_in_the_middle_leaves_a_sound_store(open_store, path):
    for _ in range(5):
        with start(WRITE_FOR_EVER, path) as writer:
            assert await asyncio.to_thread(writer.stdout.readline) == "writing\n"
            await asyncio.sleep(np.random.default_rng(os.getpid()).uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
        store, database = open_store()
        texts = [f"{number} {n}" for number in range(20) for n in range(50)]
        found = await store.get("space", texts)
        assert all(v is not None for v in found[:100])
        assert vectors_are_right(found, texts)
        assert await database.read(lambda c: c.execute("PRAGMA integrity_check").fetchall()) == [(b"ok",)]
        assert await works(store, database)
        await database.aclose()
    assert set_aside(path) == []
