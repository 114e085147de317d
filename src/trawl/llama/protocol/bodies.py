"""What every request body has in common: JSON in UTF-8, and text that any server can take."""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """`text` as every server can take it: a lone surrogate has no UTF-8, and NUL ends a string for some servers."""
    return _SURROGATE.sub("\ufffd", text).replace("\0", " ")


def json_body(value: dict[str, Any]) -> bytes:
    """`value` as a request body."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
