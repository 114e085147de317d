"""Chunks and a question -> chunks by score: the order of the retrieval stage. Pure; similarities come as numbers.

    chunks -> prefilter (BM25 keeps what the embedder can afford) -> rank (BM25, cosine, priors, one score)

The published score is the score that decided the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trawl.retrieval.bm25 import bm25_scores
from trawl.retrieval.fuse import fused
from trawl.retrieval.terms import terms
from trawl.types import CONTENT_THRESHOLD, Chunk

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Ranked", "in_order", "passage_text", "prefilter", "rank"]

CONTENT_PRIOR = 0.5
"""What full certainty of being content is worth against none, in standard deviations of the score."""

HOLLOW_PENALTY = 3.0
"""Taken from a chunk that has nothing to say beyond the words of the question and of the page's headings."""

HOLLOW_TERMS = 3
"""Different terms of its own that a chunk needs in order not to be hollow."""


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

    The best by BM25 for any of the questions come first. Where the words of the question find too little, the rest is
    filled with likely content, spread over the whole page: the beginning is no better a guess than the end.
    """
    if budget <= 0 or len(chunks) <= budget:
        return list(range(len(chunks)))
    passages = [_passage_terms(c) for c in chunks]
    best = [max(scores) for scores in zip(*(bm25_scores(passages, terms(q)) for q in _questions(query)), strict=True)]
    hits = sorted((i for i, s in enumerate(best) if s > 0), key=lambda i: -best[i])[:budget]
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
    """The candidates by descending score.

    Args:
        chunks: all chunks of the page; word statistics come from all of them.
        query: the question, or several: a chunk counts as good as it is for its best question.
        candidates: positions to rank; None: all.
        similarities: cosine of each candidate with the question, shape (candidates,) or (questions, candidates); None:
            ranking by words alone.

    Raises:
        ValueError: the shape of `similarities` does not fit.
    """
    positions = list(range(len(chunks))) if candidates is None else list(candidates)
    questions = _questions(query)
    dense = _rows(similarities, len(questions), len(positions))
    passages = [_passage_terms(c) for c in chunks]
    priors = [CONTENT_PRIOR * (chunks[i].content_p - 1) for i in positions]
    headings = {t for c in chunks for h in c.heading_path for t in terms(h)}
    nothing: list[float | None] = [None] * len(positions)
    rows: list[list[tuple[float, float, float | None]]] = []
    for question, cosines in zip(questions, dense, strict=True):
        asked = terms(question)
        lexical = bm25_scores(passages, asked)
        lexical = [lexical[i] for i in positions]
        scores = fused(lexical, cosines)
        known = headings.union(asked)
        for j, i in enumerate(positions):
            scores[j] += priors[j]
            if len(set(terms(chunks[i].text)) - known) < HOLLOW_TERMS:
                scores[j] -= HOLLOW_PENALTY
        rows.append(list(zip(scores, lexical, cosines if cosines is not None else nothing, strict=True)))
    ranked = []
    for j, i in enumerate(positions):
        score, lex, cosine = max((row[j] for row in rows), key=lambda r: r[0])
        ranked.append(Ranked(chunks[i], _squashed(score), lex, cosine))
    return sorted(ranked, key=lambda r: -(r.score or 0.0))


def _questions(query: str | Sequence[str]) -> list[str]:
    return [query] if isinstance(query, str) else list(query) or [""]


def _rows(similarities: np.ndarray | None, questions: int, candidates: int) -> list[list[float] | None]:
    if similarities is None:
        return [None] * questions
    shape = (questions, candidates)
    if similarities.shape not in (shape, shape[1:] if questions == 1 else shape):
        raise ValueError(f"similarities have shape {similarities.shape}, wanted {shape}")
    return [[float(x) for x in row] for row in similarities.reshape(shape)]


def _passage_terms(chunk: Chunk) -> list[str]:
    return terms(" ".join(chunk.heading_path)) + terms(chunk.text)


def _squashed(score: float) -> float:
    """The standardised score on 0..1; the order stays."""
    return 1 / (1 + math.exp(-score))
