"""BM25 over the passages of one page. Pure.

Only the terms of the question are counted, so that a page of a thousand passages costs one pass over its terms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

__all__ = ["K1", "B", "bm25_scores"]

K1 = 1.2
"""Saturation of repeated terms (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", 1.2 to 2)."""

B = 0.75
"""Strength of the length normalisation (same source, 0.5 to 0.8)."""


def bm25_scores(
    passages: Sequence[Sequence[str]], question: Sequence[str], *, k1: float = K1, b: float = B
) -> list[float]:
    """The BM25 score of every passage for the question; all are given as terms.

    idf = ln(1 + (N - n + 0.5) / (n + 0.5)), never negative. Without passages, terms or a common term all scores are 0.
    """
    wanted = Counter(question)
    counts: list[Counter[str]] = [Counter(t for t in passage if t in wanted) for passage in passages]
    found_in = Counter(t for c in counts for t in c)
    n = len(passages)
    idf = {t: math.log(1 + (n - k + 0.5) / (k + 0.5)) for t, k in found_in.items()}
    mean = sum(map(len, passages)) / n if n else 0.0
    scores = []
    for passage, count in zip(passages, counts, strict=True):
        norm = k1 * (1 - b + b * len(passage) / mean) if mean else k1
        scores.append(sum(wanted[t] * idf[t] * f * (k1 + 1) / (f + norm) for t, f in count.items()))
    return scores
