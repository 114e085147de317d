"""Questions and documents in, how relevant each is out: one reranking model on one server."""

from __future__ import annotations

from collections.abc import Sequence

from trawl.deadline import Deadline
from trawl.errors import ModelReplyInvalid
from trawl.llama.endpoint import Endpoint
from trawl.llama.protocol.bodies import clean_text

_PAIRS = (
    (
        "What do cats eat?",
        "Cats eat meat, above all mice, birds and fish.",
        "The train to Basel leaves from platform four.",
    ),
    (
        "When was the bridge finished?",
        "The bridge was finished and opened to traffic in 1932.",
        "Stir the flour into the melted butter.",
    ),
)
"""Question, a document that answers it, one that has nothing to do with it."""
SMALLEST_MARGIN = 0.01
"""By which a good reranker tells the two apart, in logits (bge: about 10) or probabilities (about 0.9). Broken
conversions give scores near 1e-20 to everything."""


class Reranker:
    """Reranks with one model. Belongs to one event loop; close its endpoint."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint = endpoint
        self.model = model

    def __repr__(self) -> str:
        return f"Reranker({self.model!r} on {self.endpoint.name})"

    async def rerank(self, questions: Sequence[str], documents: Sequence[str], deadline: Deadline) -> list[float]:
        """How relevant each document is to the question it answers best, in their order: raw logits or probabilities,
        as the server gives them; only their order means something. One piece of work, however many the questions.

        Raises:
            ModelUnavailable, ModelReplyInvalid: no scores; the order stays as it was.
        """
        texts = [clean_text(text) for text in documents]
        async with self.endpoint.permit(deadline) as client:
            rows = [await client.rerank(self.model, clean_text(q), texts, deadline) for q in questions]
        return [max(column) for column in zip(*rows, strict=True)]

    async def check(self, deadline: Deadline) -> None:
        """Make sure that it tells an answer from something else.

        A server with another kind of model behind the same address answers with numbers too, and some conversions of
        rerankers give the same score to everything (llama.cpp issue 16407).

        Raises:
            ModelUnavailable, ModelReplyInvalid: it does not, or does not answer as it should.
        """
        for position, (question, answer, other) in enumerate(_PAIRS):
            # In either order: what only prefers the first is caught.
            documents = [answer, other] if position == 0 else [other, answer]
            scores = await self.rerank([question], documents, deadline)
            good, bad = scores if position == 0 else reversed(scores)
            if good - bad < SMALLEST_MARGIN:
                raise ModelReplyInvalid(
                    f"{self.model} does not tell an answer from something else", url=self.endpoint.name
                )
