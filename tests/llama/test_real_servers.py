"""The client against real llama-servers: what it understands, and that whoever leaves frees the server at once."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import struct
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.llama.servers import RunningServer, llama_server
from trawl.deadline import Deadline
from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama.client import LlamaClient
from trawl.llama.protocol.chat import ChatRequest, Delta, Image, Message
from trawl.llama.protocol.replies import InputTooLarge
from trawl.llama.protocol.server import Props, Slot

pytestmark = pytest.mark.embedded

FREE_WITHIN_SECONDS = 1.0
"""How soon a slot is free after its caller has gone: what the project promises."""
LONG = ChatRequest(
    "smollm2",
    [Message("user", "Write a very long story about a lighthouse, in many chapters.")],
    max_tokens=1800,
    temperature=0,
)
GENERATING = """
import asyncio, sys
from tests.llama.test_real_servers import LONG
from trawl.deadline import Deadline
from trawl.llama.client import LlamaClient

async def main():
    async with LlamaClient(sys.argv[1]).chat(LONG, Deadline.after(60)) as stream:
        async for _ in stream:
            print("generating", flush=True)

asyncio.run(main())
"""


def in_time() -> Deadline:
    return Deadline.after(60)


@asynccontextmanager
async def client_of(server: RunningServer, **options: str) -> AsyncIterator[LlamaClient]:
    client = LlamaClient(server.url, **options)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.aclose()


async def busy_slots(client: LlamaClient) -> list[int]:
    slots = await client.slots(in_time())
    assert slots is not None
    return [slot.id for slot in slots if slot.is_processing]


async def seconds_until(client: LlamaClient, condition: Callable[[list[int]], bool], limit: float = 10.0) -> float:
    """How long it takes until the busy slots are as they should be."""
    began = time.monotonic()
    while not condition(await busy_slots(client)):
        assert time.monotonic() - began < limit, "the slots never came to be as they should"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def nobody(busy: list[int]) -> bool:
    return not busy


async def test_scores_are_finite_and_each_belongs_to_its_document(rerank_server: RunningServer) -> None:
    documents = ["cats eat mice", "the train leaves at noon", "", "😀 語 \0 \x07", "dogs"]
    async with client_of(rerank_server) as client:
        scores = await client.rerank("any", "what do cats eat", documents, in_time())
        assert all(map(math.isfinite, scores))
        assert len(set(scores)) == len(documents)
        backwards = await client.rerank("any", "what do cats eat", documents[::-1], in_time())
        assert backwards == pytest.approx(scores[::-1], abs=1e-3)
        assert await client.rerank("any", "what do cats eat", [], in_time()) == []


async def test_a_document_that_no_batch_holds_is_too_large(rerank_server: RunningServer) -> None:
    async with client_of(rerank_server) as client:
        with pytest.raises(InputTooLarge) as caught:
            await client.rerank("any", "q", ["short", "long " * 1000], in_time())
        assert caught.value.limit == 2048


async def test_a_reranker_does_not_chat_and_a_chat_model_does_not_rerank(
    rerank_server: RunningServer, chat_server: RunningServer
) -> None:
    async with client_of(rerank_server) as client:
        with pytest.raises(ModelReplyInvalid):
            await client.chat_text(LONG, in_time())
    async with client_of(chat_server) as client:
        with pytest.raises(ModelReplyInvalid, match="reranking"):
            await client.rerank("any", "q", ["d"], in_time())


async def test_a_server_tells_what_it_is(chat_server: RunningServer, rerank_server: RunningServer) -> None:
    async with client_of(chat_server) as client:
        assert await client.healthy(in_time())
        assert [model.id for model in await client.models(in_time())] == ["smollm2"]
        assert await client.props(in_time()) == Props(n_ctx=2048, total_slots=2, vision=True, model="smollm2")
        assert await client.slots(in_time()) == [Slot(0, False), Slot(1, False)]
        assert len(await client.tokenize("one two three", in_time())) >= 3
    async with client_of(rerank_server) as client:
        assert await client.props(in_time()) == Props(n_ctx=2048, total_slots=1, vision=False, model="reranker.gguf")


async def test_a_server_may_keep_its_slots_to_itself(rerank_model: Path) -> None:
    with llama_server("-m", rerank_model, "--reranking", "--no-slots") as server:
        async with client_of(server) as client:
            assert await client.slots(in_time()) is None


async def test_another_key_is_refused_with_the_setting_to_look_at(rerank_model: Path) -> None:
    with llama_server("-m", rerank_model, "--reranking", key="right-key") as server:
        async with client_of(server, api_key="wrong-key", setting="TRAWL_RERANK") as client:
            assert await client.healthy(in_time())
            with pytest.raises(ModelUnavailable) as caught:
                await client.rerank("any", "q", ["d"], in_time())
            assert "TRAWL_RERANK_API_KEY" in caught.value.hint
        async with client_of(server, api_key="right-key") as client:
            assert len(await client.rerank("any", "q", ["d"], in_time())) == 1


async def test_an_answer_is_written_piece_by_piece(chat_server: RunningServer) -> None:
    request = ChatRequest("smollm2", [Message("user", "What is a cat?")], max_tokens=12, temperature=0)
    async with client_of(chat_server) as client:
        async with client.chat(request, in_time()) as stream:
            deltas = [delta async for delta in stream]
        assert len(deltas) > 5
        assert stream.reply.text == "".join(delta.text for delta in deltas)
        assert stream.reply.finish_reason == "length"
        again = await client.chat_text(request, in_time())
        assert again.text


async def test_what_only_llama_server_knows_is_accepted(chat_server: RunningServer) -> None:
    request = ChatRequest(
        "smollm2",
        [Message("system", "You are brief."), Message("user", "Hello \ud800 \0 😀")],
        max_tokens=4,
        id_slot=1,
        cache_prompt=True,
        enable_thinking=False,
    )
    async with client_of(chat_server) as client:
        assert (await client.chat_text(request, in_time())).finish_reason


async def test_a_schema_constrains_the_answer(chat_server: RunningServer) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "maximum": 9}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    request = ChatRequest("smollm2", [Message("user", "Tell me a joke.")], max_tokens=64, json_schema=schema)
    async with client_of(chat_server) as client:
        answer = json.loads((await client.chat_text(request, in_time())).text)
    assert set(answer) == {"colour", "count"}
    assert answer["colour"] in ("red", "green")
    assert type(answer["count"]) is int


async def test_a_picture_is_taken_in_and_a_broken_one_is_refused(chat_server: RunningServer) -> None:
    def asking(picture: bytes) -> ChatRequest:
        return ChatRequest(
            "smollm2", [Message("user", "What is on it?", [Image(picture)])], max_tokens=4, temperature=0
        )

    async with client_of(chat_server) as client:
        assert (await client.chat_text(asking(png()), in_time())).finish_reason
        with pytest.raises(ModelReplyInvalid):
            await client.chat_text(asking(png()[:40]), in_time())


def png(width: int = 48, height: int = 32) -> bytes:
    """A picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = (b"\0" + b"\xc0\x40\x10" * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(pixels)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


async def test_a_question_beyond_the_context_is_too_large(chat_server: RunningServer) -> None:
    request = ChatRequest("smollm2", [Message("user", "word " * 5000)])
    async with client_of(chat_server) as client:
        with pytest.raises(InputTooLarge) as caught:
            await client.chat_text(request, in_time())
        assert caught.value.limit == 2048


async def test_a_stream_that_is_left_after_a_second_frees_its_slot_within_one(chat_server: RunningServer) -> None:
    async with client_of(chat_server) as client:
        async with client.chat(LONG, in_time()) as stream:
            until = time.monotonic() + 1
            async for _ in stream:
                if time.monotonic() > until:
                    break
            assert await busy_slots(client)
        assert await seconds_until(client, nobody) < FREE_WITHIN_SECONDS


async def test_an_error_of_the_reader_frees_the_slot(chat_server: RunningServer) -> None:
    async with client_of(chat_server) as client:
        with pytest.raises(ZeroDivisionError):
            await stumbling(client)
        assert await seconds_until(client, nobody) < FREE_WITHIN_SECONDS


async def stumbling(client: LlamaClient) -> None:
    async with client.chat(LONG, in_time()) as stream:
        async for _ in stream:
            assert await busy_slots(client)
            raise ZeroDivisionError


@pytest.mark.parametrize("how", ["chat_text", "chat"])
async def test_a_cancelled_task_frees_its_slot(chat_server: RunningServer, how: str) -> None:
    async def read(client: LlamaClient) -> list[Delta]:
        async with client.chat(LONG, in_time()) as stream:
            return [delta async for delta in stream]

    async with client_of(chat_server) as client:
        work = client.chat_text(LONG, in_time()) if how == "chat_text" else read(client)
        task = asyncio.create_task(work)  # type: ignore[arg-type]
        await seconds_until(client, bool)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await seconds_until(client, nobody) < FREE_WITHIN_SECONDS


async def test_a_deadline_frees_the_slot(chat_server: RunningServer) -> None:
    async with client_of(chat_server) as client:
        task = asyncio.create_task(client.chat_text(LONG, Deadline.after(1.5)))
        await seconds_until(client, bool)
        with pytest.raises(ModelUnavailable, match="time"):
            await task
        assert await seconds_until(client, nobody) < FREE_WITHIN_SECONDS


async def test_a_killed_process_frees_its_slot(chat_server: RunningServer) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GENERATING, chat_server.url,
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 30) == b"generating\n"
        async with client_of(chat_server) as client:
            assert await busy_slots(client)
            process.send_signal(signal.SIGKILL)
            assert await seconds_until(client, nobody) < FREE_WITHIN_SECONDS
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("slot", [0, 1])
async def test_work_is_pinned_to_its_slot(chat_server: RunningServer, slot: int) -> None:
    request = ChatRequest("smollm2", LONG.messages, max_tokens=LONG.max_tokens, id_slot=slot)
    async with client_of(chat_server) as client:
        async with client.chat(request, in_time()) as stream:
            async for _ in stream:
                assert await busy_slots(client) == [slot]
                break
        await seconds_until(client, nobody)


async def test_a_killed_server_ends_the_stream_as_unavailable(chat_model: Path) -> None:
    with llama_server("-m", chat_model, "-c", "2048", "--no-warmup") as server:
        async with client_of(server) as client:
            task = asyncio.create_task(client.chat_text(LONG, in_time()))
            await seconds_until(client, bool)
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(ModelUnavailable):
                await task
