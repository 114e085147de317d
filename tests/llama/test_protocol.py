"""Every reply a server can give becomes checked values or one typed error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama.protocol import bodies, embeddings, server
from trawl.llama.protocol.replies import InputTooLarge
from trawl.llama.protocol.server import ServedModel


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


@pytest.mark.parametrize("status", [401, 403, 408, 429, 502, 503, 504])
def test_a_server_that_cannot_serve_now_is_unavailable(status: int) -> None:
    body = json.dumps({"error": {"message": "quota exceeded"}}).encode()
    with pytest.raises(ModelUnavailable, match=f"{status}: quota exceeded"):
        embeddings.parse_embeddings(status, body, count=1, dimension=None)


@pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 400, 404, 405, 418, 500])
@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b'{"error":{"message":"no"}}', b'{"detail":"no"}', b"[1]"])
def test_any_other_status_is_an_invalid_reply(status: int, body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid):
        embeddings.parse_embeddings(status, body, count=1, dimension=None)


@pytest.mark.parametrize(
    ("status", "error", "limit"),
    [
        (
            500,
            {
                "error": {
                    "code": 500,
                    "message": "input (2002 tokens) is too large to process. increase the physical batch size"
                    " (current batch size: 512)",
                }
            },
            512,
        ),
        (
            400,
            {"error": {"message": "the request exceeds it", "type": "exceed_context_size_error", "n_ctx": 4096}},
            4096,
        ),
        (413, {"error": "`inputs` must have less than 512 tokens. Given: 1000", "error_type": "Validation"}, 512),
        (400, {"error": {"message": "This model's maximum context length is 8192 tokens, however"}}, 8192),
        (400, {"message": "the input is too long"}, None),
        (413, {}, None),
    ],
)
def test_a_text_that_is_too_long_is_told_apart_with_the_limit_the_server_names(
    status: int, error: dict[str, Any], limit: int | None
) -> None:
    with pytest.raises(InputTooLarge) as caught:
        embeddings.parse_embeddings(status, json.dumps(error).encode(), count=1, dimension=None)
    assert caught.value.limit == limit


def test_what_a_server_says_is_short_and_printable_in_a_message() -> None:
    body = json.dumps({"error": {"message": "\x1b[31mred\x07\n\u202edetrever " + "x" * 10_000}}).encode()
    with pytest.raises(ModelReplyInvalid) as caught:
        embeddings.parse_embeddings(500, body, count=1, dimension=None)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_models_are_read_with_the_extras_of_llama_server() -> None:
    body = {"data": [{"id": "e5", "meta": {"n_ctx": 2048, "n_ctx_train": 512}}, {"id": "b"}]}
    assert server.parse_models(200, json.dumps(body).encode()) == [ServedModel("e5", 512), ServedModel("b")]


@pytest.mark.parametrize("meta", [None, [], {"n_ctx": "512"}, {"n_ctx": True}, {"n_ctx": -1}, {"n_ctx": 10**9}])
def test_extras_that_make_no_sense_are_left_out(meta: Any) -> None:
    body = json.dumps({"data": [{"id": "m", "meta": meta}]}).encode()
    assert server.parse_models(200, body) == [ServedModel("m")]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data":[]}', b'{"data":[{}]}', b'{"data":[{"id":5}]}', b"<html>"]
)
def test_a_list_without_models_is_invalid(body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid):
        server.parse_models(200, body)


def test_tokens_are_read() -> None:
    assert server.parse_tokens(200, b'{"tokens":[0,5,2]}') == [0, 5, 2]


@pytest.mark.parametrize(
    "body", [b"{}", b'{"tokens":5}', b'{"tokens":["a"]}', b'{"tokens":[-1]}', b'{"tokens":[true]}']
)
def test_odd_tokens_are_invalid(body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid):
        server.parse_tokens(200, body)


def test_a_body_is_valid_json_whatever_the_text() -> None:
    odd = "a \ud800 b \udfff \0 \x1b \u2028 😀"
    for body in (embeddings.embeddings_body("m", [odd]), server.tokenize_body(odd)):
        json.loads(body.decode("utf-8"))
    cleaned = bodies.clean_text(odd)
    assert cleaned.encode()
    assert "\0" not in cleaned
    assert "😀" in cleaned
