"""What every reply has in common: a JSON object, or one typed error.

Replies are not trusted: each parser of this package takes the status and the bytes as they came and gives plain
checked values, or raises `ModelUnavailable` (the server cannot serve this now) or `ModelReplyInvalid` (its answer
cannot be used).
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, NoReturn

from trawl.errors import ModelReplyInvalid, ModelUnavailable

REPLY_BASE_BYTES = 1 << 20
"""Bytes allowed for a reply without vectors; llama-server's own lists take a few kilobytes."""
UNAVAILABLE_STATUS = frozenset({401, 403, 408, 429, 502, 503, 504})

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


def reply_object(status: int, body: bytes, url: str | None) -> dict[str, Any]:
    """The JSON object of a good reply; a typed error for every other."""
    value = json_value(body)
    error = value.get("error") if isinstance(value, dict) else None
    if status == 200 and isinstance(value, dict) and not error:
        return value
    said = _message(error if error else value)
    if 300 <= status < 400:
        invalid(f"it redirects (status {status}), which is not followed", url)
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


def json_value(body: bytes) -> Any:
    """The value, or None for what does not parse (a JSON `null` is no use either)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _message(error: Any) -> str:
    """What the server said went wrong, short and printable."""
    if isinstance(error, dict):
        error = next((error[k] for k in ("message", "detail", "error") if isinstance(error.get(k), str)), "")
    return printable(error) if isinstance(error, str) else ""


def _limit(error: Any, said: str) -> int | None:
    if isinstance(error, dict) and (named := positive_count(error.get("n_ctx"))):
        return named
    return next((int(m[1]) for pattern in _LIMITS if (m := pattern.search(said)) and int(m[1]) > 0), None)


def printable(text: str) -> str:
    """One short line without control, format and surrogate characters: it may end on somebody's terminal."""
    kept = "".join(" " if unicodedata.category(c).startswith(("C", "Z")) else c for c in text[:1000])
    return " ".join(kept.split())[:200]


def invalid(what: str, url: str | None) -> NoReturn:
    raise ModelReplyInvalid(what, url=url)


def positive_count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= 10_000_000 else None
