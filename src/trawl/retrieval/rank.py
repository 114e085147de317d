"""Chunks and a question -> chunks by score: the order of the retrieval stage. Pure; similarities come as numbers.

    chunks -> prefilter (BM25 keeps what the embedder can afford) -> rank (BM25, cosine, priors, one score)

The published score is the score that decided the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trawl.retrieval.bm25 import bm25_gram_scores, bm25_scores
from trawl.retrieval.fuse import fused
from trawl.retrieval.terms import question_weights, terms
from trawl.types import CONTENT_THRESHOLD, Chunk

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Ranked", "in_order", "passage_text", "prefilter", "rank"]

# Swept together on two question sets (notes/0002-retrieval-baseline.md); each lies on a plateau, not on a peak.

GRAM_WEIGHT = 0.4
"""Weight of the character runs against the whole words in the lexical score (swept 0 to 0.7)."""

NEIGHBOUR_WEIGHT = 0.2
"""What a passage gains from the passages before and after it: an answer often stands beside the words of its question
(swept 0 to 0.5). A poor neighbour takes nothing away."""

CONTENT_PRIOR = 1.0
"""What full certainty of being content is worth against none, in standard deviations of the score (swept 0 to 2)."""

HOLLOW_PENALTY = 3.0
"""Taken from a chunk whose words all stand in the headings of the page: a contents list, a title without a text."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A chunk with its scores."""

    chunk: Chunk
    score: float | None = None
    """0..1, what the order follows; None where nothing was asked. Comparable within one answer only."""
    bm25: float | None = None
    """Raw BM25 of the best question."""
    cosine: float | None = None
    """Raw cosine of the best question; None without embeddings."""


def passage_text(chunk: Chunk, title: str = "") -> str:
    """What is embedded for a chunk: the page title and heading path in one line, then the text."""
    context = [title, *chunk.heading_path] if title and title not in chunk.heading_path else [*chunk.heading_path]
    return f"{' > '.join(context)}\n\n{chunk.text}" if context else chunk.text


def in_order(chunks: Sequence[Chunk]) -> list[Ranked]:
    """The chunks of the main content as they stand, when there is no question; all chunks if none is sure."""
    main = [c for c in chunks if c.content_p >= CONTENT_THRESHOLD]
    return [Ranked(c) for c in main or chunks]


def prefilter(chunks: Sequence[Chunk], query: str | Sequence[str], budget: int) -> list[int]:
    """Positions, in document order, of the chunks worth embedding: at most `budget` of them, all if it is 0 or less.

    The best by their words for any of the questions come first. Where the words of the question find too little, the
    rest is filled with likely content, spread over the whole page: the beginning is no better a guess than the end.
    """
    if budget <= 0 or len(chunks) <= budget:
        return list(range(len(chunks)))
    passages = [_passage_terms(c) for c in chunks]
    found = [_lexical(passages, question_weights(q)) for q in _questions(query)]
    is_hit = [any(lexical.hit[i] for lexical in found) for i in range(len(chunks))]
    best = [max(lexical.score[i] for lexical in found) for i in range(len(chunks))]
    hits = sorted((i for i in range(len(chunks)) if is_hit[i]), key=lambda i: -best[i])[:budget]
    rest = sorted(set(range(len(chunks))).difference(hits))
    return sorted([*hits, *_spread(chunks, rest, budget - len(hits))])


def _spread(chunks: Sequence[Chunk], among: Sequence[int], wanted: int) -> list[int]:
    """`wanted` of the positions, evenly spread: first over the main content, then over the rest."""
    chosen: list[int] = []
    for group in (
        [i for i in among if chunks[i].content_p >= CONTENT_THRESHOLD],
        [i for i in among if chunks[i].content_p < CONTENT_THRESHOLD],
    ):
        n = min(wanted - len(chosen), len(group))
        chosen.extend(group[j * len(group) // n] for j in range(n))
    return chosen


def rank(
    chunks: Sequence[Chunk],
    query: str | Sequence[str],
    *,
    candidates: Sequence[int] | None = None,
    similarities: np.ndarray | None = None,
) -> list[Ranked]:
    """All chunks by descending score: the candidates, then those that were not worth embedding, by their words.

    Args:
        chunks: all chunks of the page; word statistics come from all of them.
        query: the question, or several: a chunk counts as good as it is for its best question.
        candidates: positions that come first and that `similarities` are for; None: all.
        similarities: cosine of each candidate with the question, shape (candidates,) or (questions, candidates); None:
            ranking by words alone.

    Raises:
        ValueError: the shape of `similarities` does not fit.
    """
    positions = list(range(len(chunks))) if candidates is None else list(candidates)
    questions = _questions(query)
    dense = _rows(similarities, len(questions), len(positions))
    passages = [_passage_terms(c) for c in chunks]
    headings = {t for p in passages for t in p.heading}
    nothing: list[float | None] = [None] * len(positions)
    rows: list[list[tuple[float, float, float | None]]] = []
    by_words: list[list[float]] = []
    for question, cosines in zip(questions, dense, strict=True):
        asked = question_weights(question)
        lexical = _lexical(passages, asked)
        scores = fused([lexical.score[i] for i in positions], cosines)
        for j, i in enumerate(positions):
            scores[j] += CONTENT_PRIOR * (chunks[i].content_p - 1)
            if headings.issuperset(passages[i].own):
                scores[j] -= HOLLOW_PENALTY
        bm25 = [lexical.bm25[i] for i in positions]
        by_words.append(lexical.score)
        rows.append(list(zip(scores, bm25, cosines if cosines is not None else nothing, strict=True)))
    best = [max((row[j] for row in rows), key=lambda r: r[0]) for j in range(len(positions))]
    order = sorted(range(len(positions)), key=lambda j: -best[j][0])
    ranked = [Ranked(chunks[positions[j]], _squashed(best[j][0]), best[j][1], best[j][2]) for j in order]
    return [*ranked, *_others(chunks, positions, by_words, below=(ranked[-1].score or 0.0) if ranked else 1.0)]


def _others(
    chunks: Sequence[Chunk], candidates: Sequence[int], by_words: Sequence[Sequence[float]], *, below: float
) -> list[Ranked]:
    """The chunks that are no candidates, best first by words, with scores in 0..`below`."""
    best = {i: max(scores[i] for scores in by_words) for i in set(range(len(chunks))).difference(candidates)}
    return [Ranked(chunks[i], below * _squashed(best[i])) for i in sorted(best, key=lambda i: (-best[i], i))]


class _Terms(NamedTuple):
    heading: list[str]
    own: list[str]


class _Lexical(NamedTuple):
    score: list[float]
    bm25: list[float]
    hit: list[bool]


# Prefilter and ranking read the same chunks, and so does the next question about the page.
@lru_cache(maxsize=2_000)
def _passage_terms(chunk: Chunk) -> _Terms:
    return _Terms(terms(" ".join(chunk.heading_path)), terms(chunk.text))


def _lexical(passages: Sequence[_Terms], question: Mapping[str, float]) -> _Lexical:
    """How well the words of each passage, and of those beside it, answer the question."""
    texts = [p.heading + p.own for p in passages]
    words = bm25_scores(texts, question)
    runs = bm25_gram_scores(texts, {t: w for t, w in question.items() if w == 1} or question)
    mixed = fused(words, runs, weight=GRAM_WEIGHT)
    padded = [0.0, *mixed, 0.0]
    beside = zip(padded, mixed, padded[2:], strict=False)
    score = [here + NEIGHBOUR_WEIGHT * (max(before, 0) + max(after, 0)) for before, here, after in beside]
    return _Lexical(score, words, [w > 0 or r > 0 for w, r in zip(words, runs, strict=True)])


def _questions(query: str | Sequence[str]) -> list[str]:
    return [query] if isinstance(query, str) else list(query) or [""]


def _rows(similarities: np.ndarray | None, questions: int, candidates: int) -> list[list[float] | None]:
    if similarities is None:
        return [None] * questions
    shape = (questions, candidates)
    if similarities.shape not in (shape, shape[1:] if questions == 1 else shape):
        raise ValueError(f"similarities have shape {similarities.shape}, wanted {shape}")
    return [[float(x) for x in row] for row in similarities.reshape(shape)]


def _squashed(score: float) -> float:
    """The standardised score on 0..1; the order stays."""
    return 0.5 + 0.5 * score / (1 + abs(score))
