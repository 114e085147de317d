"""What a server can do wrong below the level of status and headers. All but a slow first byte close the connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlowFirstByte:
    """Nothing at all for `seconds`, then the answer as recorded."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Drip:
    """The head at once, then `size` bytes of the body every `interval_s`."""

    size: int = 1
    interval_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Reset:
    """A TCP reset after `after` bytes of the body; with None, instead of any answer."""

    after: int | None = 0


@dataclass(frozen=True, slots=True)
class WrongLength:
    """A Content-Length of the true length plus `by`: too long when positive (the connection ends early), too short
    when negative (bytes follow that belong to nothing)."""

    by: int


@dataclass(frozen=True, slots=True)
class Endless:
    """The body, then `filler` every `interval_s` without end and without a Content-Length."""

    filler: bytes = b"<p>And so on.</p>\n" * 512
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Raw:
    """Exactly these bytes instead of an answer: malformed HTTP, or none."""

    data: bytes


Fault = SlowFirstByte | Drip | Reset | WrongLength | Endless | Raw
