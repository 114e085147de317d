"""Markdown as it was written to a Document: the source is the text itself, blocks are found by a CommonMark parser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trawl.extraction.blocks import absolute
from trawl.extraction.charset import decode
from trawl.extraction.identity import document_id
from trawl.types import Block, BlockKind, Document, Link

if TYPE_CHECKING:
    from markdown_it.token import Token

EXTRACTOR_VERSION = "markdown-1"
"""Changes whenever the same text may give another document."""
_MAX_CHARS = 10 * 2**20
_MANY_BRACKETS = 5_000
"""Open brackets in one paragraph beyond which links are not looked for: the time for it grows with their square."""
_LIST_OPEN = frozenset({"bullet_list_open", "ordered_list_open"})


def markdown_document(text: str | bytes, *, url: str = "") -> Document:
    """`text` as a Document whose source is the text itself, character for character.

    Raises nothing for what the text contains.
    """
    from markdown_it import MarkdownIt

    body = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if isinstance(text, bytes):
        text = decode(text, None)[0]
    warnings: tuple[str, ...] = ()
    if len(text) > _MAX_CHARS:
        text = text[:_MAX_CHARS]
        warnings = (f"the text is longer than {_MAX_CHARS // 2**20} MB; its end was not read",)
    # The parser ends lines at \r, \r\n and \n; offsets must be those of the text as it is.
    starts = [0, *(m.end() for m in re.finditer(r"\r\n|\n|\r", text)), len(text) + 1]
    parser = MarkdownIt("commonmark", {"maxNesting": 50}).enable("table")
    if any(paragraph.count("[") > _MANY_BRACKETS for paragraph in text.split("\n\n")):
        parser.disable(["link", "image"])
    blocks: list[Block] = []
    title = ""
    depth = 0
    quotes = 0
    level = 0
    kind: BlockKind | None = None
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in _LIST_OPEN:
            depth += 1
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            depth -= 1
        elif token.type == "blockquote_open":
            quotes += 1
        elif token.type == "blockquote_close":
            quotes -= 1
        elif token.type in ("fence", "code_block") and token.map:
            blocks.append(_block("code", text, starts, token.map, token.content.rstrip("\n")))
        elif token.type == "html_block" and token.map:
            words = re.sub(r"<!--.*?-->|<[^<>]*>", " ", token.content, flags=re.S).strip()
            if words:
                blocks.append(_block("paragraph", text, starts, token.map, words))
        elif token.type == "table_open" and token.map:
            kind = "table"
            blocks.append(_block("table", text, starts, token.map, ""))
        elif token.type == "table_close":
            kind = None
        elif token.type == "heading_open":
            kind, level = "heading", int(token.tag[1])
        elif token.type == "heading_close":
            kind = None
        elif token.type == "inline" and token.map:
            words = _inline_words(token.children or [])
            if kind == "table":
                last = blocks[-1]
                blocks[-1] = Block("table", last.start, last.end, f"{last.text} {words}".strip())
                continue
            if not words:
                continue
            this: BlockKind = kind or ("list" if depth else "quote" if quotes else "paragraph")
            blocks.append(_block(this, text, starts, token.map, words, level if kind else depth))
            if kind == "heading" and not title:
                title = words
    links = _links(tokens, text, starts, url)
    return Document(
        source=text,
        blocks=tuple(blocks),
        url=url,
        title=title[:500],
        content_type="text/markdown",
        metadata={"title": title[:500]} if title else {},
        links=links,
        document_id=document_id(body, EXTRACTOR_VERSION),
        warnings=warnings,
    )


def _block(kind: BlockKind, text: str, starts: list[int], lines: list[int], words: str, level: int = 0) -> Block:
    start, end = starts[lines[0]], starts[min(lines[1], len(starts) - 1)]
    end = min(end, len(text))
    return Block(kind, start, start + len(text[start:end].rstrip()), words, level=level)


def _inline_words(children: Sequence[Token]) -> str:
    """The words of running text: marks and addresses left out, alternative texts kept."""
    out = []
    for token in children:
        if token.type in ("softbreak", "hardbreak"):
            out.append("\n")
        elif token.type == "html_inline":
            out.append("\n" if token.content.lower().startswith("<br") else "")
        else:
            out.append(token.content)
    return re.sub(r"[ \t]+", " ", "".join(out)).strip()


def _links(parsed: Sequence[Token], text: str, starts: list[int], url: str) -> tuple[Link, ...]:
    """Links with the place of their text; a text that is not found literally where its block stands spans nothing."""
    links: list[Link] = []
    for token in parsed:
        if token.type != "inline" or not token.map or not token.children:
            continue
        position = starts[token.map[0]]
        end = min(starts[min(token.map[1], len(starts) - 1)], len(text))
        for number, child in enumerate(token.children):
            if child.type != "link_open":
                continue
            target = absolute(url, str(child.attrs.get("href", "")))
            label: list[Token] = []
            for inner in token.children[number + 1 :]:
                if inner.type == "link_close":
                    break
                label.append(inner)
            words = _inline_words(label)
            found = text.find(words, position, end) if words else -1
            if target:
                start = found if found >= 0 else position
                links.append(Link(start, start + (len(words) if found >= 0 else 0), target, words))
            if found >= 0:
                position = found + len(words)
    return tuple(links)
