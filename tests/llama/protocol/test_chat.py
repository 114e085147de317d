"""A request becomes the body that servers agree on; a reply in any portions becomes the answer, or one typed error."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest

from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama.protocol import chat
from trawl.llama.protocol.chat import ChatReply, ChatRequest, Delta, Image, Message, ReplyReader, chat_body
from trawl.llama.protocol.replies import InputTooLarge, KeyRefused


def body(extras: bool = True, **fields: Any) -> dict[str, Any]:
    request = ChatRequest("m", [Message("user", "Hello")], **fields)
    return json.loads(chat_body(request, extras=extras))  # type: ignore[no-any-return]


def test_a_chat_always_streams_and_thinks_only_when_told() -> None:
    assert body() == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert body(enable_thinking=True)["chat_template_kwargs"] == {"enable_thinking": True}
    assert "chat_template_kwargs" not in body(enable_thinking=None)


def test_every_field_reaches_the_body_also_when_it_is_zero() -> None:
    sent = body(max_tokens=5, temperature=0.0, id_slot=0, cache_prompt=False)
    assert (sent["max_tokens"], sent["temperature"], sent["id_slot"], sent["cache_prompt"]) == (5, 0.0, 0, False)


def test_a_schema_travels_in_the_form_of_openai() -> None:
    schema = {"type": "object"}
    sent = body(json_schema=schema)["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"] == schema
    assert sent["json_schema"]["name"]


def test_without_extras_the_body_holds_nothing_of_llama_servers_own() -> None:
    sent = body(extras=False, id_slot=1, cache_prompt=True, max_tokens=3)
    assert set(sent) == {"model", "messages", "stream", "max_tokens"}


def test_pictures_travel_inside_the_message() -> None:
    request = ChatRequest("m", [Message("user", "What is it?", [Image(b"\x89PNG"), Image(b"jpg", "image/jpeg")])])
    text, png, jpeg = json.loads(chat_body(request))["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert png["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    assert jpeg["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert "PNG" not in repr(request)


def test_a_body_is_valid_json_whatever_the_text() -> None:
    sent = json.loads(chat_body(ChatRequest("m", [Message("user", "a \ud800 \0 😀")])).decode("utf-8"))
    assert sent["messages"][0]["content"] == "a \ufffd   😀"


def event(delta: Any = None, finish: Any = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
ANSWER = (
    event({"role": "assistant", "content": None})
    + b": ping\n\n"
    + event({"content": "Grüße, "})
    + event({"content": "世界 😀"}).replace(b"\n", b"\r\n")
    + event({}, "stop", timings={"predicted_n": 3})
    + b'data: {"choices":[],"usage":{"total_tokens":9}}\n\n'
    + DONE
)


def read(*portions: bytes) -> tuple[ChatReply, list[Delta]]:
    reader = ReplyReader("http://h/v1/chat/completions")
    deltas = []
    for portion in portions:
        deltas += reader.feed(portion)
        if reader.done:
            break
    else:
        deltas += reader.end()
    assert reader.done
    return reader.reply, deltas


def test_a_stream_cut_at_any_byte_gives_the_same_answer() -> None:
    for at in range(len(ANSWER) + 1):
        reply, deltas = read(ANSWER[:at], ANSWER[at:])
        assert reply == ChatReply("Grüße, 世界 😀", "stop")
        assert deltas == [Delta("Grüße, "), Delta("世界 😀")]
    assert read(*(ANSWER[i : i + 1] for i in range(len(ANSWER))))[0].text == "Grüße, 世界 😀"


def test_a_piece_is_given_as_soon_as_it_has_come() -> None:
    reader = ReplyReader()
    assert reader.feed(event({"content": "a"})) == [Delta("a")]
    assert reader.reply == ChatReply("a", None)
    assert not reader.done


def test_thinking_is_kept_apart_from_the_answer() -> None:
    reply, deltas = read(event({"reasoning_content": "Hm."}), event({"content": "Yes."}), event({}, "stop"), DONE)
    assert reply.text == "Yes."
    assert deltas == [Delta("Hm.", thinking=True), Delta("Yes.")]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_thinking_stands_in_for_an_answer_that_is_empty(key: str, content: Any) -> None:
    reply, _ = read(event({key: "It is "}), event({key: "blue.", "content": content}), event({}, "length"), DONE)
    assert reply == ChatReply("It is blue.", "length")


def test_an_empty_answer_is_an_answer() -> None:
    assert read(event({"role": "assistant"}), event({}, "stop"), DONE)[0] == ChatReply("", "stop")


def test_a_stream_may_end_without_the_word_when_it_has_said_why() -> None:
    assert read(event({"content": "a"}), event({}, "stop"))[0] == ChatReply("a", "stop")
    assert read(event({"content": "a"}), event({}, "stop").rstrip())[0] == ChatReply("a", "stop")


def test_a_stream_may_end_with_the_word_alone() -> None:
    assert read(event({"content": "a"}), b"data:[DONE]")[0] == ChatReply("a", None)


def test_what_follows_the_end_is_not_read() -> None:
    assert read(event({"content": "a"}) + DONE + event({"content": "b"}))[0].text == "a"


def test_a_stream_that_breaks_off_is_unavailable() -> None:
    with pytest.raises(ModelUnavailable, match="in the middle"):
        read(event({"content": "a"}), event({"content": "b"}))


@pytest.mark.parametrize("text", ["Grüße", [{"type": "text", "text": "Grü"}, {"type": "text", "text": "ße"}]])
def test_a_reply_that_is_one_object_is_understood_in_any_portions(text: Any) -> None:
    message = {"role": "assistant", "content": text, "reasoning_content": "Hm."}
    whole = b" \n" + json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    for at in range(len(whole) + 1):
        reply, deltas = read(whole[:at], whole[at:])
        assert reply == ChatReply("Grüße", "stop")
        assert deltas == [Delta("Hm.", thinking=True), Delta("Grüße")]


def test_a_stream_of_one_whole_message_is_understood() -> None:
    whole = {"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}
    assert read(b"data: " + json.dumps(whole).encode() + b"\n\n", DONE)[0] == ChatReply("Yes.", "stop")


def test_text_that_no_file_can_hold_is_made_sound() -> None:
    reply, _ = read(b'data: {"choices":[{"delta":{"content":"a\\ud800b\\u0000"},"finish_reason":"stop"}]}\n\n')
    assert reply.text == "a\ufffdb "


UNUSABLE = {
    "nothing": b"",
    "line ends": b"\n\r\n\n",
    "words": b"service is starting",
    "a web page": b"<!DOCTYPE html><html><body>It works!</body></html>",
    "only comments": b": ping\n\n: ping\n\n",
    "only the end": DONE,
    "only the usage": b'data: {"choices":[],"usage":{}}\n\n' + DONE,
    "an event that is no JSON": event({"content": "a"}) + b"data: oops\n\n" + DONE,
    "an event that is cut": event({"content": "a"}) + b'data: {"choices":[{"del\n\n' + DONE,
    "an event that is a list": b"data: [1]\n\n" + DONE,
    "an event that is null": b"data: null\n\n" + DONE,
    "very deep": b"data: " + b"[" * 200_000 + b"\n\n",
    "choices are text": b'data: {"choices":"x"}\n\n' + DONE,
    "choices are numbers": b'data: {"choices":[1]}\n\n' + DONE,
    "choices are an object": b'data: {"choices":{"0":{}}}\n\n' + DONE,
    "delta is text": b'data: {"choices":[{"delta":"x"}]}\n\n' + DONE,
    "delta is a list": b'data: {"choices":[{"delta":["x"]}]}\n\n' + DONE,
    "content is a number": event({"content": 5}) + DONE,
    "content is an object": event({"content": {"a": 1}}) + DONE,
    "reasoning is a number": event({"reasoning_content": 5}) + DONE,
    "an object without choices": b'{"id":"x"}',
    "an object with no choice": b'{"choices":[]}',
    "an object with an empty choice": b'{"choices":[{}]}',
    "an object without a message": b'{"choices":[{"finish_reason":"stop"}]}',
    "an object with an empty message": b'{"choices":[{"message":{}}]}',
    "an object with a message of null": b'{"choices":[{"message":null}]}',
    "an object that is cut": b'{"choices":[{"message":{"content":"a"',
    "an object with a bad message": b'{"choices":[{"message":[]}]}',
    "an object with an error": b'{"error":{"message":"no model"}}',
    "a list": b"[]",
    "an error event": event({"content": "a"}) + b'data: {"error":{"message":"it broke","code":500}}\n\n',
    "an error field": event({"content": "a"}) + b'error: {"message":"it broke","code":500}\n\n',
    "a named error": event({"content": "a"}) + b'event: error\ndata: {"detail":"it broke"}\n\n',
    "a named error in words": event({"content": "a"}) + b"event: error\ndata: it broke\n\n",
}


@pytest.mark.parametrize("stream", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_reply_is_one_typed_error(stream: bytes) -> None:
    for portions in ([stream], [stream[:7], stream[7:]]):
        with pytest.raises(ModelReplyInvalid) as caught:
            read(*portions)
        assert "http://h/v1/chat/completions" in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "message": "Loading model"}, ModelUnavailable),
        ({"code": 429, "message": "slow down"}, ModelUnavailable),
        ({"code": 401, "message": "who are you?"}, KeyRefused),
        ({"code": 400, "message": "context size exceeded", "n_ctx": 2048}, InputTooLarge),
        ({"code": "context_length_exceeded", "message": "maximum context length is 2048 tokens"}, InputTooLarge),
        ({"message": "unlucky"}, ModelReplyInvalid),
    ],
)
def test_an_error_inside_the_stream_is_the_same_as_one_before_it(error: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        read(event({"content": "a"}), b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
    assert getattr(caught.value, "limit", 2048) == 2048


@pytest.mark.parametrize("portion", [event({"content": "x" * 4000}), b": ping\n\n" * 500, b"{" + b" " * 4000])
def test_a_reply_without_end_is_refused(portion: bytes) -> None:
    with pytest.raises(ModelReplyInvalid, match="larger"):
        read(*itertools.repeat(portion, chat.MAX_STREAM_BYTES // 4000 + 2))
