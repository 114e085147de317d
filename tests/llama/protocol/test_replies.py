"""What goes wrong at any endpoint is one typed error, told apart by what the caller can do about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama.protocol import bodies, embeddings, replies, server
from trawl.llama.protocol.replies import InputTooLarge, KeyRefused


@pytest.mark.parametrize("status", [401, 403, 408, 429, 502, 503, 504])
def test_a_server_that_cannot_serve_now_is_unavailable(status: int) -> None:
    body = json.dumps({"error": {"message": "quota exceeded"}}).encode()
    with pytest.raises(ModelUnavailable, match=f"{status}: quota exceeded"):
        replies.reply_object(status, body, None)


@pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 400, 404, 405, 418, 500])
@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b'{"error":{"message":"no"}}', b'{"detail":"no"}', b"[1]"])
def test_any_other_status_is_an_invalid_reply(status: int, body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid):
        replies.reply_object(status, body, None)


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
        replies.reply_object(status, json.dumps(error).encode(), None)
    assert caught.value.limit == limit


def test_what_a_server_says_is_short_and_printable_in_a_message() -> None:
    body = json.dumps({"error": {"message": "\x1b[31mred\x07\n\u202edetrever " + "x" * 10_000}}).encode()
    with pytest.raises(ModelReplyInvalid) as caught:
        replies.reply_object(500, body, None)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_told_apart(status: int) -> None:
    with pytest.raises(KeyRefused):
        replies.reply_object(status, b"<html>no</html>", None)


def test_a_web_page_is_called_one() -> None:
    with pytest.raises(ModelReplyInvalid, match="a web page instead of JSON"):
        replies.reply_object(200, b"  <!DOCTYPE html><html>It works!</html>", None)


def test_a_body_is_valid_json_whatever_the_text() -> None:
    odd = "a \ud800 b \udfff \0 \x1b \u2028 😀"
    for body in (embeddings.embeddings_body("m", [odd]), server.tokenize_body(odd)):
        json.loads(body.decode("utf-8"))
    cleaned = bodies.clean_text(odd)
    assert cleaned.encode()
    assert "\0" not in cleaned
    assert "😀" in cleaned
