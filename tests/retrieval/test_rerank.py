"""What a reranker is given stays within its caps, and its scores decide the order."""

from __future__ import annotations

import math

import pytest

from trawl.retrieval.rank import Ranked
from trawl.retrieval.rerank import Caps, candidates_wanted, capped, document_text, reordered
from trawl.types import Chunk, Part


def chunk(text: str = "body", *path: str) -> Chunk:
    return Chunk(0, "prose", path, (Part(text, 0, len(text)),))


@pytest.mark.parametrize(
    ("title", "path", "expected"),
    [
        ("Cats", ("Food", "Mice"), "Cats\nFood > Mice\n\nbody"),
        ("Cats", (), "Cats\n\nbody"),
        ("Cats", ("Cats",), "Cats\n\nbody"),
        ("", ("Food",), "Food\nbody"),
        ("", (), "body"),
    ],
)
def test_a_document_is_title_section_and_text(title, path, expected):
    assert document_text(chunk("body", *path), title) == expected


def test_within_the_caps_nothing_is_touched():
    documents = ["a" * 1500] * 20
    assert capped("q", documents, Caps()) == capped("q", documents, Caps(0, 0, 0))
    assert not capped("q", documents, Caps()).clamped


def test_caps_apply_in_order_tail_each_all():
    sent = capped("q", ["a" * 1600] * 40, Caps(documents=30, chars_each=1500, chars_in_all=40_000))
    assert sent.clamped
    assert len(sent.documents) == 30
    assert {len(text) for text in sent.documents} == {(40_000 - 1) // 30}
    assert len("q") + sum(map(len, sent.documents)) <= 40_000


def test_every_document_keeps_a_share_even_under_a_huge_question():
    sent = capped("q" * 50_000, ["a" * 900] * 3, Caps())
    assert [len(text) for text in sent.documents] == [200, 200, 200]


@pytest.mark.parametrize("off", [0, -1])
def test_a_cap_of_zero_or_less_is_none(off):
    documents = ["a" * 5_000] * 50
    assert capped("q", documents, Caps(off, off, off)).documents == documents


def test_no_documents_are_no_matter():
    assert capped("q", [], Caps()).documents == []


def test_twice_as_many_are_reranked_as_were_asked_for():
    assert candidates_wanted(4) == 8
    assert candidates_wanted(None) == 30


def test_the_rerankers_scores_decide_and_are_published():
    ranked = [Ranked(chunk(str(i)), score=1 - i / 10) for i in range(5)]
    new = reordered(ranked, [-3.0, 8.0, 1.0])
    assert [r.chunk.text for r in new] == ["1", "2", "0", "3", "4"]
    scores = [r.score for r in new]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(1 / (1 + math.exp(-8)))
    assert all(0 <= s <= 1 for s in scores)


def test_probabilities_are_taken_as_they_are():
    new = reordered([Ranked(chunk("a"), 0.9), Ranked(chunk("b"), 0.8)], [0.25, 0.75])
    assert [(r.chunk.text, r.score) for r in new] == [("b", 0.75), ("a", 0.25)]


def test_extreme_logits_do_not_overflow():
    new = reordered([Ranked(chunk("a"), 0.9), Ranked(chunk("b"), 0.8)], [-1e308, 1e308])
    assert [(r.chunk.text, r.score) for r in new] == [("b", 1.0), ("a", 0.0)]


def test_ties_keep_the_first_order():
    ranked = [Ranked(chunk(str(i)), 0.5) for i in range(4)]
    assert [r.chunk.text for r in reordered(ranked, [1.0, 1.0, 1.0])] == ["0", "1", "2", "3"]
