"""What every reply has in common: a JSON value, or one typed error.

Replies are not trusted: each parser of this package takes the status and the bytes as they came and gives plain
checked values, or raises `ModelUnavailable` (the server cannot serve this now) or `ModelReplyInvalid` (its answer
cannot be used).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any, NoReturn

from trawl.errors import ModelReplyInvalid, ModelUnavailable

REPLY_BASE_BYTES = 1 << 20
"""Bytes allowed for a reply without vectors; llama-server's own lists take a few kilobytes."""
REFUSED_STATUS = frozenset({401, 403})
UNAVAILABLE_STATUS = frozenset({408, 429, 502, 503, 504})

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


class AnotherModel(ModelReplyInvalid):
    """The answer is good, and of another model than the one that answered before."""


class KeyRefused(ModelUnavailable):
    """The server wants another API key."""


def reply_object(status: int, body: bytes, url: str | None) -> dict[str, Any]:
    """The JSON object of a good reply; a typed error for every other.

    Raises:
        InputTooLarge: the input is too long for the server.
        KeyRefused: it wants another key.
        ModelUnavailable: it is loading or overloaded.
        ModelReplyInvalid: anything else.
    """
    value = reply_value(status, body, url)
    if not isinstance(value, dict):
        invalid(f"it answered {status} with JSON that is not an object", url)
    return value


def reply_value(status: int, body: bytes, url: str | None) -> dict[str, Any] | list[Any]:
    """The JSON object or list of a good reply; errors as for `reply_object`."""
    value = json_value(body)
    error = value.get("error") if isinstance(value, dict) else None
    if status != 200 or error or not isinstance(value, dict | list):
        _raise_bad(status, value, body, url)
    return value


def _raise_bad(status: int, value: Any, body: bytes, url: str | None) -> NoReturn:
    if 300 <= status < 400:
        invalid(f"it redirects (status {status}), which is not followed", url)
    if value is None:
        web_page = body[:512].lstrip().startswith(b"<")
        value = "with a web page instead of JSON" if web_page else "with something that is not JSON"
    raise_told(status, value, url)


def raise_told(status: int, told: Any, url: str | None) -> NoReturn:
    """The error that `status` and `told`, an error in JSON or words of ours, amount to; as for `reply_object`."""
    error = told.get("error") or told if isinstance(told, dict) else told
    said = _message(error)
    what = f"it answered {status}: {said or 'with JSON that says nothing'}"
    if status in REFUSED_STATUS:
        raise KeyRefused(what, url=url)
    if status in UNAVAILABLE_STATUS:
        raise ModelUnavailable(what, url=url)
    if status == 413 or _TOO_LARGE.search(said):
        raise InputTooLarge(what, limit=_limit(error, said), url=url)
    raise ModelReplyInvalid(what, url=url)


def json_value(text: bytes | str) -> Any:
    """The value, or None for what does not parse (a JSON `null` is no use either)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def by_index(items: Any, count: int, what: str, url: str | None) -> list[dict[str, Any]]:
    """The objects of the list `items` in the order of their `index`: one for each of the `count` texts sent.

    Raises:
        ModelReplyInvalid: it is no list, or one is missing, too many or counted twice.
    """
    if not isinstance(items, list):
        invalid(f"its reply has no list of {what}s", url)
    if len(items) != count:
        invalid(f"{count} texts were sent, {len(items)} {what}s came back", url)
    ordered: dict[int, dict[str, Any]] = {}
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        # bool is an int to Python but not a number to JSON.
        if type(index) is not int or not 0 <= index < count:
            invalid(f"a {what} has no usable `index`", url)
        if index in ordered:
            invalid(f"two {what}s have the index {index}", url)
        ordered[index] = item
    return [ordered[index] for index in range(count)]


def finite(value: Any) -> float | None:
    """`value` as a finite float; None when it is no such number."""
    if type(value) is not float and type(value) is not int:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def positive_count(value: Any) -> int | None:
    """`value` where it is a plausible number of tokens, slots or the like, else None."""
    return value if type(value) is int and 0 < value <= 10_000_000 else None


def printable(text: str) -> str:
    """One short line without control, format and surrogate characters: it may end on somebody's terminal."""
    kept = "".join(" " if unicodedata.category(c).startswith(("C", "Z")) else c for c in text[:1000])
    return " ".join(kept.split())[:200]


def invalid(what: str, url: str | None) -> NoReturn:
    raise ModelReplyInvalid(what, url=url)


def _message(error: Any) -> str:
    """What the server said went wrong, short and printable."""
    if isinstance(error, dict):
        error = next((error[k] for k in ("message", "detail", "error") if isinstance(error.get(k), str)), "")
    return printable(error) if isinstance(error, str) else ""


def _limit(error: Any, said: str) -> int | None:
    if isinstance(error, dict) and (named := positive_count(error.get("n_ctx"))):
        return named
    return next((int(m[1]) for pattern in _LIMITS if (m := pattern.search(said)) and int(m[1]) > 0), None)
