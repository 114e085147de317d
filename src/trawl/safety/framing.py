"""Text of a page on its way to a model or a terminal: control sequences removed, and a mark no page can forge.

Removing is only for showing: the stored document and the library's chunks keep every character.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable

# C0 and C1 controls but tab and newline (escape sequences of terminals begin with them), lone surrogates, overrides of
# the writing direction (U+202A..202E; isolates, which right-to-left text needs, stay), deprecated and interlinear
# format characters, and the invisible plane 14 but for its variation selectors: its tags carry text past a person's
# eyes.
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u206a-\u206f\ufff0-\ufffb\U000e0000-\U000e00ff"
    "\U000e01f0-\U000e0fff]"
)

# Invisible, but parts of scripts and emoji (joiners, variation selectors, fillers, soft hyphens), of which at most two
# follow each other; and the marks and isolates of the writing direction, of which nesting makes a few more. Longer runs
# say something that nobody sees. A variation selector after a Latin letter varies nothing.
_INVISIBLE = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0100-\U000e01ef"
)
_HIDDEN_RUN = re.compile(f"(?<=[A-Za-z])[\ufe00-\ufe0f\U000e0100-\U000e01ef]+|(?<=[{_INVISIBLE}]{{2}})[{_INVISIBLE}]+")
_DIRECTIONS = "\u061c\u200e\u200f\u2066-\u2069"
_DIRECTION_RUN = re.compile(f"(?<=[{_DIRECTIONS}]{{4}})[{_DIRECTIONS}]+")
_LINE_ENDS = re.compile("\r\n?|[\u2028\u2029]")

_NONCE_BYTES = 4
"""A page is written before the call and has one guess in four thousand million; each byte costs tokens."""


def showable(text: str) -> str:
    """`text` without control sequences, direction overrides and invisible characters that could carry text."""
    shown = _UNSHOWABLE.sub("", _LINE_ENDS.sub("\n", text))
    return shown if shown.isascii() else _DIRECTION_RUN.sub("", _HIDDEN_RUN.sub("", shown))


def showable_line(text: str) -> str:
    """The same on one line: for titles, headings and messages."""
    return " ".join(showable(text).split())


def showable_json(data: object) -> str:
    """`data` as indented JSON that says everything, what a terminal would obey or hide as escapes."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    return _UNSHOWABLE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def nonce_absent_from(texts: Iterable[str]) -> str:
    """A random mark that occurs in none of `texts`."""
    seen = "\n".join(texts)
    while True:
        nonce = secrets.token_hex(_NONCE_BYTES)
        if nonce not in seen:
            return nonce
