"""One call, top to bottom; nothing flows back.

    url + questions
      │ admit      guard: may this be reached at all?
      │ fetch      fetchers: HTTP, browser               -> Page (with its outcome)
      │ read       extraction: bytes to blocks           -> Document
      │ chunk      chunking                              -> Chunks
      │ rank       relevance: BM25, embeddings, reranker -> Ranked, best first
      │ pack       as many as the budget holds           -> pieces and the rest
      ▼
    PipelineResult

What the web or a model server does ends here as a field of the result; only `UsageError` passes through.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trawl.anchors import anchor
from trawl.asking import Ask
from trawl.chunking import chunk_document
from trawl.deadline import Deadline
from trawl.errors import FetchError, TrawlError, UsageError, without_secrets
from trawl.extraction.reader import read_document
from trawl.pieces import piece, piece_tokens
from trawl.relevance import Preparation, RankingLimits, relevant
from trawl.remainders import Remainder, Remainders
from trawl.retrieval.choose import left_over, pack
from trawl.retrieval.rank import Ranked, in_order
from trawl.types import Chunk, Document, Outcome, Page, PipelineResult

if TYPE_CHECKING:
    from trawl.llama.servers import ModelServers

log = logging.getLogger(__name__)

_CONTENT_OUTCOMES: frozenset[Outcome] = frozenset({"ok", "truncated", "paywall", "js_shell"})
"""Outcomes whose text is part of what was asked for. The text of a challenge or login page is not: it is withheld."""


@dataclass(frozen=True, slots=True)
class Services:
    """What calls share: the engine makes it once."""

    models: ModelServers
    remainders: Remainders
    limits: RankingLimits


@dataclass(frozen=True, slots=True)
class PageSource:
    """Where the page of one call comes from."""

    url: str
    admit: Callable[[], Awaitable[object]] | None
    """Raises GuardRefused when the URL may not be reached; None: nothing is fetched."""
    fetch: Callable[[], Awaitable[Page]]


async def answer(source: PageSource, ask: Ask, services: Services, deadline: Deadline) -> PipelineResult:
    """Run the whole flow for one page. Never raises but for cancellation and `UsageError`."""
    started = time.perf_counter()
    result = PipelineResult(url=source.url, query=ask.query)
    prepared: Preparation | None = None
    try:
        if source.admit is not None:
            await source.admit()
        if ask.questions:
            # A model may have to start: let it, while the page is on its way.
            prepared = Preparation(ask, services.models, deadline)
        page = await source.fetch()
        _tell_page(result, page)
        if page.outcome in _CONTENT_OUTCOMES:
            document = await _read(page, deadline)
            _tell_document(result, page, document)
            await _retrieve(result, document, ask, services, prepared, deadline)
    except UsageError:
        raise
    except TrawlError as error:
        _tell_error(result, error)
    except Exception as error:
        # A fault of ours must not take an agent down with it: it is told, and logged with its trace.
        log.exception("internal error on %s", without_secrets(source.url))
        result.error = f"internal error ({type(error).__name__}); the log has the details"
        result.outcome = "internal_error"
        result.path = "error"
    finally:
        if prepared is not None:
            await prepared.aclose()
    result.total_ms = _ms_since(started)
    return result


async def whole_document(source: PageSource, deadline: Deadline) -> Document:
    """The page as a document, nothing chosen.

    Raises:
        FetchError: it could not be brought back, or what came is not the page (a bot check, a login, an error page).
        GuardRefused, ExtractionError: it may not be reached, or not be read.
    """
    page = await source.fetch()
    if page.outcome not in _CONTENT_OUTCOMES:
        raise FetchError(_sentence(page), url=page.final_url)
    return await _read(page, deadline)


def next_pieces(remainder: Remainder, max_tokens: int, services: Services) -> PipelineResult:
    """The pieces after those returned before, without a new fetch."""
    started = time.perf_counter()
    result = replace(
        remainder.result,
        chunks=[],
        warnings=[],
        more=None,
        cache_hit=True,
        fetch_ms=0,
        chunk_ms=0,
        retrieval_ms=0,
        rerank_ms=0,
        n_chunks_embedded=0,
        embed_cache_hits=0,
        embed_cache_misses=0,
    )
    ask = Ask(remainder.ask.questions, remainder.ask.k, max_tokens)
    _pack(result, remainder.document, remainder.ranked, ask, services)
    result.total_ms = _ms_since(started)
    return result


async def _read(page: Page, deadline: Deadline) -> Document:
    return await read_document(
        page.body, url=page.final_url, content_type=page.content_type, charset=page.charset, deadline=deadline
    )


async def _retrieve(
    result: PipelineResult,
    document: Document,
    ask: Ask,
    services: Services,
    prepared: Preparation | None,
    deadline: Deadline,
) -> None:
    started = time.perf_counter()
    chunks = await asyncio.to_thread(chunk_document, document)
    result.chunk_ms = _ms_since(started)
    result.n_chunks_total = len(chunks)
    if not chunks:
        result.warnings.append("the page holds no text to search")
        return

    started = time.perf_counter()
    if prepared is None:
        ranked = in_order(chunks)
        result.retrieval_diagnostics = {"mode": "reading_order"}
    else:
        ranked = await relevant(result, chunks, ask, services.models, prepared, services.limits, deadline)
    await asyncio.to_thread(_pack, result, document, ranked, ask, services)
    result.retrieval_ms = _ms_since(started)


def _pack(result: PipelineResult, document: Document, ranked: Sequence[Ranked], ask: Ask, services: Services) -> None:
    """Fill the budget, best first (or in reading order when there was no question), and keep the rest."""

    def cost(chunk: Chunk) -> int:
        return piece_tokens(chunk.text, chunk.heading_path, result.page_title)

    chosen = pack(ranked, ask.max_tokens, ask.k, cost=cost, skip_larger=bool(ask.questions))
    result.chunks = [piece(r, anchor(result.final_url, document, r.chunk), result.page_title) for r in chosen]
    result.tokens = sum(int(c["tokens"]) for c in result.chunks)
    if not chosen:
        result.warnings.append(f"max_tokens={ask.max_tokens} holds not even the beginning of a piece")
    elif rest := _rest(ranked, chosen):
        result.more = services.remainders.keep(Remainder(result, document, rest, ask))


def _rest(ranked: Sequence[Ranked], chosen: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """What was not returned, in the same order; of a piece that was cut, its end comes first."""
    shown = {r.chunk.index: r.chunk for r in chosen}
    ends = [
        replace(r, chunk=end)
        for r in ranked
        if r.chunk.index in shown and (end := left_over(r.chunk, shown[r.chunk.index])) is not None
    ]
    return (*ends, *(r for r in ranked if r.chunk.index not in shown))


_FETCHER_NAMES = {"http": "http+trafilatura", "browser": "playwright+trafilatura", "local": "local+trafilatura"}
"""`fetcher_used` of HTML says who fetched it and that Trafilatura voted on it; other types go by their own name."""


def _tell_page(result: PipelineResult, page: Page) -> None:
    result.final_url = page.final_url
    result.status = page.status
    result.outcome = page.outcome
    result.evidence = page.evidence
    result.content_type = page.content_type
    result.truncated = page.truncated
    result.fetched_at = page.fetched_at
    result.fetch_ms = page.fetch_ms
    result.fetcher_used = _FETCHER_NAMES.get(page.via, page.via)
    result.page_title = page.title
    result.warnings += page.warnings
    if page.via == "passthrough":
        result.path = "raw_passthrough"
    if page.outcome not in ("ok", "truncated"):
        result.error = _sentence(page)


def _sentence(page: Page) -> str:
    evidence = f" ({page.evidence})" if page.evidence else ""
    return _SENTENCES[page.outcome].format(status=page.status) + evidence


_SENTENCES: dict[Outcome, str] = {
    "blocked": "the site answered with a bot check instead of the page",
    "login": "the page asks for a login",
    "consent": "the page shows a consent form instead of its content",
    "paywall": "only the free part of a paid page can be read",
    "js_shell": "the page builds its text by script and was not rendered",
    "soft_404": "the site says the page does not exist, although it answered with status {status}",
    "http_error": "the server answered with status {status}",
    "empty": "the page holds no text",
    "unsupported": "trawl does not read this type of content",
}


def _tell_document(result: PipelineResult, page: Page, document: Document) -> None:
    result.document_id = document.document_id
    result.page_chars = len(document.source)
    result.page_title = page.title or document.title
    result.warnings += document.warnings
    if not document.source.strip() and result.outcome == "ok":
        result.outcome = "empty"
        result.error = _SENTENCES["empty"]


def _tell_error(result: PipelineResult, error: TrawlError) -> None:
    result.error = str(error)
    result.outcome = error.outcome
    result.path = "error"
    result.final_url = result.final_url or without_secrets(result.url)


def _ms_since(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)
