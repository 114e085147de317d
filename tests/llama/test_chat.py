"""A streamed chat keeps its limits in time and size, whatever the server does, and leaves no connection open."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

import pytest

from tests.llama.conftest import NOBODY, reply
from trawl.deadline import Deadline
from trawl.errors import ModelError, ModelReplyInvalid, ModelUnavailable
from trawl.llama import client as client_module
from trawl.llama.client import LlamaClient
from trawl.llama.protocol.chat import ChatReply, ChatRequest, Message
from trawl.llama.protocol.replies import InputTooLarge
from trawl.llama.transport import MAX_CONNECTIONS

Serving = Callable[..., Any]
CHAT = "/v1/chat/completions"
REQUEST = ChatRequest("m", [Message("user", "Hello")])
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSED = HEAD + b"Connection: close\r\n\r\n"


def event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


ANSWER = event("Grüße, ") + event("世界", "stop") + b"data: [DONE]\n\n"


@dataclass
class Player:
    url: str
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    """A request has come."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has closed its connection."""
    tasks: set[asyncio.Task[Any] | None] = field(default_factory=set)


@asynccontextmanager
async def playing(*script: bytes | float | EllipsisType) -> AsyncIterator[Player]:
    """A server that writes bytes, pauses for seconds, and closes; an ellipsis at the end: repeats the last bytes until
    the client leaves, or with nothing before it, is silent until then."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        player.tasks.add(asyncio.current_task())
        player.entered.set()
        with suppress(ConnectionError):
            for i, step in enumerate(script):
                if isinstance(step, bytes):
                    writer.write(step)
                    await writer.drain()
                elif isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    last = script[i - 1]
                    while not reader.at_eof() and isinstance(last, bytes) and last:
                        writer.write(last)
                        await writer.drain()
                        await asyncio.sleep(0)
                    await reader.read()
        if reader.at_eof() or writer.is_closing() or reader.exception():
            player.left.set()
        writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    player = Player(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    try:
        yield player
    finally:
        server.close()


async def ask(url: str, seconds: float = 10, request: ChatRequest = REQUEST, **options: Any) -> ChatReply:
    client = LlamaClient(url, **options)
    try:
        return await client.chat_text(request, Deadline.after(seconds))
    finally:
        await client.aclose()


@pytest.mark.parametrize("framing", ["chunked", "until closed", "with a length"])
async def test_an_answer_in_single_bytes_is_put_together(framing: str) -> None:
    heads = {"chunked": CHUNKED, "until closed": UNTIL_CLOSED}
    head = heads.get(framing, HEAD + b"Content-Length: %d\r\n\r\n" % len(ANSWER))
    pieces = [ANSWER[i : i + 1] for i in range(len(ANSWER))]
    if framing == "chunked":
        pieces = [*map(chunk, pieces), b"0\r\n\r\n"]
    async with playing(head, *pieces) as server:
        assert await ask(server.url) == ChatReply("Grüße, 世界", "stop")


async def test_pieces_are_given_as_they_come() -> None:
    async with playing(CHUNKED, chunk(event("a")), chunk(event("b")), b"", ...) as server:
        client = LlamaClient(server.url)
        async with client.chat(REQUEST, Deadline.after(10)) as stream:
            found = []
            async for delta in stream:
                found.append(delta.text)
                if len(found) == 2:
                    break
        await asyncio.wait_for(server.left.wait(), 2)
        assert found == ["a", "b"]
        assert stream.reply == ChatReply("ab", None)
        await client.aclose()


async def test_a_reply_that_does_not_stream_is_understood(fake_server: Serving) -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "", "reasoning_content": "Hm."}, "finish_reason": "stop"}]}
    async with fake_server({CHAT: lambda _: reply(whole)}) as fake:
        assert await ask(fake.url) == ChatReply("Hm.", "stop")
        assert fake.bodies(CHAT)[0]["stream"] is True


@pytest.mark.parametrize(
    "script",
    [
        (),
        (b"HTTP/1.1 2",),
        (b"not http at all\r\n\r\n",),
        (CHUNKED,),
        (CHUNKED, chunk(event("a"))),
        (CHUNKED, chunk(event("a"))[:-20]),
        (CHUNKED, chunk(event("a")), b"zz\r\n"),
        (HEAD + b"Content-Length: 5000\r\n\r\n", event("a")),
        (UNTIL_CLOSED, event("a")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", b'{"choices":[{"message"'),
    ],
    ids=[
        "nothing", "cut head", "not HTTP", "no chunk", "no end", "cut chunk", "bad chunk", "too short", "closed",
        "cut JSON",
    ],
)  # fmt: skip
async def test_a_connection_that_breaks_is_unavailable(script: tuple[bytes, ...]) -> None:
    async with playing(*script) as server:
        with pytest.raises(ModelUnavailable):
            await ask(server.url)


async def test_nobody_there_is_unavailable() -> None:
    with pytest.raises(ModelUnavailable, match="nobody answers"):
        await ask(NOBODY)


@pytest.mark.parametrize(
    "script",
    [(...,), (CHUNKED, b"", ...), (CHUNKED, chunk(event("a")), b"", ...), (CHUNKED, chunk(b": ping\n\n"), 0.01, ...)],
    ids=["no head", "no body", "silence in the middle", "only pings"],
)
async def test_the_deadline_ends_it_whatever_it_waits_for(script: tuple[Any, ...]) -> None:
    async with playing(*script) as server:
        began = time.monotonic()
        with pytest.raises(ModelUnavailable):
            await ask(server.url, seconds=0.4)
        assert time.monotonic() - began < 2
        await asyncio.wait_for(server.left.wait(), 2)


async def test_an_answer_that_drips_ends_with_the_deadline() -> None:
    drips = [step for _ in range(200) for step in (chunk(event("a")), 0.02)]
    async with playing(CHUNKED, *drips) as server:
        began = time.monotonic()
        with pytest.raises(ModelUnavailable, match="still sending"):
            await ask(server.url, seconds=0.4)
        assert time.monotonic() - began < 2


async def test_silence_in_the_middle_ends_it_long_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "STALL_SECONDS", 0.2)
    async with playing(CHUNKED, chunk(event("a")), b"", ...) as server:
        began = time.monotonic()
        with pytest.raises(ModelUnavailable, match="fell silent"):
            await ask(server.url, seconds=30)
        assert time.monotonic() - began < 3
        await asyncio.wait_for(server.left.wait(), 2)


async def test_silence_before_the_first_piece_is_the_server_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "STALL_SECONDS", 0.2)
    async with playing(0.4, CHUNKED, 0.4, chunk(ANSWER), b"0\r\n\r\n") as server:
        assert (await ask(server.url)).text == "Grüße, 世界"


@pytest.mark.parametrize("endless", [event("x" * 60_000), b": ping\n\n" * 6000, b"x" * 60_000])
async def test_a_stream_without_end_is_cut_off(endless: bytes) -> None:
    async with playing(CHUNKED, chunk(endless), ...) as server:
        with pytest.raises(ModelReplyInvalid, match="larger"):
            await ask(server.url, seconds=30)
        await asyncio.wait_for(server.left.wait(), 2)


async def test_an_error_page_without_end_is_cut_off() -> None:
    async with playing(b"HTTP/1.1 500 x\r\nConnection: close\r\n\r\n", b"x" * 60_000, ...) as server:
        with pytest.raises(ModelReplyInvalid, match="larger"):
            await ask(server.url, seconds=30)


async def test_a_compressed_stream_is_refused_without_decoding(fake_server: Serving) -> None:
    bomb = gzip.compress(ANSWER + b" " * 50_000_000)
    async with fake_server({CHAT: lambda _: reply(bomb, headers="Content-Encoding: gzip\r\n")}) as fake:
        with pytest.raises(ModelReplyInvalid, match="compressed"):
            await ask(fake.url)


async def test_a_redirect_is_not_followed(fake_server: Serving) -> None:
    async with (
        fake_server({CHAT: lambda _: reply(ANSWER)}) as target,
        fake_server({CHAT: lambda _: reply(b"", 307, f"Location: {target.url}/chat/completions\r\n")}) as fake,
    ):
        with pytest.raises(ModelReplyInvalid, match="redirect"):
            await ask(fake.url)
        assert target.seen == []


HTML = b"<!DOCTYPE html><html><body>Bad day</body></html>"


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (reply(HTML, 502), ModelUnavailable, "web page"),
        (reply(HTML, 404), ModelReplyInvalid, "web page"),
        (reply(HTML, 200), ModelReplyInvalid, "web page"),
        (reply({"error": {"message": "Loading model"}}, 503), ModelUnavailable, "Loading model"),
        (reply({"error": {"message": "who are you?"}}, 401), ModelUnavailable, "Set TRAWL_HYDE_API_KEY"),
        (reply({"error": {"message": "no", "type": "server_error"}}, 500), ModelReplyInvalid, "no"),
        (reply(b"data: {}\n\n", 200), ModelReplyInvalid, "no chat"),
        (reply(b"", 204), ModelReplyInvalid, "204"),
        (reply(event("a") + b'data: {"error":{"code":503,"message":"gone"}}\n\n'), ModelUnavailable, "gone"),
    ],
)
async def test_what_goes_wrong_is_one_typed_error(
    fake_server: Serving, answer: bytes, kind: type[ModelError], said: str
) -> None:
    async with fake_server({CHAT: lambda _: answer}) as fake:
        with pytest.raises(kind, match=said):
            await ask(fake.url, setting="TRAWL_HYDE")


def strict(body: Any) -> bytes:
    """A server that refuses every field it does not know."""
    unknown = set(body) - {"model", "messages", "stream", "max_tokens", "temperature", "response_format"}
    if unknown:
        return reply({"error": {"message": f"Unrecognized request argument supplied: {min(unknown)}"}}, 400)
    return reply(ANSWER)


async def test_a_server_that_refuses_what_only_llama_server_knows_is_asked_without_it_from_then_on(
    fake_server: Serving,
) -> None:
    async with fake_server({CHAT: strict}) as fake:
        client = LlamaClient(fake.url)
        for _ in range(3):
            assert (await client.chat_text(REQUEST, Deadline.after(5))).text == "Grüße, 世界"
        await client.aclose()
        assert [("chat_template_kwargs" in body) for body in fake.bodies(CHAT)] == [True, False, False, False]


async def test_a_refusal_for_another_reason_is_reported_and_not_remembered(fake_server: Serving) -> None:
    answers = iter([reply({"error": {"message": "bad picture"}}, 400)] * 2 + [reply(ANSWER)])
    async with fake_server({CHAT: lambda _: next(answers)}) as fake:
        client = LlamaClient(fake.url)
        with pytest.raises(ModelReplyInvalid, match="bad picture"):
            await client.chat_text(REQUEST, Deadline.after(5))
        await client.chat_text(REQUEST, Deadline.after(5))
        await client.aclose()
        assert "chat_template_kwargs" in fake.bodies(CHAT)[-1]


async def test_a_question_that_is_too_long_is_asked_once(fake_server: Serving) -> None:
    error = {"error": {"code": 400, "message": "it exceeds the context", "n_ctx": 2048}}
    async with fake_server({CHAT: lambda _: reply(error, 400)}) as fake:
        with pytest.raises(InputTooLarge):
            await ask(fake.url)
        assert len(fake.seen) == 1


async def test_a_key_that_a_server_repeats_stays_out_of_messages(fake_server: Serving) -> None:
    async with fake_server({CHAT: lambda _: reply({"error": {"message": "Bad key k3y-s3cret!"}}, 401)}) as fake:
        with pytest.raises(ModelUnavailable) as caught:
            await ask(fake.url, api_key="k3y-s3cret")
    assert "k3y-s3cret" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("times", [1, 2, 3, 6])
@pytest.mark.parametrize("script", [(...,), (CHUNKED, b"", ...), (CHUNKED, chunk(event("a")), b"", ...)])
async def test_a_cancelled_reader_closes_the_connection_however_often_it_is_cancelled(
    script: tuple[Any, ...], times: int
) -> None:
    async with playing(*script) as server:
        client = LlamaClient(server.url)
        task = asyncio.create_task(client.chat_text(REQUEST, Deadline.after(30)))
        await asyncio.wait_for(server.entered.wait(), 5)
        await asyncio.sleep(0.02)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.left.wait(), 2)
        await client.aclose()
        assert asyncio.all_tasks() <= {asyncio.current_task(), *server.tasks}


async def test_cancelled_calls_take_no_place_from_those_that_follow(fake_server: Serving) -> None:
    async def silent(_: Any) -> bytes:
        await asyncio.sleep(30)
        return b""

    async with fake_server({CHAT: silent, "/v1/models": lambda _: reply({"data": [{"id": "m"}]})}) as fake:
        client = LlamaClient(fake.url)
        for _ in range(MAX_CONNECTIONS + 1):
            task = asyncio.create_task(client.chat_text(REQUEST, Deadline.after(30)))
            await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
        assert await client.models(Deadline.after(5))
        await client.aclose()


async def test_nothing_is_asked_without_time_or_of_a_closed_client(fake_server: Serving) -> None:
    async with fake_server({CHAT: lambda _: reply(ANSWER)}) as fake:
        with pytest.raises(ModelUnavailable, match="no time"):
            await ask(fake.url, seconds=0)
        client = LlamaClient(fake.url)
        await client.aclose()
        with pytest.raises(ModelUnavailable, match="closed"):
            await client.chat_text(REQUEST, Deadline.after(5))
        assert fake.seen == []
