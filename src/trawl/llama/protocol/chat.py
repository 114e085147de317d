"""Body of `POST /v1/chat/completions`, and its reply, which is a stream: a long answer whose caller has gone ends with
the connection only when it streams (llama-server goes on computing otherwise).

    bytes in any portions -> EventReader -> ReplyReader -> Delta, Delta, … -> ChatReply

A server that answers with one JSON object although a stream was asked for is understood too.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trawl.errors import ModelUnavailable
from trawl.llama.protocol.bodies import clean_text, json_body
from trawl.llama.protocol.replies import invalid, json_value, printable, raise_told, reply_object
from trawl.llama.protocol.sse import Event, EventReader

MAX_STREAM_BYTES = 16 << 20
"""A whole reply; llama-server wraps each token in about 250 bytes, so this is far beyond any `max_tokens` in use."""

_REASONING_KEYS = ("reasoning_content", "reasoning")
"""llama-server and DeepSeek; OpenRouter and newer vLLM."""


@dataclass(frozen=True, slots=True)
class Image:
    """A picture for a vision model. It travels inside the request: a server is never told to fetch anything."""

    data: bytes = field(repr=False)
    media_type: str = "image/png"
    """llama-server reads PNG and JPEG, no WebP."""

    @property
    def url(self) -> str:
        """The picture as a `data:` URL."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant"]
    text: str
    images: Sequence[Image] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What to ask, of whom and how. None leaves a value to the server."""

    model: str
    messages: Sequence[Message]
    max_tokens: int | None = None
    """How long the answer may become; thinking counts."""
    temperature: float | None = None
    json_schema: Mapping[str, Any] | None = None
    """The answer is JSON that fits this schema, where the server can constrain it."""
    enable_thinking: bool | None = False
    """Whether a model that can think aloud first does so; goes to the chat template."""
    id_slot: int | None = None
    """The llama-server slot it is pinned to, so that its cached prompt is found again."""
    cache_prompt: bool | None = None
    """Whether llama-server keeps the prompt for the next request of that slot (its default is yes)."""

    @property
    def extras(self) -> dict[str, Any]:
        """The fields of the body that only llama-server and its like know; others may refuse the request for them."""
        thinking = None if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return _given(chat_template_kwargs=thinking, id_slot=self.id_slot, cache_prompt=self.cache_prompt)


@dataclass(frozen=True, slots=True)
class Delta:
    """A bit more of the answer, or of the thinking before it."""

    text: str
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The whole answer. `finish_reason` is the server's: `stop`, `length` (cut at `max_tokens`), or None."""

    text: str
    finish_reason: str | None


def chat_body(request: ChatRequest, *, extras: bool = True) -> bytes:
    """Body of `POST /v1/chat/completions`; without `extras` one that every OpenAI-compatible server takes."""
    schema = request.json_schema
    return json_body(
        {"model": request.model, "messages": [_message(message) for message in request.messages], "stream": True}
        | _given(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            response_format=None
            if schema is None
            else {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}},
        )
        | (request.extras if extras else {})
    )


def _message(message: Message) -> dict[str, Any]:
    text = clean_text(message.text)
    if not message.images:
        return {"role": message.role, "content": text}
    images = [{"type": "image_url", "image_url": {"url": image.url}} for image in message.images]
    return {"role": message.role, "content": [{"type": "text", "text": text}, *images]}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class ReplyReader:
    """Reads one reply with status 200: give it the bytes in any portions, then `end`, then ask for the `reply`.

    Raises:
        InputTooLarge, ModelUnavailable, ModelReplyInvalid: the server reports an error inside the stream, sends what is
            no chat, too much of it, or stops in the middle.
    """

    def __init__(self, url: str | None = None) -> None:
        self.done = False
        """The server has said that this is all; what follows is of no interest."""
        self._url = url
        self._events = EventReader(url)
        self._size = 0
        self._whole: bytearray | None = None
        """The reply so far, when it is one JSON object (or a web page) instead of a stream."""
        self._begun = False
        self._chat = False
        """An event was a piece of a chat."""
        self._content: list[str] = []
        self._thinking: list[str] = []
        self._finish_reason: str | None = None

    def feed(self, portion: bytes) -> list[Delta]:
        """What `portion` adds to the answer."""
        self._size += len(portion)
        if self._size > MAX_STREAM_BYTES:
            invalid(f"its reply is larger than {MAX_STREAM_BYTES} bytes", self._url)
        if not self._begun and (start := portion.lstrip()):
            self._begun = True
            # No field of an event stream begins like this.
            self._whole = bytearray() if start.startswith((b"{", b"[", b"<")) else None
        if self._whole is not None:
            self._whole += portion
            return []
        return self._add(self._events.feed(portion))

    def end(self) -> list[Delta]:
        """What the end of the reply adds to the answer."""
        if self._whole is not None:
            deltas = self._keep(reply_object(200, bytes(self._whole), self._url))
        else:
            deltas = self._add(self._events.end())
            if self._chat and not self.done and self._finish_reason is None:
                raise ModelUnavailable("it stopped in the middle of its answer", url=self._url)
        self._finish()
        return deltas

    @property
    def reply(self) -> ChatReply:
        """The answer; the thinking stands in for it when a model put everything there."""
        text = "".join(self._content)
        return ChatReply(text if text.strip() else "".join(self._thinking) or text, self._finish_reason)

    def _add(self, events: list[Event]) -> list[Delta]:
        deltas = []
        for event in events:
            if event.data.strip() == "[DONE]":
                self._finish()
                break
            deltas += self._keep(self._object(event))
        return deltas

    def _finish(self) -> None:
        if not self._chat:
            invalid("its reply is no chat", self._url)
        self.done = True

    def _object(self, event: Event) -> dict[str, Any]:
        value = json_value(event.data)
        error = value.get("error") if isinstance(value, dict) else None
        if event.name == "error" or error:
            error = error or value or event.data
            code = error.get("code") if isinstance(error, dict) else None
            raise_told(code if type(code) is int else 200, error, self._url)
        if not isinstance(value, dict):
            invalid("an event of its stream is no JSON object", self._url)
        return value

    def _keep(self, value: dict[str, Any]) -> list[Delta]:
        """What one object of the reply adds; one that only tells the usage, or is a ping, has no choice."""
        choices = value.get("choices")
        if not choices:
            return []
        choice = choices[0] if isinstance(choices, list) else None
        if not isinstance(choice, dict):
            invalid("a piece of its answer is no object", self._url)
        # Streams have a `delta`, whole replies a `message`.
        message = choice.get("delta", choice.get("message"))
        if not isinstance(message, dict | None):
            invalid("a piece of its answer is no object", self._url)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish_reason = printable(reason)
        if message is None:
            return []
        self._chat = self._chat or bool(message or reason)
        thinking = next((text for name in _REASONING_KEYS if (text := _text(message.get(name), self._url))), "")
        content = _text(message.get("content"), self._url)
        self._thinking.append(thinking)
        self._content.append(content)
        return [delta for delta in (Delta(thinking, thinking=True), Delta(content)) if delta.text]


def _text(value: Any, url: str | None) -> str:
    """A piece of text; some servers send a list of parts instead."""
    if value is None:
        return ""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict)]
        value = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(value, str):
        invalid("a piece of its answer is no text", url)
    return clean_text(value)
