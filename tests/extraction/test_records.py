"""Repeated items are found by their markup, and what one says stays together."""

from __future__ import annotations

import pytest

from trawl.chunking import chunk_document
from trawl.extraction.html import html_document
from trawl.types import Document

SENTENCE = "A longer sentence that stands in the page so that there is something to read. "


def page(body: str) -> Document:
    return html_document(f"<html><head><title>T</title></head><body>{body}</body></html>", url="https://a.test/")


def records(document: Document) -> list[str]:
    return [c.text for c in chunk_document(document) if c.record]


CARDS = {
    "a date stands before the heading": "".join(
        f"<section class=ev><time>{d} June</time><h3>{n}</h3><p>On the green.</p></section>"
        for d, n in ((3, "Fair"), (9, "Regatta"), (21, "Solstice"))
    ),
    "the whole card is one link around blocks": "".join(
        f"<a class=card href=/{n}><h3>{n}</h3><div>Two beds, stove</div><div>{d} June</div></a>"
        for d, n in ((3, "Fair"), (9, "Regatta"), (21, "Solstice"))
    ),
    "the whole card is one link around inline elements": "".join(
        f"<a class=card href=/{n}><span>{n}</span><span>Two beds, stove</span><span>{d} June</span></a>"
        for d, n in ((3, "Fair"), (9, "Regatta"), (21, "Solstice"))
    ),
    "items differ in a class of their own": "".join(
        f"<article class='product product-{d}'><h3>{n}</h3><p>Two beds, stove</p><p>{d} June</p></article>"
        for d, n in ((3, "Fair"), (9, "Regatta"), (21, "Solstice"))
    ),
    "articles without a class": "".join(
        f"<article><h3>{n}</h3><p>Two beds, stove</p><p>{d} June</p></article>"
        for d, n in ((3, "Fair"), (9, "Regatta"), (21, "Solstice"))
    ),
}


@pytest.mark.parametrize("body", CARDS.values(), ids=CARDS.keys())
def test_each_item_is_one_chunk(body: str) -> None:
    found = records(page(f"<main><h1>List</h1><div class=list>{body}</div></main>"))
    assert len(found) == 3
    assert all(said in found[1] for said in ("Regatta", "9 June"))
    assert not any(said in found[1] for said in ("Fair", "21 June"))


def test_inline_fields_of_a_card_are_parted() -> None:
    text = page(f"<main><h1>List</h1>{CARDS['the whole card is one link around inline elements']}</main>").text
    assert "Regatta Two beds, stove 9 June" in text


def test_posts_and_the_replies_in_them_are_records_of_their_own() -> None:
    def post(name: str, text: str, replies: str = "") -> str:
        return f"<div class=comment><p><a>{name}</a> <i>today</i></p><form><p>{text}</p></form>{replies}</div>"

    thread = post("ann", "Bleed it twice.", f"<div class=child>{post('ben', 'Heat it before.')}</div>")
    document = page(f"<div class=thread><h1>Brakes</h1>{thread}{post('cid', 'Never use an open can.')}</div>")
    assert [" ".join(t.split()) for t in records(document)] == [
        "ann today Bleed it twice.", "ben today Heat it before.", "cid today Never use an open can.",
    ]  # fmt: skip
    assert "Never use an open can." in document.text


@pytest.mark.parametrize(
    "body",
    [
        "<nav>" + "<div class=item><b>One</b><p>Two words here</p></div>" * 4 + "</nav>",
        "<article>" + f"<div class=w><p>{SENTENCE}</p></div>" * 4 + "</article>",
        "<main>" + "<span class=tag>one</span>" * 9 + "</main>",
        "<main>" + f"<section class=s><h2>Part</h2><p>{SENTENCE * 12}</p></section>" * 4 + "</main>",
    ],
    ids=["navigation", "wrapped paragraphs", "tags", "sections of a text"],
)
def test_what_only_looks_repeated_is_no_record(body: str) -> None:
    assert not records(page(f"<h1>Head</h1>{body}"))
