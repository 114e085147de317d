"""A made-up answer comes from a real chat model, bounded in length and time."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.llama.servers import RunningServer
from trawl.deadline import Deadline
from trawl.errors import ModelUnavailable
from trawl.llama import hyde as hyde_module
from trawl.llama.backends import Backends
from trawl.llama.hyde import Chat, hypothetical_answer
from trawl.settings import Settings

pytestmark = pytest.mark.embedded


async def chat_on(server: RunningServer) -> Chat:
    opened = await Backends(Settings(hyde_url=server.url)).open_chat(Deadline.after(10))
    assert opened.backend is not None, opened.reason
    return opened.backend


async def test_a_small_model_makes_up_a_line_of_text(chat_server: RunningServer) -> None:
    chat = await chat_on(chat_server)
    assert chat.model == "smollm2"
    text = await hypothetical_answer(chat, ["Who built the old bridge?"], Deadline.after(60))
    assert len(text.split()) > 3
    assert len(text) <= hyde_module.LONGEST_ANSWER
    assert "\n" not in text
    await chat.endpoint.aclose()


async def test_a_call_without_time_is_over_at_once_and_leaves_the_slot_free(chat_server: RunningServer) -> None:
    chat = await chat_on(chat_server)
    began = time.monotonic()
    with pytest.raises(ModelUnavailable):
        await hypothetical_answer(chat, ["Tell everything about bridges."], Deadline.after(0.3))
    assert time.monotonic() - began < 2
    await asyncio.sleep(1)
    slots = await chat.endpoint.client.slots(Deadline.after(5))
    assert slots
    assert not any(slot.is_processing for slot in slots)
    await chat.endpoint.aclose()
