"""Bodies and replies of the OpenAI-style embeddings API and of what llama-server adds to it. Pure: no sockets here.

Replies are not trusted: each function takes the status and the bytes as they came and gives plain checked values, or
raises `ModelUnavailable` (the server cannot serve this now) or `ModelReplyInvalid` (its answer cannot be used).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trawl.errors import ModelReplyInvalid, ModelUnavailable

MAX_DIMENSION = 16_384
"""The largest models in use give vectors of 4,096 to 8,192 numbers."""
REPLY_BASE_BYTES = 1 << 20
"""Bytes allowed for a reply without vectors; llama-server's own lists take a few kilobytes."""
BYTES_PER_NUMBER = 28
"""A double in full precision with its comma, rounded up."""
UNAVAILABLE_STATUS = frozenset({401, 403, 408, 429, 502, 503, 504})

_SURROGATE = re.compile("[\ud800-\udfff]")
_TOO_LARGE = re.compile(
    r"too (large|long)|exceed|context[ _](length|size|window)|maximum context|must have less than|maximum allowed",
    re.IGNORECASE,
)
_LIMITS = (
    re.compile(r"batch size: (\d{1,9})"),  # llama-server: "(current batch size: 512)"
    re.compile(r"less than (\d{1,9}) tokens"),  # text-embeddings-inference
    re.compile(r"maximum context length (?:is|of) (\d{1,9})"),  # vLLM, OpenAI
)


class InputTooLarge(ModelReplyInvalid):
    """The input is longer than the server takes. `limit` is the number of tokens it named, or None."""

    def __init__(self, message: str, *, limit: int | None, url: str | None = None) -> None:
        super().__init__(message, url=url)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models`; `max_tokens` is known from llama-server only."""

    id: str
    max_tokens: int | None = None


def clean_text(text: str) -> str:
    """`text` as every server can take it: a lone surrogate has no UTF-8, and NUL ends a string for some servers."""
    return _SURROGATE.sub("\ufffd", text).replace("\0", " ")


def embeddings_body(model: str, inputs: Sequence[str | list[int]]) -> bytes:
    """Body of `POST /v1/embeddings`; an input is a text or its tokens."""
    return _body({"model": model, "input": list(inputs), "encoding_format": "float"})


def tokenize_body(text: str) -> bytes:
    """Body of llama-server's `POST /tokenize`, asking for the special tokens around the text too."""
    return _body({"content": text, "add_special": True})


def _body(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def embeddings_reply_limit(count: int) -> int:
    """Bytes that a reply with `count` vectors may have."""
    return REPLY_BASE_BYTES + count * MAX_DIMENSION * BYTES_PER_NUMBER


def parse_embeddings(
    status: int, body: bytes, *, count: int, dimension: int | None, url: str | None = None
) -> list[list[float]]:
    """The vectors in the order of the inputs, `count` of them, all of one length and finite.

    Args:
        status: HTTP status of the reply.
        body: the whole reply.
        count: how many inputs were sent.
        dimension: the length every vector must have; None: any, but the same for all.
        url: for messages.

    Raises:
        InputTooLarge: an input (or the batch) is too long for the server.
        ModelUnavailable: it is loading, overloaded or wants another key.
        ModelReplyInvalid: anything else.
    """
    data = _object(status, body, url).get("data")
    if not isinstance(data, list):
        _invalid("its reply has no list `data`", url)
    if len(data) != count:
        _invalid(f"{count} texts were sent, {len(data)} vectors came back", url)
    vectors: list[list[float] | None] = [None] * count
    for item in data:
        index = item.get("index") if isinstance(item, dict) else None
        if type(index) is not int or not 0 <= index < count:
            _invalid("a vector has no usable `index`", url)
        if vectors[index] is not None:
            _invalid(f"two vectors have the index {index}", url)
        vectors[index] = _vector(item.get("embedding"), url)
    found = [v for v in vectors if v is not None]
    expected = dimension or len(found[0]) if found else dimension
    for vector in found:
        if len(vector) != expected:
            _invalid(f"a vector has {len(vector)} numbers instead of {expected}", url)
    return found


def _vector(value: Any, url: str | None) -> list[float]:
    if not isinstance(value, list) or not value:
        _invalid("a vector is missing or not a list", url)
    if len(value) > MAX_DIMENSION:
        _invalid(f"a vector has {len(value)} numbers, more than {MAX_DIMENSION}", url)
    # bool is an int to Python but not a number to JSON.
    if not all(type(number) is float or type(number) is int for number in value):
        _invalid("a vector holds something that is not a number", url)
    try:
        vector = [float(number) for number in value]
    except OverflowError:
        _invalid("a vector holds a number that is too large", url)
    if not all(map(math.isfinite, vector)):
        _invalid("a vector holds a number that is not finite", url)
    if not any(vector):
        _invalid("a vector is all zeros", url)
    return vector


def parse_models(status: int, body: bytes, url: str | None = None) -> list[ServedModel]:
    """The models of `GET /v1/models`, at least one.

    Raises:
        ModelUnavailable, ModelReplyInvalid: as for `parse_embeddings`.
    """
    data = _object(status, body, url).get("data")
    if not isinstance(data, list):
        _invalid("its list of models has no `data`", url)
    models = [_served(item) for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]
    if not models:
        _invalid("it lists no model", url)
    return models


def _served(item: dict[str, Any]) -> ServedModel:
    meta = item.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    limits = [n for key in ("n_ctx", "n_ctx_train") if (n := _count(meta.get(key)))]
    return ServedModel(id=_printable(item["id"]), max_tokens=min(limits, default=None))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= 10_000_000 else None


def parse_tokens(status: int, body: bytes, url: str | None = None) -> list[int]:
    """The token ids of `POST /tokenize`.

    Raises:
        ModelUnavailable, ModelReplyInvalid: as for `parse_embeddings`.
    """
    tokens = _object(status, body, url).get("tokens")
    if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
        _invalid("its reply has no list of `tokens`", url)
    return tokens


def _object(status: int, body: bytes, url: str | None) -> dict[str, Any]:
    """The JSON object of a good reply; a typed error for every other."""
    value = _json(body)
    error = value.get("error") if isinstance(value, dict) else None
    if status == 200 and isinstance(value, dict) and not error:
        return value
    said = _message(error if error else value)
    if 300 <= status < 400:
        _invalid(f"it redirects (status {status}), which is not followed", url)
    what = f"it answered {status}" + (f": {said}" if said else "")
    if status in (401, 403):
        raise ModelUnavailable(what, url=url, hint="Set TRAWL_EMBED_API_KEY to a key it accepts.")
    if status in UNAVAILABLE_STATUS:
        raise ModelUnavailable(what, url=url)
    if _TOO_LARGE.search(said) or status == 413:
        raise InputTooLarge(what, limit=_limit(error, said), url=url)
    if value is None:
        web_page = body[:512].lstrip().lower().startswith((b"<!doctype", b"<html", b"<"))
        what += " with a web page instead of JSON" if web_page else " with something that is not JSON"
    elif not said:
        what += " with JSON that is not an object"
    raise ModelReplyInvalid(what, url=url)


def _json(body: bytes) -> Any:
    """The value, or None for what does not parse (a JSON `null` is no use either)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _message(error: Any) -> str:
    """What the server said went wrong, short and printable."""
    if isinstance(error, dict):
        error = next((error[k] for k in ("message", "detail", "error") if isinstance(error.get(k), str)), "")
    return _printable(error) if isinstance(error, str) else ""


def _limit(error: Any, said: str) -> int | None:
    if isinstance(error, dict) and (named := _count(error.get("n_ctx"))):
        return named
    return next((int(m[1]) for pattern in _LIMITS if (m := pattern.search(said)) and int(m[1]) > 0), None)


def _printable(text: str) -> str:
    """One short line without control, format and surrogate characters: it may end on somebody's terminal."""
    kept = "".join(" " if unicodedata.category(c).startswith(("C", "Z")) else c for c in text[:1000])
    return " ".join(kept.split())[:200]


def _invalid(what: str, url: str | None) -> NoReturn:
    raise ModelReplyInvalid(what, url=url)
