"""Text of a page on its way to a model or a terminal: control sequences removed, and a mark no page can forge.

Removing is only for showing: the stored document and the library's chunks keep every character.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

# C0 and C1 controls but tab and newline (escape sequences of terminals begin with them), lone surrogates, overrides of
# the writing direction (U+202A..202E; isolates, which right-to-left text needs, stay), and the invisible tag characters
# that carry text past a person's eyes (U+E0000..E007F).
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\U000e0000-\U000e007f]")

_NONCE_BYTES = 6
"""48 bits: no page, written before the call, can guess it."""


def showable(text: str) -> str:
    """`text` without control sequences, direction overrides and invisible tag characters."""
    return _UNSHOWABLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def showable_line(text: str) -> str:
    """The same on one line: for titles, headings and messages."""
    return " ".join(showable(text).split())


def nonce_absent_from(texts: Iterable[str]) -> str:
    """A random mark that occurs in none of `texts`."""
    seen = "\n".join(texts)
    while True:
        nonce = secrets.token_hex(_NONCE_BYTES)
        if nonce not in seen:
            return nonce
