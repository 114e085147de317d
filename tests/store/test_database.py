"""One file for all: what is queued is written, nobody is blocked, and what is not ours is left alone."""

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from trawl.store import database as database_module
from trawl.store import files
from trawl.store.database import APPLICATION_ID, SCHEMA_VERSION, Database, StoreUnavailable

NOTES = {"notes": "CREATE TABLE notes (id INTEGER PRIMARY KEY, text BLOB)"}


def insert(text: bytes):
    return lambda connection: connection.execute("INSERT INTO notes (text) VALUES (?)", (text,))


def texts(connection: sqlite3.Connection) -> list[bytes]:
    return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY id")]


@pytest.fixture
async def database(path):
    made = Database(path)
    made.register(NOTES)
    yield made
    await made.aclose()


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("trawl-store")]


async def test_making_one_does_nothing_and_closing_an_unused_one_neither(path):
    database = Database(path)
    database.register(NOTES)
    await database.aclose()
    assert not path.parent.exists()
    assert threads() == []


async def test_what_is_written_is_read_in_order(database):
    for number in range(600):
        assert database.write(insert(b"%d" % number)) is not None
    assert await database.flush()
    assert await database.read(texts) == [b"%d" % n for n in range(600)]


async def test_every_file_is_private_while_in_use(database, path):
    database.write(insert(b"a"))
    await database.flush()
    await database.read(texts)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(
        ("store.sqlite3", "store.sqlite3-wal", "store.sqlite3-shm", "store.sqlite3.lock"), 0o600
    )
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_closing_writes_what_is_queued_and_leaves_no_thread_and_no_open_file(database, path):
    for number in range(100):
        database.write(insert(b"%d" % number))
    await database.aclose()
    assert threads() == []
    assert [file.path for file in psutil.Process().open_files() if file.path.startswith(str(path))] == []
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (100,)
    connection.close()


async def test_a_closed_store_takes_nothing_and_gives_nothing(database):
    await database.aclose()
    await database.aclose()
    assert database.write(insert(b"a")) is None
    assert not await database.flush()
    with pytest.raises(StoreUnavailable):
        await database.read(texts)


async def test_closing_is_bounded_while_another_process_holds_the_lock(database, path):
    database.write(insert(b"a"))
    await database.flush()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    written = database.write(insert(b"b"))
    began = time.monotonic()
    await database.aclose(0.2)
    assert time.monotonic() - began < 1.5
    blocker.execute("ROLLBACK")
    blocker.close()
    await asyncio.wait([asyncio.wrap_future(written)])


async def test_a_write_waits_for_another_writer_longer_than_sqlite_does(database, path):
    database.write(insert(b"a"))
    await database.flush()
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    release = threading.Timer(database_module._BUSY_SECONDS * 1.5, lambda: blocker.execute("ROLLBACK"))
    release.start()
    database.write(insert(b"b"))
    assert await database.flush(8)
    release.join()
    blocker.close()
    assert await database.read(texts) == [b"a", b"b"]


async def test_reading_goes_on_while_somebody_writes(database, path):
    database.write(insert(b"a"))
    await database.flush()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    blocker.execute("INSERT INTO notes (text) VALUES (x'62')")
    assert await asyncio.wait_for(database.read(texts), 0.9) == [b"a"]
    blocker.execute("ROLLBACK")
    blocker.close()


async def test_the_event_loop_is_free_while_jobs_run(database):
    held = threading.Event()
    reading = asyncio.create_task(database.read(lambda _: held.wait(5)))
    writing = database.write(lambda _: held.wait(5))
    await asyncio.sleep(0)  # would not return if either ran here
    held.set()
    assert await reading is True
    await asyncio.wrap_future(writing)


async def test_one_slow_read_does_not_hold_up_another(database):
    held = threading.Event()
    slow = asyncio.create_task(database.read(lambda _: held.wait(5)))
    assert await asyncio.wait_for(database.read(lambda _: "quick"), 4) == "quick"
    held.set()
    await slow


async def test_a_read_that_hangs_is_given_up_and_nothing_is_asked_for_a_while(database, monkeypatch, caplog):
    monkeypatch.setattr(database_module, "READ_SECONDS", 0.05)
    held = threading.Event()
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await database.read(lambda _: held.wait(5))
    with pytest.raises(StoreUnavailable, match="not in use now"):
        await database.read(texts)
    held.set()
    assert len(caplog.records) == 1


async def test_a_cancelled_read_leaves_the_store_usable(database):
    held = threading.Event()
    reading = asyncio.create_task(database.read(lambda _: held.wait(5)))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    held.set()
    assert await database.read(texts) == []


async def test_more_than_the_queue_holds_is_not_taken(database, monkeypatch):
    held = threading.Event()
    database.write(lambda _: held.wait(5))
    taken = [database.write(insert(b"x"), cost=database_module.QUEUE_BYTES // 4) is not None for _ in range(8)]
    held.set()
    assert 4 <= sum(taken) <= 5
    assert await database.flush()
    assert database.write(insert(b"x"), cost=database_module.QUEUE_BYTES // 4) is not None


async def test_a_job_with_a_mistake_loses_its_transaction_and_nothing_else(database, caplog):
    def mistaken(_):
        raise KeyError("a mistake of ours")

    wrong = database.write(mistaken)
    with pytest.raises(StoreUnavailable):
        await asyncio.wrap_future(wrong)
    database.write(insert(b"a"))
    assert await database.flush()
    with pytest.raises(StoreUnavailable):
        await database.read(mistaken)
    assert await database.read(texts) == [b"a"]


def test_several_event_loops_and_threads_share_one_database(path):
    database = Database(path)
    database.register(NOTES)

    async def use(name: bytes) -> None:
        for _ in range(20):
            database.write(insert(name))
            await database.read(texts)
        assert await database.flush(10)

    users = [threading.Thread(target=lambda n=n: asyncio.run(use(b"%d" % n))) for n in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join(30)
    assert len(asyncio.run(database.read(texts))) == 80
    asyncio.run(database.aclose())


async def test_threads_end_when_idle_and_come_back(database, monkeypatch):
    monkeypatch.setattr("trawl.store.lanes.IDLE_SECONDS", 0.02)
    database.write(insert(b"a"))
    await database.flush()
    await database.read(texts)
    for thread in threading.enumerate():
        if thread.name.startswith("trawl-store"):
            await asyncio.to_thread(thread.join, 5)
    assert threads() == []
    database.write(insert(b"b"))
    assert await database.flush()
    assert await database.read(texts) == [b"a", b"b"]


async def test_threads_that_end_and_jobs_that_arrive_do_not_miss_each_other(database, monkeypatch):
    monkeypatch.setattr("trawl.store.lanes.IDLE_SECONDS", 0.0)
    for number in range(300):
        database.write(insert(b"%d" % number))
        await asyncio.sleep(0)
    assert await database.flush(10)
    assert len(await database.read(texts)) == 300


async def test_tables_registered_later_are_made_in_an_open_file(database):
    database.write(insert(b"a"))
    await database.flush()
    database.register({"more": "CREATE TABLE more (x)"})
    database.write(lambda connection: connection.execute("INSERT INTO more VALUES (1)"))
    assert await database.flush()
    assert await database.read(lambda c: c.execute("SELECT x FROM more").fetchall()) == [(1,)]
    assert await database.read(texts) == [b"a"]


def make_sqlite(path: Path, *statements: str) -> None:
    path.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def test_the_file_of_a_newer_version_is_left_alone_with_one_warning(database, path, caplog):
    make_sqlite(
        path,
        "CREATE TABLE notes (other)",
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {SCHEMA_VERSION + 1}",
    )
    before = path.read_bytes()
    for _ in range(3):
        database.write(insert(b"a"))
        await database.flush()
        with pytest.raises(StoreUnavailable):
            await database.read(texts)
    assert path.read_bytes() == before
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "newer version" in caplog.text


async def test_a_file_that_becomes_newer_while_in_use_is_left_alone_from_then_on(database, path):
    database.write(insert(b"a"))
    await database.flush()
    assert await database.read(texts) == [b"a"]
    make_sqlite(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert not await database.flush()
    with pytest.raises(StoreUnavailable):
        await database.read(texts)
    assert [p.name for p in path.parent.iterdir() if "damaged" in p.name] == []


async def test_the_tables_of_an_older_version_are_made_anew(database, path):
    make_sqlite(
        path,
        "CREATE TABLE notes (old)",
        "INSERT INTO notes VALUES (1)",
        "CREATE TABLE gone (x)",
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {SCHEMA_VERSION - 1}",
    )
    database.write(insert(b"new"))
    assert await database.flush()
    assert await database.read(texts) == [b"new"]
    assert await database.read(lambda c: c.execute("SELECT name FROM sqlite_master").fetchall()) == [(b"notes",)]


async def test_the_database_of_another_program_is_left_alone(database, path, caplog):
    make_sqlite(path, "CREATE TABLE bookmarks (url)", "INSERT INTO bookmarks VALUES ('u')")
    before = path.read_bytes()
    database.write(insert(b"a"))
    assert not await database.flush()
    assert path.read_bytes() == before
    assert "another program" in caplog.text


async def test_a_removed_or_replaced_file_is_opened_anew(database, path):
    database.write(insert(b"a"))
    await database.flush()
    await database.read(texts)
    for file in path.parent.iterdir():
        file.unlink()
    assert await database.read(texts) == []
    database.write(insert(b"b"))
    await database.flush()
    assert await database.read(texts) == [b"b"]


async def test_a_removed_folder_is_made_again(database, path):
    database.write(insert(b"a"))
    await database.flush()
    path.parent.rename(path.parent.with_name("elsewhere"))
    database.write(insert(b"b"))
    assert await database.flush()
    assert await database.read(texts) == [b"b"]


async def test_a_link_is_followed_and_its_target_is_what_is_moved(tmp_path, path):
    target = tmp_path / "disk" / "real.sqlite3"
    target.parent.mkdir()
    target.write_text("not a database, " * 100)
    path.parent.mkdir()
    path.symlink_to(target)
    database = Database(path)
    database.register(NOTES)
    database.write(insert(b"a"))
    assert await database.flush()
    await database.aclose()
    assert path.is_symlink()
    assert sum("damaged" in p.name for p in target.parent.iterdir()) == 1


@pytest.mark.parametrize("name", ["a b.sqlite3", "q?mode=memory", "h#x.db", "prozent%41", "日本"])
async def test_any_file_name_will_do(tmp_path, name):
    database = Database(tmp_path / name)
    database.register(NOTES)
    database.write(insert(b"a"))
    assert await database.flush()
    await database.aclose()
    assert (tmp_path / name).stat().st_size > 0


async def test_without_shared_memory_the_journal_is_the_plain_one(path, monkeypatch):
    monkeypatch.setattr(files, "is_on_network", lambda _: True)
    database = Database(path)
    database.register(NOTES)
    database.write(insert(b"a"))
    assert await database.flush()
    assert await database.read(texts) == [b"a"]
    assert await database.read(lambda c: c.execute("PRAGMA journal_mode").fetchone()) == (b"delete",)
    assert not path.with_name(path.name + "-wal").exists()
    await database.aclose()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_a_forked_child_opens_the_file_anew_and_the_parent_goes_on(database):
    """The fork happens again and again while both lanes are busy inside SQLite."""
    done = []
    for number in range(10):
        done += [database.write(insert(b"parent")) for _ in range(50)]
        reading = asyncio.create_task(database.read(texts))
        await asyncio.sleep(0)
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.new_event_loop().run_until_complete(_in_child(database, b"child %d" % number))
                os._exit(0)
            except BaseException:
                os._exit(1)
        await reading
        assert await asyncio.to_thread(_exit_code, pid) == 0
    assert await database.flush(10)
    found = await database.read(texts)
    assert sum(text == b"parent" for text in found) == len(done) == 500
    assert {text for text in found if text.startswith(b"child")} == {b"child %d" % n for n in range(10)}


async def _in_child(database: Database, text: bytes) -> None:
    assert database.write(insert(text)) is not None
    assert await database.flush(10)
    assert text in await database.read(texts)
    await database.aclose()


def _exit_code(pid: int) -> int:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -9


def test_importing_it_loads_no_numpy_and_starts_nothing():
    code = "import sys, threading, trawl.store.vectors; print('numpy' in sys.modules, threading.active_count())"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False 1\n"
    )
