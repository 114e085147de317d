"""HTML to a Document: decode, parse, draft the blocks, write the source, judge the blocks.

bytes ─ charset ─> text ─ dom ─> tree ─ records, blocks ─> drafts ─┬─ write_source ─> source, blocks, links
                                   └─ metadata ─> title             └─ select ─> content_p of each block
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trawl.extraction import charset as encodings
from trawl.extraction import dom, metadata, select
from trawl.extraction.blocks import draft_blocks, record_of
from trawl.extraction.identity import document_id
from trawl.extraction.records import find_records
from trawl.extraction.source import write_source
from trawl.types import Block, Document

EXTRACTOR_VERSION = "html-2"
"""Changes whenever the same bytes may give another document."""


def html_document(html: str | bytes, *, url: str = "", charset: str | None = None) -> Document:
    """The whole page as a Document. Raises nothing for what the page contains; an unreadable page has no blocks.

    Args:
        html: the page; bytes are decoded as `charset.decode` says.
        url: its address after redirects: links are made absolute with it.
        charset: the charset parameter of Content-Type, for bytes.
    """
    body = html if isinstance(html, bytes) else html.encode("utf-8", "surrogatepass")
    text = encodings.decode(html, charset)[0] if isinstance(html, bytes) else html
    tree = dom.parse(text)
    facts = metadata.read(tree, url)
    base = metadata.base_url(tree, url)
    records = find_records(tree.body)
    drafts = draft_blocks(tree, records)
    source, blocks, links = write_source(drafts, base)
    probabilities, confidence = select.content_probabilities(tree, drafts, blocks)
    blocks = [
        replace(b, content_p=p, record=record_of(d, records))
        for b, p, d in zip(blocks, probabilities, drafts, strict=True)
    ]
    return Document(
        source=source,
        blocks=tuple(blocks),
        url=url,
        title=facts.get("title", ""),
        metadata=facts,
        links=tuple(links),
        confidence=confidence,
        document_id=document_id(body, EXTRACTOR_VERSION),
        warnings=tree.warnings,
        render=_renderer(text, base, {b.start: i for i, b in enumerate(blocks)}),
    )


def html_to_markdown(html: str | bytes, *, url: str | None = None) -> str:
    """The main content of a page as Markdown."""
    return html_document(html, url=url or "").markdown


def _renderer(text: str, base: str, position: dict[int, int]) -> Callable[[Sequence[Block]], str]:
    """Renders chosen blocks: the page is read again the same way, so block N is draft N."""

    def render(chosen: Sequence[Block]) -> str:
        from trawl.extraction.markdown import write_markdown

        numbers = sorted({position[b.start] for b in chosen if b.start in position})
        if not numbers:
            return ""
        tree = dom.parse(text)
        drafts = draft_blocks(tree, find_records(tree.body))
        return write_markdown([drafts[n] for n in numbers], base)

    return render
