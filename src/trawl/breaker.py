"""A circuit breaker: after repeated failures callers are turned away at once, and one of them at a time finds out
whether things are well again. Pure: it keeps count and reads a clock, and whoever asks does the work.

    closed --(failures in a row)--> open --(open_seconds)--> half open --(the probe succeeds)--> closed
                                      ^----------(the probe fails)----------|

Calls overlap, so that one let through while all was well may end long after the breaker opened, or after it closed
again. What such a call met is old news and changes nothing. So each call let through holds a `Ticket` and reports by
it: the breaker knows by the ticket what the report is about, and a second report by the same ticket is not heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]
_Ending = Literal["succeeded", "failed", "abandoned"]


class Ticket:
    """The right to make one call. Exactly one of its methods has to be called in the end; only the first one counts."""

    __slots__ = ("_breaker", "_era")

    def __init__(self, breaker: Breaker, era: int) -> None:
        self._breaker: Breaker | None = breaker
        self._era = era

    def succeeded(self) -> None:
        """The call went well."""
        self._report("succeeded")

    def failed(self) -> None:
        """The other side failed it."""
        self._report("failed")

    def abandoned(self) -> None:
        """The call ended without a word about the other side: cancelled, or our own mistake."""
        self._report("abandoned")

    def _report(self, ending: _Ending) -> None:
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker._hear(self, self._era, ending)


class Breaker:
    """Belongs to one thread.

    Args:
        failures: how many in a row, without a success between them, open it.
        open_seconds: how long it then lets nobody through.
        clock: seconds that only go forward.
    """

    def __init__(
        self, failures: int = 3, open_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._allowed_failures = failures
        self._open_seconds = open_seconds
        self._clock = clock
        self._failures = 0
        self._opened_at: float | None = None
        self._era = 0
        """Grows whenever it opens: tickets of an earlier era are about a past that has been judged."""
        self._probe: Ticket | None = None

    def __repr__(self) -> str:
        return f"Breaker({self.state}, retry in {self.retry_in:.1f} s)"

    @property
    def state(self) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        return "open" if self.retry_in > 0 else "half_open"

    @property
    def retry_in(self) -> float:
        """Seconds until it stops refusing everybody; 0 when it does not (in half open a probe may be under way)."""
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self._open_seconds - self._clock())

    @property
    def admits(self) -> bool:
        """Whether `admit` would let a call through now."""
        state = self.state
        return state == "closed" or (state == "half_open" and self._probe is None)

    def admit(self) -> Ticket | None:
        """A ticket for one call; None when it must not be made. In half open one ticket is out at a time."""
        if not self.admits:
            return None
        ticket = Ticket(self, self._era)
        if self._opened_at is not None:
            self._probe = ticket
        return ticket

    def _hear(self, ticket: Ticket, era: int, ending: _Ending) -> None:
        if era != self._era:
            return
        probing = ticket is self._probe
        if probing:
            self._probe = None
        if ending == "succeeded":
            self._failures = 0
            self._opened_at = None
        elif ending == "failed":
            self._failures += 1
            if probing or self._failures >= self._allowed_failures:
                self._open()

    def _open(self) -> None:
        self._opened_at = self._clock()
        self._failures = 0
        self._era += 1
