"""Markdown input: the source is the text itself, and code is never taken for structure."""

from __future__ import annotations

import time

import pytest

from trawl.extraction.markdown_text import markdown_document


def kinds(text: str) -> list[tuple[str, str]]:
    return [(b.kind, b.text) for b in markdown_document(text).blocks]


def test_source_is_the_text_itself() -> None:
    text = "# T\r\n\r\npara *x*\r\n\r\n- a\r\n  - b\r\n"
    document = markdown_document(text)
    assert document.source == text
    assert [text[b.start : b.end] for b in document.blocks] == ["# T", "para *x*", "- a", "  - b"]
    assert document.title == "T"


@pytest.mark.parametrize("opening", ["```", "~~~", "````", "```sh"])
def test_hash_in_a_fence_is_code(opening: str) -> None:
    fence = opening.rstrip("sh")
    assert kinds(f"# A\n\n{opening}\n# not a heading\n```x\n{fence}\n\n# B") == [
        ("heading", "A"),
        ("code", "# not a heading\n```x"),
        ("heading", "B"),
    ]


def test_hash_in_indented_code_is_code() -> None:
    assert kinds("text\n\n    # not a heading\n\nmore") == [
        ("paragraph", "text"),
        ("code", "# not a heading"),
        ("paragraph", "more"),
    ]


def test_tables_quotes_and_lists_keep_their_kind() -> None:
    document = markdown_document("> q\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n1. x\n   1. y")
    assert [(b.kind, b.level) for b in document.blocks] == [("quote", 0), ("table", 0), ("list", 1), ("list", 2)]


def test_links_are_absolute_and_literal() -> None:
    document = markdown_document("see [the *page*](/p) and [x](y.md)", url="https://example.test/a/b")
    assert [(link.url, link.text) for link in document.links] == [
        ("https://example.test/p", "the page"),
        ("https://example.test/a/y.md", "x"),
    ]
    assert document.source[document.links[1].start : document.links[1].end] == "x"


def test_a_paragraph_of_brackets_takes_no_time() -> None:
    started = time.process_time()
    assert len(markdown_document("[" * 500_000).blocks) == 1
    assert time.process_time() - started < 5


@pytest.mark.parametrize("text", ["", " \n", "\0", "> " * 3_000 + "x", "- " * 3_000 + "x", "[" * 5_000, "*a " * 5_000])
def test_odd_text_is_no_error(text: str) -> None:
    assert markdown_document(text).source == text
