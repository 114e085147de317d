"""The vector cache: what comes back is what was put, what is not used goes first, and it can always be switched off."""

import asyncio
import sqlite3

import numpy as np
import pytest

from tests.store.conftest import MIB, vectors_of
from trawl.store import database as database_module
from trawl.store import vectors as vectors_module
from trawl.store.vectors import VectorCounters, disk_bytes, rounded

ODD_TEXTS = ["", "a", "日本語 한국어 العربية", "👩‍👩‍👧‍👦", "a\x00b", "\ud800 lone", "x" * 200_000, "a ", "A"]


async def kept(store, space, texts) -> list[bool]:
    return [vector is not None for vector in await store.get(space, texts)]


async def test_what_was_put_comes_back_rounded_in_order(open_store):
    store, database = open_store()
    texts = [f"text {n}" for n in range(100)]
    fresh = vectors_of(texts)
    store.put("space", texts, fresh)
    assert await database.flush()
    again, _ = open_store()
    found = await again.get("space", [*texts, "unknown", texts[7]])
    assert found[100] is None
    assert np.array_equal(np.asarray(found[:100]), rounded(fresh))
    assert np.array_equal(found[101], found[7])
    assert {v.dtype for v in found if v is not None} == {np.dtype(np.float32)}
    assert again.counters == VectorCounters(hits=101, misses=1)


async def test_a_vector_is_found_at_once_though_it_is_written_later(open_store, path):
    store, database = open_store()
    store.put("space", ["first"], vectors_of(["first"]))
    await database.flush()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store.put("space", ["a"], vectors_of(["a"]))
    assert await kept(store, "space", ["a", "first"]) == [True, True]
    blocker.execute("ROLLBACK")
    blocker.close()
    assert await database.flush(5)
    assert await kept(store, "space", ["a", "first"]) == [True, True]


async def test_changing_the_callers_array_after_put_changes_nothing(open_store):
    store, _ = open_store()
    fresh = vectors_of(["a"])
    expected = rounded(fresh)
    store.put("space", ["a"], fresh)
    fresh[:] = 0
    assert np.array_equal((await store.get("space", ["a"]))[0], expected[0])


async def test_every_text_is_its_own(open_store):
    store, database = open_store()
    fresh = vectors_of(ODD_TEXTS, 8)
    store.put("space", ODD_TEXTS, fresh)
    await database.flush()
    assert np.array_equal(np.asarray(await store.get("space", ODD_TEXTS)), rounded(fresh))


async def test_spaces_are_apart_also_where_space_and_text_run_together(open_store):
    store, database = open_store()
    store.put("ab", ["c"], vectors_of(["c"]))
    await database.flush()
    assert await kept(store, "a", ["bc"]) == [False]
    assert await kept(store, "", ["abc"]) == [False]
    assert await kept(store, "ab", ["c"]) == [True]
    assert await kept(store, "\ud800", ["c"]) == [False]


async def test_neither_text_nor_space_is_stored(open_store, path):
    store, database = open_store()
    store.put("the-model-name", ["a private sentence"], vectors_of(["x"]))
    await database.flush()
    stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"private" not in stored
    assert b"model-name" not in stored


async def test_ten_thousand_texts_in_one_call(open_store):
    store, database = open_store()
    texts = [f"t{n}" for n in range(10_000)]
    store.put("space", texts, np.ones((10_000, 8), dtype=np.float32))
    assert await database.flush(20)
    assert all(await kept(store, "space", [*texts]))


async def test_a_later_vector_of_the_same_text_replaces_the_first(open_store):
    store, database = open_store()
    for number in (1.0, 2.0):
        store.put("space", ["a", "a"], np.full((2, 4), number, dtype=np.float32))
    await database.flush()
    assert (await store.get("space", ["a"]))[0].tolist() == [2.0] * 4


async def test_nothing_in_nothing_out(open_store, path):
    store, _ = open_store()
    store.put("space", [], [])
    assert await store.get("space", []) == []
    assert not path.exists()


@pytest.mark.parametrize(("max_bytes", "ttl"), [(0, 3600), (-1, 3600), (MIB, 0), (MIB, -1)])
async def test_switched_off_it_touches_no_disk(open_store, path, max_bytes, ttl):
    store, _ = open_store(max_bytes=max_bytes, ttl=ttl)
    store.put("space", ["a"], vectors_of(["a"]))
    assert await store.get("space", ["a"]) == [None]
    assert not path.parent.exists()
    assert store.counters == VectorCounters()


async def test_as_many_vectors_as_texts(open_store):
    store, _ = open_store()
    with pytest.raises(ValueError, match="2 texts but 1 vectors"):
        store.put("space", ["a", "b"], vectors_of(["a"]))


UNHOLDABLE = {
    "nan": [np.nan, 1, 0, 0],
    "infinite": [np.inf, 1, 0, 0],
    "beyond float16": [1e6, 1, 0, 0],
    "below float16": [1e-9, 2e-9, 0, 0],
    "barely in float16": [1e-7, 3e-7, 2e-7, 0],
    "its square beyond float32": [1e30, 1, 0, 0],
}


@pytest.mark.parametrize("row", UNHOLDABLE.values(), ids=UNHOLDABLE)
async def test_what_float16_cannot_hold_stays_as_it_is_and_is_not_kept(open_store, row):
    store, database = open_store()
    fresh = np.asarray([row, [0.5, 0.5, 0.5, 0.5], [0, 0, 0, 0]], dtype=np.float32)
    assert np.array_equal(rounded(fresh), fresh, equal_nan=True)
    store.put("space", ["odd", "fine", "zero"], fresh)
    await database.flush()
    assert await kept(store, "space", ["odd", "fine", "zero"]) == [False, True, True]


def test_rounding_is_idempotent_small_and_keeps_its_argument():
    fresh = vectors_of([str(n) for n in range(50)])
    before = fresh.copy()
    once = rounded(list(fresh))
    assert np.array_equal(rounded(once), once)
    assert np.array_equal(fresh, before)
    assert (once != fresh).any()
    assert float(np.abs(once @ fresh.T - fresh @ fresh.T).max()) < 1e-3
    assert rounded(fresh[0]).shape == (384,)


DAMAGED_ROWS = {
    "short": "substr(vector, 1, 101)",
    "cut by one number": "substr(vector, 1, length(vector) - 2)",
    "empty": "x''",
    "only a checksum": "substr(vector, 1, 4)",
    "zeros": "zeroblob(length(vector))",
    "nan": "CAST(substr(vector, 1, 4) || x'007e' || substr(vector, 7) AS BLOB)",
    "one bit": "CAST(substr(vector, 1, 40) || x'ff' || substr(vector, 42) AS BLOB)",
    "the vector of another text": "(SELECT v.vector FROM vectors v WHERE v.id != vectors.id LIMIT 1)",
    "text": "'words'",
    "a number": "42",
}


@pytest.mark.parametrize("damage", DAMAGED_ROWS.values(), ids=DAMAGED_ROWS)
async def test_a_damaged_entry_is_a_miss_and_removed_and_the_rest_stays(open_store, path, damage):
    store, database = open_store()
    store.put("space", ["a", "b"], vectors_of(["a", "b"]))
    await database.flush()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE vectors SET vector = {damage} WHERE id = 1")  # noqa: S608
    connection.close()
    assert await kept(store, "space", ["a", "b"]) == [False, True]
    await database.flush()
    assert await database.read(lambda c: c.execute("SELECT id FROM vectors").fetchall()) == [(2,)]
    assert store.counters.errors == 1


IMPOSSIBLE_NUMBERS = [
    "used = 'soon'",
    "used = -1",
    "used = x'00'",
    "size = 'big'",
    "size = -1000000000",
    f"size = {2**62}",
]


@pytest.mark.parametrize("damage", IMPOSSIBLE_NUMBERS)
async def test_numbers_that_cannot_be_do_not_spoil_trimming(open_store, path, damage):
    store, database = open_store()
    texts = [f"t{n}" for n in range(30)]
    store.put("space", texts, vectors_of(texts))
    await database.aclose()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE vectors SET {damage} WHERE id IN (3, 4)")  # noqa: S608
    connection.close()
    store, database = open_store(max_bytes=room_for(20))
    assert sum(await kept(store, "space", texts)) >= 28
    store.put("space", ["new"], vectors_of(["new"]))
    await settle(database)
    assert sum(await kept(store, "space", [*texts, "new"])) == 16


async def test_an_index_that_tells_of_missing_entries_is_damage(open_store, path, caplog):
    """Trimming would go on for ever deleting what is not there."""
    store, database = open_store()
    texts = [f"t{n}" for n in range(30)]
    store.put("space", texts, vectors_of(texts))
    await database.aclose()
    for step in (
        "CREATE TABLE spare AS SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE type = 'index'",
        "DELETE FROM spare WHERE name != 'vectors_by_use'",
        "DELETE FROM sqlite_master WHERE name = 'vectors_by_use'",
        "DELETE FROM vectors WHERE id <= 20",
        "INSERT INTO sqlite_master SELECT * FROM spare",
    ):
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(step)
        connection.close()
    store, database = open_store(max_bytes=room_for(20))
    store.put("space", ["new"], vectors_of(["new"]))
    await settle(database)
    assert "tells of entries that are not there" in caplog.text
    store.put("space", ["new"], vectors_of(["new"]))
    await settle(database)
    assert await kept(store, "space", ["new"]) == [True]


async def test_a_sound_checksum_over_nan_is_still_a_miss(open_store):
    store, database = open_store()
    (key,) = vectors_module._keys("space", ["a"])
    blob = vectors_module._packed(key, np.asarray([np.nan, 1.0], dtype="<f2").tobytes())
    store.put("space", ["b"], vectors_of(["b"]))
    database.write(
        lambda c: c.execute(
            "INSERT INTO vectors (key, used, size, vector) VALUES (?, ?, 1, ?)", (key, vectors_module._now(), blob)
        )
    )
    await database.flush()
    assert await kept(store, "space", ["a"]) == [False]


async def test_an_entry_of_another_dimension_than_expected_is_a_miss_and_removed(open_store):
    store, database = open_store()
    store.put("space", ["a"], vectors_of(["a"], 8))
    await database.flush()
    assert await store.get("space", ["a"], dimension=16) == [None]
    await database.flush()
    assert await store.get("space", ["a"], dimension=8) == [None]


def room_for(entries: float) -> int:
    """A size bound that holds so many entries of 384 dimensions."""
    return int(disk_bytes(4 + 2 * 384) * entries)


async def settle(database) -> None:
    """Until the trimming that writes have queued is done too."""
    for _ in range(4):
        assert await database.flush(10)


async def test_the_least_recently_used_goes_first_down_to_four_fifths(open_store, monkeypatch):
    store, database = open_store(max_bytes=room_for(10.5))
    texts = [f"t{n}" for n in range(10)]
    for text in texts:
        store.put("space", [text], vectors_of([text]))
        await settle(database)
    await store.get("space", ["t0", "t2"])
    store.put("space", ["new"], vectors_of(["new"]))
    await settle(database)
    assert await kept(store, "space", [*texts, "new"]) == [True, False, True, False, False, *[True] * 6]
    assert store.counters.evictions == 3


@pytest.mark.parametrize(("put", "bound", "left"), [(500, 50.5, 40), (2900, 900.5, 720)])
async def test_one_put_larger_than_the_bound_is_cut_down_to_four_fifths_of_it(open_store, put, bound, left):
    """Also when one step of trimming ends between the two."""
    store, database = open_store(max_bytes=room_for(bound))
    texts = [f"t{n}" for n in range(put)]
    store.put("space", texts, np.ones((put, 384), dtype=np.float32))
    await settle(database)
    assert sum(await kept(store, "space", texts)) == left


async def test_the_file_shrinks_when_the_bound_is_lowered(open_store, path):
    store, database = open_store()
    texts = [f"t{n}" for n in range(5000)]
    store.put("space", texts, np.ones((5000, 384), dtype=np.float32))
    await database.flush(10)
    await database.aclose()
    full = path.stat().st_size
    store, database = open_store(max_bytes=full // 10)
    store.put("space", ["one more"], vectors_of(["x"]))
    await settle(database)
    await database.aclose()
    assert path.stat().st_size < full // 4
    assert sum(await kept(open_store()[0], "space", texts)) > 100


async def test_the_bound_holds_while_several_stores_write(open_store, path):
    bound = room_for(200)
    stores = [open_store(max_bytes=bound) for _ in range(3)]
    for number in range(40):
        for which, (store, _) in enumerate(stores):
            texts = [f"{which} {number} {n}" for n in range(20)]
            store.put("space", texts, np.ones((20, 384), dtype=np.float32))
        await asyncio.gather(*(database.flush(10) for _, database in stores))
    for _, database in stores:
        await settle(database)
    (size,) = await stores[0][1].read(lambda c: c.execute("SELECT sum(size) FROM vectors").fetchone())
    assert size <= bound * 1.2


async def test_an_entry_unused_for_too_long_is_a_miss_and_dropped_when_trimming(open_store, monkeypatch):
    now = vectors_module._now()
    store, database = open_store(ttl=100)
    store.put("space", ["old", "used"], vectors_of(["old", "used"]))
    await settle(database)
    monkeypatch.setattr(vectors_module, "_now", lambda: now + 60_000)
    assert await kept(store, "space", ["used"]) == [True]
    monkeypatch.setattr(vectors_module, "_now", lambda: now + 130_000)
    assert await kept(store, "space", ["old", "used"]) == [False, True]
    await database.aclose()
    store, database = open_store(ttl=100)
    store.put("space", ["new"], vectors_of(["new"]))
    await settle(database)
    assert await database.read(lambda c: c.execute("SELECT count(*) FROM vectors").fetchone()) == (2,)
    assert store.counters.evictions == 1


async def test_entries_of_a_clock_that_was_ahead_do_not_live_for_ever(open_store, monkeypatch):
    now = vectors_module._now()
    monkeypatch.setattr(vectors_module, "_now", lambda: now + 10**12)
    store, database = open_store(ttl=100)
    store.put("space", ["a"], vectors_of(["a"]))
    await database.aclose()
    monkeypatch.setattr(vectors_module, "_now", lambda: now)
    store, database = open_store(ttl=100)
    store.put("space", ["b"], vectors_of(["b"]))
    await settle(database)
    monkeypatch.setattr(vectors_module, "_now", lambda: now + 101_000)
    assert await kept(store, "space", ["a", "b"]) == [False, False]


async def test_reading_writes_nothing_until_uses_have_gathered(open_store, monkeypatch):
    now = vectors_module._now()
    store, database = open_store()
    store.put("space", ["a"], vectors_of(["a"]))
    await settle(database)

    async def last_use():
        return (await database.read(lambda c: c.execute("SELECT used FROM vectors").fetchone()))[0]

    monkeypatch.setattr(vectors_module, "_now", lambda: now + 5000)
    for _ in range(50):
        await store.get("space", ["a"])
    await database.flush()
    assert await last_use() < now + 5000
    monkeypatch.setattr(vectors_module, "TOUCH_SECONDS", 0.0)
    await store.get("space", ["a"])
    await database.flush()
    assert await last_use() == now + 5000


async def test_uses_are_written_on_closing(open_store, monkeypatch):
    now = vectors_module._now()
    store, database = open_store()
    store.put("space", ["a"], vectors_of(["a"]))
    await settle(database)
    monkeypatch.setattr(vectors_module, "_now", lambda: now + 5000)
    await store.get("space", ["a"])
    await database.aclose()
    _, database = open_store()
    assert (await database.read(lambda c: c.execute("SELECT used FROM vectors").fetchone())) == (now + 5000,)


async def test_what_is_too_much_for_the_queue_is_lost_and_counted(open_store, monkeypatch):
    monkeypatch.setattr(database_module, "QUEUE_BYTES", 1000)
    store, database = open_store()
    store.put("space", ["a"], vectors_of(["a"], 2000))
    store.put("space", ["b"], vectors_of(["b"], 10))
    await database.flush()
    assert await kept(store, "space", ["a", "b"]) == [False, True]
    assert store.counters.errors == 1


async def test_after_closing_everything_is_a_miss(open_store):
    store, database = open_store()
    store.put("space", ["a"], vectors_of(["a"]))
    await database.aclose()
    store.put("space", ["b"], vectors_of(["b"]))
    assert await kept(store, "space", ["a", "b"]) == [False, False]
