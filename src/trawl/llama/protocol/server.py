"""What a server says of itself and its tokenizer: `/v1/models`, and llama-server's `/tokenize`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trawl.llama.protocol.bodies import json_body
from trawl.llama.protocol.replies import invalid, positive_count, printable, reply_object


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models`; `max_tokens` is known from llama-server only."""

    id: str
    max_tokens: int | None = None


def tokenize_body(text: str) -> bytes:
    """Body of llama-server's `POST /tokenize`, asking for the special tokens around the text too."""
    return json_body({"content": text, "add_special": True})


def parse_models(status: int, body: bytes, url: str | None = None) -> list[ServedModel]:
    """The models of `GET /v1/models`, at least one.

    Raises:
        ModelUnavailable, ModelReplyInvalid: as for `parse_embeddings`.
    """
    data = reply_object(status, body, url).get("data")
    if not isinstance(data, list):
        invalid("its list of models has no `data`", url)
    models = [_served(item) for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]
    if not models:
        invalid("it lists no model", url)
    return models


def _served(item: dict[str, Any]) -> ServedModel:
    meta = item.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    limits = [n for key in ("n_ctx", "n_ctx_train") if (n := positive_count(meta.get(key)))]
    return ServedModel(id=printable(item["id"]), max_tokens=min(limits, default=None))


def parse_tokens(status: int, body: bytes, url: str | None = None) -> list[int]:
    """The token ids of `POST /tokenize`.

    Raises:
        ModelUnavailable, ModelReplyInvalid: as for `parse_embeddings`.
    """
    tokens = reply_object(status, body, url).get("tokens")
    if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
        invalid("its reply has no list of `tokens`", url)
    return tokens
