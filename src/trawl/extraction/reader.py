"""Which reader reads which media type: the one place where readers are mounted."""

from __future__ import annotations

import asyncio

from trawl.deadline import Deadline
from trawl.errors import UnsupportedContent
from trawl.extraction.charset import decode
from trawl.types import Document

HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
MARKDOWN_TYPES = frozenset({"text/markdown", "text/x-markdown"})
PDF_TYPES = frozenset({"application/pdf", "application/x-pdf"})
JSON_TYPES = frozenset({"application/json", "text/json", "application/x-ndjson", "application/jsonl"})
XML_TYPES = frozenset({"application/xml", "text/xml"})


async def read_document(
    body: bytes, *, url: str, content_type: str, charset: str | None, deadline: Deadline
) -> Document:
    """`body` as a Document, without blocking the event loop.

    Raises:
        UnsupportedContent: no reader for `content_type`.
        ExtractionError: the reader failed; its message says on what.
        DeadlineExceeded: time ran out while reading.
    """
    if content_type in PDF_TYPES:
        from trawl.extraction.isolated import aread_isolated

        return await aread_isolated("pdf", body, url=url, deadline=deadline)
    return await asyncio.to_thread(read_document_sync, body, url=url, content_type=content_type, charset=charset)


def read_document_sync(
    body: bytes | str, *, url: str = "", content_type: str = "text/html", charset: str | None = None
) -> Document:
    """The same in the calling thread; a PDF is read in a child process for at most 30 seconds.

    Raises:
        UnsupportedContent, ExtractionError, DeadlineExceeded: as `read_document`.
    """
    if content_type in PDF_TYPES:
        from trawl.extraction.isolated import read_isolated

        if isinstance(body, str):
            raise UnsupportedContent("a PDF must be given as bytes", url=url)
        return read_isolated("pdf", body, url=url, deadline=Deadline.after(30))
    if content_type in HTML_TYPES:
        from trawl.extraction.html import html_document

        return html_document(body, url=url, charset=charset)
    text = body if isinstance(body, str) else decode(body, charset)[0]
    return _read_text(text, url=url, content_type=content_type)


def _read_text(text: str, *, url: str, content_type: str) -> Document:
    if content_type in MARKDOWN_TYPES:
        from trawl.extraction.markdown_text import markdown_document

        return markdown_document(text, url=url)
    from trawl.extraction import raw

    if content_type in JSON_TYPES or content_type.endswith("+json"):
        return raw.json_document(text, url=url)
    if content_type in XML_TYPES or content_type.endswith("+xml"):
        return raw.xml_document(text, url=url)
    if content_type.startswith("text/") or content_type in _TEXT_LIKE:
        return raw.text_document(text, url=url)
    raise UnsupportedContent(f"trawl does not read {content_type or 'content without a type'}", url=url)


_TEXT_LIKE = frozenset(
    {
        "application/javascript",
        "application/x-javascript",
        "application/x-sh",
        "application/sql",
        "application/toml",
        "application/yaml",
        "application/x-yaml",
    }
)
