"""HyDE: a made-up answer, whose vector lies nearer to the true one than the question's does. One bounded chat call.

Gao et al., "Precise Zero-Shot Dense Retrieval without Relevance Labels" (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trawl.deadline import Deadline
from trawl.llama.endpoint import Endpoint
from trawl.llama.protocol.chat import ChatRequest, Message

MAX_TOKENS = 300
TEMPERATURE = 0.7
SECONDS = 60.0
LONGEST_ANSWER = 2_000
"""Characters; three sentences have a third of that."""
LONGEST_TEXT = 10_000
"""Characters after which the model is not listened to any more, its thinking included."""

_PROMPT = (
    "Somebody asks the question below. Write two or three plain sentences as they could stand in a page that "
    "answers it. Name concrete people, places, products, numbers and terms; guess where you do not know. "
    "Only the sentences.\n\n"
    "Question: {question}"
)


@dataclass(slots=True)
class Chat:
    """One chat model on one server. Belongs to one event loop; close its endpoint."""

    endpoint: Endpoint
    model: str
    slot: int | None = None
    """The llama-server slot it is pinned to."""


async def hypothetical_answer(chat: Chat, questions: Sequence[str], deadline: Deadline) -> str:
    """Two or three sentences that might answer the questions; never shown as an answer, only embedded.

    Raises:
        ModelUnavailable, ModelReplyInvalid: there is none; rank without it.
    """
    request = ChatRequest(
        model=chat.model,
        messages=[Message("user", _PROMPT.format(question=" / ".join(questions)))],
        max_tokens=MAX_TOKENS,
        temperature=TEMPERATURE,
        id_slot=chat.slot,
    )
    within = deadline.sooner(SECONDS)
    async with chat.endpoint.permit(within) as client, client.chat(request, within) as stream:
        written = 0
        async for delta in stream:
            written += len(delta.text)
            if written > LONGEST_TEXT:
                break  # a model that does not heed `max_tokens`: what it wrote so far will do
    return " ".join(stream.reply.text.split())[:LONGEST_ANSWER]
