"""A link that leads to the words of a chunk. Pure.

For web pages a text fragment (https://wicg.github.io/scroll-to-text-fragment/), `#:~:text=first words,last words`, to
which browsers scroll. A browser matches whole words, ignores case, takes any run of white space as one space and finds
neither term across the border of two blocks, so that each term is made of words of one block. For PDFs `#page=N`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

from trawl.chunking import blocks_of
from trawl.types import Block, Chunk, Document

__all__ = ["anchor"]

WHOLE_WORDS = 10
"""A single block of at most so many words is named in full."""

EDGE_WORDS = 5
"""Words named at the beginning and at the end of a longer text."""

EDGE_CHARS = 24
"""The same in characters for scripts without spaces, and a least length: short terms occur twice on a page."""

MAX_TERM_CHARS = 120

_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_CLAUSE = re.compile(r"[^、。，．；：！？「」『』（）《》\s]+")
_LIST_MARK = re.compile(r"^[ \t>]*(?:[-*+•]|\d{1,9}[.)])[ \t]+")


def anchor(url: str, document: Document, chunk: Chunk) -> str:
    """`url` with a fragment that leads to `chunk`; the bare URL where nothing can be pointed at.

    A fragment already in the URL is kept before the text directive. Empty for anything but http and https.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme.lower() not in ("http", "https") or not parts.netloc:
        return ""
    base, _, fragment = url.partition("#")
    fragment = fragment.partition(":~:")[0]
    if chunk.page is not None:
        return f"{base}#page={chunk.page}"
    bare = f"{base}#{fragment}" if fragment else base
    if not chunk.spans:
        return bare
    texts = [t for t in (_visible(document, chunk, b) for b in blocks_of(document, chunk)) if t.strip()]
    directive = _directive(texts)
    return f"{base}#{fragment}:~:{directive}" if directive else bare


def _directive(texts: list[str]) -> str:
    if not texts:
        return ""
    first, last = texts[0], texts[-1]
    if len(texts) == 1 and len(first.split()) <= WHOLE_WORDS and len(first) <= MAX_TERM_CHARS and not _glued(first):
        return f"text={_encoded(' '.join(first.split()))}"
    start, end = _edge(first), _edge(last, from_end=True)
    if not start:
        return ""
    # One after the other in the page, or the browser does not find the range.
    apart = len(texts) > 1 or len(start) + len(end) < len(" ".join(first.split()))
    return f"text={_encoded(start)},{_encoded(end)}" if end and apart else f"text={_encoded(start)}"


def _visible(document: Document, chunk: Chunk, block: Block) -> str:
    """The words of `block` that belong to `chunk`, without markers: of a table one cell, of a listing one line."""
    pieces = [
        document.source[max(start, block.start) : min(end, block.end)]
        for start, end in chunk.spans
        if start < block.end and end > block.start
    ]
    text = "\n".join(pieces)
    if block.kind == "table":
        return _first(cell for line in text.split("\n") if line.strip(" |:-") for cell in line.split("|"))
    if block.kind == "code":
        return _first(line for line in text.split("\n") if not re.match(r"\s*(`{3,}|~{3,})", line))
    whole = pieces == [document.source[block.start : block.end]]
    return block.text if whole else _LIST_MARK.sub("", text)


def _first(pieces: Iterable[str]) -> str:
    return next((p.strip() for p in pieces if any(c.isalnum() for c in p)), "")


def _glued(text: str) -> bool:
    """Written without spaces, and longer than what may be named in full."""
    return bool(_SPACELESS.search(text)) and len(text) > EDGE_CHARS * 2


def _edge(text: str, *, from_end: bool = False) -> str:
    """A few whole words at the beginning or at the end of the first or last line of `text`."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return ""
    line = lines[-1 if from_end else 0]
    if _SPACELESS.search(line):
        # Clauses are the only borders that are words' borders for sure.
        found = list(_CLAUSE.finditer(line))
        if not found:
            return ""
        chosen = found[-1] if from_end else found[0]
        other = found[-2] if from_end and len(found) > 1 else found[1] if len(found) > 1 else chosen
        if len(chosen[0]) < EDGE_CHARS // 3:
            low, high = min(chosen.start(), other.start()), max(chosen.end(), other.end())
            return line[low:high][:MAX_TERM_CHARS]
        return chosen[0] if len(chosen[0]) <= MAX_TERM_CHARS else ""
    words = line.split()
    if from_end:
        words.reverse()
    taken: list[str] = []
    for word in words:
        if len(" ".join([*taken, word])) > MAX_TERM_CHARS:
            break
        taken.append(word)
        if len(taken) >= EDGE_WORDS and len(" ".join(taken)) >= EDGE_CHARS:
            break
    return " ".join(reversed(taken) if from_end else taken)


def _encoded(text: str) -> str:
    """Percent-encoded; `-` marks prefixes and suffixes in a directive and must not stand for itself."""
    return quote(text, safe="").replace("-", "%2D").replace("_", "%5F") if text else ""
