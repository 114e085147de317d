"""A link that leads to the words of a chunk. Pure.

For web pages a text fragment (https://wicg.github.io/scroll-to-text-fragment/), `#:~:text=first words,last words`, to
which browsers scroll. A browser matches whole words, ignores case, takes any run of white space as one space and finds
neither term across the border of two blocks, so that each term is made of words of one block. For PDFs `#page=N`.
"""

from __future__ import annotations

import bisect
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

MIN_CELL_CHARS = 4
"""A shorter cell (`12`, `yes`) is likely to stand elsewhere too."""

_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_CLAUSE = re.compile(r"[^、。，．；：！？「」『』（）《》\s]+")
# A line end, or a picture: its description is no text of the page.
_BREAK = re.compile(r"\n|!\[[^\]\n]*\]")
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})")
_MARKS = re.compile(r"^[ \t>]*(?:(?:[-*+•]|\d{1,9}[.)])[ \t]+)?")


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
    read = document.source[: chunk.start]
    texts = [t for t in (_visible(document, chunk, b, read) for b in blocks_of(document, chunk)) if t.strip()]
    directive = _directive(texts, read, _just_before(document, chunk))
    return f"{base}#{fragment}:~:{directive}" if directive else bare


def _directive(texts: list[str], read: str, before: str) -> str:
    if not texts:
        return ""
    first, last = _squeezed(texts[0]), _squeezed(texts[-1])
    if len(texts) == 1 and len(first.split()) <= WHOLE_WORDS and len(first) <= MAX_TERM_CHARS and not _apart(first):
        return f"text={_prefix(read, before, first)}{_encoded(first)}"
    start, end = _edge(texts[0]), _edge(texts[-1], from_end=True)
    if not start:
        return ""
    # The end comes after the start in the page, or the browser does not find the range.
    apart = len(texts) > 1 or len(start) + len(end) < len(first)
    tail = f",{_encoded(end)}" if end and apart and _squeezed(end) in last else ""
    return f"text={_prefix(read, before, start)}{_encoded(start)}{tail}"


def _prefix(read: str, before: str, start: str) -> str:
    """The words just before `start`, where a browser would else stop at an earlier place that reads the same."""
    if start.casefold() not in read.casefold():
        return ""
    words = _edge(before, from_end=True)
    return f"{_encoded(words)}-," if words else ""


def _just_before(document: Document, chunk: Chunk) -> str:
    """The words of the block, or of its part, that a person reads before the chunk."""
    i = bisect.bisect_left(document.blocks, chunk.start, key=lambda b: b.start) - 1
    while i >= 0 and (document.blocks[i].hidden or not document.blocks[i].text.strip()):
        i -= 1
    if i < 0:
        return ""
    block = document.blocks[i]
    return block.text if block.end <= chunk.start else _unmarked(document.source[block.start : chunk.start])


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _visible(document: Document, chunk: Chunk, block: Block, read: str) -> str:
    """The words of `block` that belong to `chunk`, without markers: of a table one cell, of a listing one line."""
    pieces = [
        document.source[max(start, block.start) : min(end, block.end)]
        for start, end in chunk.spans
        if start < block.end and end > block.start
    ]
    text = "\n".join(pieces)
    if block.kind == "table":
        cells = (cell for line in text.split("\n") if line.strip(" |:-") for cell in line.split("|"))
        return _telling(cells, read)
    if block.kind == "code":
        return _telling((line for line in text.split("\n") if not _FENCE.match(line)), read)
    whole = pieces == [document.source[block.start : block.end]]
    return block.text if whole else _unmarked(text)


def _unmarked(text: str) -> str:
    """`text` without the marks of quotes and list items at the beginning of its lines."""
    return "\n".join(_MARKS.sub("", line) for line in text.split("\n"))


def _telling(pieces: Iterable[str], read: str) -> str:
    """The first piece that has words and does not stand earlier in the page; else the first that has words."""
    worded = [p.strip() for p in pieces if any(c.isalnum() for c in p)]
    new = (p for p in worded if len(p) >= MIN_CELL_CHARS and p not in read)
    return next(new, worded[0] if worded else "")


def _apart(text: str) -> bool:
    """Better named by its ends than in full: it holds a picture, or is long and written without spaces."""
    return "![" in text or (bool(_SPACELESS.search(text)) and len(text) > EDGE_CHARS * 2)


def _edge(text: str, *, from_end: bool = False) -> str:
    """A few whole words at the beginning or at the end of the first or last line of `text`."""
    lines = [line for line in _BREAK.split(text) if line.strip()]
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
