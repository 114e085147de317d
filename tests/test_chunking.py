"""Chunks: true slices, nothing lost, nothing torn that belongs together."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence

import pytest

from trawl.chunking import MAX_CHARS, blocks_of, chunk_document, sentence_ends
from trawl.types import Block, BlockKind, Chunk, Document

PLAIN = "The ferry leaves the small pier at dawn and comes back after dark. "


def document(*blocks: tuple[BlockKind, str] | Block, title: str = "") -> Document:
    """A document made of (kind, Markdown) pairs; a `Block` lends its other attributes and its text as Markdown."""
    source, made = "", []
    for given in blocks:
        base = given if isinstance(given, Block) else Block(given[0], 0, 0, given[1])
        markdown = base.text
        if source:
            source += "\n" if base.kind == "list" and made[-1].kind == "list" else "\n\n"
        level = base.level
        if base.kind == "heading":
            level = len(markdown) - len(markdown.lstrip("#"))
        elif base.kind == "list":
            level = 1 + (len(markdown) - len(markdown.lstrip(" "))) // 2
        start = len(source)
        source += markdown
        words = re.sub(r"^[ #>]*(?:[-*] )?", "", markdown)
        made.append(
            Block(
                base.kind,
                start,
                len(source),
                words,
                level,
                base.content_p,
                base.hidden,
                base.record,
                base.page,
            )
        )
    return Document(source, tuple(made), title=title)


def assert_true(doc: Document, chunks: Sequence[Chunk]) -> None:
    """Both promises of the module."""
    assert [c.index for c in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert chunk.spans, "a chunk without a slice points nowhere"
        assert chunk.text.strip()
        for part in chunk.parts:
            if part.start is not None:
                assert part.end is not None
                assert doc.source[part.start : part.end] == part.text
    covered = [False] * len(doc.source)
    for chunk in chunks:
        for start, end in chunk.spans:
            for i in range(start, end):
                assert not covered[i], "the same slice stands in two chunks"
                covered[i] = True
    for block in doc.blocks:
        if block.hidden:
            assert not any(covered[block.start : block.end])
        elif block.kind != "heading":
            missed = "".join(
                c
                for c, seen in zip(doc.source[block.start : block.end], covered[block.start : block.end], strict=True)
                if not seen
            )
            assert not missed.strip()


def holding(chunks: Sequence[Chunk], words: str) -> list[Chunk]:
    return [c for c in chunks if words in c.text]


# Properties


def _random_block(rng: random.Random) -> Block:
    kind: BlockKind = rng.choice(
        ["heading", "paragraph", "paragraph", "list", "list", "table", "code", "quote", "caption"]
    )
    alphabet = rng.choice(
        [
            "abc de. fg! h, ",
            "日本語の文。、テスト",
            "ไทยกำลัง ",
            "كلمة عربية؟ ",
            "क्या यह है। ",
            "x" * 9 + " ",
            "😀é\u0301 ",
        ]
    )
    body = "".join(rng.choice(alphabet) for _ in range(rng.choice([1, 5, 40, 300, 3000]))).strip() or "word"
    if kind == "heading":
        text = "#" * rng.randint(1, 6) + " " + body[:60]
    elif kind == "list":
        text = "  " * rng.randint(0, 2) + "- " + body
    elif kind == "table":
        rows = [f"| {body[:8]} | {rng.randint(0, 999)} |" for _ in range(rng.choice([1, 3, 60]))]
        text = "\n".join(["| a | b |", *(["|---|---|"] if rng.random() < 0.8 else []), *rows])
    elif kind == "code":
        lines = [body[:50] for _ in range(rng.choice([1, 3, 80]))]
        text = "\n".join(["```", *lines, *(["```"] if rng.random() < 0.9 else [])])
    else:
        text = body + rng.choice(["", "", ":"])
    return Block(
        kind,
        0,
        0,
        text,
        content_p=rng.choice([0.1, 0.9, 1.0]),
        hidden=rng.random() < 0.1,
        record=rng.choice([None, None, None, "r1", "r2"]),
        page=rng.choice([None, None, 1, 2]),
    )


@pytest.mark.parametrize("max_chars", [1, 40, 450])
def test_every_part_is_its_slice_and_no_word_is_lost(max_chars: int) -> None:
    """Whatever the page looks like, in any script, with any size of chunk."""
    rng = random.Random(max_chars)
    for _ in range(60):
        doc = document(*(_random_block(rng) for _ in range(rng.randint(1, 14))))
        assert_true(doc, chunk_document(doc, max_chars=max_chars))


def test_nothing_in_nothing_out() -> None:
    """An empty page has no chunks, nor has one where everything is hidden."""
    assert chunk_document(Document("", ())) == []
    assert chunk_document(document(Block("paragraph", 0, 0, "unseen", hidden=True))) == []


def test_a_size_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="max_chars"):
        chunk_document(document(("paragraph", "x")), max_chars=0)


# Headings


def test_each_chunk_says_under_which_headings_it_stands() -> None:
    """Three sections of the same name are told apart by what is above them; a higher heading closes the lower ones."""
    doc = document(
        ("heading", "# Pumps"),
        ("heading", "## Pump 3"),
        ("paragraph", PLAIN * 12),
        ("heading", "### Bleeding"),
        ("paragraph", "Open the brass screw."),
        ("heading", "## Pump 8"),
        ("paragraph", PLAIN * 12),
        ("heading", "### Bleeding"),
        ("paragraph", "Press the black button."),
        ("heading", "## Store"),
        ("paragraph", "Behind the shed."),
    )
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert [c.heading_path for c in holding(chunks, "brass screw")] == [("Pumps", "Pump 3", "Bleeding")]
    assert [c.heading_path for c in holding(chunks, "black button")] == [("Pumps", "Pump 8", "Bleeding")]
    assert [c.heading_path for c in holding(chunks, "Behind the shed")] == [("Pumps", "Store")]
    assert not holding(chunks, "#")


def test_a_heading_with_nothing_below_it_is_still_found() -> None:
    """Where a list of titles is all the page has, the titles are its text."""
    doc = document(("heading", "# News"), ("heading", "## Dam opened"), ("heading", "## Mill closed"))
    chunks = chunk_document(doc)
    assert holding(chunks, "Dam opened")
    assert holding(chunks, "Mill closed")
    assert {c.heading_path for c in chunks} == {("News",)}


def test_skipped_levels_do_not_confuse_the_path() -> None:
    doc = document(
        ("heading", "### Deep"),
        ("paragraph", "one"),
        ("heading", "# Top"),
        ("heading", "#### Low"),
        ("paragraph", "two"),
    )
    assert [c.heading_path for c in chunk_document(doc)] == [("Deep",), ("Top", "Low")]


# Prose


def test_neighbouring_paragraphs_share_a_chunk_up_to_the_limit() -> None:
    doc = document(*(("paragraph", f"{i}. {PLAIN * 2}".strip()) for i in range(12)))
    chunks = chunk_document(doc, max_chars=450)
    assert_true(doc, chunks)
    assert len(chunks) == 4
    assert all(len(c.spans) == 1 for c in chunks), "neighbours are one slice"


@pytest.mark.parametrize(
    ("sentence", "ends"),
    [
        ("The mast was seven metres high and nobody climbed it. ", ". "),
        ("灯台の高さは三十一メートルで、毎年秋に塗り直される。", "。"),
        ("炉子烧木柴，柴房在屋子东侧；烟囱每年秋天清扫一次！", "！"),
        ("بني البرج قبل سبعين سنة، فهل ما زال قائما؟ ", "؟ "),
        ("यह मीनार सत्तर साल पहले बनी थी और आज भी खड़ी है। ", "। "),
        ("ហាងនេះបើកនៅម៉ោងប្រាំពីរព្រឹក។", "។"),
        ("ይህ ግንብ ከሰባ ዓመት በፊት ተሠራ።", "።"),
    ],
)
def test_a_long_paragraph_is_cut_at_sentence_ends_in_every_script(sentence: str, ends: str) -> None:
    doc = document(("paragraph", (sentence * 40).strip()))
    chunks = chunk_document(doc, max_chars=200)
    assert_true(doc, chunks)
    assert len(chunks) >= 5
    assert all(c.text.endswith(ends.strip()) for c in chunks)
    assert all(len(c.text) <= 240 for c in chunks)


def test_text_without_sentence_ends_is_cut_at_spaces_and_never_in_a_word() -> None:
    words = [f"word{i}" for i in range(600)]
    doc = document(("paragraph", " ".join(words)))
    chunks = chunk_document(doc, max_chars=100)
    assert_true(doc, chunks)
    assert [w for c in chunks for w in c.text.split()] == words


def test_a_word_longer_than_a_chunk_stays_whole_and_data_without_end_does_not() -> None:
    word = "Donaudampfschifffahrt" * 10
    assert [c.text for c in chunk_document(document(("paragraph", word)), max_chars=50)] == [word]
    doc = document(("paragraph", "A" * 50_000))
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert max(len(c.text) for c in chunks) <= 2_000


def test_text_without_spaces_and_marks_is_cut_between_characters_but_not_in_a_number() -> None:
    """Thai and Japanese without punctuation; vowel signs stay with their letter."""
    for run in ("กำลังทำงานที่บ้าน" * 40, "東京都内の倉庫にある機械1234567890台" * 30):
        doc = document(("paragraph", run))
        chunks = chunk_document(doc, max_chars=90)
        assert_true(doc, chunks)
        assert all(len(c.text) <= 120 for c in chunks)
        assert not any(re.match(r"[\u0e30-\u0e3a\u0e45-\u0e4e]", c.text) for c in chunks)
        assert run.count("1234567890") == sum(c.text.count("1234567890") for c in chunks)


def test_abbreviations_and_numbers_do_not_end_a_sentence() -> None:
    text = "It cost 3.50 at J. Miller's, e.g. on Monday. Then it rose."
    assert [text[:end].rstrip() for end in sentence_ends(text)] == [text[: text.index(" Then")], text]


def test_a_short_tail_does_not_stand_alone() -> None:
    doc = document(("paragraph", "A" * 440), ("paragraph", "See page 3."))
    assert len(chunk_document(doc, max_chars=450)) == 1


# Tables


def _table(rows: int, cell: str = "brass") -> str:
    return "\n".join(["| Part | Weight g |", "|---|---|", *(f"| {cell} {i} | {i * 7} |" for i in range(rows))])


def test_a_table_that_fits_stays_whole() -> None:
    doc = document(("paragraph", PLAIN * 4), ("table", _table(30)), ("paragraph", PLAIN * 4))
    assert len(holding(chunk_document(doc), "|---|")) == 1


def test_every_part_of_a_long_table_has_the_header_and_whole_rows() -> None:
    doc = document(("caption", "Weights of the fittings"), ("table", _table(300)))
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert len(chunks) > 5
    for chunk in chunks:
        assert chunk.kind == "table"
        assert "| Part | Weight g |\n|---|---|\n" in chunk.text
        assert "Weights of the fittings" in chunk.text
        assert all(line.startswith("| ") and line.endswith(" |") for line in chunk.text.split("\n")[4:])
    assert all(chunk.parts[0].start is None for chunk in chunks[1:]), "the repeated header has no place of its own"
    assert sum(c.text.count("| brass ") for c in chunks) == 300


def test_a_table_without_a_header_and_one_with_giant_rows_are_split_too() -> None:
    doc = document(("table", "\n".join(f"| {i} | {i * 7} |" for i in range(400))))
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert len(chunks) > 5
    doc = document(("table", "| a | b |\n|---|---|\n" + "\n".join(f"| {PLAIN * 60} | {i} |" for i in range(3))))
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert max(len(c.text) for c in chunks) < MAX_CHARS * 4


# Code


def test_hashes_in_a_listing_are_not_headings_and_the_listing_stays_with_its_introduction() -> None:
    listing = "````md\n```sh\n# stop first\n```\n## no section\n" + "run --all\n" * 30 + "````"
    doc = document(
        ("heading", "# Backup"), ("paragraph", PLAIN * 6), ("paragraph", "The job looks like this:"), ("code", listing)
    )
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert {c.heading_path for c in chunks} == {("Backup",)}
    found = holding(chunks, "## no section")
    assert len(found) == 1
    assert "The job looks like this:" in found[0].text
    assert found[0].text.endswith("````")


@pytest.mark.parametrize("fence", ["```", "~~~", "`````"])
def test_a_long_listing_is_cut_at_line_ends_and_every_part_is_fenced(fence: str) -> None:
    lines = [f"step_{i}(value={i})  # comment {i}" for i in range(200)]
    doc = document(("code", f"{fence}py\n" + "\n".join(lines) + f"\n{fence}"))
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert len(chunks) > 5
    seen = []
    for chunk in chunks:
        first, *body, last = chunk.text.split("\n")
        assert (first, last) == (f"{fence}py", fence)
        seen += body
    assert seen == lines


def test_an_unclosed_and_an_unfenced_listing_are_kept() -> None:
    for text in ("```\n" + "a = 1\n" * 500, "a = 1\n" * 500):
        doc = document(("code", text.rstrip()))
        chunks = chunk_document(doc)
        assert_true(doc, chunks)
        assert sum(c.text.count("a = 1") for c in chunks) == 500


# Lists


def test_a_list_keeps_the_line_that_leads_into_it() -> None:
    """Also where it is too long for one chunk, and with the parent of an inner item."""
    items = [("list", f"- valve {i} with a long description of where it sits") for i in range(30)]
    inner = [("list", f"  - spare seal {i} of the last valve, kept in the upper drawer") for i in range(12)]
    doc = document(("paragraph", "Close these valves before winter:"), *items, ("list", "- Last valve"), *inner)
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert len(chunks) > 3
    assert all(c.text.startswith("Close these valves before winter:") for c in chunks)
    assert all("Last valve" in c.text for c in holding(chunks, "spare seal"))
    assert all(c.kind == "list" for c in chunks)


def test_the_lead_in_of_one_list_is_not_given_to_what_follows() -> None:
    doc = document(
        ("paragraph", "You need:"), ("list", "- a saw"), ("table", _table(100)), ("list", "- " + "oil the blade " * 80)
    )
    for chunk in chunk_document(doc)[1:]:
        assert "You need:" not in chunk.text


# Records, pages, likely and unlikely content


def test_a_record_is_one_chunk_with_its_own_heading_as_text() -> None:
    def card(i: int) -> list[Block]:
        return [
            Block("heading", 0, 0, f"### Boat {i}", record=f"g0-{i}"),
            Block("paragraph", 0, 0, PLAIN * 8, record=f"g0-{i}"),
            Block("list", 0, 0, f"- price {i}99", record=f"g0-{i}"),
        ]

    doc = document(("heading", "# Boats"), *card(1), *card(2), *card(3), ("paragraph", "All prices with oars."))
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    cards = [c for c in chunks if c.kind == "record"]
    assert [c.record for c in cards] == ["g0-1", "g0-2", "g0-3"]
    for i, c in enumerate(cards, 1):
        assert f"### Boat {i}" in c.text
        assert f"price {i}99" in c.text
        assert c.heading_path == ("Boats",)
    assert chunks[-1].heading_path == ("Boats",)


def test_a_record_that_is_really_a_whole_section_is_cut_like_one() -> None:
    doc = document(*(Block("paragraph", 0, 0, PLAIN * 5, record="r") for _ in range(20)))
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert max(len(c.text) for c in chunks) <= MAX_CHARS * 1.3


def test_a_chunk_stays_on_its_page() -> None:
    doc = document(*(Block("paragraph", 0, 0, f"Line {i}.", page=1 + i // 3) for i in range(9)))
    assert [(c.page, c.text.count("Line")) for c in chunk_document(doc)] == [(1, 3), (2, 3), (3, 3)]


def test_menu_and_text_do_not_share_a_chunk() -> None:
    doc = document(Block("paragraph", 0, 0, "Home Shop", content_p=0.1), Block("paragraph", 0, 0, PLAIN, content_p=0.9))
    assert [round(c.content_p, 1) for c in chunk_document(doc)] == [0.1, 0.9]


def test_hidden_text_between_two_paragraphs_is_left_out() -> None:
    doc = document(("paragraph", "before"), Block("paragraph", 0, 0, "unseen", hidden=True), ("paragraph", "after"))
    chunks = chunk_document(doc)
    assert_true(doc, chunks)
    assert [c.text for c in chunks] == ["before\n\nafter"]
    assert len(chunks[0].spans) == 2


def test_the_blocks_of_a_chunk_are_those_its_spans_touch() -> None:
    doc = document(("paragraph", "before"), Block("paragraph", 0, 0, "unseen", hidden=True), ("paragraph", "after"))
    assert [b.text for b in blocks_of(doc, chunk_document(doc)[0])] == ["before", "after"]


def test_a_page_of_fifty_thousand_blocks_takes_linear_time() -> None:
    line = "Line of text.\n\n"
    n = 50_000
    blocks = (Block("paragraph", i * len(line), (i + 1) * len(line) - 2, line.strip()) for i in range(n))
    doc = Document(line * n, tuple(blocks))
    started = time.perf_counter()
    assert sum(c.text.count("Line") for c in chunk_document(doc)) == n
    assert time.perf_counter() - started < 10
