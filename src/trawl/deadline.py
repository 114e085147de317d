"""One deadline for one call, carried through every stage, so that no stage spends the time of another."""

from __future__ import annotations

import time
from dataclasses import dataclass

from trawl.errors import DeadlineExceeded

LONGEST_TIMEOUT = 600
"""Seconds that a caller or a setting may give one call."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock. `Deadline.after(30)` lies 30 seconds from now."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - time.monotonic())

    def check(self, doing: str, url: str | None = None) -> float:
        """Seconds left.

        Raises:
            DeadlineExceeded: when none are; `doing` says what was going on.
        """
        left = self.remaining()
        if left <= 0:
            raise DeadlineExceeded(f"time is up while {doing}", url=url, hint="Give a longer timeout.")
        return left

    def sooner(self, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now: the budget of one step inside the call."""
        return min(self, Deadline.after(seconds), key=lambda d: d.at)
