"""BM25: the textbook's numbers, and sane answers to nothing."""

from __future__ import annotations

import math

import pytest

from trawl.retrieval.bm25 import bm25_gram_scores, bm25_scores


def test_the_score_is_the_formula() -> None:
    passages = [["kiln", "clay", "kiln"], ["clay", "wheel"], ["glaze"]]
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    norm = 1.2 * (1 - 0.75 + 0.75 * 3 / 2)
    assert bm25_scores(passages, {"kiln": 1.0}) == pytest.approx([idf * 2 * 2.2 / (2 + norm), 0, 0])


def test_a_term_of_half_weight_counts_half() -> None:
    passages = [["kiln"], ["clay"], ["wheel"]]
    full, half = bm25_scores(passages, {"kiln": 1.0})[0], bm25_scores(passages, {"kiln": 0.5})[0]
    assert half == pytest.approx(full / 2)


@pytest.mark.parametrize("scores", [bm25_scores, bm25_gram_scores])
def test_nothing_to_look_for_or_in_scores_zero(scores) -> None:  # type: ignore[no-untyped-def]
    assert scores([], {"kiln": 1.0}) == []
    assert scores([[], []], {"kiln": 1.0}) == [0, 0]
    assert scores([["clay"], []], {}) == [0, 0]
    assert scores([["clay"]], {"kiln": 1.0}) == [0]


def test_a_term_that_stands_everywhere_never_counts_against() -> None:
    assert all(s > 0 for s in bm25_scores([["kiln"], ["kiln", "clay"]], {"kiln": 1.0}))


def test_runs_find_what_words_do_not() -> None:
    """Compounds and inflected forms."""
    passages = [["gewährleistungsfrist", "zwei", "jahre"], ["lieferung", "frei", "haus"]]
    assert bm25_scores(passages, {"gewährleistung": 1.0}) == [0, 0]
    runs = bm25_gram_scores(passages, {"gewährleistung": 1.0})
    assert runs[0] > 0 == runs[1]
