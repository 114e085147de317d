"""Which of the ranked chunks are returned: as many as a token budget holds, or a number. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from trawl.chunking import sentence_ends
from trawl.retrieval.rank import Ranked
from trawl.retrieval.tokens import estimate_tokens
from trawl.types import Chunk, Part

__all__ = ["chunk_cost", "left_over", "pack"]

PATIENCE = 50
"""So many pieces in a row that do not fit end the search for a smaller one: what comes after them answers hardly."""

LONGEST_WORD = 200
"""Characters. A longer run without a space or a sentence end is data, and may be cut anywhere after so many."""


def chunk_cost(chunk: Chunk) -> int:
    """Estimated tokens of a chunk as it is shown: its heading path and its text."""
    return estimate_tokens(f"{' > '.join(chunk.heading_path)}\n{chunk.text}\n")


def pack(
    ranked: Sequence[Ranked],
    max_tokens: int,
    k: int | None = None,
    *,
    cost: Callable[[Chunk], int] = chunk_cost,
    skip_larger: bool = True,
) -> list[Ranked]:
    """The chunks to return, in the order given, within `max_tokens` and at most `k` of them.

    A chunk that says the same words as one before it is left out. If the first is too large by itself, as much of it as
    fits is returned, cut after a sentence, a row or a line.

    Args:
        ranked: best first (or document order).
        max_tokens: upper bound of the summed `cost`.
        k: upper bound of their number; None: the budget alone decides.
        cost: tokens that returning a chunk costs.
        skip_larger: pass over a chunk that does not fit for a smaller one after it; False: stop there (text that is to
            be read on from where it ends).
    """
    chosen: list[Ranked] = []
    seen: set[str] = set()
    left = max_tokens
    misfits = 0
    for item in ranked:
        if left <= 0 or (k is not None and len(chosen) >= k):
            break
        words = " ".join(item.chunk.text.casefold().split())
        if words in seen:
            continue
        price = cost(item.chunk)
        if price > left:
            if not chosen:
                cut = _shortened(item.chunk, left, cost)
                return [replace(item, chunk=cut)] if cut else []
            misfits += 1
            if skip_larger and misfits < PATIENCE:
                continue
            break
        misfits = 0
        seen.add(words)
        chosen.append(item)
        left -= price
    return chosen


def _shortened(chunk: Chunk, tokens: int, cost: Callable[[Chunk], int]) -> Chunk | None:
    """The beginning of `chunk` that costs at most `tokens`; None if not even its first word fits."""
    for cuts in (list(_whole_units(chunk)), list(_words(chunk)), list(_characters(chunk))):
        low, high = 0, len(cuts)
        while low < high:
            middle = (low + high + 1) // 2
            if cost(_until(chunk, *cuts[middle - 1])) <= tokens:
                low = middle
            else:
                high = middle - 1
        if low:
            return _until(chunk, *cuts[low - 1])
    return None


def _whole_units(chunk: Chunk) -> Iterator[tuple[int, int]]:
    """(part, offset) after every row, line or sentence that is a slice of the source."""
    for i, part in enumerate(chunk.parts):
        if part.start is None:
            continue
        if chunk.kind in ("table", "code"):
            yield from ((i, n + 1) for n, char in enumerate(part.text) if char == "\n")
            yield i, len(part.text)
        else:
            yield from ((i, end) for end in sentence_ends(part.text))


def _words(chunk: Chunk) -> Iterator[tuple[int, int]]:
    for i, part in enumerate(chunk.parts):
        if part.start is not None:
            yield from ((i, n) for n, char in enumerate(part.text) if char.isspace() and n)
            yield i, len(part.text)


def _characters(chunk: Chunk) -> Iterator[tuple[int, int]]:
    for i, part in enumerate(chunk.parts):
        if part.start is not None:
            yield from ((i, n) for n in range(LONGEST_WORD, len(part.text) + 1))


def left_over(whole: Chunk, shown: Chunk) -> Chunk | None:
    """What follows in `whole` after `shown`, its beginning as `pack` cut it; None if nothing does."""
    parts = []
    for part in whole.parts:
        if part.start is None or part.end is None or part.end <= shown.end:
            continue
        text = part.text[max(0, shown.end - part.start) :]
        text = text[len(text) - len(text.lstrip("\n")) :] if part.start < shown.end else text
        if text.strip():
            parts.append(Part(text, part.end - len(text), part.end))
    return replace(whole, parts=tuple(parts)) if parts else None


def _until(chunk: Chunk, part: int, offset: int) -> Chunk:
    last = chunk.parts[part]
    assert last.start is not None  # noqa: S101 - cuts are made in slices only
    text = last.text[:offset].rstrip()
    parts = [*chunk.parts[:part], Part(text, last.start, last.start + len(text))]
    opener = text if part == 0 else chunk.parts[0].text
    fence = opener.lstrip()[:3]
    if chunk.kind == "code" and fence in ("```", "~~~") and not chunk.text.endswith(text):
        marks = opener.lstrip()
        parts.append(Part("\n" + marks[: len(marks) - len(marks.lstrip(fence[0]))]))
    return replace(chunk, parts=tuple(parts))
