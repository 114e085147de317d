"""One backend for all calls of an engine: opened by the first that needs it, looked for again after it is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Generic, TypeVar

from trawl.deadline import Deadline
from trawl.errors import ModelBusy, ModelError, ModelUnavailable
from trawl.llama.backends import Opened, T
from trawl.llama.protocol.replies import AnotherModel

log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""How long calls go without after no backend was found, before one is looked for again."""
OPEN_SECONDS = 60.0
"""For starting the embedded server, the conversion of its model included."""
PROBE_SECONDS = 2.0
"""How long a server has to answer after a call to it failed; a busy one still does, a dead or hanging one does not."""
CRASHES = 2
CRASH_SECONDS = 600.0
"""So many crashes of the embedded server within so long, and it is not started again until the first is that old."""
CLOSED = "the engine was closed meanwhile"

R = TypeVar("R")


class Shared(Generic[T]):
    """Belongs to one event loop; close it with `aclose`."""

    def __init__(self, open_backend: Callable[[Deadline], Coroutine[None, None, Opened[T]]]) -> None:
        self._open: Callable[[Deadline], Coroutine[None, None, Opened[T]]] = open_backend
        self._opening: asyncio.Task[Opened[T]] | None = None
        self._opened_at = 0.0
        self._crashes: deque[float] = deque(maxlen=CRASHES)
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    async def get(self, deadline: Deadline) -> Opened[T]:
        """The backend and how it was chosen, or why there is none; waits for half of the time that is left."""
        if self._closed:
            return Opened(None, CLOSED, notable=True)
        opening = self._opening
        if opening is None or self._is_stale(opening):
            if self._keeps_crashing():
                return Opened(None, f"the embedded server crashed {CRASHES} times; it is left alone for a while", True)
            # It outlives the call that caused it: the next one finds the model ready.
            opening = self._opening = asyncio.create_task(self._open(Deadline.after(OPEN_SECONDS)))
            self._opened_at = time.monotonic()
        await asyncio.wait({opening}, timeout=deadline.remaining() / 2)
        if not opening.done():
            return Opened(None, "the model server is still starting", notable=True)
        if opening.cancelled():  # by `aclose`; the caller itself is not
            return Opened(None, CLOSED, notable=True)
        try:
            return opening.result()
        except Exception as error:
            log.exception("opening a model server failed")
            return Opened(None, f"opening the model server failed ({type(error).__name__})", notable=True)

    async def use(self, backend: T, work: Callable[[T], Awaitable[R]], deadline: Deadline) -> R:
        """`work` done with `backend`, and once more with a new one where the embedded server ended under it, or the
        server has changed its model.

        Raises:
            ModelUnavailable, ModelReplyInvalid: as `work` does.
        """
        try:
            return await work(backend)
        except ModelError as error:
            if isinstance(error, ModelBusy) and error.reason != "breaker_open":
                raise  # our own queue is full; that says nothing of the server
            if not isinstance(error, AnotherModel) and not await backend.endpoint.ended():
                if isinstance(error, ModelUnavailable):
                    self._look_after(backend)
                raise
        await self._give_up(backend)
        opened = await self.get(deadline)
        if opened.backend is None:
            raise ModelUnavailable(opened.reason, hint=opened.hint)
        return await work(opened.backend)

    async def aclose(self) -> None:
        """Close the backend; calls that are still running find none from then on. Idempotent."""
        self._closed = True
        if self._probe is not None:
            self._probe.cancel()
            # Its connection has to be given back before the client of the backend goes.
            await asyncio.gather(self._probe, return_exceptions=True)
        opening, self._opening = self._opening, None
        if opening is None:
            return
        if not opening.done():
            opening.cancel()
        found = (await asyncio.gather(opening, return_exceptions=True))[0]
        if not isinstance(found, BaseException) and found.backend is not None:
            await found.backend.endpoint.aclose()

    def _look_after(self, backend: T) -> None:
        """A call failed although the server has not ended: if it does not answer at all, it is given up. Other calls
        may be using it, so one that was merely too slow for this call stays."""
        if not self._closed and (self._probe is None or self._probe.done()):
            self._probe = asyncio.create_task(self._probed(backend))

    async def _probed(self, backend: T) -> None:
        if not await backend.endpoint.answers(Deadline.after(PROBE_SECONDS)):
            await self._give_up(backend)

    async def _give_up(self, backend: T) -> None:
        if self._opening is None or _result_of(self._opening) is not backend:
            return  # another call saw it first
        self._opening = None
        if backend.endpoint.crashed():
            self._crashes.append(time.monotonic())
        await backend.endpoint.aclose()

    def _keeps_crashing(self) -> bool:
        return len(self._crashes) == CRASHES and time.monotonic() - self._crashes[0] < CRASH_SECONDS

    def _is_stale(self, opening: asyncio.Task[Opened[T]]) -> bool:
        return opening.done() and _result_of(opening) is None and time.monotonic() - self._opened_at > RETRY_SECONDS


def _result_of(opening: asyncio.Task[Opened[T]]) -> T | None:
    if not opening.done() or opening.cancelled() or opening.exception() is not None:
        return None
    return opening.result().backend
