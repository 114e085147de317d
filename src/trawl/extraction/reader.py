"""Which reader reads which media type: the one place where readers are mounted."""

from __future__ import annotations

import asyncio

from trawl.deadline import Deadline
from trawl.errors import UnsupportedContent
from trawl.extraction.charset import decode
from trawl.extraction.media_types import MARKDOWN, Kind, kind_of
from trawl.types import Document

PDF_SECONDS = 30.0
"""How long a PDF may take that is read without a deadline of the caller's."""


async def read_document(
    body: bytes, *, url: str, content_type: str, charset: str | None, deadline: Deadline
) -> Document:
    """`body` as a Document, without blocking the event loop.

    Raises:
        UnsupportedContent: no reader for `content_type`.
        ExtractionError: the reader failed; its message says on what.
        DeadlineExceeded: time ran out while reading.
    """
    if kind_of(content_type) == "pdf":
        from trawl.extraction.isolated import aread_isolated

        return await aread_isolated("pdf", body, url=url, deadline=deadline)
    return await asyncio.to_thread(read_document_sync, body, url=url, content_type=content_type, charset=charset)


def read_document_sync(
    body: bytes | str, *, url: str = "", content_type: str = "text/html", charset: str | None = None
) -> Document:
    """The same in the calling thread; a PDF is read in a child process.

    Raises:
        UnsupportedContent, ExtractionError, DeadlineExceeded: as `read_document`.
    """
    kind = kind_of(content_type)
    if kind == "html":
        from trawl.extraction.html import html_document

        return html_document(body, url=url, charset=charset)
    if kind == "pdf":
        from trawl.extraction.isolated import read_isolated

        if isinstance(body, str):
            raise UnsupportedContent("a PDF must be given as bytes", url=url)
        return read_isolated("pdf", body, url=url, deadline=Deadline.after(PDF_SECONDS))
    if kind == "binary":
        raise UnsupportedContent(f"trawl does not read {content_type or 'content without a type'}", url=url)
    return _read_text(body if isinstance(body, str) else decode(body, charset)[0], kind, content_type, url)


def _read_text(text: str, kind: Kind, content_type: str, url: str) -> Document:
    if kind == "json" or content_type.endswith("+json"):
        from trawl.extraction.json_data import json_document

        return json_document(text, url=url)
    if kind in ("xml", "feed"):
        from trawl.extraction.xml_data import xml_document

        return xml_document(text, url=url)
    if content_type in MARKDOWN:
        from trawl.extraction.markdown_text import markdown_document

        return markdown_document(text, url=url)
    from trawl.extraction.plain_text import text_document

    return text_document(text, url=url)
