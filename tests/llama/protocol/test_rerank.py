"""Every reply with scores becomes finite scores in the order of the documents, or one typed error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama.protocol import rerank
from trawl.llama.protocol.replies import REPLY_BASE_BYTES, InputTooLarge


def result(index: Any, score: Any, key: str = "relevance_score") -> dict[str, Any]:
    return {"index": index, key: score}


def good(*results: Any) -> bytes:
    return json.dumps({"results": list(results)}).encode()


def parse(body: bytes, status: int = 200) -> list[float]:
    return rerank.parse_rerank(status, body, count=2, url="http://h/v1/rerank")


def test_the_body_is_what_every_rerank_server_takes() -> None:
    body = json.loads(rerank.rerank_body("m", "why?", ["because", "\ud800 odd \0"]))
    assert (body["model"], body["query"], body["documents"][0]) == ("m", "why?", "because")
    assert set(body) == {"model", "query", "documents"}


SERVERS = {
    "llama-server, Jina, Cohere": {"results": [result(1, -3.5), result(0, 8)]},
    "vLLM, Infinity": {"id": "x", "results": [{**result(1, -3.5), "document": {"text": "b"}}, result(0, 8)]},
    "with score": {"results": [result(1, -3.5, "score"), result(0, 8, "score")]},
    "Voyage": {"object": "list", "data": [result(1, -3.5), result(0, 8)]},
    "text-embeddings-inference": [result(1, -3.5, "score"), result(0, 8, "score")],
}


@pytest.mark.parametrize("reply", SERVERS.values(), ids=SERVERS.keys())
def test_scores_come_in_the_order_of_the_documents_from_every_kind_of_server(reply: Any) -> None:
    assert parse(json.dumps(reply).encode()) == [8.0, -3.5]


UNUSABLE = {
    "nothing": b"",
    "null": b"null",
    "an empty list": b"[]",
    "a number": b"5",
    "no results": b"{}",
    "results are null": b'{"results": null}',
    "results are text": b'{"results": "x"}',
    "results are an object": b'{"results": {"0": 1, "1": 2}}',
    "too few": good(result(0, 1)),
    "too many": good(result(0, 1), result(1, 2), result(2, 3)),
    "results are numbers": good(0.5, 0.6),
    "results are null each": good(None, None),
    "no index": good({"relevance_score": 1}, result(1, 2)),
    "duplicate index": good(result(0, 1), result(0, 2)),
    "index too high": good(result(0, 1), result(2, 2)),
    "negative index": good(result(0, 1), result(-1, 2)),
    "index is text": good(result("0", 1), result("1", 2)),
    "index is a fraction": good(result(0.0, 1), result(1.0, 2)),
    "index is a truth value": good(result(False, 1), result(True, 2)),
    "no score": good({"index": 0}, result(1, 2)),
    "score is null": good(result(0, None), result(1, 2)),
    "score is text": good(result(0, "0.5"), result(1, 2)),
    "score is a truth value": good(result(0, True), result(1, 2)),
    "score is a list": good(result(0, [0.5]), result(1, 2)),
    "NaN": b'{"results":[{"index":0,"relevance_score":NaN},{"index":1,"relevance_score":2}]}',
    "infinity": b'{"results":[{"index":0,"relevance_score":-Infinity},{"index":1,"relevance_score":2}]}',
    "beyond a double": b'{"results":[{"index":0,"relevance_score":1e999},{"index":1,"relevance_score":2}]}',
    "an integer beyond a double": good(result(0, 10**400), result(1, 2)),
    "cut short": good(result(0, 1), result(1, 2))[:-5],
    "trailing rubbish": good(result(0, 1), result(1, 2)) + b"}",
    "not UTF-8": b'{"results": "\xff\xfe"}',
    "very deep": b"[" * 200_000,
    "a web page": b"<!DOCTYPE html><html><body>It works!</body></html>",
    "an error with status 200": b'{"error": {"message": "no model"}}',
}


@pytest.mark.parametrize("body", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_reply_is_one_typed_error(body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid) as caught:
        parse(body)
    assert "http://h/v1/rerank" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_server_without_a_reranker_says_so() -> None:
    body = b'{"error":{"code":501,"message":"This server does not support reranking.","type":"not_supported_error"}}'
    with pytest.raises(ModelReplyInvalid, match="does not support reranking"):
        parse(body, 501)


def test_a_document_that_is_too_long_is_told_apart() -> None:
    body = b'{"error":{"code":500,"message":"input (802 tokens) is too large to process (current batch size: 512)"}}'
    with pytest.raises(InputTooLarge) as caught:
        parse(body, 500)
    assert caught.value.limit == 512


def test_a_server_that_is_loading_is_unavailable() -> None:
    with pytest.raises(ModelUnavailable, match="Loading model"):
        parse(b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', 503)


def test_a_reply_that_repeats_the_documents_escaped_stays_below_its_limit() -> None:
    documents = ["\x01" * 1000, "語" * 1000]
    body = rerank.rerank_body("m", "q", documents)
    reply = json.dumps({"results": [{**result(i, 0.5), "document": {"text": d}} for i, d in enumerate(documents)]})
    assert len(reply) < rerank.rerank_reply_limit(body, 2) - REPLY_BASE_BYTES
