"""Anchors: a link whose words stand on the page, whole, each in one block, and first where the chunk is."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest

from trawl.anchors import anchor
from trawl.chunking import chunk_document
from trawl.types import Block, BlockKind, Chunk, Document, Part

URL = "https://example.test/page"
LONG = "The keeper of the lock writes every passing boat into the green book that lies on the sill of the north window."


def document(*blocks: tuple[BlockKind, str, str] | tuple[BlockKind, str], page: int | None = None) -> Document:
    """Blocks as (kind, Markdown, words); the words may be left out where they are the Markdown."""
    source, made = "", []
    for kind, markdown, *words in blocks:
        source += "\n\n" if source else ""
        made.append(Block(kind, len(source), len(source) + len(markdown), words[0] if words else markdown, page=page))
        source += markdown
    return Document(source, tuple(made))


def links(doc: Document, url: str = URL) -> list[str]:
    return [anchor(url, doc, c) for c in chunk_document(doc)]


def terms_of(link: str) -> list[str]:
    """The decoded parts of the text directive: [prefix-,] start [, end]."""
    return [unquote(part) for part in link.split(":~:text=")[1].split(",")]


def test_a_short_block_is_named_in_full() -> None:
    assert links(document(("paragraph", "Open from nine to five."))) == [
        f"{URL}#:~:text=Open%20from%20nine%20to%20five."
    ]


def test_a_long_one_by_its_first_and_last_words() -> None:
    [link] = links(document(("paragraph", LONG)))
    start, end = terms_of(link)
    assert LONG.startswith(start + " ")
    assert LONG.endswith(" " + end)
    assert len(start.split()) >= 4
    assert len(end.split()) >= 4


def test_a_chunk_of_several_blocks_from_the_first_to_the_last() -> None:
    """No term crosses from one block into the next."""
    [link] = links(
        document(("paragraph", LONG), ("list", "- a green book", "a green book"), ("list", "- an inkpot", "an inkpot"))
    )
    start, end = terms_of(link)
    assert LONG.startswith(start)
    assert end == "an inkpot"


def test_markers_are_not_words_of_the_page() -> None:
    doc = document(
        ("quote", "> Nobody leaves\n> before dawn", "Nobody leaves before dawn"), ("list", "12. last rule", "last rule")
    )
    assert terms_of(links(doc)[0]) == ["Nobody leaves before dawn", "last rule"]


def test_a_picture_is_not_a_word() -> None:
    doc = document(("paragraph", "![logo of the club] Nobody was watching the weir that night. ![:mad face:]"))
    assert terms_of(links(doc)[0])[0].startswith("Nobody was watching")
    assert "%5B" not in links(doc)[0]


@pytest.mark.parametrize(
    "text", ["well-known, (so) & 100% #1", "a=b?c/d:e;f@g+h", "naïve 清扫 “quoted”", 'tag <b> "q" `c`']
)
def test_reserved_characters_are_encoded(text: str) -> None:
    """`-`, `,` and `&` mean something in a directive; the rest must not end or change the URL."""
    [link] = links(document(("paragraph", text)))
    directive = link.split(":~:text=")[1]
    assert re.fullmatch(r"(?:[A-Za-z0-9._~]|%[0-9A-F]{2})+", directive)
    assert unquote(directive) == text


@pytest.mark.parametrize(
    ("url", "begins"),
    [
        (URL + "#part", URL + "#part:~:text="),
        (URL + "?q=1&r=2#", URL + "?q=1&r=2#:~:text="),
        (URL + "#:~:text=old", URL + "#:~:text="),
        (URL + "#part:~:text=old,words", URL + "#part:~:text="),
        ("HTTP://EXAMPLE.TEST/", "HTTP://EXAMPLE.TEST/#:~:text="),
    ],
)
def test_a_fragment_of_the_url_is_kept_and_an_old_directive_is_not(url: str, begins: str) -> None:
    [link] = links(document(("paragraph", "Some words here.")), url)
    assert link.startswith(begins)
    assert link.count(":~:") == 1


@pytest.mark.parametrize(
    "url",
    [
        "",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "ftp://example.test/a",
        "https://",
        "http://[bad",
    ],
)
def test_only_web_addresses_become_links(url: str) -> None:
    assert links(document(("paragraph", "Some words here.")), url) == [""]


def test_a_page_of_a_pdf_is_named_by_its_number() -> None:
    assert links(document(("paragraph", LONG), page=7), URL + "#page=1") == [f"{URL}#page=7"]


def test_where_there_is_nothing_to_point_at_the_url_itself() -> None:
    chunk = Chunk(0, "prose", (), (Part("context only"),))
    assert anchor(URL, document(("paragraph", "x")), chunk) == URL
    assert anchor(URL + "#part", document(("paragraph", "x")), chunk) == URL + "#part"
    assert links(document(("code", "```\n---\n```", "---"))) == [URL]


def test_a_table_by_one_cell_and_a_listing_by_one_line() -> None:
    table = "| Part | Weight |\n|---|---|\n| brass elbow | 38 |"
    assert terms_of(links(document(("table", table, "Part Weight brass elbow 38")))[0])[0] in {"Part", "brass elbow"}
    code = "```sh\nrecorder stop --now\n```"
    assert terms_of(links(document(("code", code, "recorder stop --now")))[0]) == ["recorder stop --now"]


def test_a_split_table_points_at_the_rows_of_the_chunk() -> None:
    rows = "\n".join(f"| fitting {i:03} | {i} |" for i in range(300))
    doc = document(("table", f"| Part | Weight |\n|---|---|\n{rows}", ""))
    for chunk in chunk_document(doc)[1:]:
        first = terms_of(anchor(URL, doc, chunk))[0]
        assert first in doc.source[chunk.start : chunk.end]


def test_words_that_stand_earlier_too_are_told_apart() -> None:
    """A browser goes to the first place that fits: the link must not lead to another one."""
    sentence = "The keeper writes every trip into the book and the book stays in the house over night"
    doc = document(
        ("paragraph", f"{sentence} in the north."),
        ("heading", "## South", "South"),
        ("paragraph", f"{sentence} in the south."),
    )
    first, second = links(doc)
    assert first != second
    text = " ".join(b.text for b in doc.blocks)
    prefix, *_ = terms_of(second)
    assert prefix.endswith("-")
    assert text.count(prefix.removesuffix("-") + " " + terms_of(second)[1]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "山屋从六月到九月开放；其余时间钥匙存放在村公所，在那里也可以预订炉子用的木柴。每年秋天清扫一次烟囱，请提前告知村公所。",
        "山小屋は六月から九月まで開いています。それ以外の時期は鍵を村役場で預かっており、ストーブ用の薪もそこで注文できます。",
        "ที่พักเปิดตั้งแต่เดือนมิถุนายนถึงกันยายน นอกช่วงเวลานี้กุญแจจะอยู่ที่สำนักงานหมู่บ้าน ซึ่งสามารถสั่งฟืนสำหรับเตาได้ด้วย",
    ],
)
def test_scripts_without_spaces_are_cut_at_clauses(text: str) -> None:
    [link] = links(document(("paragraph", text)))
    start, *end = terms_of(link)
    assert text.startswith(start)
    assert 4 <= len(start) <= 120
    assert not end or end[0] in text
    assert re.match(r"[^\w\u0e00-\u0eff]|$", text[len(start) :])


def test_a_chunk_that_begins_in_the_middle_of_a_block_points_there() -> None:
    doc = document(("paragraph", " ".join(f"Sentence number {i} tells of boat {i}." for i in range(60))))
    for chunk in chunk_document(doc):
        start, end = terms_of(anchor(URL, doc, chunk))
        assert chunk.text.startswith(start)
        assert chunk.text.rstrip().endswith(end)
