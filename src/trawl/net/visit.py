"""One page in its browser context: what it may load, when it is ready, what is read out of it.

What is read is read in an isolated world, where the page's scripts cannot replace what we call.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trawl.deadline import Deadline
from trawl.errors import (
    BrowserError,
    DeadlineExceeded,
    GuardRefused,
    NetworkError,
    TooManyRedirects,
)
from trawl.net.guard import Policy, Target, check_url
from trawl.net.proxy import MARKER_HEADER, Lease

if TYPE_CHECKING:
    from playwright.async_api import (
        BrowserContext,
        CDPSession,
        Page,
        Request,
        Response,
        Route,
    )

MAX_REQUESTS: Final = 2_000
"""Of one page. Each passes through our process; the heaviest news pages make some 500."""
MAX_FRAMES: Final = 40
"""Documents loaded into frames of one page; the heaviest news pages have some twenty."""
BLOCKED_RESOURCES: Final = frozenset({"image", "font", "media"})
"""Not loaded: they hold no text, and make up most of a page's bytes."""

# The wait for content. Poll, length and count are those of an older system of this kind, and worked there.
POLL_SECONDS: Final = 0.15
MIN_TEXT: Final = 100
STABLE_POLLS: Final = 4
CEILING_SECONDS: Final = 5.0
NETWORK_IDLE_SECONDS: Final = 3.0
"""How long running requests hold up a page whose text stands still, at most half of the time left."""
QUIET_SECONDS: Final = 0.5
"""Without a running request for so long, the network is idle (Playwright's definition)."""
STABLE_POLLS_SHORT: Final = 14
"""For short pages with scripts, some 2 s: "Loading…" is short too, and a timer shows in no list of requests."""
CAPTURE_SECONDS: Final = 1.0
"""Kept back of the deadline to read the page with; a page of 10 MB takes about 0.3 s."""
STUCK_SECONDS: Final = 2.0
"""A page that does not answer for so long is in an endless script, which is then stopped."""

WORLD: Final = "reader"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")

# Elements named `body` or `documentElement` shadow the properties of `document`, hence the getters of the prototypes.
# `innerText` lays the page out, which takes seconds for very long ones: their length alone is enough.
_PRELUDE: Final = """
const read = (type, name, from) => Object.getOwnPropertyDescriptor(type.prototype, name).get.call(from);
const body = read(Document, 'body', document), root = read(Document, 'documentElement', document);
"""
_MEASURE: Final = f"""(() => {{ {_PRELUDE}
const all = body ? read(Node, 'textContent', body).length : 0;
const text = body instanceof HTMLElement && all < 1e6 ? read(HTMLElement, 'innerText', body).trim().length : all;
return [read(Document, 'readyState', document) !== 'loading', text,
        Document.prototype.getElementsByTagName.call(document, '*').length,
        read(Document, 'scripts', document).length];
}})()"""
_CAPTURE: Final = """((limit) => {{ {prelude}
const type = read(Document, 'doctype', document);
const html = (type ? `<!DOCTYPE ${{type.name}}>\\n` : '') + (root ? read(Element, 'outerHTML', root) : '');
return [html.slice(0, limit), html.length > limit, read(Document, 'URL', document)];
}})({limit})"""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page as its scripts left it."""

    url: str
    """As asked for."""
    final_url: str
    """After redirects and navigation by script."""
    status: int
    """Of the document shown last; 0 when it came from no server (`about:blank`)."""
    headers: Mapping[str, str]
    """Its response headers, names in lower case."""
    content_type: str
    """Its media type in lower case, without parameters; empty if not sent."""
    html: str
    settled: bool
    """The text stood still; False when time or bytes ran out first."""
    ready_ms: int
    """From the start of navigation until the content was ready or the wait was given up."""
    refused: tuple[str, ...] = ()
    """What the page asked for and the guard refused, one line each: URL without secrets, reason."""
    truncated: bool = False
    """The HTML or the page's traffic reached its limit."""


class BrokenBrowser(Exception):
    """The browser, not the page, failed: worth one more try with a new one."""


class CrashedPage(BrokenBrowser):
    """Only the process of this page ended."""


@dataclass
class Intake:
    """What one page may load: text only, and so many requests and frames."""

    lease: Lease
    requests: int = 0
    frames: int = 0

    async def judge(self, route: Route) -> None:
        from playwright.async_api import Error as PlaywrightError

        request = route.request
        self.requests += 1
        # The page may be gone by the time its request is looked at.
        with contextlib.suppress(PlaywrightError):
            if self.requests > MAX_REQUESTS:
                self.lease.exhaust()
            if request.is_navigation_request() and _is_in_a_frame(request):
                self.frames += 1
            if self.lease.closed or self.frames > MAX_FRAMES or request.resource_type in BLOCKED_RESOURCES:
                await route.abort()
            else:
                await route.continue_()


def _is_in_a_frame(request: Request) -> bool:
    from playwright.async_api import Error as PlaywrightError

    try:
        return request.frame.parent_frame is not None
    except PlaywrightError:  # a window that opens has no frame yet when it asks for its page
        return False


@dataclass(frozen=True, slots=True)
class Measure:
    """The page at one moment."""

    parsed: bool
    text: int
    elements: int
    scripts: int


@dataclass
class Settling:
    """Decides when a page's content is ready. Pure: one `Measure` and the network's state at a time.

    Enough text that stands still is ready; while requests run, only after `idle_budget` seconds. A short page may be
    one that is still empty: without scripts it is what it is, with scripts it gets longer, and a blank one with scripts
    is never ready, it uses up the ceiling.
    """

    idle_budget: float
    stable_text: int = 0
    stable_dom: int = 0
    last: Measure | None = None

    def ready(self, now: Measure, *, quiet: bool, elapsed: float) -> bool:
        before, self.last = self.last, now
        same_text = before is not None and before.text == now.text
        self.stable_text = self.stable_text + 1 if same_text else 0
        self.stable_dom = self.stable_dom + 1 if same_text and before == now else 0
        if now.text > MIN_TEXT:
            return self.stable_text >= STABLE_POLLS and (quiet or elapsed >= self.idle_budget)
        if not quiet:
            return False
        if now.scripts:
            return now.text > 0 and self.stable_dom >= STABLE_POLLS_SHORT
        return self.stable_dom >= STABLE_POLLS


@dataclass(eq=False)
class Visit:
    """One page in its context, from navigation to HTML."""

    is_alive: Callable[[], bool]
    """Whether its Chromium is."""
    policy: Policy
    context: BrowserContext
    lease: Lease
    target: Target
    deadline: Deadline
    max_bytes: int
    navigating: str = ""
    """URL of the main frame's last navigation."""
    document: Response | None = None
    lost: str = ""
    """Why the main frame's last navigation failed, in Chromium's words; empty when it did not."""
    crashed: bool = False
    in_flight: set[Request] = field(default_factory=set)
    last_traffic: float = 0.0

    async def run(self, url: str) -> Rendered:
        page = await self.context.new_page()
        session = await self.context.new_cdp_session(page)
        self._watch(page)
        started = time.monotonic()
        await self._navigate(page)
        self._raise_if_lost(page.url)
        settled = await self._settle(session)
        ready_ms = round((time.monotonic() - started) * 1000)
        self._raise_if_broken("the browser ended")
        self._raise_if_lost(page.url)
        html, cut, final_url = await self._capture(session)
        self._raise_if_lost(final_url)
        headers = await self._headers()
        return Rendered(
            url=url,
            final_url=final_url,
            status=self.document.status if self.document else 0,
            headers=headers,
            content_type=headers.get("content-type", "").partition(";")[0].strip().lower(),
            html=html,
            settled=settled and not self.lease.closed,
            ready_ms=ready_ms,
            refused=tuple(f"{where}: {error.message}" for where, error in self.lease.refused.items()),
            truncated=cut or self.lease.over_budget,
        )

    def _watch(self, page: Page) -> None:
        # Dialogs need no handler: without one Playwright dismisses them.
        def is_document(request: Request) -> bool:
            return request.is_navigation_request() and request.frame == page.main_frame

        def requested(request: Request) -> None:
            self.in_flight.add(request)
            self.last_traffic = time.monotonic()
            if is_document(request):
                self.navigating, self.lost = request.url, ""

        def responded(response: Response) -> None:
            if is_document(response.request):
                self.document = response

        def finished(request: Request) -> None:
            self.in_flight.discard(request)
            self.last_traffic = time.monotonic()

        def failed(request: Request) -> None:
            finished(request)
            if is_document(request) and request.url == self.navigating:
                self.lost = request.failure or "failed"

        def crash(_: Page) -> None:
            self.crashed = True

        page.on("request", requested)
        page.on("response", responded)
        page.on("requestfinished", finished)
        page.on("requestfailed", failed)
        page.on("crash", crash)
        self.context.on("page", _close_popup)

    async def _navigate(self, page: Page) -> None:
        from playwright.async_api import Error as PlaywrightError

        try:
            left = self.deadline.check("loading the page", self.target.url)
            await page.goto(self.target.url, wait_until="commit", timeout=max(1.0, left * 1000))
        except PlaywrightError as error:
            raise self._explained(first_line(error)) from error

    async def _settle(self, session: CDPSession) -> bool:
        """Wait until the content is ready. False when the time, or the page's connection, ended first."""
        end = Deadline.after(max(0.0, self.deadline.remaining() - CAPTURE_SECONDS))
        settling = Settling(idle_budget=min(NETWORK_IDLE_SECONDS, self.deadline.remaining() / 2))
        parsed_at: float | None = None
        while not self.lease.closed:
            now = await self._measure(session, end)
            if now is None and end.remaining() <= 0:
                return False
            if now is not None and now.parsed:
                if parsed_at is None:
                    parsed_at = time.monotonic()
                    end = end.sooner(CEILING_SECONDS)
                elapsed = time.monotonic() - parsed_at
                if settling.ready(now, quiet=self._is_quiet(), elapsed=elapsed):
                    return True
            if end.remaining() <= POLL_SECONDS or self.crashed:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return False

    def _is_quiet(self) -> bool:
        return not self.in_flight and time.monotonic() - self.last_traffic >= QUIET_SECONDS

    async def _measure(self, session: CDPSession, end: Deadline) -> Measure | None:
        """None while the page is between two documents, or busy with itself."""
        value = await self._read(session, _MEASURE, min(STUCK_SECONDS, max(0.05, end.remaining())))
        if not isinstance(value, list) or len(value) != 4:
            return None
        parsed, *counts = value
        return Measure(bool(parsed), *(int(count) for count in counts))

    async def _capture(self, session: CDPSession) -> tuple[str, bool, str]:
        """The HTML, whether it was cut, and the URL of that very document: a moment later the page may be elsewhere,
        and what it said must not be told as another site's words."""
        limit = self.max_bytes
        value: Any = None
        while value is None:
            left = self.deadline.check("reading the page out of the browser", self.target.url)
            value = await self._read(session, _CAPTURE.format(prelude=_PRELUDE, limit=limit), min(STUCK_SECONDS, left))
            if value is None:
                self._raise_if_broken("the page crashed")
                await asyncio.sleep(0.02)
        html, cut, url = str(value[0]), bool(value[1]), str(value[2])
        encoded = html.encode("utf-8", "replace")
        if len(encoded) > limit:
            return encoded[:limit].decode("utf-8", "ignore"), True, url
        return encoded.decode("utf-8"), cut, url

    async def _read(self, session: CDPSession, script: str, seconds: float) -> Any:
        """What `script` gives in the isolated world of the main frame; None when the page is not there to be asked."""
        from playwright.async_api import Error as PlaywrightError

        try:
            async with asyncio.timeout(seconds):
                tree = await session.send("Page.getFrameTree")
                world = await session.send(
                    "Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"], "worldName": WORLD}
                )
                reply = await session.send(
                    "Runtime.evaluate",
                    {"expression": script, "contextId": world["executionContextId"], "returnByValue": True},
                )
            return reply["result"].get("value")
        except TimeoutError:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                async with asyncio.timeout(0.5):
                    await session.send("Runtime.terminateExecution")
            return None
        except PlaywrightError as error:
            self._raise_if_broken(first_line(error))
            return None

    def _raise_if_broken(self, message: str) -> None:
        if not self.is_alive():
            raise BrokenBrowser(message)
        if self.crashed:
            raise CrashedPage(message)

    async def _headers(self) -> dict[str, str]:
        """As sent; Set-Cookie and other repeated ones joined by Playwright."""
        from playwright.async_api import Error as PlaywrightError

        if self.document is None:
            return {}
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(max(0.05, min(CAPTURE_SECONDS, self.deadline.remaining()))):
                return {name.lower(): value for name, value in (await self.document.all_headers()).items()}
        return {name.lower(): value for name, value in self.document.headers.items()}

    def _raise_if_lost(self, url: str) -> None:
        """The document on show may be no page but the proxy's answer, or Chromium's own about a failed navigation."""
        from_proxy = self.document is not None and self.document.headers.get(MARKER_HEADER) == self.lease.marker
        if from_proxy or (self.lost and url.startswith("chrome-error:")):
            raise self._explained(self.lost)

    def _explained(self, message: str) -> Exception:
        """The error behind a failed navigation; `message` is what Chromium says of it."""
        url = self.navigating or self.target.url
        if not self.is_alive():
            return BrokenBrowser(message)
        if problem := self.lease.problem(url):
            return problem
        if self.lease.over_budget:
            limit = f"more than {self.lease.max_bytes} bytes or {MAX_REQUESTS} requests"
            return NetworkError(f"the page loaded too much: {limit}", url=url)
        if self.lease.expired or self.deadline.remaining() <= 0 or "Timeout" in message:
            return DeadlineExceeded("time is up while loading the page", url=url, hint="Give a longer timeout.")
        if self.crashed or "crashed" in message:
            return CrashedPage(message)
        if "closed" in message:
            return BrokenBrowser(message)
        try:
            # Chromium blocks some ports and schemes before the proxy is asked.
            check_url(url, self.policy)
        except GuardRefused as refused:
            return refused
        if "ERR_UNSAFE_REDIRECT" in message:
            return GuardRefused("the page redirects to something that is not http or https", reason="scheme", url=url)
        if "ERR_TOO_MANY_REDIRECTS" in message:
            return TooManyRedirects("the page redirects too often", url=url)
        if "ERR_ABORTED" in message or "Download is starting" in message:
            return BrowserError("the URL leads to a download or to nothing, not to a page", url=url)
        return NetworkError(f"Chromium could not load the page: {_net_error(message)}", url=url)


async def _close_popup(page: Page) -> None:
    with contextlib.suppress(Exception):
        await page.close()


def _net_error(message: str) -> str:
    """`net::ERR_…` out of Playwright's message, which carries the whole URL."""
    words = [word for word in message.split() if word.startswith("net::")]
    return words[0].removeprefix("net::") if words else "it does not say why"


def first_line(error: Exception) -> str:
    """What Playwright says, without URLs: they may hold secrets, and a page chooses the words in them."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return _URL.sub("(a URL)", line)[:300]
