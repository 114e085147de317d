"""Fusion: scores on one scale, or ranks."""

from __future__ import annotations

import pytest

from trawl.retrieval.fuse import fused, reciprocal_rank, standardised


def test_standardised_scores_have_mean_zero_and_deviation_one() -> None:
    scores = standardised([1.0, 2.0, 3.0, 10.0])
    assert sum(scores) == pytest.approx(0)
    assert sum(s * s for s in scores) / 4 == pytest.approx(1)
    assert standardised([]) == []
    assert standardised([3.0, 3.0]) == [0.0, 0.0]


def test_fusion_does_not_depend_on_the_scale_of_either_side() -> None:
    lexical, dense = [0.0, 4.0, 1.0], [0.8, 0.81, 0.85]
    other = fused([100 * s + 7 for s in lexical], [s / 9 for s in dense])
    assert fused(lexical, dense) == pytest.approx(other)


def test_without_embeddings_words_alone_decide() -> None:
    assert fused([0.0, 4.0, 1.0], None) == standardised([0.0, 4.0, 1.0])


def test_where_one_side_is_silent_the_other_decides() -> None:
    assert max(range(3), key=fused([0.0, 0.0, 0.0], [0.1, 0.2, 0.9]).__getitem__) == 2


def test_reciprocal_rank_is_the_formula_and_keeps_ties_in_order() -> None:
    assert reciprocal_rank([3.0, 1.0, 2.0], [9.0, 8.0, 7.0]) == pytest.approx(
        [1 / 60 + 1 / 60, 1 / 62 + 1 / 61, 1 / 61 + 1 / 62]
    )
    tied = reciprocal_rank([1.0, 1.0, 1.0])
    assert tied == sorted(tied, reverse=True)
    assert reciprocal_rank() == []
