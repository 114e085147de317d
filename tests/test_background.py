"""The background loop lets plain code call async code, and never hangs or leaks."""

import asyncio
import threading

import pytest

from trawl.background import BackgroundLoop
from trawl.errors import EngineError


@pytest.fixture
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


async def give(value):
    await asyncio.sleep(0)
    return value


def test_results_and_exceptions_come_back(loop):
    assert loop.run(give(7)) == 7

    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        loop.run(fail())


def test_threads_share_one_loop(loop):
    async def which():
        return id(asyncio.get_running_loop())

    found = []
    threads = [threading.Thread(target=lambda: found.append(loop.run(which()))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(10)
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_call_from_its_own_thread_is_refused_instead_of_hanging(loop):
    async def inside():
        loop.run(give(1))

    with pytest.raises(EngineError, match="own event loop"):
        loop.run(inside())


def test_an_interrupt_cancels_the_call_and_waits_for_its_cleanup(loop, monkeypatch):
    cleaned = threading.Event()

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            cleaned.set()

    import concurrent.futures

    def interrupted(self, timeout=None):
        if not getattr(self, "_seen", False):
            self._seen = True
            threading.Event().wait(0.1)
            raise KeyboardInterrupt
        return original(self, timeout)

    original = concurrent.futures.Future.result
    first = []
    monkeypatch.setattr(
        concurrent.futures.Future,
        "result",
        lambda self, timeout=None: (first.append(self), interrupted(self))[1] if not first else original(self, timeout),
    )
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert cleaned.is_set()


def test_closing_says_farewell_once_and_ends_the_thread():
    loop = BackgroundLoop()
    said = []

    async def farewell():
        said.append(1)

    loop.run(give(1))
    loop.close(farewell())
    loop.close(farewell())
    assert said == [1]
    assert not any(t.name == "trawl" and t.is_alive() for t in threading.enumerate())
    with pytest.raises(EngineError, match="closed"):
        loop.run(give(1))


def test_closing_ends_what_still_runs():
    loop = BackgroundLoop()
    ended = threading.Event()

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def start():
        task = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        return task

    loop.run(start())
    loop.close()
    assert ended.wait(5)
