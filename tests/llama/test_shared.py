"""One backend for all calls: started again once when its server dies, then left alone; a slow one is kept."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.llama.conftest import bag_of_letters, reply, vectors
from trawl.deadline import Deadline
from trawl.errors import ModelBusy, ModelUnavailable
from trawl.llama import shared as shared_module
from trawl.llama.backends import Backends
from trawl.llama.embedder import Embedder
from trawl.llama.servers import ModelServers
from trawl.llama.shared import Shared
from trawl.settings import Settings

Serving = Callable[..., Any]
TEXTS = [f"Paragraph {i} speaks at length of {'stones and ' * 20}rivers." for i in range(48)]


@pytest.fixture
async def servers(cache_dir: Path, tmp_path: Path) -> AsyncIterator[ModelServers]:
    """With a run directory of their own: their server may be killed."""
    made = ModelServers(Backends(Settings(cache_dir=cache_dir, runtime_dir=tmp_path)))
    yield made
    await made.aclose()


async def opened(shared: Shared[Embedder]) -> Embedder:
    found = await shared.get(Deadline.after(60))
    assert found.backend is not None, found.reason
    return found.backend


def pid_of(embedder: Embedder) -> int:
    assert embedder.endpoint.lease is not None
    return embedder.endpoint.lease.pid


async def kill_when_busy(pid: int) -> None:
    """SIGKILL in the middle of a batch: once the server has computed for a while."""
    process = psutil.Process(pid)
    before = process.cpu_times().user
    while process.cpu_times().user < before + 0.3:  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0.02)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.embedded
async def test_a_server_killed_in_the_middle_of_a_batch_is_started_again_within_the_call(
    servers: ModelServers,
) -> None:
    first = await opened(servers.embedder)
    pid, deadline = pid_of(first), Deadline.after(60)
    killing = asyncio.create_task(kill_when_busy(pid))
    found = await servers.embedder.use(first, lambda e: e.embed(["rivers?"], TEXTS, deadline), deadline)
    await killing
    assert found.passages.shape == (48, 384)
    assert np.isfinite(found.passages).all()
    second = await opened(servers.embedder)
    assert second is not first
    assert pid_of(second) != pid


@pytest.mark.embedded
async def test_after_a_second_crash_the_server_is_left_alone_for_a_while(
    servers: ModelServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = Deadline.after(60)
    for crash in range(2):
        embedder = await opened(servers.embedder)
        os.kill(pid_of(embedder), signal.SIGKILL)
        work = servers.embedder.use(embedder, lambda e: e.embed(["q"], [], deadline), deadline)
        if crash == 0:
            await work
        else:
            with pytest.raises(ModelUnavailable, match="crashed 2 times"):
                await work
    assert (await servers.embedder.get(deadline)).backend is None
    monkeypatch.setattr(shared_module, "CRASH_SECONDS", 0)
    assert (await servers.embedder.get(deadline)).backend is not None


@pytest.mark.embedded
async def test_calls_that_lose_their_server_together_get_one_new_one(servers: ModelServers) -> None:
    first = await opened(servers.embedder)
    deadline = Deadline.after(60)
    os.kill(pid_of(first), signal.SIGKILL)
    found = await asyncio.gather(
        *(servers.embedder.use(first, lambda e: e.embed(["q"], [], deadline), deadline) for _ in range(5))
    )
    assert all(f.questions.shape == (1, 384) for f in found)
    assert (await opened(servers.embedder)) is not first


@pytest.mark.embedded
async def test_a_call_that_ran_out_of_time_does_not_cost_the_others_their_server(servers: ModelServers) -> None:
    embedder = await opened(servers.embedder)
    short = Deadline.after(0.2)
    with pytest.raises(ModelUnavailable):
        await servers.embedder.use(embedder, lambda e: e.embed([], TEXTS, short), short)
    assert servers.embedder._probe is not None
    await servers.embedder._probe
    assert await opened(servers.embedder) is embedder


def embeds(body: Any) -> bytes:
    return reply(vectors(body))


async def test_work_beyond_the_queue_is_refused_and_the_endpoint_is_kept(fake_server: Serving) -> None:
    release = asyncio.Event()
    checked = False

    async def slow(body: Any) -> bytes:
        nonlocal checked
        if checked:
            await release.wait()
        checked = True
        return embeds(body)

    async with fake_server({"/v1/embeddings": slow}) as fake:
        settings = Settings(embed_url=fake.url, embedded=False, max_inflight=2, queue_depth=1, queue_wait=20)
        servers = ModelServers(Backends(settings))
        embedder = await opened(servers.embedder)
        deadline = Deadline.after(20)

        async def call() -> Any:
            return await servers.embedder.use(embedder, lambda e: e.embed(["q"], [], deadline), deadline)

        calls = [asyncio.create_task(call()) for _ in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(ModelBusy) as refused:
            await call()
        assert refused.value.reason == "queue_full"
        stats = servers.stats()[fake.url]
        assert (stats.inflight, stats.waiting) == (2, 1)
        release.set()
        await asyncio.gather(*calls)
        assert await opened(servers.embedder) is embedder
        await servers.aclose()


async def test_a_server_that_changes_its_model_is_opened_again_within_the_call(fake_server: Serving) -> None:
    length = 64

    def changing(body: Any) -> bytes:
        return reply(vectors(body, lambda text: [sum(bag_of_letters(text)[i::length]) for i in range(length)]))

    async with fake_server({"/v1/embeddings": changing}) as fake:
        servers = ModelServers(Backends(Settings(embed_url=fake.url, embedded=False)))
        embedder = await opened(servers.embedder)
        length, deadline = 32, Deadline.after(10)
        found = await servers.embedder.use(embedder, lambda e: e.embed(["q"], ["p"], deadline), deadline)
        assert (found.questions.shape, found.passages.shape) == ((1, 32), (1, 32))
        assert (await opened(servers.embedder)).dimension == 32
        assert servers.stats()[fake.url].failed == 0
        await servers.aclose()


async def test_an_endpoint_that_stops_answering_is_given_up_and_looked_for_again(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_server({"/v1/embeddings": embeds}) as fake:
        shared = Shared(Backends(Settings(embed_url=fake.url, embedded=False)).open_embedder)
        embedder = await opened(shared)
    deadline = Deadline.after(5)
    with pytest.raises(ModelUnavailable):
        await shared.use(embedder, lambda e: e.embed(["q"], [], deadline), deadline)
    assert shared._probe is not None
    await shared._probe
    gone = await shared.get(deadline)
    assert gone.backend is None
    assert "cannot be used" in gone.reason
    assert (await shared.get(deadline)) is gone, "not asked again at once"
    monkeypatch.setattr(shared_module, "RETRY_SECONDS", 0)
    assert (await shared.get(deadline)) is not gone
    await shared.aclose()


async def test_a_call_that_waits_for_the_start_while_it_is_closed_is_told_so_and_not_cancelled() -> None:
    begun = asyncio.Event()

    async def never(_: Deadline) -> Any:
        begun.set()
        await asyncio.Event().wait()

    shared: Shared[Embedder] = Shared(never)
    waiting = asyncio.create_task(shared.get(Deadline.after(30)))
    await begun.wait()
    await shared.aclose()
    found = await asyncio.wait_for(waiting, 5)
    assert found.backend is None
    assert "closed" in found.reason


@pytest.mark.embedded
async def test_a_call_that_is_running_while_it_is_closed_opens_nothing_again(
    servers: ModelServers, tmp_path: Path
) -> None:
    embedder = await opened(servers.embedder)
    deadline = Deadline.after(60)
    call = asyncio.create_task(servers.embedder.use(embedder, lambda e: e.embed([], TEXTS, deadline), deadline))
    while not servers.stats()["embedded"].inflight:  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0.01)
    await servers.aclose()
    with pytest.raises(ModelUnavailable, match="closed"):
        await asyncio.wait_for(call, 10)
    (run_directory,) = await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    assert not list((run_directory / "leases").iterdir())


async def test_closing_waits_for_the_look_at_a_server_that_failed(fake_server: Serving) -> None:
    async def hangs(_: Any) -> bytes:
        looked.set()
        await asyncio.Event().wait()
        return b""

    looked = asyncio.Event()
    routes = {
        "/v1/models": lambda _: reply({"data": [{"id": "m"}]}),
        "/v1/embeddings": lambda body: reply(vectors(body)),
        "/health": hangs,
    }
    async with fake_server(routes) as fake:
        servers = ModelServers(Backends(Settings(embed_url=fake.url, embedded=False)))
        embedder = await opened(servers.embedder)
        fake.routes["/v1/embeddings"] = lambda _: reply({"error": "down"}, 503)
        deadline = Deadline.after(5)
        with pytest.raises(ModelUnavailable):
            await servers.embedder.use(embedder, lambda e: e.embed([], ["text"], deadline), deadline)
        await looked.wait()
        await servers.aclose()
        assert not [task for task in asyncio.all_tasks() if "trawl/llama" in repr(task)]
