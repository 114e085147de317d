"""The errors trawl raises or reports, as one tree.

    TrawlError
    ├── UsageError              the caller's mistake; also a ValueError
    ├── EngineError             the engine cannot take the call (closed, called from its own loop);
    │                           with UsageError all that `fetch_relevant` raises
    ├── GuardRefused            the URL, or an address it leads to, is not allowed
    ├── FetchError              the page could not be brought back
    │   ├── NetworkError        DNS, connection, TLS, protocol
    │   ├── DeadlineExceeded    the call's time is up
    │   ├── TooManyRedirects
    │   ├── DecodeError         the body does not decode as its Content-Encoding says
    │   └── BrowserError        no browser, or the browser failed
    ├── ExtractionError         the page was brought back but could not be read
    │   └── UnsupportedContent  a type trawl does not read
    └── ModelError              an embedding, rerank or chat server
        ├── ModelUnavailable    nobody answers, or it is too slow
        │   └── ModelBusy       our own queue before it turned the work away
        └── ModelReplyInvalid   it answered with something that cannot be used

What only one module raises or catches is derived from these there (`InputTooLarge`, `StoreUnavailable`, …).

Every error says the stage it came from, the URL (without secrets), what happened, and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar, Literal
from urllib.parse import urlsplit, urlunsplit

from trawl.types import Outcome

__all__ = [
    "BrowserError",
    "DeadlineExceeded",
    "DecodeError",
    "EngineError",
    "ExtractionError",
    "FetchError",
    "GuardRefused",
    "ModelBusy",
    "ModelError",
    "ModelReplyInvalid",
    "ModelUnavailable",
    "NetworkError",
    "TooManyRedirects",
    "TrawlError",
    "UnsupportedContent",
    "UsageError",
    "without_secrets",
]


def without_secrets(url: str) -> str:
    """`url` with user information replaced and the values of its query removed, fit for a log or a message."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "(a URL that does not parse)"
    query = "…" if parts.query else ""
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


class TrawlError(Exception):
    """Base of all errors.

    Args:
        message: what happened, one sentence.
        url: the URL concerned; secrets are removed before it is kept.
        hint: what the reader can do about it; empty when there is nothing to do.
    """

    stage: ClassVar[str] = "trawl"
    outcome: ClassVar[Outcome] = "network_error"

    def __init__(self, message: str, *, url: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.url = without_secrets(url) if url else None
        self.hint = hint

    def __str__(self) -> str:
        where = f" ({self.url})" if self.url else ""
        said = f"{self.stage}: {self.message}{where}"
        if not self.hint:
            return said
        return f"{said}{'' if said.endswith(('.', '!', '?')) else '.'} {self.hint}"


class UsageError(TrawlError, ValueError):
    """The call itself is wrong: a bad argument type or value."""

    stage = "usage"


class EngineError(TrawlError):
    """The engine cannot take this call: it is closed, or the call comes from its own event loop."""

    stage = "engine"


class GuardRefused(TrawlError):
    """The guard does not allow the URL or an address behind it. `reason` is a short stable word for programs."""

    stage = "guard"
    outcome: ClassVar[Outcome] = "refused"

    def __init__(self, message: str, *, reason: str, url: str | None = None, hint: str = "") -> None:
        super().__init__(message, url=url, hint=hint)
        self.reason = reason


class FetchError(TrawlError):
    """The page could not be brought back."""

    stage = "fetch"


class NetworkError(FetchError):
    """Name resolution, connection, TLS or HTTP itself failed."""


class DeadlineExceeded(FetchError):
    """The time given to the call is used up."""


class TooManyRedirects(FetchError):
    """More redirects than the limit, or a loop."""


class DecodeError(FetchError):
    """The body does not decode as its Content-Encoding says."""


class BrowserError(FetchError):
    """No browser is installed, it did not start, or it failed twice on this page."""


class ExtractionError(TrawlError):
    """The page was fetched but its content could not be read."""

    stage = "extract"
    outcome: ClassVar[Outcome] = "empty"


class UnsupportedContent(ExtractionError):
    """The content is of a type trawl does not read (an image, an archive, a program)."""

    outcome: ClassVar[Outcome] = "unsupported"


class ModelError(TrawlError):
    """A model server failed; the flow degrades to lexical ranking and says so."""

    stage = "model"


class ModelUnavailable(ModelError):
    """No answer: nobody listens, it is still loading, or it did not answer in time."""


BusyReason = Literal["queue_full", "wait_exceeded", "breaker_open"]


class ModelBusy(ModelUnavailable):
    """The queue before the server turned the work away, to keep the server well. `reason` says why: `queue_full`,
    `wait_exceeded` (it stood in the queue too long), `breaker_open` (the server failed repeatedly)."""

    def __init__(self, message: str, *, reason: BusyReason, url: str | None = None, hint: str = "") -> None:
        super().__init__(message, url=url, hint=hint)
        self.reason = reason


class ModelReplyInvalid(ModelError):
    """The server answered with something that cannot be used."""
