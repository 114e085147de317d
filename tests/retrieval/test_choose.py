"""Choosing: within the budget, best first, nothing twice, nothing torn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trawl.retrieval.choose import chunk_cost, pack
from trawl.retrieval.rank import Ranked
from trawl.types import Chunk, ChunkKind, Part


def ranked(*texts: str, kind: ChunkKind = "prose") -> list[Ranked]:
    return [Ranked(Chunk(i, kind, (), (Part(t, 100 * i, 100 * i + len(t)),)), 1 - i / 10) for i, t in enumerate(texts)]


def words(chunk: Chunk) -> int:
    return len(chunk.text.split())


def texts(chosen: Sequence[Ranked]) -> list[str]:
    return [r.chunk.text for r in chosen]


def test_the_budget_is_used_and_never_overdrawn() -> None:
    """A piece that does not fit is passed over for a smaller one after it."""
    items = ranked("a b c", "d e f g h", "i j", "k")
    assert texts(pack(items, 6, cost=words)) == ["a b c", "i j", "k"]
    assert texts(pack(items, 11, cost=words)) == ["a b c", "d e f g h", "i j", "k"]


def test_the_price_is_asked_of_few_pieces_on_a_page_of_many() -> None:
    """Pricing a piece may be dear: a link is made for it."""
    asked: list[Chunk] = []

    def cost(chunk: Chunk) -> int:
        asked.append(chunk)
        return 7

    assert len(pack(ranked(*(f"text {i}" for i in range(5_000))), 20, cost=cost)) == 2
    assert len(asked) < 100


def test_text_to_be_read_on_stops_where_it_no_longer_fits() -> None:
    assert texts(pack(ranked("a b c", "d e f g h", "i j"), 6, cost=words, skip_larger=False)) == ["a b c"]


def test_a_number_is_an_upper_bound() -> None:
    items = ranked("a", "b", "c")
    assert texts(pack(items, 100, 2, cost=words)) == ["a", "b"]
    assert pack(items, 100, 0, cost=words) == []
    assert len(pack(items, 100, 9, cost=words)) == 3


def test_no_budget_and_no_chunks_give_nothing() -> None:
    assert pack(ranked("a"), 0, cost=words) == []
    assert pack([], 100) == []


def test_the_same_words_are_returned_once() -> None:
    """Layout apart: a page often shows one text for the desk and one for the phone."""
    assert texts(pack(ranked("Opening  hours\nnine", "opening hours nine", "closed"), 99, cost=words)) == [
        "Opening  hours\nnine",
        "closed",
    ]


def test_a_first_piece_too_large_is_cut_after_a_sentence_and_stays_a_true_slice() -> None:
    [cut] = pack(ranked("One two three. Four five six. Seven eight."), 7, cost=words)
    assert cut.chunk.text == "One two three. Four five six."
    assert cut.chunk.spans == ((0, 29),)
    assert cut.score == 1


def test_where_no_sentence_fits_it_is_cut_between_words_and_else_left_out() -> None:
    assert texts(pack(ranked("One two three four."), 2, cost=words)) == ["One two"]
    assert pack(ranked("Donaudampfschifffahrt"), 5, cost=lambda c: len(c.text)) == []


def test_a_table_is_cut_after_a_row_and_keeps_its_header() -> None:
    header = Part("| a | b |\n|---|---|\n")
    rows = "| 1 | 2 |\n| 3 | 4 |\n| 5 | 6 |"
    item = Ranked(Chunk(0, "table", (), (header, Part(rows, 50, 50 + len(rows)))), 0.9)
    [cut] = pack([item], 45, cost=lambda c: len(c.text))
    assert cut.chunk.text == "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |"
    assert cut.chunk.spans == ((50, 69),)


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_a_listing_is_cut_after_a_line_and_its_fence_closed(fence: str) -> None:
    code = f"{fence}sh\nfirst line\nsecond line\nthird line\n{fence}"
    [cut] = pack(ranked(code, kind="code"), len(code) - 10, cost=lambda c: len(c.text))
    assert cut.chunk.text == f"{fence}sh\nfirst line\nsecond line\n{fence}"
    assert cut.chunk.text.startswith(code[: cut.chunk.end])


def test_a_cut_never_costs_more_than_there_is() -> None:
    text = "Ein Satz mit Wörtern. Noch einer, länger als der erste. Und 12 Zahlen. 清扫一次。" * 20
    for budget in range(1, 120, 7):
        assert sum(chunk_cost(r.chunk) for r in pack(ranked(text), budget)) <= budget


def test_headings_are_paid_for() -> None:
    bare = Chunk(0, "prose", (), (Part("text", 0, 4),))
    headed = Chunk(0, "prose", ("A rather long heading", "and another"), (Part("text", 0, 4),))
    assert chunk_cost(headed) > chunk_cost(bare) + 5
