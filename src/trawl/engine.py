"""The engine owns what is expensive to make: connections, browser, embedder, and the pieces not yet asked for.

`AsyncEngine` is the engine; `Engine` drives one from a background thread for plain code. Both are cheap to make:
nothing is connected or started before the first call that needs it.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from trawl.asking import (
    DEFAULT_MAX_TOKENS,
    Ask,
    DocumentOptions,
    ExtractOptions,
    FetchOptions,
    check_age,
    check_content,
    checked_render,
    checked_timeout,
    checked_url,
)
from trawl.background import BackgroundLoop
from trawl.deadline import Deadline
from trawl.errors import EngineError, UsageError
from trawl.net.dialer import ConnectTo, Dialer
from trawl.net.guard import Policy
from trawl.settings import Settings
from trawl.types import Document, Page, PipelineResult

if TYPE_CHECKING:
    from trawl.fetchers import FetchTools
    from trawl.llama.admission import EndpointStats
    from trawl.llama.servers import ModelServers
    from trawl.net.browser import Browser
    from trawl.net.http import HttpClient
    from trawl.pipeline import PageSource, Services
    from trawl.store.database import Database
    from trawl.store.vectors import VectorCounters, VectorStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How an engine has fared since it was made."""

    endpoints: Mapping[str, EndpointStats]
    """Queue, waits, refusals and latencies of each model server, by its address."""
    vectors: VectorCounters
    """Hits and misses of the vectors that are kept."""


class AsyncEngine:
    """Fetches pages and finds the pieces that answer. One event loop, any number of calls at once.

    Args:
        settings: `Settings.from_env()` when None.
        allow_private: hosts (`host`, `host:port`) that may be reached although they lie in a private network.
        connect_to: for tests: where connections to a (host, port) go instead.
        progress: told in a few words what takes long, for whoever is watching; called on the engine's own thread.

    Raises:
        UsageError: an argument is of a wrong type, or an entry of `allow_private` is no host.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        allow_private: Iterable[str] = (),
        connect_to: ConnectTo | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = _settings(settings)
        self._progress = progress
        self._dialer = Dialer(Policy.of(allow_private), connect_to=connect_to)
        self._services_made: Services | None = None
        self._database: Database | None = None
        self._vectors: VectorStore | None = None
        self._http: HttpClient | None = None
        self._browser: Browser | None = None
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
            use_hyde: also look for what an answer made up by the utility model looks like; `hyde_used` of the result
                says whether that happened.
            use_rerank: let the reranker order the best pieces, when there is one; `rerank_used` says whether it did.
            max_cache_age_s: accepted; every call fetches afresh, which satisfies any age.
            no_store: nothing of this call is kept, also no vectors.
            timeout: seconds for the whole call; None: as the settings say.

        Returns:
            Always a result. What went wrong is told by `error`, `outcome` and `warnings`.

        Raises:
            UsageError: a wrong argument.
            EngineError: the engine is closed.
        """
        from trawl import pipeline

        ask = Ask.of(query, k=k, max_tokens=max_tokens, use_hyde=use_hyde, use_rerank=use_rerank, no_store=no_store)
        check_age(max_cache_age_s)
        deadline = self._deadline(timeout)
        source = self._source(url, render, deadline)
        return await pipeline.answer(source, ask, self._services(), deadline)

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

        ask = Ask.of(query, k=k, max_tokens=max_tokens, use_hyde=use_hyde, use_rerank=use_rerank)
        check_content(content, url, content_type, status)
        deadline = self._deadline(timeout)

        async def fetch() -> Page:
            return await asyncio.to_thread(
                local_page, content, url=url or "", content_type=content_type, status=status, settings=self.settings
            )

        return await pipeline.answer(pipeline.PageSource(url or "", None, fetch), ask, self._services(), deadline)

    async def fetch_document(self, url: str, *, render: str | None = None, timeout: float | None = None) -> Document:
        """The whole page at `url`, verbatim.

        Raises:
            UsageError, EngineError: as `fetch_relevant`.
            TrawlError: the page could not be fetched or read; its class says why.
        """
        from trawl import pipeline

        deadline = self._deadline(timeout)
        return await pipeline.whole_document(self._source(url, render, deadline), deadline)

    async def more(self, handle: str, *, max_tokens: int = DEFAULT_MAX_TOKENS) -> PipelineResult:
        """The pieces after those of an earlier result (its `more`), without a new fetch.

        Raises:
            UsageError: the handle is unknown or has expired (an engine keeps those of its last 32 results).
        """
        from trawl import pipeline

        self._check_open()
        services = self._services()
        ask = Ask.of(None, max_tokens=max_tokens)
        remainder = services.remainders.get(handle)
        return await asyncio.to_thread(pipeline.next_pieces, remainder, ask.max_tokens, services)

    async def aclose(self) -> None:
        """Close connections, browser and embedder. Idempotent; calls after it raise EngineError."""
        if self._closed:
            return
        self._closed = True
        owned: list[ModelServers | HttpClient | Browser | None] = [self._http, self._browser]
        if self._services_made is not None:
            self._services_made.remainders.clear()
            owned.append(self._services_made.models)
        await asyncio.gather(*(resource.aclose() for resource in owned if resource is not None))
        if self._database is not None:
            await self._database.aclose()

    def stats(self) -> EngineStats:
        """Queues, waits, refusals and latencies of the model servers, and how often kept vectors were of use.

        Raises:
            EngineError: the engine is closed.
        """
        from trawl.store.vectors import VectorCounters

        self._check_open()
        made, vectors = self._services_made, self._vectors
        return EngineStats(
            endpoints=made.models.stats() if made else {},
            vectors=vectors.counters if vectors else VectorCounters(),
        )

    def _services(self) -> Services:
        if self._services_made is None:
            from trawl.llama.backends import Backends
            from trawl.llama.servers import ModelServers
            from trawl.pipeline import Services
            from trawl.relevance import RankingLimits
            from trawl.remainders import Remainders
            from trawl.retrieval.rerank import Caps
            from trawl.store.database import Database
            from trawl.store.vectors import VectorStore

            settings = self.settings
            self._database = Database(settings.store_path)
            self._vectors = VectorStore(self._database, settings.embed_cache_max_mb * 2**20, settings.embed_cache_ttl)
            caps = Caps(settings.rerank_max_docs, settings.rerank_max_per_doc_chars, settings.rerank_max_chars)
            self._services_made = Services(
                models=ModelServers(Backends(settings, vectors=self._vectors, progress=self._progress)),
                remainders=Remainders(),
                limits=RankingLimits(settings.chunk_budget, caps, settings.rerank_include_title),
            )
        return self._services_made

    def _source(self, url: str, render: str | None, deadline: Deadline) -> PageSource:
        from trawl.fetchers import FetchRequest, fetch_page
        from trawl.pipeline import PageSource

        request = FetchRequest(
            url=checked_url(url),
            render=checked_render(self.settings.render if render is None else render),
            deadline=deadline,
            max_bytes=self.settings.max_bytes,
        )
        return PageSource(
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


def _settings(given: Settings | None) -> Settings:
    if given is None:
        return Settings.from_env()
    if not isinstance(given, Settings):
        raise UsageError(f"settings must be a Settings or None, not {type(given).__name__}")
    return given


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
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = _settings(settings)
        self._allow_private = tuple(allow_private)
        self._connect_to = connect_to
        self._progress = progress
        self._lock = threading.Lock()
        self._closed = False
        self._build()
        _open_engines.add(self)

    def _build(self) -> None:
        self._loop = BackgroundLoop()
        self._engine = AsyncEngine(
            self.settings, allow_private=self._allow_private, connect_to=self._connect_to, progress=self._progress
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fetch_relevant(
        self, url: str, query: str | Sequence[str] | None = None, **options: Unpack[FetchOptions]
    ) -> PipelineResult:
        """As `AsyncEngine.fetch_relevant`."""
        return self._run(lambda engine: engine.fetch_relevant(url, query, **options))

    def extract_relevant(
        self, content: str | bytes, query: str | Sequence[str] | None, **options: Unpack[ExtractOptions]
    ) -> PipelineResult:
        """As `AsyncEngine.extract_relevant`."""
        return self._run(lambda engine: engine.extract_relevant(content, query, **options))

    def fetch_document(self, url: str, **options: Unpack[DocumentOptions]) -> Document:
        """As `AsyncEngine.fetch_document`."""
        return self._run(lambda engine: engine.fetch_document(url, **options))

    def more(self, handle: str, *, max_tokens: int = DEFAULT_MAX_TOKENS) -> PipelineResult:
        """As `AsyncEngine.more`."""
        return self._run(lambda engine: engine.more(handle, max_tokens=max_tokens))

    def stats(self) -> EngineStats:
        """As `AsyncEngine.stats`."""

        async def ask(engine: AsyncEngine) -> EngineStats:
            return engine.stats()

        return self._run(ask)

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
