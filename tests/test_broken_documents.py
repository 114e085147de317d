"""Whatever is read, the promises about it hold: typed errors only, literal slices, budgets kept, everything told once.

The inputs are made by a seeded generator of broken HTML, Markdown, JSON and XML, and by damage done to a real page.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import trawl
from trawl import Engine, Settings
from trawl.chunking import chunk_document
from trawl.errors import TrawlError
from trawl.extraction.dom import names
from trawl.types import Document

SEEDS = 120
SECONDS = 5.0
BUDGET = 200
URL = "https://broken.test/page"

TAGS = sorted(
    names(
        "div p span a b i em ul ol li dl dt dd table tr td th thead tbody caption pre code blockquote h1 h2 h3 section"
        " article main nav form label button select option textarea template svg math mi script style noscript details"
        " summary figure img br hr sup ruby rt q center plaintext xmp title base x-y dialog"
    )
)
ATTRIBUTES = (
    "class=card", "class='nav menu'", "id='S:0'", "href='/x y(z'", "href=#a", "href='http://[::1'", "colspan=1000",
    "rowspan=0", "rowspan=99999", "hidden", "style='display:none'", "style=display:block", "role=row", "role=table",
    "role=cell", "role=listitem", "role=list", "role=heading aria-level=99", "alt='a | b\n# c'", "start=-5",
    "shadowrootmode=open", "class=gutter", "data-lang='a`b'", "class=comment", "type=checkbox disabled",
)  # fmt: skip
WORDS = (
    "alpha", "beta", "|", "`", "```", "~~~~", "*", "**x**", "_", "# head", "- item", "1. one", "> q", "\\", "\\(a_1\\)",
    "$x_{1}$", "&amp;", "&#0;", "<", "]]>", "<!--", "-->", "[a](b)", "![x](y)", "烟囱", "水泵每天早晨六点自动启动。",
    "สวัสดีครับ", "שלום", "e\u0301", "\u200d", "\u00ad", "\u202e", "\ufdd0", "\ufdd1**", "\0", "\x85", "\u2028",
    "\r\n", "\n\n", "\t", "x" * 300, "Mr. X. said. Ok!", "-----", "| a | b |\n|---|---|\n| 1 | 2 |", "~~~\n# x\n~~~",
    "    indented", "</p>", "{", "}",
)  # fmt: skip


def words(r: random.Random, most: int) -> str:
    return " ".join(r.choice(WORDS) for _ in range(r.randint(1, most)))


def broken_html(r: random.Random, length: int) -> str:
    out: list[str] = []
    opened: list[str] = []
    for _ in range(length):
        kind = r.random()
        if kind < 0.4:
            tag = r.choice(TAGS)
            attributes = "".join(f" {r.choice(ATTRIBUTES)}" for _ in range(r.choice([0, 0, 1, 1, 3])))
            out.append(f"<{tag}{attributes}{r.choice(['>', '>', '>', '/>', ''])}")
            opened.append(tag)
        elif kind < 0.65 and opened:
            out.append(f"</{opened.pop(r.choice([-1, -1, 0]))}>")
        else:
            out.append(words(r, 8))
    return "".join(out)


def any_json(r: random.Random, depth: int = 0) -> Any:
    kind = r.random()
    if depth > 5 or kind < 0.3:
        return r.choice([1, -2.5e300, None, True, "", words(r, 4), f"<p>{words(r, 4)}</p>", "&lt;p&gt;x&lt;/p&gt;"])
    if kind < 0.65:
        return {words(r, 1): any_json(r, depth + 1) for _ in range(r.randint(0, 5))}
    return [any_json(r, depth + 1) for _ in range(r.randint(0, 5))]


def broken_feed(r: random.Random) -> str:
    items = []
    for _ in range(r.randint(1, 6)):
        body = r.choice([f"<![CDATA[{broken_html(r, 20)}]]>", "&lt;p&gt;x &amp;amp; y&lt;/p&gt;", words(r, 6)])
        items.append(f"<item><title>{words(r, 2)}</title><description>{body}</description>{r.choice(['</item>', ''])}")
    return f"<rss><channel><title>t</title>{''.join(items)}{r.choice(['</channel></rss>', ''])}"


def damaged(r: random.Random, page: bytes) -> bytes:
    body = bytearray(page)
    for _ in range(r.choice([1, 5, 40])):
        at = r.randrange(len(body))
        kind = r.random()
        if kind < 0.4:
            body[at] = r.randrange(256)
        elif kind < 0.7:
            del body[at : at + r.choice([1, 10, 1_000])]
        else:
            body[at:at] = r.choice([b"<div>", b"</div>", b"<table>", b'"', b"<!--", b"\0", b"<svg>", b"\xff\xfe"])
        body = body or bytearray(b"x")
    return bytes(body)


def document_of(seed: int, page: bytes) -> tuple[str, bytes]:
    """(content type, body)"""
    r = random.Random(seed)
    kind = seed % 6
    if kind < 2:
        return "text/html", broken_html(r, r.choice([3, 40, 200])).encode()
    if kind == 2:
        return "text/markdown", "\n".join(words(r, 12) for _ in range(r.choice([2, 40]))).encode()
    if kind == 3:
        return "application/json", json.dumps(any_json(r)).encode()[: r.choice([10**9, 60])]
    if kind == 4:
        return "application/rss+xml", broken_feed(r).encode()
    return "text/html", damaged(r, page)


PAGE = (
    "<html><head><title>Tide table</title></head><body><nav><a href=/>Home</a></nav><main><h1>Tides</h1>"
    + "".join(
        f"<h2>Part {n}</h2><p>On day {n} the water <b>rises</b> at {n % 24} o'clock, as <a href='/{n}'>noted</a>. "
        f"It falls later.</p><ul><li>one<ul><li>two</li></ul></li></ul>"
        f"<table><tr><th>Day</th><th>High</th></tr><tr><td>{n}</td><td>4.{n}</td></tr></table><pre>x = {n}\n</pre>"
        for n in range(25)
    )
    + "</main></body></html>"
).encode()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(Settings(embedded=False)) as engine:
        yield engine


def check_slices(document: Document) -> None:
    source = document.source
    ends = [0, *(b.end for b in document.blocks)]
    for block, before in zip(document.blocks, ends, strict=False):
        assert before <= block.start <= block.end <= len(source)
    for link in document.links:
        assert source[link.start : link.end] == link.text
    for chunk in chunk_document(document):
        for part in chunk.parts:
            assert part.start is None or source[part.start : part.end] == part.text


@pytest.mark.parametrize("seed", range(SEEDS))
def test_promises_hold_for_broken_documents(engine: Engine, seed: int) -> None:
    kind, body = document_of(seed, PAGE)
    started = time.process_time()
    result = engine.extract_relevant(body, "alpha water 烟囱", url=URL, content_type=kind, max_tokens=BUDGET)
    assert "internal" not in (result.error or "")
    try:
        document = trawl.extract(body, url=URL, content_type=result.content_type or kind)
    except TrawlError:
        return
    check_slices(document)
    assert isinstance(document.text, str)
    assert not any(mark in document.markdown for mark in "\ufdd0\ufdd1" if mark not in document.source)
    told: set[int] = set()
    spans: list[tuple[int, int]] = []
    for _ in range(40):
        assert result.tokens <= BUDGET
        for piece in result.chunks:
            told.add(piece["chunk_index"])
            for start, end in piece["spans"]:
                assert document.source[start:end] in piece["text"]
                spans.append((start, end))
        if result.more is None:
            assert told == set(range(result.n_chunks_total))
            break
        result = engine.more(result.more, max_tokens=BUDGET)
    spans.sort()
    assert all(a[1] <= b[0] for a, b in pairwise(spans)), "a piece is told twice"
    assert time.process_time() - started < SECONDS
