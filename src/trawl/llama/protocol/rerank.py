"""Body and reply of `POST /v1/rerank`.

llama-server, Jina, Cohere, vLLM and Infinity answer with `results` of `relevance_score`, Voyage calls the list `data`,
text-embeddings-inference sends the bare list, with `score`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trawl.llama.protocol.bodies import json_body
from trawl.llama.protocol.replies import REPLY_BASE_BYTES, by_index, finite, invalid, reply_value

BYTES_PER_BODY_BYTE = 6
"""Some servers send the documents back; a control character in them takes six characters of JSON at worst."""
BYTES_PER_SCORE = 200
"""One result without its document, rounded up."""


def rerank_body(model: str, query: str, documents: Sequence[str]) -> bytes:
    """Body of `POST /v1/rerank`."""
    return json_body({"model": model, "query": query, "documents": list(documents)})


def rerank_reply_limit(body: bytes, count: int) -> int:
    """Bytes that the reply to `body` with `count` documents may have."""
    return REPLY_BASE_BYTES + BYTES_PER_BODY_BYTE * len(body) + BYTES_PER_SCORE * count


def parse_rerank(status: int, body: bytes, *, count: int, url: str | None = None) -> list[float]:
    """The scores in the order of the documents, `count` of them and finite: logits or probabilities, as the model and
    the server have it, so that only their order means something.

    Raises:
        InputTooLarge: the query with one of the documents is too long for the server.
        ModelUnavailable: it is loading, overloaded or wants another key.
        ModelReplyInvalid: anything else.
    """
    value = reply_value(status, body, url)
    results = value if isinstance(value, list) else value.get("results", value.get("data"))
    scores = []
    for item in by_index(results, count, "score", url):
        score = finite(item.get("relevance_score", item.get("score")))
        if score is None:
            invalid("a score is missing or not a finite number", url)
        scores.append(score)
    return scores
