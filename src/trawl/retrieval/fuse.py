"""Scores of two kinds -> one score. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

__all__ = ["DENSE_WEIGHT", "RRF_K", "fused", "reciprocal_rank", "standardised"]

DENSE_WEIGHT = 0.6
"""Weight of the standardised cosine; the rest goes to BM25."""

RRF_K = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke and Buettcher 2009)."""


def standardised(scores: Sequence[float]) -> list[float]:
    """`scores` with mean 0 and standard deviation 1; all 0 where they do not differ."""
    if not scores:
        return []
    mean, spread = fmean(scores), pstdev(scores)
    return [(s - mean) / spread if spread > 1e-12 else 0.0 for s in scores]


def fused(lexical: Sequence[float], dense: Sequence[float] | None, *, weight: float = DENSE_WEIGHT) -> list[float]:
    """`weight` x standardised `dense` + (1 - `weight`) x standardised `lexical`; `lexical` alone when there is no
    `dense`."""
    if dense is None:
        return standardised(lexical)
    return [weight * d + (1 - weight) * s for d, s in zip(standardised(dense), standardised(lexical), strict=True)]


def reciprocal_rank(*rankings: Sequence[float], k: int = RRF_K) -> list[float]:
    """Fusion by rank alone: the sum of 1 / (k + rank) over the rankings, each given as scores, ranks from 0; equal
    scores keep their order."""
    sums = [0.0] * (len(rankings[0]) if rankings else 0)
    for scores in rankings:
        for rank, i in enumerate(sorted(range(len(scores)), key=lambda i: -scores[i])):
            sums[i] += 1 / (k + rank)
    return sums
