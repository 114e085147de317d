"""The reply of fetch_page: typed, framed, small, and the pieces in it once."""

import json

from trawl.pieces import piece_tokens
from trawl.retrieval.tokens import estimate_tokens
from trawl.types import PipelineResult
from trawl_mcp.reply import ENVELOPE_TOKENS, Reply, failure, reply_to, wire_tokens


def piece(text: str, heading: str = "Part > Section", score: float | None = 0.9) -> dict:
    return {
        "text": text,
        "heading": heading,
        "heading_path": heading.split(" > "),
        "score": score,
        "char_count": len(text),
        "chunk_index": 0,
        "kind": "prose",
        "spans": [[0, len(text)]],
        "start": 0,
        "end": len(text),
        "tokens": estimate_tokens(text),
        "anchor": "https://example.org/page#:~:text=some,words",
        "content_p": 1.0,
    }


def result(*pieces: dict, **fields: object) -> PipelineResult:
    known = {"final_url": "https://example.org/page", "status": 200, "page_title": "A page", "n_chunks_total": 9}
    return PipelineResult(url="https://example.org/page", query="q", chunks=list(pieces), **{**known, **fields})


def test_what_the_page_wrote_lies_between_the_marks():
    wire = reply_to(result(piece("one"), piece("two"), warnings=["w"]), 1000).wire()
    names = list(wire)
    begins, ends = names.index("untrusted_begins"), names.index("untrusted_ends")
    assert names[begins + 1 : ends] == ["url", "warnings", "page_title", "chunks"]
    assert ends == len(names) - 1
    nonce = wire["untrusted_begins"].removeprefix("<<")
    assert wire["untrusted_ends"] == f"{nonce}>>"
    assert nonce not in json.dumps(wire["chunks"])
    assert wire["content_boundary"]["type"] == "untrusted_webpage_text"
    assert set(wire["content_boundary"]) == {"type", "applies_to", "instruction"}


def test_every_call_has_its_own_mark():
    assert reply_to(result(), 10).untrusted_begins != reply_to(result(), 10).untrusted_begins


def test_the_pieces_travel_once():
    text = "a sentence that stands here only once"
    assert json.dumps(reply_to(result(piece(text)), 1000).wire()).count(text) == 1


def test_a_reply_never_costs_more_than_its_budget_and_the_envelope():
    pieces = [piece("word " * 200, heading="h" * 300) for _ in range(20)]
    many = result(*pieces, page_title="t" * 5000, error="e" * 5000, warnings=["w" * 5000] * 10, content_type="c" * 50)
    for budget in (50, 300, 1000):
        reply = reply_to(many, budget)
        assert wire_tokens(reply) <= budget + ENVELOPE_TOKENS
        assert reply.n_chunks_returned == len(reply.chunks)


def test_the_envelope_alone_stays_within_its_tokens():
    worst = result(page_title="題" * 5000, error="é" * 5000, warnings=["ж" * 5000] * 10, more="m" * 12)
    assert wire_tokens(reply_to(worst, 1)) <= 1 + ENVELOPE_TOKENS


def test_control_sequences_do_not_reach_the_model():
    wire = json.dumps(reply_to(result(piece("a\x1b[2Jb\U000e0041"), page_title="t\x07\u202ex"), 1000).wire())
    assert "\\u001b" not in wire
    assert "\\udb40" not in wire.lower()
    assert "\\u202e" not in wire


def test_a_failure_says_why_and_is_framed_too():
    wire = failure("guard: no", "refused").wire()
    assert wire["ok"] is False
    assert wire["error"] == "guard: no"
    names = list(wire)
    assert names.index("untrusted_begins") < names.index("error") < names.index("untrusted_ends")


def test_the_wire_form_is_a_valid_reply():
    assert Reply.model_validate(reply_to(result(piece("x")), 1000).wire()).chunks[0].text == "x"


def test_links_give_way_before_pieces_do():
    pieces = [piece(f"piece {i} " + "word " * 40, heading="A page > Section") for i in range(20)]
    budget = sum(piece_tokens(p["text"], p["heading_path"], "A page") for p in pieces)
    wire = reply_to(result(*pieces), budget).wire()
    assert len(wire["chunks"]) == 20
    linked = ["link" in c for c in wire["chunks"]]
    assert linked == sorted(linked, reverse=True)
    assert linked[0]
    assert not linked[-1]


def test_the_page_title_is_not_repeated_with_every_piece():
    wire = reply_to(result(piece("x", heading="A page > Section"), piece("y", heading="Other > Section")), 1000).wire()
    assert [c["heading"] for c in wire["chunks"]] == ["Section", "Other > Section"]
