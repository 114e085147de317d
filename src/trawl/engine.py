"""The engine owns what is expensive to make: connections, browser, embedder, and the pieces not yet asked for.

`AsyncEngine` is the engine; `Engine` drives one from a background thread for plain code. Both are cheap to make:
nothing is connected or started before the first call that needs it.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from trawl.asking import DEFAULT_MAX_TOKENS, Ask, checked_render, checked_timeout, checked_url
from trawl.background import BackgroundLoop
from trawl.deadline import Deadline
from trawl.errors import EngineError, UsageError
from trawl.net.dialer import ConnectTo, Dialer
from trawl.net.guard import Policy
from trawl.settings import Settings
from trawl.types import Document, Page, PipelineResult

if TYPE_CHECKING:
    from trawl.fetchers import FetchTools
    from trawl.llama.embedder import Embedder
    from trawl.net.browser import Browser
    from trawl.net.http import HttpClient
    from trawl.pipeline import Remainder, Source

T = TypeVar("T")

log = logging.getLogger(__name__)

_REMAINDERS_KEPT = 32
"""Results whose further pieces can still be asked for; each holds its document (10 MB of page at the very most)."""

_EMBEDDER_RETRY_SECONDS = 30.0
"""How long an engine without embedder, or whose embedder failed, ranks by words before it looks for one again."""


class AsyncEngine:
    """Fetches pages and finds the pieces that answer. One event loop, any number of calls at once.

    Args:
        settings: `Settings.from_env()` when None.
        allow_private: hosts (`host`, `host:port`) that may be reached although they lie in a private network.
        connect_to: for tests: where connections to a (host, port) go instead.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        allow_private: Iterable[str] = (),
        connect_to: ConnectTo | None = None,
    ) -> None:
        self.settings = settings if settings is not None else Settings.from_env()
        self.chunk_budget = self.settings.chunk_budget
        self._dialer = Dialer(Policy.of(allow_private), connect_to=connect_to)
        self._http: HttpClient | None = None
        self._browser: Browser | None = None
        self._embedder: asyncio.Task[tuple[Embedder | None, str]] | None = None
        self._embedder_since = 0.0
        self._remainders: OrderedDict[str, Remainder] = OrderedDict()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def fetch_relevant(
        self,
        url: str,
        query: str | Sequence[str] | None = None,
        *,
        k: int | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        render: str | None = None,
        use_hyde: bool = False,
        use_rerank: bool = True,
        max_cache_age_s: float | None = None,
        no_store: bool = False,
        timeout: float | None = None,
    ) -> PipelineResult:
        """The pieces of the page at `url` that answer `query`, best first, within `max_tokens`.

        Args:
            url: one page, http or https.
            query: a question, or several; None: the main content in order, with `more`.
            k: at most so many pieces; None: as many as the budget holds.
            max_tokens: what the pieces may cost, headings included (estimated tokens).
            render: "auto" (a browser when the page needs it), "always" or "never"; None: as the settings say.
            use_hyde: accepted; has no effect until a utility model is connected (a warning says so).
            use_rerank: accepted; `rerank_used` of the result says whether it happened.
            max_cache_age_s: accepted; every call fetches afresh, which satisfies any age.
            no_store: accepted; nothing is stored.
            timeout: seconds for the whole call; None: as the settings say.

        Returns:
            Always a result. What went wrong is told by `error`, `outcome` and `warnings`.

        Raises:
            UsageError: a wrong argument.
            EngineError: the engine is closed.
        """
        from trawl import pipeline

        ask = Ask.of(query, k=k, max_tokens=max_tokens, use_rerank=use_rerank, use_hyde=use_hyde)
        _check_age(max_cache_age_s)
        deadline = self._deadline(timeout)
        source = self._source(url, render, deadline)
        return await pipeline.answer(source, ask, self, deadline)

    async def extract_relevant(
        self,
        content: str | bytes,
        query: str | Sequence[str] | None,
        *,
        url: str | None = None,
        content_type: str = "text/html",
        status: int = 200,
        k: int | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        use_hyde: bool = False,
        use_rerank: bool = True,
        timeout: float | None = None,
    ) -> PipelineResult:
        """The same for content the caller already has; nothing is fetched.

        Args:
            content: the body as it came (bytes), or decoded text.
            url: where it came from, for links and outcome; may be None.
            content_type: as the server said; parameters (charset) are honoured.
            status: the HTTP status it came with.

        Raises:
            UsageError: a wrong argument.
            EngineError: the engine is closed.
        """
        from trawl import pipeline
        from trawl.fetchers.local import local_page

        ask = Ask.of(query, k=k, max_tokens=max_tokens, use_rerank=use_rerank, use_hyde=use_hyde)
        deadline = self._deadline(timeout)
        if not isinstance(content, (str, bytes)):
            raise UsageError(f"content must be bytes or a string, not {type(content).__name__}")

        async def fetch() -> Page:
            return await asyncio.to_thread(
                local_page, content, url=url or "", content_type=content_type, status=status, settings=self.settings
            )

        return await pipeline.answer(pipeline.Source(url or "", None, fetch), ask, self, deadline)

    async def fetch_document(self, url: str, *, render: str | None = None, timeout: float | None = None) -> Document:
        """The whole page at `url`, verbatim.

        Raises:
            UsageError, EngineError: as `fetch_relevant`.
            TrawlError: the page could not be fetched or read; its class says why.
        """
        from trawl.extraction.reader import read_document

        deadline = self._deadline(timeout)
        page = await self._source(url, render, deadline).fetch()
        return await read_document(
            page.body, url=page.final_url, content_type=page.content_type, charset=page.charset, deadline=deadline
        )

    async def more(self, handle: str, *, max_tokens: int = DEFAULT_MAX_TOKENS) -> PipelineResult:
        """The pieces after those of an earlier result (its `more`), without a new fetch.

        Raises:
            UsageError: the handle is unknown or has expired (an engine keeps those of its last 32 results).
        """
        from trawl import pipeline

        self._check_open()
        remainder = self._remainders.get(handle)
        if remainder is None:
            raise UsageError("this handle is unknown or has expired", hint="Ask for the page again.")
        ask = Ask.of(None, max_tokens=max_tokens)
        return await asyncio.to_thread(pipeline.next_pieces, remainder, ask.max_tokens, self)

    async def aclose(self) -> None:
        """Close connections, browser and embedder. Idempotent; calls after it raise EngineError."""
        if self._closed:
            return
        self._closed = True
        self._remainders.clear()
        open_ones = [owned for owned in (self._http, self._browser) if owned is not None]
        await asyncio.gather(_close_embedder(self._embedder), *(owned.aclose() for owned in open_ones))

    # What the pipeline asks of the engine that runs it (pipeline.Stages):

    async def embedder(self, deadline: Deadline) -> tuple[Embedder | None, str]:
        """The engine's embedder, chosen by the first call and remembered; None and the reason when there is none."""
        found = self._embedder
        if found is not None and found.done() and self._may_look_again(found):
            found = None
        if found is None:
            from trawl.llama.embedder import open_embedder

            # The start-up outlives the call that caused it: the next call finds the model ready.
            found = self._embedder = asyncio.create_task(open_embedder(self.settings, Deadline.after(60)))
            self._embedder_since = time.monotonic()
        try:
            return await asyncio.wait_for(asyncio.shield(found), deadline.remaining() / 2)
        except TimeoutError:
            return None, "the model server is still starting"
        except Exception as error:
            log.exception("opening the embedder failed")
            return None, f"opening the embedder failed ({type(error).__name__})"

    async def embedder_failed(self, embedder: Embedder) -> None:
        """Forget `embedder`; a later call may find another."""
        task = self._embedder
        if task is not None and task.done() and not task.cancelled() and task.result()[0] is embedder:
            self._embedder = None
            await embedder.aclose()

    def keep(self, remainder: Remainder) -> str:
        """Keep the pieces that did not fit, the oldest giving way; returns their handle."""
        handle = secrets.token_urlsafe(9)
        self._remainders[handle] = remainder
        while len(self._remainders) > _REMAINDERS_KEPT:
            self._remainders.popitem(last=False)
        return handle

    def _may_look_again(self, found: asyncio.Task[tuple[Embedder | None, str]]) -> bool:
        failed = found.cancelled() or found.exception() is not None or found.result()[0] is None
        return failed and time.monotonic() - self._embedder_since > _EMBEDDER_RETRY_SECONDS

    def _source(self, url: str, render: str | None, deadline: Deadline) -> Source:
        from trawl.fetchers import FetchRequest, fetch_page
        from trawl.pipeline import Source

        request = FetchRequest(
            url=checked_url(url),
            render=checked_render(self.settings.render if render is None else render),
            deadline=deadline,
            max_bytes=self.settings.max_bytes,
        )
        return Source(
            request.url,
            admit=lambda: self._dialer.check(request.url, deadline=deadline),
            fetch=lambda: fetch_page(request, self._tools()),
        )

    def _tools(self) -> FetchTools:
        """What fetchers reach the world with: made once; the browser itself starts when it is first needed."""
        from trawl.fetchers import FetchTools

        self._check_open()
        if self._http is None or self._browser is None:
            from trawl.net.browser import Browser
            from trawl.net.http import HttpClient

            self._http = HttpClient(self._dialer, settings=self.settings)
            self._browser = Browser(self._dialer, self.settings)
        return FetchTools(http=self._http, browser=self._browser, settings=self.settings)

    def _deadline(self, timeout: float | None) -> Deadline:
        self._check_open()
        return Deadline.after(self.settings.timeout if timeout is None else checked_timeout(timeout))

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed", hint="Make a new one.")


def _check_age(seconds: object) -> None:
    if seconds is None:
        return
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or seconds < 0:
        raise UsageError(f"max_cache_age_s must be a number of seconds from 0, not {seconds!r}")


async def _close_embedder(task: asyncio.Task[tuple[Embedder | None, str]] | None) -> None:
    if task is None:
        return
    if not task.done():
        task.cancel()
    found = (await asyncio.gather(task, return_exceptions=True))[0]
    if not isinstance(found, BaseException) and found[0] is not None:
        await found[0].aclose()


class Engine:
    """`AsyncEngine` for plain code: the same calls, blocking; safe to share between threads.

    Works in scripts, notebooks, threads, and inside a running event loop (which it blocks: prefer `AsyncEngine`
    there). In a forked child it makes itself anew. Closed by `close()`, by `with`, or when the program ends.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        allow_private: Iterable[str] = (),
        connect_to: ConnectTo | None = None,
    ) -> None:
        self.settings = settings if settings is not None else Settings.from_env()
        self._allow_private = tuple(allow_private)
        self._connect_to = connect_to
        self._lock = threading.Lock()
        self._closed = False
        self._build()
        _open_engines.add(self)

    def _build(self) -> None:
        self._loop = BackgroundLoop()
        self._engine = AsyncEngine(self.settings, allow_private=self._allow_private, connect_to=self._connect_to)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fetch_relevant(self, url: str, query: str | Sequence[str] | None = None, **options: Any) -> PipelineResult:
        """As `AsyncEngine.fetch_relevant`."""
        return self._run(lambda engine: engine.fetch_relevant(url, query, **options))

    def extract_relevant(
        self, content: str | bytes, query: str | Sequence[str] | None, **options: Any
    ) -> PipelineResult:
        """As `AsyncEngine.extract_relevant`."""
        return self._run(lambda engine: engine.extract_relevant(content, query, **options))

    def fetch_document(self, url: str, **options: Any) -> Document:
        """As `AsyncEngine.fetch_document`."""
        return self._run(lambda engine: engine.fetch_document(url, **options))

    def more(self, handle: str, *, max_tokens: int = DEFAULT_MAX_TOKENS) -> PipelineResult:
        """As `AsyncEngine.more`."""
        return self._run(lambda engine: engine.more(handle, max_tokens=max_tokens))

    def close(self) -> None:
        """Close everything the engine owns and wait for it. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _open_engines.discard(self)
        self._loop.close(self._engine.aclose())

    def _run(self, call: Callable[[AsyncEngine], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed", hint="Make a new Engine.")
            if self._loop.forked:
                # The parent's loop, sockets and processes are the parent's: keep the objects alive (their
                # finalizers would close what the parent still uses) and start afresh.
                _inherited.append((self._loop, self._engine))
                self._build()
            loop, engine = self._loop, self._engine
        return loop.run(call(engine))


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[object] = []


@atexit.register
def _close_all() -> None:
    for engine in list(_open_engines):
        if not engine._loop.forked:
            engine.close()
