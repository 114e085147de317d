"""Pages rendered in Chromium, one context per page, through the engine's own proxy and no other way.

    render(url)
      │ guard             the URL is refused before Chromium hears of it
      │ Chromium          started when first needed, replaced when it dies, stopped when idle
      │ lease + context   credentials, deadline and byte budget of this page alone; closed in any case
      │ goto              once, until the answer is there
      │ settle            until the text stands still, at most a few seconds
      ▼
    Rendered              the DOM as HTML, cut at the size limit

`visit.py` has what happens within one page.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trawl.deadline import Deadline
from trawl.errors import (
    BrowserError,
    DeadlineExceeded,
    EngineError,
    NetworkError,
    TrawlError,
)
from trawl.net.chromium import find_browser, launch_options, limit_memory, no_browser, platform_of
from trawl.net.guard import Target
from trawl.net.proxy import BrowserProxy, Lease
from trawl.net.visit import BrokenBrowser, CrashedPage, Intake, Rendered, Visit, first_line
from trawl.settings import Settings

if TYPE_CHECKING:
    from playwright.async_api import Browser as PlaywrightBrowser
    from playwright.async_api import (
        BrowserContext,
        Playwright,
    )

    from trawl.net.dialer import Dialer

__all__ = ["Browser", "Rendered", "find_browser"]

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PAGES: Final = 4
"""Pages rendered at once: a renderer takes 100 to 300 MB and most of a core while it loads."""
IDLE_SECONDS: Final = 60.0
"""After so long without use Chromium is stopped: it starts again in half a second and holds some 200 MB meanwhile."""
LAUNCH_SECONDS: Final = 30.0
CONTEXT_SECONDS: Final = 10.0
"""Time for an empty page to open; it takes some 30 ms, so after this the browser hangs."""
CLOSE_SECONDS: Final = 5.0
"""Time for a context or the browser to close; it takes some 20 ms, so after this it hangs."""
WIRE_FACTOR: Final = 4
"""Bytes on the wire for one page, as a multiple of the bytes its HTML may have: scripts and data come on top of it."""
VIEWPORT: Final = {"width": 1280, "height": 900}


class Browser:
    """Renders pages under one dialer's policy. It belongs to the event loop of its first `render`.

    Args:
        dialer: what the proxy asks and connects through.
        settings: `browser`, `user_agent`, `accept_language`; `ca_file` only where the dialer serves a recorded web.
    """

    def __init__(self, dialer: Dialer, settings: Settings) -> None:
        self._dialer = dialer
        self._settings = settings
        self._slots = asyncio.Semaphore(MAX_PAGES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start: asyncio.Task[_Chromium] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._rendering = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def render(self, url: str, *, deadline: Deadline, max_bytes: int) -> Rendered:
        """Load `url`, let its scripts run, and read the page.

        Args:
            max_bytes: of the HTML; `WIRE_FACTOR` times as much may pass over the wire.

        Raises:
            GuardRefused: the URL, a redirect, or where a script led the page, is not allowed.
            NetworkError: the page could not be loaded, or loading it took too many bytes.
            DeadlineExceeded: nothing was there in time.
            TooManyRedirects: Chromium gave up following them.
            BrowserError: there is no browser, it failed twice, or the URL leads to a download.
            EngineError: closed, or called from another event loop.
        """
        self._check_usable()
        target = await self._dialer.check(url, deadline=deadline)
        async with self._slot(deadline, target):
            failure: Exception | None = None
            for _ in range(2):
                chromium = await self._chromium(deadline, target)
                try:
                    return await self._render(chromium, url, target, deadline, max_bytes)
                except BrokenBrowser as error:
                    failure = error
                    # A crashed page leaves the browser, and the other pages in it, alone.
                    if not isinstance(error, CrashedPage):
                        self._discard(chromium)
                    self._check_usable()
                    log.info("the browser failed, the page is tried again: %s", error)
            raise BrowserError(f"the browser failed twice on this page: {failure}", url=url) from failure

    async def aclose(self) -> None:
        """Stop Chromium and wait until it is gone. Pages being rendered fail. Harmless when called twice."""
        self._closed = True
        self._stop_idle_timer()
        self._retire()
        while self._background:
            await asyncio.wait(set(self._background))

    def _check_usable(self) -> None:
        if self._closed:
            raise EngineError("the browser is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise EngineError(
                "the browser belongs to another event loop", hint="Use one engine per event loop and process."
            )

    @contextlib.asynccontextmanager
    async def _slot(self, deadline: Deadline, target: Target) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(deadline.check("waiting for the browser", target.url)):
                await self._slots.acquire()
        except TimeoutError as error:
            raise DeadlineExceeded("time is up while waiting for a free page of the browser", url=target.url) from error
        self._rendering += 1
        self._stop_idle_timer()
        try:
            self._check_usable()
            yield
        finally:
            self._slots.release()
            self._rendering -= 1
            if not self._rendering and not self._closed:
                self._idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._retire)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    async def _chromium(self, deadline: Deadline, target: Target) -> _Chromium:
        """The running browser, started if need be. Starting is shared: one caller's end must not spoil it for all."""
        if self._start is not None and self._start.done() and not _is_usable(self._start):
            self._retire()
        if self._start is None:
            self._start = self._keep(_Chromium.launch(self._dialer, self._settings))
        start = self._start
        try:
            async with asyncio.timeout(deadline.check("starting the browser", target.url)):
                return await asyncio.shield(start)
        except TimeoutError as error:
            raise DeadlineExceeded("time is up while starting the browser", url=target.url) from error

    def _discard(self, chromium: _Chromium) -> None:
        """Let `chromium` go, unless that has been done."""
        start = self._start
        if start is not None and start.done() and (not _is_usable(start) or start.result() is chromium):
            self._retire()

    def _retire(self) -> None:
        """Let the running or starting browser go; closing it goes on in the background."""
        start, self._start = self._start, None
        if start is not None:
            self._keep(_close_started(start))

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` whoever is cancelled; `aclose` waits for it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        # Seen here, whoever waits for it: nobody may.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _render(
        self, chromium: _Chromium, url: str, target: Target, deadline: Deadline, max_bytes: int
    ) -> Rendered:
        from playwright.async_api import Error as PlaywrightError

        with chromium.proxy.lease(deadline, max_bytes * WIRE_FACTOR) as lease:
            context = await self._context(chromium, lease, deadline)
            try:
                async with asyncio.timeout(deadline.remaining()):
                    return await Visit(
                        chromium.is_alive, self._dialer.policy, context, lease, target, deadline, max_bytes
                    ).run(url)
            except TimeoutError as error:
                raise DeadlineExceeded("time is up while rendering", url=url) from error
            except PlaywrightError as error:
                raise BrokenBrowser(first_line(error)) from error
            finally:
                # Its connections are cut here and now; the page itself goes in the background.
                self._keep(self._close(chromium, context))

    async def _context(self, chromium: _Chromium, lease: Lease, deadline: Deadline) -> BrowserContext:
        from playwright.async_api import Error as PlaywrightError

        try:
            async with asyncio.timeout(min(CONTEXT_SECONDS, deadline.remaining())):
                return await self._owned(chromium.new_context(lease), lambda made: self._close(chromium, made))
        except TimeoutError as error:
            raise BrokenBrowser("it does not open a page") from error
        except (PlaywrightError, NetworkError) as error:  # the latter when the proxy was closed meanwhile
            raise BrokenBrowser(first_line(error)) from error

    async def _owned(self, making: Coroutine[Any, Any, T], discard: Callable[[T], Awaitable[None]]) -> T:
        """The result of `making`; if we are cancelled meanwhile, it is discarded as soon as it is there."""
        task = self._keep(making)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:

            async def discard_when_made() -> None:
                with contextlib.suppress(Exception):
                    await discard(await task)

            self._keep(discard_when_made())
            raise

    async def _close(self, chromium: _Chromium, context: BrowserContext) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await context.close()
        except TimeoutError:
            log.warning("the browser does not close a page and is replaced")
            self._discard(chromium)
        except Exception as error:  # it is gone with its browser
            log.debug("closing a page: %s", first_line(error))


@dataclass(eq=False)
class _Chromium:
    """A running Chromium with the Playwright driver that steers it and the proxy it goes through."""

    driver: Playwright
    browser: PlaywrightBrowser
    proxy: BrowserProxy
    user_agent: str
    locale: str
    stealth: Any
    closing: bool = False

    @classmethod
    async def launch(cls, dialer: Dialer, settings: Settings) -> _Chromium:
        """Raises: BrowserError when there is none or it does not start."""
        from playwright.async_api import Error as PlaywrightError
        from playwright.async_api import async_playwright
        from playwright_stealth import Stealth

        executable = await asyncio.to_thread(find_browser, settings)
        if executable is None:
            raise no_browser(settings)
        proxy = BrowserProxy(dialer)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(proxy.aclose)
            await proxy.start()
            test_ca = settings.ca_file if dialer.dials_elsewhere else None
            options = launch_options(executable, proxy.deny_server, test_ca=test_ca)
            try:
                driver = await async_playwright().start()
                undo.push_async_callback(driver.stop)
                browser = await driver.chromium.launch(timeout=LAUNCH_SECONDS * 1000, **options)
                undo.push_async_callback(browser.close)
                version, pid = await _about(browser)
                user_agent = settings.user_agent or version.replace("HeadlessChrome", "Chrome")
                await asyncio.to_thread(limit_memory, pid)
            except (PlaywrightError, OSError) as error:
                raise BrowserError(
                    f"Chromium ({executable}) did not start: {first_line(error)}",
                    hint='Run it by hand with --headless to see why, or use render="never".',
                ) from error
            undo.pop_all()
        locale = settings.accept_language.split(",")[0].split(";")[0].strip() or "en-US"
        stealth = Stealth(
            navigator_platform_override=platform_of(user_agent),
            navigator_languages_override=tuple(dict.fromkeys((locale, locale.split("-")[0]))),
        )
        return cls(driver, browser, proxy, user_agent, locale, stealth)

    def is_alive(self) -> bool:
        return self.browser.is_connected() and not self.closing

    async def new_context(self, lease: Lease) -> BrowserContext:
        context = await self.browser.new_context(
            proxy={
                "server": self.proxy.server,
                "bypass": "<-loopback>",
                "username": lease.username,
                "password": lease.password,
            },
            service_workers="block",
            accept_downloads=False,
            user_agent=self.user_agent,
            locale=self.locale,
            viewport={"width": VIEWPORT["width"], "height": VIEWPORT["height"]},
        )
        await self.stealth.apply_stealth_async(context)
        await context.route("**/*", Intake(lease).judge)
        return context

    async def close(self) -> None:
        """Stop everything, by force where asking does not help."""
        self.closing = True
        await self.proxy.aclose()
        for stop in (self.browser.close, self.driver.stop):
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await stop()
            except Exception as error:  # the next step is stronger: stopping the driver kills what it started
                log.debug("stopping the browser: %s", first_line(error))


def _is_usable(start: asyncio.Task[_Chromium]) -> bool:
    """Whether a finished start led to a browser that still runs."""
    return not start.cancelled() and start.exception() is None and start.result().is_alive()


async def _close_started(start: asyncio.Task[_Chromium]) -> None:
    with contextlib.suppress(TrawlError):
        await (await start).close()


async def _about(browser: PlaywrightBrowser) -> tuple[str, int]:
    """Its user agent and the id of its main process."""
    session = await browser.new_browser_cdp_session()
    try:
        version = await session.send("Browser.getVersion")
        processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
    finally:
        await session.detach()
    return str(version["userAgent"]), next(int(p["id"]) for p in processes if p["type"] == "browser")
