"""Documents of pages we write ourselves: entries of a feed, objects of a JSON answer, elements of an XML file.

Readers of structured data write a small HTML page, with every string escaped or made safe by `fragment`; it goes
through the same blocks and the same Markdown as any other page, so that links, lists, code and tables come out right.
"""

from __future__ import annotations

import html as escaping
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from selectolax.lexbor import LexborHTMLParser

from trawl.extraction import dom
from trawl.extraction.blocks import Draft, absolute, draft_blocks
from trawl.extraction.identity import document_id
from trawl.extraction.source import write_source
from trawl.types import Block, Document

EXTRACTOR_VERSION = "composed-1"
"""Changes whenever the same bytes may give another document."""
MAX_DEPTH = 12
"""Objects and elements nested deeper than this are shown in one line."""
SHORT = 200
"""A string up to this long, on one line and without markup, stands on a `key: value` line."""
MAX_HTML = 2 * 2**20
"""Characters of the page we write; a reader stops adding when it is reached, with a warning."""

RECORD = "data-trawl-record"
"""On an element of the page we write: what stands in it is one record, with this id."""

# Elements that would swallow what follows them, or that hold nothing to read.
_UNWANTED = (
    "script, style, template, iframe, object, embed, noembed, noframes, noscript, plaintext, xmp, textarea, title,"
    " select, svg, base, meta, link, frameset, input, button"
)
_HEADING_TAG = re.compile(r"<(/?)h([1-6])(?=[\s>])", re.I)
_MARKUP = re.compile(r"<(?:/?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?|!--.*?--)>", re.S)
_KNOWN_MARKUP = re.compile(
    r"</?(?:p|br|div|span|a|b|i|em|strong|ul|ol|li|h[1-6]|img|pre|code|blockquote|table|tr|td|th|hr|figure|section|article|u|s"
    r"|sub|sup|small|font|center|dl|dt|dd|tt|kbd|del|ins|abbr|cite|video|audio|iframe)(?:\s[^<>]*)?/?>",
    re.I,
)


def compose(
    page: str,
    *,
    body: bytes,
    url: str,
    title: str,
    content_type: str,
    metadata: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> Document:
    """The Document of a page written by a reader; everything in it counts as content.

    Args:
        page: HTML of our own making; what stands inside an element with `RECORD` becomes one record.
        body: what was read, for the document's id.
    """
    tree = dom.parse(page)
    drafts = draft_blocks(tree)
    source, blocks, links = write_source(drafts, url)
    return Document(
        source=source,
        blocks=tuple(
            replace(block, record=_record_of(draft), hidden=False) for draft, block in zip(drafts, blocks, strict=True)
        ),
        url=url,
        title=title,
        content_type=content_type,
        metadata={"title": title, **(metadata or {})} if title else dict(metadata or {}),
        links=tuple(links),
        document_id=document_id(body, EXTRACTOR_VERSION),
        warnings=(*warnings, *tree.warnings),
        render=_renderer(page, url, {b.start: n for n, b in enumerate(blocks)}),
    )


def text(value: str) -> str:
    """`value` as HTML text."""
    return escaping.escape(value, quote=True)


def lines(value: str) -> str:
    """Plain text as HTML: paragraphs at empty lines, line breaks kept."""
    paragraphs = re.split(r"\n[ \t]*\n", value.replace("\r\n", "\n").strip())
    return "".join(f"<p>{text(p.strip()).replace(chr(10), '<br>')}</p>" for p in paragraphs if p.strip())


def has_markup(value: str) -> bool:
    """Whether a string is HTML rather than text that mentions a tag or uses a less-than sign."""
    if "<" not in value:
        return False
    first = _KNOWN_MARKUP.search(value)
    return first is not None and (value.lstrip().startswith("<") or "</" in value or "<br" in value.lower())


def unescaped(value: str) -> str:
    """HTML that was escaped once more on its way into the data; anything else as it is."""
    if "<" in value or "&lt;" not in value:
        return value
    html = escaping.unescape(value)
    return html if has_markup(html) else value


def fragment(value: str, base: str, *, heading_floor: int = 1) -> str:
    """Someone else's HTML made fit to stand inside ours: closed, without active parts, its links absolute.

    Args:
        base: what relative addresses are relative to.
        heading_floor: its highest heading gets this level, the others follow.
    """
    markup, _, _ = dom.bounded(value)
    tree = LexborHTMLParser(markup)
    body = tree.body
    if body is None:
        return ""
    for node in body.css(_UNWANTED):
        node.decompose()
    for node in body.css(f"[{RECORD}]"):
        del node.attrs[RECORD]
    for node in body.css("a[href]"):
        node.attrs["href"] = absolute(base, node.attributes.get("href") or "") or ""
    for node in body.css("img[src]"):
        node.attrs["src"] = absolute(base, node.attributes.get("src") or "") or ""
    inner = body.inner_html or ""
    levels = [int(m[2]) for m in _HEADING_TAG.finditer(inner)]
    if not levels:
        return inner
    shift = max(0, heading_floor - min(levels))
    return _HEADING_TAG.sub(lambda m: f"<{m[1]}h{min(6, int(m[2]) + shift)}", inner)


def plain(value: str) -> str:
    """A title as one line of plain text: tags gone, entities resolved once."""
    return " ".join(escaping.unescape(_MARKUP.sub("", value)).split())


def _record_of(draft: Draft) -> str | None:
    record = None
    for element in draft.element.ancestors():
        record = element.get(RECORD) or record
    return record


def _renderer(page: str, base: str, position: dict[int, int]) -> Callable[[Sequence[Block]], str]:
    def render(chosen: Sequence[Block]) -> str:
        from trawl.extraction.markdown import write_markdown

        numbers = sorted({position[b.start] for b in chosen if b.start in position})
        drafts = draft_blocks(dom.parse(page)) if numbers else []
        return write_markdown([drafts[n] for n in numbers], base)

    return render
