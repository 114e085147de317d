"""The queue in front of one model server: how many calls run at once, who is next, and who is turned away.

A small server that others use too is kept well by not sending it more than it can do. Work that cannot run soon is
refused with a typed error, which the flow turns into a degradation with a name. What belongs here is the queue, what a
call's end says about the server, and the figures of both; the work itself is the caller's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from trawl.breaker import Breaker, BreakerState, Ticket
from trawl.deadline import Deadline
from trawl.errors import BusyReason, ModelBusy, ModelError, ModelReplyInvalid, ModelUnavailable
from trawl.llama.protocol.replies import AnotherModel, InputTooLarge

Ending = Literal["completed", "failed", "abandoned"]
RefusalReason = BusyReason | Literal["deadline"]
"""Those of `ModelBusy`, and `deadline`: the caller's own time came to its end first."""

RECENT = 256
"""Durations kept for quantiles: some minutes of a busy endpoint, and few enough to sort whenever somebody looks."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one endpoint is given to do.

    Attributes:
        max_inflight: calls that run at once.
        queue_depth: calls that may wait for their turn.
        queue_wait: seconds one may wait.
        fair_time: seconds in which a healthy server that is also busy with others answers (a batch of 16 chunks beside
            another one took 2 s on two cores). A call that had less and ran out of time says nothing about the server.
    """

    max_inflight: int = 2
    queue_depth: int = 8
    queue_wait: float = 20.0
    fair_time: float = 5.0


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds: `count`, `total` and `max` of all so far, quantiles of the last `RECENT`."""

    count: int
    total: float
    max: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """What has happened at one endpoint. `admitted` is `completed + failed + abandoned + inflight`.

    Attributes:
        name: the endpoint.
        inflight: calls that run now.
        waiting: calls that wait now.
        breaker: the breaker's state.
        admitted: calls whose turn came.
        completed: of these, the ones that got an answer.
        failed: the ones the server failed.
        abandoned: the ones that ended without a word about the server.
        cancelled: calls cancelled while they waited.
        refused: calls turned away, by reason (see `RefusalReason`).
        wait: how long those whose turn came had waited, 0 for most of them.
        latency: how long completed calls ran.
    """

    name: str
    inflight: int
    waiting: int
    breaker: BreakerState
    admitted: int
    completed: int
    failed: int
    abandoned: int
    cancelled: int
    refused: Mapping[RefusalReason, int]
    wait: Durations
    latency: Durations


class Admission:
    """The queue of one endpoint. Belongs to one event loop.

    Turns are taken in the order of asking. A turn that becomes free goes straight to the first who waits, so that
    nobody who comes later can slip in between.

    Args:
        name: the endpoint, fit for messages (no key, no query).
        limits: how much runs and waits.
        breaker: makes this endpoint's own, which turns everybody away while the server is down.
    """

    def __init__(self, name: str, limits: Limits = Limits(), breaker: Callable[[], Breaker] = Breaker) -> None:
        self.name = name
        self.limits = limits
        self._new_breaker = breaker
        self._breaker = breaker()
        self._inflight = 0
        # A refusal travels as a result: as an exception it would be reported as never retrieved when its waiter is
        # cancelled in the same moment.
        self._queue: deque[asyncio.Future[Ticket | ModelUnavailable]] = deque()
        self._admitted = 0
        self._cancelled = 0
        self._endings: Counter[Ending] = Counter()
        self._refused: Counter[RefusalReason] = Counter()
        self._waits = _Recorder()
        self._latencies = _Recorder()

    def __repr__(self) -> str:
        return f"Admission({self.name!r}, {self._inflight} running, {self._waiting()} waiting, {self._breaker!r})"

    def begin_anew(self) -> None:
        """Another server stands behind this endpoint: what the one before it failed is forgotten, the figures stay."""
        self._breaker = self._new_breaker()

    @asynccontextmanager
    async def permit(self, deadline: Deadline) -> AsyncIterator[None]:
        """Waits for a turn and holds it for one piece of work, the body.

        One piece of work is one exchange or a few with this server, and nothing else. A body that waits for another
        permit can wait for ever.

        Errors of the body pass through. Those that say that the server is not well (see `ending_of`) count towards
        opening the breaker.

        Args:
            deadline: the one the body works with.

        Raises:
            ModelBusy: turned away. `queue_full` and `breaker_open` come at once (`breaker_open` also to those who wait
                when it opens), `wait_exceeded` after `Limits.queue_wait`.
            ModelUnavailable: `deadline` came before the turn.
        """
        asked = time.monotonic()
        ticket = await self._turn(deadline)
        began = time.monotonic()
        self._waits.add(began - asked)
        granted = deadline.remaining()
        ending: Ending = "abandoned"
        try:
            yield
            ending = "completed"
        except ModelError as error:
            out_of_time = granted < self.limits.fair_time and deadline.remaining() <= 0
            ending = ending_of(error, out_of_time=out_of_time)
            raise
        finally:
            if ending == "completed":
                self._latencies.add(time.monotonic() - began)
            self._finish(ticket, ending)

    def stats(self) -> EndpointStats:
        """What has happened so far, as plain data that does not change any more."""
        return EndpointStats(
            name=self.name,
            inflight=self._inflight,
            waiting=self._waiting(),
            breaker=self._breaker.state,
            admitted=self._admitted,
            completed=self._endings["completed"],
            failed=self._endings["failed"],
            abandoned=self._endings["abandoned"],
            cancelled=self._cancelled,
            refused=dict(self._refused),
            wait=self._waits.durations(),
            latency=self._latencies.durations(),
        )

    async def _turn(self, deadline: Deadline) -> Ticket:
        """The ticket of this caller, when its turn has come."""
        if deadline.remaining() <= 0:
            raise self._refusal("deadline")
        full = self._inflight >= self.limits.max_inflight and self._waiting() >= self.limits.queue_depth
        if full and self._breaker.admits:
            raise self._refusal("queue_full")
        turn: asyncio.Future[Ticket | ModelUnavailable] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._advance()
        answer = turn.result() if turn.done() else await self._wait(turn, deadline)
        if isinstance(answer, ModelUnavailable):
            raise answer
        return answer

    async def _wait(
        self, turn: asyncio.Future[Ticket | ModelUnavailable], deadline: Deadline
    ) -> Ticket | ModelUnavailable:
        left = deadline.remaining()
        reason: RefusalReason = "wait_exceeded" if self.limits.queue_wait <= left else "deadline"
        seconds = min(left, self.limits.queue_wait)
        timer = asyncio.get_running_loop().call_later(seconds, self._turn_away, turn, reason)
        try:
            return await turn
        except asyncio.CancelledError:
            self._withdraw(turn)
            raise
        finally:
            timer.cancel()

    def _turn_away(self, turn: asyncio.Future[Ticket | ModelUnavailable], reason: RefusalReason) -> None:
        if not turn.done():
            self._queue.remove(turn)
            turn.set_result(self._refusal(reason))

    def _withdraw(self, turn: asyncio.Future[Ticket | ModelUnavailable]) -> None:
        """The waiter of `turn` was cancelled, perhaps just after the turn had been given to it."""
        if turn.cancelled():
            self._cancelled += 1
            if turn in self._queue:
                self._queue.remove(turn)
        elif isinstance(ticket := turn.result(), Ticket):
            self._finish(ticket, "abandoned")

    def _advance(self) -> None:
        """Gives free turns to those who wait, and turns all away whom the breaker does not let through."""
        while self._queue:
            if self._queue[0].done():  # cancelled: its task has not come round to leaving
                self._queue.popleft()
                continue
            ticket = None
            if self._inflight < self.limits.max_inflight:
                ticket = self._ticket()
            elif self._breaker.admits:
                return
            self._queue.popleft().set_result(ticket or self._refusal("breaker_open"))

    def _ticket(self) -> Ticket | None:
        ticket = self._breaker.admit()
        if ticket is not None:
            self._inflight += 1
            self._admitted += 1
        return ticket

    def _finish(self, ticket: Ticket, ending: Ending) -> None:
        self._inflight -= 1
        self._endings[ending] += 1
        match ending:
            case "completed":
                ticket.succeeded()
            case "failed":
                ticket.failed()
            case "abandoned":
                ticket.abandoned()
        self._advance()

    def _waiting(self) -> int:
        return sum(not turn.done() for turn in self._queue)

    def _refusal(self, reason: RefusalReason) -> ModelUnavailable:
        self._refused[reason] += 1
        if reason == "deadline":
            return ModelUnavailable(f"no time was left while waiting for {self.name}", hint="Give a longer timeout.")
        if reason == "queue_full":
            what = f"{self.name} is busy: {self._inflight} calls run and {self._waiting()} wait"
        elif reason == "wait_exceeded":
            what = f"{self.name} is busy: no turn came within {self.limits.queue_wait:g} s"
        elif self._breaker.state == "open":
            what = f"{self.name} failed repeatedly and is left alone for {self._breaker.retry_in:.0f} s more"
        else:
            what = f"{self.name} failed repeatedly and another call is finding out whether it is well again"
        return ModelBusy(what, reason=reason, hint="Ask again later.")


def ending_of(error: ModelError, *, out_of_time: bool) -> Ending:
    """What a body that raised `error` says about the server.

    No answer and an unusable answer are failures. `InputTooLarge` and `AnotherModel` are answers: the server is well.
    `ModelBusy` never reached it.

    Args:
        error: what the body raised.
        out_of_time: the caller's deadline ran out, and it was too short to blame the server for.
    """
    if isinstance(error, InputTooLarge | AnotherModel):
        return "completed"
    if isinstance(error, ModelReplyInvalid):
        return "failed"
    if isinstance(error, ModelUnavailable) and not isinstance(error, ModelBusy) and not out_of_time:
        return "failed"
    return "abandoned"


class _Recorder:
    """Durations as they come in."""

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._max = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def add(self, seconds: float) -> None:
        self._count += 1
        self._total += seconds
        self._max = max(self._max, seconds)
        self._recent.append(seconds)

    def durations(self) -> Durations:
        recent = sorted(self._recent)
        return Durations(
            count=self._count,
            total=self._total,
            max=self._max,
            p50=_quantile(recent, 0.5),
            p90=_quantile(recent, 0.9),
        )


def _quantile(ordered: list[float], q: float) -> float:
    """The smallest value that at least the share `q` of the values do not exceed (nearest rank); 0 for none."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else 0.0
