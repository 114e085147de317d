"""Every reply with vectors becomes checked vectors in the order of the inputs, or one typed error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trawl.errors import ModelReplyInvalid
from trawl.llama.protocol import embeddings


def item(index: Any, embedding: Any) -> dict[str, Any]:
    return {"index": index, "embedding": embedding}


def good(*items: Any) -> bytes:
    return json.dumps({"data": list(items)}).encode()


def test_vectors_come_in_the_order_of_the_inputs_whatever_the_order_of_the_reply() -> None:
    body = good(item(2, [3, 3]), item(0, [1, 1.5]), item(1, [2, 2]))
    assert embeddings.parse_embeddings(200, body, count=3, dimension=2) == [[1, 1.5], [2, 2], [3, 3]]


UNUSABLE = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"5",
    "no data": b"{}",
    "data is null": b'{"data": null}',
    "data is text": b'{"data": "x"}',
    "too few": good(item(0, [1, 2])),
    "too many": good(item(0, [1, 2]), item(1, [1, 2]), item(2, [1, 2])),
    "items are not objects": good(1, 2),
    "items are null": good(None, None),
    "no index": good({"embedding": [1, 2]}, item(1, [1, 2])),
    "duplicate index": good(item(0, [1, 2]), item(0, [1, 2])),
    "index too high": good(item(0, [1, 2]), item(2, [1, 2])),
    "negative index": good(item(0, [1, 2]), item(-1, [1, 2])),
    "index is text": good(item("0", [1, 2]), item("1", [1, 2])),
    "index is a fraction": good(item(0.0, [1, 2]), item(1.0, [1, 2])),
    "index is a truth value": good(item(False, [1, 2]), item(True, [1, 2])),
    "no embedding": good({"index": 0}, item(1, [1, 2])),
    "embedding is null": good(item(0, None), item(1, [1, 2])),
    "embedding is empty": good(item(0, []), item(1, [])),
    "embedding is base64": good(item(0, "AAAA"), item(1, "AAAA")),
    "embedding is nested": good(item(0, [[1, 2]]), item(1, [[1, 2]])),
    "a number is null": good(item(0, [1, None]), item(1, [1, 2])),
    "a number is text": good(item(0, [1, "2"]), item(1, [1, 2])),
    "a number is a truth value": good(item(0, [1, True]), item(1, [1, 2])),
    "NaN": b'{"data":[{"index":0,"embedding":[1,NaN]},{"index":1,"embedding":[1,2]}]}',
    "infinity": b'{"data":[{"index":0,"embedding":[1,-Infinity]},{"index":1,"embedding":[1,2]}]}',
    "beyond a double": b'{"data":[{"index":0,"embedding":[1,1e999]},{"index":1,"embedding":[1,2]}]}',
    "an integer beyond a double": good(item(0, [1, 10**400]), item(1, [1, 2])),
    "an integer of 5000 digits": b'{"data":[{"index":0,"embedding":[' + b"9" * 5000 + b"]}]}",
    "all zeros": good(item(0, [0, 0.0]), item(1, [1, 2])),
    "wrong dimension": good(item(0, [1, 2, 3]), item(1, [1, 2, 3])),
    "different dimensions": good(item(0, [1, 2]), item(1, [1, 2, 3])),
    "cut short": good(item(0, [1, 2]), item(1, [1, 2]))[:-7],
    "trailing rubbish": good(item(0, [1, 2]), item(1, [1, 2])) + b"}",
    "not UTF-8": b'{"data": "\xff\xfe"}',
    "very deep": b"[" * 200_000,
    "a web page": b"<!DOCTYPE html><html><body>It works!</body></html>",
    "an error with status 200": b'{"error": {"message": "no model"}}',
    "an error text with status 200": b'{"error": "no model"}',
}


@pytest.mark.parametrize("body", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_reply_is_one_typed_error(body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid) as caught:
        embeddings.parse_embeddings(200, body, count=2, dimension=2, url="http://h/v1/embeddings")
    assert "http://h/v1/embeddings" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_vectors_of_different_lengths_are_refused_also_when_no_dimension_is_known() -> None:
    with pytest.raises(ModelReplyInvalid):
        embeddings.parse_embeddings(200, good(item(0, [1, 2]), item(1, [1, 2, 3])), count=2, dimension=None)


def test_an_absurd_dimension_is_refused() -> None:
    body = good(item(0, [1] * (embeddings.MAX_DIMENSION + 1)))
    with pytest.raises(ModelReplyInvalid):
        embeddings.parse_embeddings(200, body, count=1, dimension=None)
