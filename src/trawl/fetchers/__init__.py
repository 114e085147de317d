"""From a URL to a Page: who fetches it, and what a fetcher is.

A fetcher takes the URLs it `matches` and brings back a `Page`. `fetch_page` asks them in the order of `FETCHERS`; the
generic web fetcher takes what is left. Fetchers see the HTTP client and the browser only through the two protocols
here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from trawl.deadline import Deadline
from trawl.settings import Settings
from trawl.types import Page, Render


class Answer(Protocol):
    """What whoever reached the site says of its answer."""

    @property
    def final_url(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content_type(self) -> str: ...
    @property
    def truncated(self) -> bool: ...


class HttpAnswer(Answer, Protocol):
    """What an `HttpGetter` brings back; `trawl.net.http.HttpResponse` says what the fields mean."""

    @property
    def body(self) -> bytes: ...
    @property
    def charset(self) -> str | None: ...


class HttpGetter(Protocol):
    """Plain HTTP: redirects, guard and bounded decoding inside. Raises errors of trawl only."""

    async def get(
        self, url: str, *, deadline: Deadline, headers: Mapping[str, str] | None = None, max_bytes: int | None = None
    ) -> HttpAnswer: ...


class RenderedPage(Answer, Protocol):
    """What a `Renderer` brings back; `trawl.net.visit.Rendered` says what the fields mean."""

    @property
    def html(self) -> str: ...
    @property
    def settled(self) -> bool: ...
    @property
    def refused(self) -> tuple[str, ...]: ...


class Renderer(Protocol):
    """A browser. Raises errors of trawl only; BrowserError when there is none."""

    async def render(self, url: str, *, deadline: Deadline, max_bytes: int) -> RenderedPage: ...


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One page wanted."""

    url: str
    deadline: Deadline
    render: Render = "auto"
    max_bytes: int = 10 * 2**20
    """Decoded bytes read of the body."""


@dataclass(frozen=True, slots=True)
class FetchTools:
    """What fetchers reach the world with."""

    http: HttpGetter
    browser: Renderer | None
    settings: Settings


class Fetcher(Protocol):
    """Brings back the pages of some URLs."""

    @property
    def name(self) -> str: ...

    def matches(self, url: str) -> bool:
        """Whether this fetcher takes `url`. Pure and quick: it is asked for every URL."""

    async def fetch(self, request: FetchRequest, tools: FetchTools) -> Page:
        """The page.

        Raises:
            TrawlError: it could not be brought back. What came back but is no content is told by `Page.outcome`.
        """


def fetchers() -> tuple[Fetcher, ...]:
    """All fetchers in the order they are asked. The one place where they are mounted."""
    from trawl.fetchers.web import WebFetcher

    return (WebFetcher(),)


async def fetch_page(request: FetchRequest, tools: FetchTools) -> Page:
    """The page at `request.url`, from the first fetcher that takes it.

    Raises:
        GuardRefused, FetchError: it could not be brought back.
    """
    began = time.monotonic()
    fetcher = next(f for f in fetchers() if f.matches(request.url))
    page = await fetcher.fetch(request, tools)
    return replace(page, fetched_at=time.time(), fetch_ms=round((time.monotonic() - began) * 1000))
