"""What a server says of itself: `/v1/models`, and of llama-server `/tokenize`, `/props` and `/slots`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trawl.llama.protocol.bodies import json_body
from trawl.llama.protocol.replies import invalid, positive_count, printable, reply_object, reply_value

_FOLDERS = re.compile(r".*[/\\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models`; `max_tokens` is known from llama-server only."""

    id: str
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Props:
    """What `/props` says of the model and its slots; None for what it does not say."""

    n_ctx: int | None = None
    """Tokens that one slot holds, question and answer together."""
    total_slots: int | None = None
    vision: bool | None = None
    """Whether images are understood."""
    model: str | None = None
    """The model's alias, or the name of its file without the folders."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One line of `/slots`."""

    id: int
    is_processing: bool | None
    """Whether it works for somebody now; None when the server does not say."""


def tokenize_body(text: str) -> bytes:
    """Body of llama-server's `POST /tokenize`, asking for the special tokens around the text too."""
    return json_body({"content": text, "add_special": True})


def parse_models(status: int, body: bytes, url: str | None = None) -> list[ServedModel]:
    """The models of `GET /v1/models`, at least one.

    Raises:
        ModelUnavailable, ModelReplyInvalid: as for `reply_object`.
    """
    data = reply_object(status, body, url).get("data")
    if not isinstance(data, list):
        invalid("its list of models has no `data`", url)
    models = [_served(item) for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]
    if not models:
        invalid("it lists no model", url)
    return models


def _served(item: dict[str, Any]) -> ServedModel:
    meta = _dict(item.get("meta"))
    limits = [n for key in ("n_ctx", "n_ctx_train") if (n := positive_count(meta.get(key)))]
    return ServedModel(id=printable(item["id"]), max_tokens=min(limits, default=None))


def parse_tokens(status: int, body: bytes, url: str | None = None) -> list[int]:
    """The token ids of `POST /tokenize`.

    Raises:
        ModelUnavailable, ModelReplyInvalid: as for `reply_object`.
    """
    tokens = reply_object(status, body, url).get("tokens")
    if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
        invalid("its reply has no list of `tokens`", url)
    return tokens


def parse_props(status: int, body: bytes, url: str | None = None) -> Props:
    """What `GET /props` says.

    Raises:
        ModelUnavailable, ModelReplyInvalid: as for `reply_object`; invalid also when nothing in it is of `/props`.
    """
    value = reply_object(status, body, url)
    vision = _dict(value.get("modalities")).get("vision")
    props = Props(
        n_ctx=positive_count(_dict(value.get("default_generation_settings")).get("n_ctx")),
        total_slots=positive_count(value.get("total_slots")),
        vision=vision if isinstance(vision, bool) else None,
        model=_name(value.get("model_alias"), value.get("model_path")),
    )
    if props == Props():
        invalid("its reply has nothing of what llama-server's /props says", url)
    return props


def parse_slots(status: int, body: bytes, url: str | None = None) -> list[Slot]:
    """The slots of `GET /slots`, at least one.

    Raises:
        ModelUnavailable, ModelReplyInvalid: as for `reply_object`.
    """
    value = reply_value(status, body, url)
    items = value if isinstance(value, list) else []
    slots = [_slot(item) for item in items if isinstance(item, dict) and type(item.get("id")) is int]
    if not slots:
        invalid("its reply has no list of slots", url)
    return slots


def _slot(item: dict[str, Any]) -> Slot:
    busy = item.get("is_processing")
    return Slot(id=item["id"], is_processing=busy if isinstance(busy, bool) else None)


def _name(alias: Any, path: Any) -> str | None:
    """The alias where one was given (else llama-server repeats the path there), or the path without the folders of the
    server's machine, which are nobody's business."""
    if isinstance(alias, str) and alias and alias != path:
        return printable(alias) or None
    return printable(_FOLDERS.sub("", path)) or None if isinstance(path, str) else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
