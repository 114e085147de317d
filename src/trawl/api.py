"""The plain functions of the front door, over engines that live as long as the program."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Unpack

from trawl.asking import DocumentOptions, ExtractOptions, FetchOptions, check_content
from trawl.engine import Engine
from trawl.settings import Settings
from trawl.types import Document, PipelineResult

_lock = threading.Lock()
_engines: dict[Settings | None, Engine] = {}


def _engine(settings: Settings | None) -> Engine:
    """One engine per settings, made when first used. None: the settings of the environment, read once."""
    with _lock:
        if settings not in _engines:
            _engines[settings] = Engine(settings)
        return _engines[settings]


def fetch_relevant(
    url: str,
    query: str | Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    **options: Unpack[FetchOptions],
) -> PipelineResult:
    """The pieces of the page at `url` that answer `query`, best first, within a token budget.

    Args:
        url: one page, http or https.
        query: a question, or several; None: the main content in order, with `more`.
        settings: other than the environment's.
        options: `k`, `max_tokens`, `render`, `use_hyde`, `use_rerank`, `max_cache_age_s`, `no_store`, `timeout`, as
            `AsyncEngine.fetch_relevant` explains them.

    Returns:
        Always a result: what went wrong is told by `error`, `outcome` and `warnings`.

    Raises:
        UsageError: a wrong argument.
    """
    return _engine(settings).fetch_relevant(url, query, **options)


def extract_relevant(
    content: str | bytes,
    query: str | Sequence[str] | None,
    *,
    settings: Settings | None = None,
    **options: Unpack[ExtractOptions],
) -> PipelineResult:
    """The same for content the caller already has; nothing is fetched.

    Args:
        content: the body as it came (bytes), or decoded text.
        query: as `fetch_relevant`.
        options: `url`, `content_type`, `status`, `k`, `max_tokens`, `use_hyde`, `use_rerank`, `timeout`, as
            `AsyncEngine.extract_relevant` explains them.

    Raises:
        UsageError: a wrong argument.
    """
    return _engine(settings).extract_relevant(content, query, **options)


def fetch_document(url: str, *, settings: Settings | None = None, **options: Unpack[DocumentOptions]) -> Document:
    """The whole page at `url`, verbatim.

    Raises:
        UsageError: a wrong argument.
        TrawlError: the page could not be fetched or read; its class says why.
    """
    return _engine(settings).fetch_document(url, **options)


def extract(content: str | bytes, *, url: str | None = None, content_type: str = "text/html") -> Document:
    """`content` as a Document: `text`, `markdown`, `title`, `metadata`, `links`, `blocks`. No network.

    Raises:
        UsageError: an argument is of a wrong type.
        ExtractionError: it cannot be read as `content_type`.
    """
    from trawl.extraction.media_types import media_type
    from trawl.extraction.reader import read_document_sync

    check_content(content, url, content_type)
    kind, charset = media_type(content_type)
    return read_document_sync(content, url=url or "", content_type=kind, charset=charset)


def html_to_markdown(html: str | bytes, *, url: str | None = None) -> str:
    """The main content of an HTML page as Markdown; relative links are resolved against `url`."""
    return extract(html, url=url).markdown
