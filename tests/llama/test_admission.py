"""The queue of an endpoint: who runs, who waits, who is turned away and why; and vanishing callers lose nothing."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.llama.conftest import NOBODY
from trawl.breaker import Breaker
from trawl.deadline import Deadline
from trawl.errors import ExtractionError, ModelBusy, ModelError, ModelReplyInvalid, ModelUnavailable
from trawl.llama.admission import RECENT, Admission, Limits
from trawl.llama.client import LlamaClient
from trawl.llama.protocol.replies import InputTooLarge

AT_ONCE = 0.5
"""Seconds below which an answer came at once, on a machine that may be busy."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def admission(clock: Clock | None = None, *, failures: int = 3, **limits: Any) -> Admission:
    return Admission("server", Limits(**limits), lambda: Breaker(failures, 30.0, clock or time.monotonic))


class Call:
    """One call through `queue`: it tells when it runs, and ends when it is let go or made to raise."""

    def __init__(self, queue: Admission, seconds: float = 30.0) -> None:
        self.runs = asyncio.Event()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(queue, seconds))

    async def _run(self, queue: Admission, seconds: float) -> None:
        async with queue.permit(Deadline.after(seconds)):
            self.runs.set()
            await self._end

    async def finish(self, error: BaseException | None = None) -> None:
        if error is None:
            self._end.set_result(None)
            await self.task
        else:
            self._end.set_exception(error)
            with pytest.raises(type(error)):
                await self.task


async def settle() -> None:
    """Lets every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def running(queue: Admission, count: int) -> list[Call]:
    calls = [Call(queue) for _ in range(count)]
    for call in calls:
        await call.runs.wait()
    return calls


async def waiting(queue: Admission, count: int) -> list[Call]:
    calls = [Call(queue) for _ in range(count)]
    await settle()
    assert not any(call.runs.is_set() for call in calls)
    return calls


async def refusal(call: Call) -> str:
    with pytest.raises(ModelBusy) as caught:
        await call.task
    return caught.value.reason


@asynccontextmanager
async def busy(queue: Admission, queued: int = 0) -> AsyncIterator[tuple[list[Call], list[Call]]]:
    """All permits taken and some calls waiting; what is left of them is cancelled at the end."""
    held, queueing = await running(queue, queue.limits.max_inflight), await waiting(queue, queued)
    try:
        yield held, queueing
    finally:
        for call in held + queueing:
            call.task.cancel()
        await asyncio.gather(*(call.task for call in held + queueing), return_exceptions=True)


def drained(queue: Admission) -> None:
    """Nothing is left over, every call is accounted for, and all permits are there to be had."""
    stats = queue.stats()
    assert (stats.inflight, stats.waiting) == (0, 0)
    assert stats.admitted == stats.completed + stats.failed + stats.abandoned


# What runs, what waits, what is refused


async def test_two_run_one_waits_and_the_fourth_is_refused_at_once() -> None:
    queue = admission(max_inflight=2, queue_depth=1)
    first, second = await running(queue, 2)
    [third] = await waiting(queue, 1)
    began = time.monotonic()
    assert await refusal(Call(queue)) == "queue_full"
    assert time.monotonic() - began < AT_ONCE
    assert (queue.stats().inflight, queue.stats().waiting) == (2, 1)

    await first.finish()
    await asyncio.wait_for(third.runs.wait(), 5)
    await second.finish()
    await third.finish()
    drained(queue)
    assert queue.stats().refused == {"queue_full": 1}


async def test_a_waiter_past_queue_wait_is_refused_and_its_place_is_free_again() -> None:
    queue = admission(max_inflight=1, queue_depth=1, queue_wait=0.2)
    async with busy(queue):
        began = time.monotonic()
        assert await refusal(Call(queue)) == "wait_exceeded"
        assert 0.2 <= time.monotonic() - began < 0.2 + AT_ONCE
        assert queue.stats().waiting == 0
        await waiting(queue, 1)
    assert queue.stats().refused == {"wait_exceeded": 1}


async def test_no_queue_at_all_is_possible() -> None:
    queue = admission(max_inflight=1, queue_depth=0)
    async with busy(queue):
        assert await refusal(Call(queue)) == "queue_full"
    await (await running(queue, 1))[0].finish()


async def test_a_refusal_names_the_endpoint_and_what_is_going_on() -> None:
    queue = admission(max_inflight=2, queue_depth=1)
    async with busy(queue, queued=1):
        with pytest.raises(ModelBusy, match="server is busy: 2 calls run and 1 wait"):
            await Call(queue).task


async def test_the_deadline_that_comes_before_the_turn_is_told_as_such() -> None:
    queue = admission(max_inflight=1, queue_wait=20.0)
    async with busy(queue):
        began = time.monotonic()
        with pytest.raises(ModelUnavailable, match="no time was left while waiting for server") as caught:
            await Call(queue, seconds=0.1).task
        assert time.monotonic() - began < 0.1 + AT_ONCE
    assert not isinstance(caught.value, ModelBusy)
    assert queue.stats().refused == {"deadline": 1}


async def test_a_call_without_time_does_not_begin() -> None:
    queue = admission()
    with pytest.raises(ModelUnavailable, match="no time"):
        await Call(queue, seconds=0.0).task
    assert queue.stats().admitted == 0


async def test_a_wait_and_a_deadline_without_end_are_possible() -> None:
    queue = admission(max_inflight=1, queue_wait=math.inf)
    [held] = await running(queue, 1)
    waiter = Call(queue, seconds=math.inf)
    await settle()
    await held.finish()
    await waiter.finish()
    drained(queue)


# Order


async def test_turns_come_in_the_order_of_asking() -> None:
    queue = admission(max_inflight=2, queue_depth=200)
    order: list[int] = []

    async def call(number: int) -> None:
        async with queue.permit(Deadline.after(30)):
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(200):
            tasks.create_task(call(number))
    assert order == list(range(200))
    drained(queue)


async def test_a_newcomer_does_not_overtake_when_a_permit_becomes_free() -> None:
    queue = admission(max_inflight=1, queue_depth=5)
    async with queue.permit(Deadline.after(30)):
        [waiter] = await waiting(queue, 1)
        newcomer = Call(queue)
    # The newcomer's task asks before the waiter's wakes up.
    await settle()
    assert waiter.runs.is_set()
    assert not newcomer.runs.is_set()
    await waiter.finish()
    await newcomer.finish()


async def test_a_caller_that_asks_again_and_again_goes_behind_those_who_wait() -> None:
    queue = admission(max_inflight=1, queue_depth=5)
    order: list[str] = []

    async def ask(name: str, times: int) -> None:
        for _ in range(times):
            async with queue.permit(Deadline.after(30)):
                order.append(name)
                await asyncio.sleep(0)

    await asyncio.gather(ask("greedy", 3), ask("a", 1), ask("b", 1))
    assert order == ["greedy", "a", "b", "greedy", "greedy"]


# Cancelled callers


async def test_a_cancelled_waiter_leaves_its_place_at_once() -> None:
    queue = admission(max_inflight=1, queue_depth=2)
    async with busy(queue, queued=2) as (_, (first, second)):
        second.task.cancel()
        assert queue.stats().waiting == 1  # before its task has even run
        third = Call(queue)
        await settle()
        assert queue.stats().waiting == 2
        with suppress(asyncio.CancelledError):
            await second.task
        assert len(queue._queue) == 2  # nothing of it is left behind
        assert not first.runs.is_set()
        third.task.cancel()
    assert queue.stats().cancelled == 3
    drained(queue)


async def test_a_turn_given_to_a_caller_cancelled_in_the_same_moment_goes_to_the_next() -> None:
    queue = admission(max_inflight=1, queue_depth=5)
    async with queue.permit(Deadline.after(30)):
        first, second, third = await waiting(queue, 3)
    # `first` has been given the turn and has not woken up; `second` still waits.
    first.task.cancel()
    second.task.cancel()
    await asyncio.wait_for(third.runs.wait(), 5)
    assert first.task.cancelled()
    assert second.task.cancelled()
    assert not first.runs.is_set()
    await third.finish()
    drained(queue)
    assert (queue.stats().abandoned, queue.stats().cancelled) == (1, 1)


async def test_cancelled_while_it_runs_gives_the_permit_back() -> None:
    queue = admission(max_inflight=1)
    [held] = await running(queue, 1)
    [waiter] = await waiting(queue, 1)
    held.task.cancel()
    await asyncio.wait_for(waiter.runs.wait(), 5)
    await waiter.finish()
    drained(queue)


@pytest.mark.parametrize("seed", range(3))
async def test_no_permit_is_lost_in_a_storm_of_cancellations(seed: int) -> None:
    """Callers come in bursts; at every step some are cancelled: running, waiting, or just given their turn."""
    chance = random.Random(seed)
    queue = admission(max_inflight=2, queue_depth=100)
    inside = most = 0

    async def call() -> None:
        nonlocal inside, most
        with suppress(ModelUnavailable):
            async with queue.permit(Deadline.after(chance.choice((0.005, 30.0, 30.0, 30.0)))):
                inside += 1
                most = max(most, inside)
                try:
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1

    alive: dict[asyncio.Task[None], int] = {}  # in the order of asking, so that a seed always plays the same storm
    for _ in range(1000):
        for _ in range(chance.choice((0, 0, 0, 4))):
            task = asyncio.create_task(call())
            alive[task] = 1
            task.add_done_callback(alive.pop)
        for task in chance.sample(list(alive), k=min(len(alive), chance.choice((0, 0, 1)))):
            task.cancel()
        await asyncio.sleep(0)
        assert queue.stats().inflight <= 2
        assert queue.stats().inflight == 2 or queue.stats().waiting == 0
    await asyncio.wait_for(asyncio.gather(*alive, return_exceptions=True), 20)
    assert most == 2
    drained(queue)
    stats = queue.stats()
    assert min(stats.completed, stats.abandoned, stats.cancelled) > 10
    for again in await running(queue, 2):
        await again.finish()


# The breaker


def down() -> ModelUnavailable:
    return ModelUnavailable("nobody answers")


async def break_it(queue: Admission, times: int = 3) -> None:
    for _ in range(times):
        [call] = await running(queue, 1)
        await call.finish(down())


def opened(breaker: Breaker) -> None:
    ticket = breaker.admit()
    assert ticket is not None
    ticket.failed()
    assert breaker.state == "open"


async def test_after_repeated_failures_everybody_is_refused_at_once(clock: Clock) -> None:
    queue = admission(clock)
    await break_it(queue)
    assert queue.stats().breaker == "open"
    with pytest.raises(ModelBusy, match="server failed repeatedly and is left alone for 30 s more") as caught:
        await Call(queue).task
    assert caught.value.reason == "breaker_open"
    assert queue.stats().refused == {"breaker_open": 1}


async def test_an_open_breaker_is_told_even_when_the_queue_is_full_too(clock: Clock) -> None:
    breaker = Breaker(1, 30.0, clock)
    queue = Admission("server", Limits(max_inflight=1, queue_depth=0), lambda: breaker)
    [late] = await running(queue, 1)
    opened(breaker)
    assert await refusal(Call(queue)) == "breaker_open"
    await late.finish()


async def test_those_who_wait_when_it_opens_do_not_wait_on(clock: Clock) -> None:
    queue = admission(clock, max_inflight=2, queue_depth=8, queue_wait=20.0, failures=2)
    async with busy(queue, queued=8) as ((first, second), queued):
        await first.finish(down())
        await settle()
        assert [call.runs.is_set() for call in queued] == [True] + [False] * 7
        began = time.monotonic()
        await second.finish(down())
        assert [await refusal(call) for call in queued[1:]] == ["breaker_open"] * 7
        assert time.monotonic() - began < AT_ONCE
        # The one that runs was let in before: it may end well, and that is old news.
        await queued[0].finish()
        assert queue.stats().breaker == "open"
    drained(queue)


async def test_half_open_lets_exactly_one_of_many_through(clock: Clock) -> None:
    queue = admission(clock, max_inflight=2)
    await break_it(queue)
    clock.now += 30.0
    [probe] = await running(queue, 1)
    others = [Call(queue) for _ in range(20)]
    assert [await refusal(call) for call in others] == ["breaker_open"] * 20
    assert queue.stats().breaker == "half_open"
    await probe.finish()
    assert queue.stats().breaker == "closed"
    for call in await running(queue, 2):
        await call.finish()


async def test_a_probe_that_fails_shuts_it_again(clock: Clock) -> None:
    queue = admission(clock)
    await break_it(queue)
    clock.now += 30.0
    await break_it(queue, 1)
    assert await refusal(Call(queue)) == "breaker_open"


async def test_a_cancelled_probe_leaves_its_place_to_the_next(clock: Clock) -> None:
    queue = admission(clock)
    await break_it(queue)
    clock.now += 30.0
    [probe] = await running(queue, 1)
    probe.task.cancel()
    await asyncio.wait([probe.task])
    assert queue.stats().breaker == "half_open"
    await (await running(queue, 1))[0].finish()
    assert queue.stats().breaker == "closed"


async def test_of_those_who_wait_in_half_open_exactly_one_goes_through(clock: Clock) -> None:
    """The breaker opened while both permits were held; the first that comes back is the probe's."""
    breaker = Breaker(1, 30.0, clock)
    queue = Admission("server", Limits(max_inflight=2, queue_depth=8), lambda: breaker)
    held = await running(queue, 2)
    opened(breaker)
    clock.now += 30.0
    probe, *others = await waiting(queue, 5)
    await held[0].finish(down())  # old news
    await asyncio.wait_for(probe.runs.wait(), 5)
    assert [await refusal(call) for call in others] == ["breaker_open"] * 4
    await held[1].finish()  # old news too
    assert queue.stats().breaker == "half_open"
    await probe.finish()
    assert queue.stats().breaker == "closed"
    drained(queue)


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (ModelUnavailable("nobody answers"), "failed"),
        (ModelReplyInvalid("a web page"), "failed"),
        (InputTooLarge("too large", limit=512), "completed"),
        (ModelBusy("another queue", reason="queue_full"), "abandoned"),
        (ModelError("a model"), "abandoned"),
        (ExtractionError("not about a model"), "abandoned"),
        (ZeroDivisionError("ours"), "abandoned"),
        (asyncio.CancelledError(), "abandoned"),
        (GeneratorExit(), "abandoned"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_what_the_body_raises_passes_through_and_counts_as(error: BaseException, counts: str) -> None:
    queue = admission(failures=1, clock=Clock())
    with pytest.raises(type(error)) as caught:
        async with queue.permit(Deadline.after(30)):
            raise error
    assert caught.value is error
    stats = queue.stats()
    assert {name: getattr(stats, name) for name in ("completed", "failed", "abandoned")} == {
        "completed": 0,
        "failed": 0,
        "abandoned": 0,
        counts: 1,
    }
    assert stats.breaker == ("open" if counts == "failed" else "closed")
    drained(queue)


# A real client


async def embed_through(queue: Admission, client: LlamaClient, seconds: float) -> None:
    deadline = Deadline.after(seconds)
    with pytest.raises(ModelUnavailable):
        async with queue.permit(deadline):
            await client.embed("m", ["text"], deadline)


async def test_nobody_listening_opens_it_however_little_time_the_callers_had() -> None:
    queue, client = admission(), LlamaClient(NOBODY)
    for _ in range(3):
        await embed_through(queue, client, seconds=3.0)
    assert queue.stats().breaker == "open"
    assert await refusal(Call(queue)) == "breaker_open"
    await client.aclose()


@pytest.mark.parametrize(("fair_time", "breaker"), [(5.0, "closed"), (0.1, "open")])
async def test_a_timeout_is_held_against_the_server_only_if_it_had_a_fair_time(
    fake_server: Callable[..., Any], fair_time: float, breaker: str
) -> None:
    async def hang(_: Any) -> bytes:
        await asyncio.sleep(30)
        return b""

    queue = admission(fair_time=fair_time)
    async with fake_server({"/v1/embeddings": hang}) as fake:
        client = LlamaClient(fake.url)
        for _ in range(3):
            await embed_through(queue, client, seconds=0.2)
        await client.aclose()
    assert queue.stats().breaker == breaker


# Figures


async def test_waits_and_latencies_are_told() -> None:
    queue = admission(max_inflight=1)
    [held] = await running(queue, 1)
    [waiter] = await waiting(queue, 1)
    await asyncio.sleep(0.1)
    await held.finish()
    await waiter.runs.wait()
    await waiter.finish()
    stats = queue.stats()
    assert (stats.name, stats.admitted, stats.completed, stats.refused) == ("server", 2, 2, {})
    assert stats.wait.count == 2
    assert 0.1 <= stats.wait.max < 0.1 + AT_ONCE
    assert stats.wait.p50 < 0.05
    assert stats.wait.p90 == stats.wait.max
    assert stats.latency.count == 2
    assert 0.1 <= stats.latency.max <= stats.latency.total < 0.2 + AT_ONCE


async def test_figures_are_bounded_and_do_not_change_in_the_hand() -> None:
    queue = admission()
    before = queue.stats()
    for _ in range(2 * RECENT):
        async with queue.permit(Deadline.after(30)):
            pass
    assert before.admitted == before.latency.count == 0
    assert before.latency.p90 == 0.0
    assert queue.stats().latency.count == 2 * RECENT
    assert len(queue._latencies._recent) == RECENT
