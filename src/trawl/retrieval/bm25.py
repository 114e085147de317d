"""BM25 over the passages of one page. Pure.

Only what the question asks for is counted, so that a page of a thousand passages costs one pass over its terms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from trawl.retrieval.terms import GRAM, grams

__all__ = ["K1", "B", "bm25_gram_scores", "bm25_scores"]

K1 = 1.2
"""Saturation of repeated terms (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", 1.2 to 2)."""

B = 0.75
"""Strength of the length normalisation (same source, 0.5 to 0.8)."""

SHORTEST = 0.5
"""A passage counts as at least this part of the mean length: a line of three words is not about them three times as
much as a paragraph. 0.25 to 1.25 measured alike in answers found; below 0.5 single lines come up first too often."""


def bm25_scores(
    passages: Sequence[Sequence[str]], question: Mapping[str, float], *, k1: float = K1, b: float = B
) -> list[float]:
    """The BM25 score of every passage.

    idf = ln(1 + (N - n + 0.5) / (n + 0.5)), never negative. Without passages, terms or a common term all scores are 0.

    Args:
        passages: the terms of each passage.
        question: the terms of the question and the weight of each.
        k1: saturation of repeated terms.
        b: strength of the length normalisation.
    """
    counts = [Counter(t for t in passage if t in question) for passage in passages]
    return _scores(counts, [len(p) for p in passages], question, k1, b)


def bm25_gram_scores(
    passages: Sequence[Sequence[str]], question: Mapping[str, float], *, k1: float = K1, b: float = B
) -> list[float]:
    """The same over the character runs of the terms (`trawl.retrieval.terms.grams`): finds other forms and compounds of
    a word too, in any language."""
    wanted: dict[str, float] = {}
    for term, weight in question.items():
        for gram in grams(term):
            wanted[gram] = max(weight, wanted.get(gram, 0.0))
    shared: dict[str, list[str]] = {}
    counts: list[Counter[str]] = []
    lengths = []
    for passage in passages:
        count: Counter[str] = Counter()
        length = 0
        for term in passage:
            if term not in shared:
                shared[term] = [g for g in grams(term) if g in wanted]
            if shared[term]:
                count.update(shared[term])
            length += max(1, len(term) - GRAM + 1)
        counts.append(count)
        lengths.append(length)
    return _scores(counts, lengths, wanted, k1, b)


def _scores(
    counts: Sequence[Counter[str]], lengths: Sequence[int], question: Mapping[str, float], k1: float, b: float
) -> list[float]:
    found_in = Counter(t for c in counts for t in c)
    n = len(counts)
    weight = {t: question[t] * math.log(1 + (n - k + 0.5) / (k + 0.5)) for t, k in found_in.items()}
    mean = sum(lengths) / n if n else 0.0
    scores = []
    for count, length in zip(counts, lengths, strict=True):
        norm = k1 * (1 - b + b * max(length / mean, SHORTEST)) if mean else k1
        scores.append(sum(weight[t] * f * (k1 + 1) / (f + norm) for t, f in count.items()))
    return scores
