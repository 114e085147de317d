"""The fetcher for everything that has none of its own: one GET decides what a URL is.

GET ─┬─ HTML ── does it need a browser? ─┬─ no ──> the page as it came
     │                                   └─ yes ─> rendered, or the plain page with a warning
     ├─ JSON, XML, feed, text, PDF ──────────────> the body as it came
     └─ anything else ───────────────────────────> outcome `unsupported`
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from trawl.deadline import Deadline
from trawl.errors import BrowserError, DeadlineExceeded, FetchError, GuardRefused
from trawl.extraction.media_types import kind_of
from trawl.fetchers import FetchRequest, FetchTools, RenderedPage
from trawl.fetchers.pages import Judged, judge
from trawl.fetchers.rendering import needs_browser
from trawl.settings import Settings
from trawl.types import Page

_NEVER_RENDERED = frozenset({".pdf", ".json", ".xml", ".rss", ".atom", ".txt", ".md", ".csv", ".jsonl"})
_KEPT_BACK_SHARE = 0.15
_KEPT_BACK_SECONDS = 3.0
"""Of the time left, so much is kept back from the browser for reading and ranking what is there."""


class WebFetcher:
    """Takes every URL."""

    name = "web"

    def matches(self, url: str) -> bool:
        return True

    async def fetch(self, request: FetchRequest, tools: FetchTools) -> Page:
        """The page, plainly fetched or rendered as `request.render` and the page itself demand.

        Raises:
            GuardRefused, FetchError: as the HTTP client; with `render="always"` also what the browser raises, except
                for a browser that is missing or failed: then the plain page comes back, with a warning.
        """
        if request.render == "always" and not _is_file(request.url):
            return await self._rendered_at_once(request, tools)
        plain = await _get(request, tools)
        if plain.facts is None:
            return plain.page
        reason = needs_browser(plain.page.outcome, plain.facts, plain.page.status)
        if reason is None:
            return plain.page
        if request.render == "never":
            return _unrendered(plain.page, reason, "rendering is switched off")
        try:
            return await _render(request, tools)
        except BrowserError as error:
            return _unrendered(plain.page, reason, _told(error))
        except DeadlineExceeded:
            return _unrendered(plain.page, reason, "there was not enough time to render it; give a longer timeout")
        except (FetchError, GuardRefused) as error:
            return _unrendered(plain.page, reason, f"the browser could not load it: {error.message}")

    async def _rendered_at_once(self, request: FetchRequest, tools: FetchTools) -> Page:
        try:
            return await _render(request, tools)
        except BrowserError as error:
            # It may be a download, which a browser has no page for.
            plain = await _get(request, tools)
            if plain.facts is None:
                return plain.page
            return _unrendered(plain.page, "rendering was asked for", _told(error))


async def _get(request: FetchRequest, tools: FetchTools) -> Judged:
    answer = await tools.http.get(request.url, deadline=request.deadline, max_bytes=request.max_bytes)
    return await asyncio.to_thread(
        judge,
        answer.body,
        url=request.url,
        final_url=answer.final_url,
        status=answer.status,
        headers=answer.headers,
        content_type=answer.content_type,
        charset=answer.charset,
        truncated=answer.truncated,
        settings=tools.settings,
    )


async def _render(request: FetchRequest, tools: FetchTools) -> Page:
    if tools.browser is None:
        raise BrowserError("there is no browser", url=request.url, hint="Install one: playwright install chromium")
    left = request.deadline.remaining()
    budget = Deadline(request.deadline.at - min(_KEPT_BACK_SECONDS, _KEPT_BACK_SHARE * left))
    rendered = await tools.browser.render(request.url, deadline=budget, max_bytes=request.max_bytes)
    if rendered.content_type and kind_of(rendered.content_type) != "html":
        # What Chromium shows then is a viewer of its own, not the site's page.
        raise BrowserError(f"the browser was served {rendered.content_type}, which is no page", url=request.url)
    return await asyncio.to_thread(_page_of, request.url, rendered, tools.settings)


def _page_of(url: str, rendered: RenderedPage, settings: Settings) -> Page:
    page = judge(
        rendered.html.encode("utf-8", "replace"),
        url=url,
        final_url=rendered.final_url,
        status=rendered.status,
        headers=rendered.headers,
        content_type="text/html",
        charset="utf-8",
        truncated=rendered.truncated,
        settings=settings,
        via="browser",
    ).page
    warnings = []
    if not rendered.settled:
        warnings.append("the page was still changing when it was read; parts of it may be missing")
    if rendered.refused:
        warnings.append(f"{len(rendered.refused)} requests of the page were refused, the first: {rendered.refused[0]}")
    return replace(page, warnings=(*page.warnings, *warnings))


def _unrendered(page: Page, reason: str, why_not: str) -> Page:
    """The plain page, with a word on what rendering might have brought."""
    warning = f"the page may hold more than is shown here ({reason}), but it was not rendered: {why_not}"
    return replace(page, warnings=(*page.warnings, warning))


def _told(error: BrowserError) -> str:
    return f"{error.message}. {error.hint}".strip() if error.hint else error.message


def _is_file(url: str) -> bool:
    return PurePosixPath(urlsplit(url).path).suffix.lower() in _NEVER_RENDERED
