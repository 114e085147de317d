"""Document -> Chunks: the units of ranking. Pure.

The blocks are walked once. Headings open sections and give every chunk its heading path; what stands between two
headings is cut into pieces that may stand alone (a paragraph, a sentence of a long one, a list item, a table or some of
its rows, a listing or some of its lines, a whole record), and neighbouring pieces are packed into chunks:

    blocks -> sections -> pieces -> packed chunks

Two promises hold for every chunk: each part with a position is exactly that slice of `Document.source`, and no word of
a visible block is lost. Text that is repeated for the reader (the header of a split table, the fences of a split
listing, the line that leads into a split list) is a part without a position.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from trawl.types import CONTENT_THRESHOLD, Block, Chunk, ChunkKind, Document, Part

__all__ = ["HARD_LIMIT", "MAX_CHARS", "chunk_document", "sentence_ends"]

MAX_CHARS = 450
"""Characters packed into one chunk of prose."""

HARD_LIMIT = 2
"""A table, a listing or a record stays whole up to this many times `max_chars`."""

RECORD_LIMIT = 2_000
"""Characters up to which a record stays one chunk; beyond it, the detection took a whole section for a card."""

LEAD_IN_CHARS = 240
"""Longest line repeated before the later pieces of a list or table it leads into."""

SCRAP_CHARS = 40
"""A label and its value, each no longer than this, are not parted by what extraction thinks of either."""

UNBROKEN_LIMIT = 2_000
"""A run without any place to cut is cut after this many characters: it is data (base64, minified code), not a word."""

# Sentence ends. Western marks need white space after them (3.5, example.org); the marks of scripts that are written
# without spaces end a sentence by themselves.
_CLOSERS = "\"'”’»›)\\]）」』】〉》"
_SENTENCE_END = re.compile(
    rf"(?:[.!?…]+[{_CLOSERS}]*(?=\s)|[。！？｡．…‼⁇⁈⁉]+[{_CLOSERS}]*|[؟۔।॥։።፧፨។៕။༎᠃]+[{_CLOSERS}]*|\n)\s*"
)
_CLAUSE_END = re.compile(r"[,;:、，；：،؛၊]\s*")
_LETTER_DOT = re.compile(r"(?:^|[\s(.])[^\W\d_]\.$")
_TABLE_RULE = re.compile(r"^[ \t>]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})")
# Thai, Lao, Myanmar, Khmer, kana, ideographs: scripts without spaces between words.
_SPACELESS = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
# Thai and Lao vowels written before or after their consonant; signs that stack the next consonant (Khmer, Myanmar).
_JOINS_NEXT = "\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4\u17d2\u1039"
_JOINS_PREVIOUS = "\u0e30\u0e32\u0e33\u0e45\u0e46\u0eb0\u0eb2\u0eb3\u0ec6"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A slice of the source that is not divided any further, and the context it needs when it opens a chunk."""

    start: int
    end: int
    kind: ChunkKind
    block: Block
    before: str = ""
    """Context put before the slice in any case (header of a table, opening fence)."""
    after: str = ""
    """Context put after it (closing fence)."""
    opening: str = ""
    """Context put before it only where it is the first of its chunk (the lead-in of its list)."""
    alone: bool = False
    """It is a chunk by itself and nothing is packed to it (but its introduction)."""
    introduces: bool = False
    """It leads into the next piece and is not left behind."""

    @property
    def size(self) -> int:
        return self.end - self.start + len(self.before) + len(self.after)


@dataclass(frozen=True, slots=True)
class _Section:
    path: tuple[str, ...]
    blocks: tuple[Block, ...]


def chunk_document(document: Document, *, max_chars: int = MAX_CHARS) -> list[Chunk]:
    """The chunks of `document` in document order; hidden blocks are left out.

    Args:
        document: the page.
        max_chars: characters packed into a chunk of prose. A chunk may be larger where something is kept whole: a
            table, a listing (up to `HARD_LIMIT` times), a record, a short tail, an introduction.
    """
    if max_chars < 1:
        raise ValueError(f"max_chars must be at least 1, not {max_chars}")
    chunks: list[Chunk] = []
    for section in _sections(document):
        pieces = _introductions(list(_pieces(document.source, section.blocks, max_chars)))
        for packed in _pack(pieces, max_chars):
            chunks.append(_chunk(document.source, len(chunks), section.path, packed))
    return chunks


# Sections


def _sections(document: Document) -> Iterator[_Section]:
    """Runs of blocks under one heading path. A record is a section of its own, with its inner headings as text; so is
    a heading that nothing follows: it is text of the section above it, for it may be all the page says."""
    blocks = [b for b in document.blocks if not b.hidden and b.start < b.end]
    stack: list[tuple[int, str]] = []
    run: list[Block] = []

    def close() -> Iterator[_Section]:
        if run:
            yield _Section(tuple(text for _, text in stack), tuple(run))
            run.clear()

    i = 0
    while i < len(blocks):
        block = blocks[i]
        if block.record is not None:
            record = [block]
            while i + len(record) < len(blocks) and blocks[i + len(record)].record == block.record:
                record.append(blocks[i + len(record)])
            i += len(record)
            if any(b.kind != "heading" for b in record) and record[-1].end - record[0].start <= RECORD_LIMIT:
                yield from close()
                yield _Section(tuple(text for _, text in stack), tuple(record))
                continue
            # Too large for a card, or nothing but its title: ordinary text.
            blocks[i - len(record) : i] = [replace(b, record=None) for b in record]
            i -= len(record)
            continue
        i += 1
        if block.kind != "heading":
            run.append(block)
            continue
        level = block.level or 6
        following = blocks[i] if i < len(blocks) else None
        leaf = following is None or (following.kind == "heading" and (following.level or 6) <= level)
        if not run or run[-1].kind != "heading" or not leaf:
            yield from close()
            while stack and stack[-1][0] >= level:
                stack.pop()
        if leaf and not same_words(block.text, document.title):
            run.append(block)
        elif not leaf:
            stack.append((level, " ".join(block.text.split())))
    yield from close()


def same_words(a: str, b: str) -> bool:
    return " ".join(a.split()).casefold() == " ".join(b.split()).casefold()


# Pieces


def _pieces(source: str, blocks: Sequence[Block], max_chars: int) -> Iterator[_Piece]:
    if blocks[0].record is not None:
        yield from (_Piece(b.start, b.end, "record", b) for b in blocks)
        return
    lead_in = ""
    parents: list[tuple[int, str]] = []
    for block in blocks:
        if block.kind == "list":
            while parents and parents[-1][0] >= block.level:
                parents.pop()
            opening = "".join(line + "\n" for line in [lead_in, *(text for _, text in parents)] if line)
            yield from _prose(source, block, max_chars, "list", opening=opening)
            parents.append((block.level, _short_line(source[block.start : block.end].split("\n", 1)[0])))
            continue
        if parents:
            lead_in = ""
            parents.clear()
        if block.kind == "table":
            yield from _table(source, block, max_chars, lead_in)
        elif block.kind == "code":
            yield from _code(source, block, max_chars)
        else:
            yield from _prose(source, block, max_chars, "prose")
        lead_in = _lead_in(source, block)


def _lead_in(source: str, block: Block) -> str:
    """The line that leads into what follows `block`, if it ends in one."""
    if block.kind not in ("paragraph", "caption", "quote"):
        return ""
    text = source[block.start : block.end].rstrip()
    if block.kind != "caption" and not text.endswith((":", "：", ":")):
        return ""
    ends = [e for e in sentence_ends(text) if e < len(text)]
    return _short_line(text[ends[-1] if ends else 0 :])


def _short_line(text: str) -> str:
    return text.strip() if len(text.strip()) <= LEAD_IN_CHARS else ""


def _prose(source: str, block: Block, max_chars: int, kind: ChunkKind, *, opening: str = "") -> Iterator[_Piece]:
    slices = (s for s in _cut(source, block.start, block.end, max_chars) if source[slice(*s)].strip())
    for i, (start, end) in enumerate(slices):
        yield _Piece(start, end, kind, block, opening=opening if i == 0 else "")


def _table(source: str, block: Block, max_chars: int, lead_in: str) -> Iterator[_Piece]:
    if block.end - block.start <= max_chars * HARD_LIMIT:
        yield _Piece(block.start, block.end, "table", block)
        return
    lines = _lines(source, block.start, block.end)
    n_header = next((i + 1 for i, (s, e) in enumerate(lines[:4]) if _TABLE_RULE.match(source[s:e].rstrip("\n"))), 0)
    header = source[lines[0][0] : lines[n_header - 1][1]] if n_header else ""
    if len(header) > max_chars or n_header == len(lines):
        n_header, header = 0, ""
    first = True
    for start, end in _grouped(source, lines[n_header:], max_chars - len(header), max_chars * HARD_LIMIT):
        if first:
            yield _Piece(block.start, end, "table", block, alone=True)
        else:
            context = f"{lead_in}\n\n" if lead_in else ""
            yield _Piece(start, end, "table", block, before=context + header, alone=True)
        first = False


def _code(source: str, block: Block, max_chars: int) -> Iterator[_Piece]:
    if block.end - block.start <= max_chars * HARD_LIMIT:
        yield _Piece(block.start, block.end, "code", block)
        return
    lines = _lines(source, block.start, block.end)
    fence = _FENCE.match(source[slice(*lines[0])])
    if fence is None or len(lines) < 3:
        for start, end in _grouped(source, lines, max_chars, max_chars * HARD_LIMIT):
            yield _Piece(start, end, "code", block, alone=True)
        return
    opener = source[slice(*lines[0])]
    closed = source[slice(*lines[-1])].strip().startswith(fence[1])
    body = lines[1:-1] if closed else lines[1:]
    groups = _grouped(source, body, max_chars, max_chars * HARD_LIMIT)
    for i, (start, end) in enumerate(groups):
        first, last = i == 0, i == len(groups) - 1
        yield _Piece(
            block.start if first else start,
            block.end if last else end,
            "code",
            block,
            before="" if first else opener,
            after="" if last and closed else ("" if source[end - 1] == "\n" else "\n") + fence[1],
            alone=True,
        )


def _lines(source: str, start: int, end: int) -> list[tuple[int, int]]:
    """The lines of `source[start:end]`, each with its line end."""
    lines = []
    while start < end:
        stop = source.find("\n", start, end)
        stop = end if stop < 0 else stop + 1
        lines.append((start, stop))
        start = stop
    return lines


def _grouped(source: str, lines: Sequence[tuple[int, int]], wanted: int, limit: int) -> list[tuple[int, int]]:
    """Neighbouring lines joined up to `wanted` characters; a line longer than `limit` is cut like prose."""
    groups: list[tuple[int, int]] = []
    for line in lines:
        for start, end in [line] if line[1] - line[0] <= limit else _cut(source, *line, limit):
            if groups and end - groups[-1][0] <= wanted:
                groups[-1] = (groups[-1][0], end)
            else:
                groups.append((start, end))
    return [g for g in groups if source[slice(*g)].strip()]


# Cutting prose


def sentence_ends(text: str) -> list[int]:
    """Positions after each sentence of `text` (with the white space that follows it), in every script; the last is
    the end of the text. Line ends count too; abbreviations of one letter and a small letter after a dot do not."""
    ends = []
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        initial = _LETTER_DOT.search(text[max(0, match.start() - 2) : match.start() + 1])
        if end < len(text) and match[0].rstrip() == "." and (text[end].islower() or initial):
            continue
        ends.append(end)
    if text and (not ends or ends[-1] != len(text)):
        ends.append(len(text))
    return ends


def _cut(source: str, start: int, end: int, max_chars: int) -> Iterator[tuple[int, int]]:
    """`source[start:end]` whole if it fits, else cut at sentence ends, then clauses, then spaces, never in a word.
    The slices cover everything, in order."""
    if end - start <= max_chars:
        yield start, end
        return
    text = source[start:end]
    previous = 0
    for stop in sentence_ends(text):
        if stop - previous <= max_chars:
            yield start + previous, start + stop
        else:
            yield from ((start + s, start + e) for s, e in _cut_sentence(text, previous, stop, max_chars))
        previous = stop


def _cut_sentence(text: str, start: int, end: int, max_chars: int) -> Iterator[tuple[int, int]]:
    while end - start > max_chars:
        stop = _last_break(text, start, min(start + max_chars, end), end)
        yield start, stop
        start = stop
    if start < end:
        yield start, end


def _last_break(text: str, start: int, wanted: int, end: int) -> int:
    """Where to cut `text[start:end]`, at best just before `wanted`."""
    clauses = [m.end() for m in _CLAUSE_END.finditer(text, start + (wanted - start) // 2, wanted)]
    for stop in reversed(clauses):
        if stop < end and (text[stop - 1].isspace() or _SPACELESS.match(text[stop]) or text[stop - 1] in "、，；："):
            return stop
    for stop in range(wanted, start, -1):
        if stop < end and _may_break(text, stop):
            return stop
    for stop in range(wanted + 1, min(end, start + UNBROKEN_LIMIT)):
        if _may_break(text, stop):
            return stop
    return min(end, start + UNBROKEN_LIMIT)


def _may_break(text: str, at: int) -> bool:
    """A cut before `text[at]` divides no word: there is a space before it, or a script that has no spaces between
    words on either side (marks stay with their letter)."""
    if text[at - 1].isspace():
        return not text[at].isspace()
    before, after = text[at - 1], text[at]
    if not (_SPACELESS.match(before) and _SPACELESS.match(after)) or before in _JOINS_NEXT or after in _JOINS_PREVIOUS:
        return False
    return after.isalpha() or after.isnumeric()


# Packing


def _introductions(pieces: list[_Piece]) -> list[_Piece]:
    """Marks the short line that ends in a colon, or a caption, before a list, a table or a listing."""
    return [
        replace(piece, introduces=True)
        if piece.kind == "prose"
        and following.kind in ("list", "table", "code")
        and piece.size <= LEAD_IN_CHARS
        and (piece.block.kind == "caption" or piece.block.text.rstrip().endswith((":", "：")))
        else piece
        for piece, following in zip(pieces, [*pieces[1:], *pieces[-1:]], strict=True)
    ]


def _pack(pieces: Iterable[_Piece], max_chars: int) -> Iterator[list[_Piece]]:
    """Neighbours packed up to `max_chars`. A short tail joins the chunk before it rather than stand alone."""
    chunks: list[list[_Piece]] = []
    for piece in pieces:
        if chunks and _joins(chunks[-1], piece, max_chars):
            chunks[-1].append(piece)
            continue
        introduction = []
        if chunks and chunks[-1][-1].introduces:
            introduction.append(chunks[-1].pop())
            if not chunks[-1]:
                chunks.pop()
        chunks.append([*introduction, piece])
    for i, chunk in enumerate(chunks):
        if i and _is_tail(chunks[i - 1], chunk, max_chars):
            chunks[i - 1].extend(chunk)
            chunk.clear()
    return (c for c in chunks if c)


def _size(chunk: Sequence[_Piece]) -> int:
    return chunk[-1].end - chunk[0].start + len(chunk[0].before) + len(chunk[0].opening) + len(chunk[-1].after)


def _belong(chunk: Sequence[_Piece], piece: _Piece) -> bool:
    last = chunk[-1]
    return (
        last.block.page == piece.block.page
        and (
            (last.block.content_p >= CONTENT_THRESHOLD) == (piece.block.content_p >= CONTENT_THRESHOLD)
            or max(last.size, piece.size) <= SCRAP_CHARS
        )
        and not last.after
        and not piece.before
    )


def _joins(chunk: Sequence[_Piece], piece: _Piece, max_chars: int) -> bool:
    if piece.kind == "record":
        return chunk[-1].block.record == piece.block.record
    if not _belong(chunk, piece):
        return False
    if chunk[-1].introduces and len(chunk) == 1:
        return True
    if piece.alone or chunk[-1].alone:
        return False
    return piece.end - chunk[0].start + len(chunk[0].opening) <= max_chars


def _is_tail(before: Sequence[_Piece], chunk: Sequence[_Piece], max_chars: int) -> bool:
    if not before or not chunk or not _belong(before, chunk[0]):
        return False
    if any(p.alone or p.kind == "record" for p in (*before, *chunk)):
        return False
    return _size(chunk) <= max_chars // 5 and _size(before) <= max_chars


def _chunk(source: str, index: int, path: tuple[str, ...], pieces: Sequence[_Piece]) -> Chunk:
    parts: list[Part] = []
    opening = pieces[0].opening
    if opening:
        parts.append(Part(opening))
    for previous, piece in zip([None, *pieces[:-1]], pieces, strict=True):
        if piece.before:
            parts.append(Part(piece.before))
        start, end = piece.start, piece.end
        last = parts[-1] if parts else None
        if previous is not None and last is not None and last.start is not None:
            if source[previous.end : start].strip():
                # Something that is not part of this chunk stands between the two: hidden text.
                parts.append(Part("\n\n"))
            else:
                start = last.start
                parts.pop()
        parts.append(Part(source[start:end], start, end))
        if piece.after:
            parts.append(Part(piece.after))
    parts = _trimmed(parts)
    weights = [p.end - p.start for p in pieces]
    content_p = sum(w * p.block.content_p for w, p in zip(weights, pieces, strict=True)) / sum(weights)
    return Chunk(
        index=index,
        kind=_kind(pieces),
        heading_path=path,
        parts=tuple(parts),
        content_p=content_p,
        record=pieces[0].block.record,
        page=pieces[0].block.page,
    )


def _trimmed(parts: list[Part]) -> list[Part]:
    """Without the white space at the end, which belongs to no reader."""
    last = parts[-1]
    text = last.text.rstrip()
    if not text or text == last.text:
        return parts
    if last.start is None:
        return [*parts[:-1], Part(text)]
    return [*parts[:-1], Part(text, last.start, last.start + len(text))]


def _kind(pieces: Sequence[_Piece]) -> ChunkKind:
    """The kind most of the chunk is."""
    sizes: dict[ChunkKind, int] = {}
    for piece in pieces:
        sizes[piece.kind] = sizes.get(piece.kind, 0) + piece.size
    return max(sizes, key=lambda kind: sizes[kind])


def blocks_of(document: Document, chunk: Chunk) -> list[Block]:
    """The visible blocks that the spans of `chunk` touch, in document order."""
    starts = [b.start for b in document.blocks]
    found: list[Block] = []
    for start, end in chunk.spans:
        first = max(0, bisect.bisect_right(starts, start) - 1)
        found.extend(
            b
            for b in document.blocks[first : bisect.bisect_left(starts, end)]
            if b.end > start and not b.hidden and b not in found
        )
    return found
