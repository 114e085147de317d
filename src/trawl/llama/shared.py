"""One embedder for all calls of an engine: opened by the first that needs it, looked for again after it is lost."""

from __future__ import annotations

import asyncio
import logging
import time

from trawl.deadline import Deadline
from trawl.llama.embedder import Embedder, open_embedder
from trawl.settings import Settings

log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""How long calls rank by words after no embedder was found, before one is looked for again."""
OPEN_SECONDS = 60.0
"""For starting the embedded server, the conversion of its model included."""
PROBE_SECONDS = 2.0
"""How long a server has to answer after a call to it failed; a busy one still does, a dead or hanging one does not."""


class SharedEmbedder:
    """Belongs to one event loop; close it with `aclose`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opening: asyncio.Task[tuple[Embedder | None, str]] | None = None
        self._opened_at = 0.0
        self._probes: set[asyncio.Task[None]] = set()

    async def get(self, deadline: Deadline) -> tuple[Embedder | None, str]:
        """The embedder and how it was chosen; None and the reason when ranking must go by words."""
        opening = self._opening
        if opening is None or self._is_stale(opening):
            # It outlives the call that caused it: the next one finds the model ready.
            opening = self._opening = asyncio.create_task(open_embedder(self._settings, Deadline.after(OPEN_SECONDS)))
            self._opened_at = time.monotonic()
        try:
            return await asyncio.wait_for(asyncio.shield(opening), deadline.remaining() / 2)
        except TimeoutError:
            return None, "the model server is still starting"
        except Exception as error:
            log.exception("opening the embedder failed")
            return None, f"opening the embedder failed ({type(error).__name__})"

    def report_failure(self, embedder: Embedder) -> None:
        """A call to `embedder` failed: if its server does not answer, it is given up. Other calls may be using it, so
        one that was merely too slow for this call stays."""
        probe = asyncio.create_task(self._probe(embedder))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def aclose(self) -> None:
        """Close the embedder, and its server if it is ours. Idempotent."""
        for probe in self._probes:
            probe.cancel()
        opening, self._opening = self._opening, None
        if opening is None:
            return
        if not opening.done():
            opening.cancel()
        found = (await asyncio.gather(opening, return_exceptions=True))[0]
        if not isinstance(found, BaseException) and found[0] is not None:
            await found[0].aclose()

    async def _probe(self, embedder: Embedder) -> None:
        if await embedder.answers(Deadline.after(PROBE_SECONDS)):
            return
        opening = self._opening
        if opening is not None and _result_of(opening) is embedder:
            self._opening = None
            await embedder.aclose()

    def _is_stale(self, opening: asyncio.Task[tuple[Embedder | None, str]]) -> bool:
        return opening.done() and _result_of(opening) is None and time.monotonic() - self._opened_at > RETRY_SECONDS


def _result_of(opening: asyncio.Task[tuple[Embedder | None, str]]) -> Embedder | None:
    if not opening.done() or opening.cancelled() or opening.exception() is not None:
        return None
    return opening.result()[0]
