"""How many tokens of a language model a text costs, without a tokenizer at hand.

Byte-pair tokenizers spend about one token on a common Latin word or three digits, and between a third of a token and
two on a character of another script. The weights below were fitted to o200k_base and then raised by `MARGIN`, so that
a budget is rather left unspent than overdrawn. Errors by script, and other tokenizers: notes/0003-token-estimate.md.
"""

from __future__ import annotations

import bisect
import math
import re

__all__ = ["estimate_tokens"]

MARGIN = 1.05
"""Raises every estimate."""

WORD = 0.80
WORD_TAIL = 0.38
"""For each letter of a word beyond the sixth."""
WORD_CASED = 0.23
"""For a word in capitals or camel case."""
DIGITS = 1.0
"""For each three digits of a number, and for a space before a number, a kana or an ideograph, which is a token of its
own there."""
PUNCTUATION = 0.95
"""For a run of ASCII punctuation."""
SPACE = 0.6
"""For a line end or a run of spaces."""

_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r"[0-9]+")
_LONE_SPACE = re.compile(r" (?=[0-9\u3040-\u30ff\u3400-\u9fff])")
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]+")
_SPACE = re.compile(r"\s{2,}|[\n\t]")
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")

# First code point of a range and tokens per character in it.
_RANGES: tuple[tuple[int, float], ...] = (
    (0x0080, 0.9),  # Latin letters with diacritics
    (0x0250, 0.6),  # phonetic letters, modifiers
    (0x0300, 0.9),  # combining diacritics
    (0x0370, 0.40),  # Greek
    (0x0400, 0.30),  # Cyrillic
    (0x0530, 0.32),  # Armenian
    (0x0590, 0.45),  # Hebrew
    (0x0600, 0.37),  # Arabic
    (0x0700, 1.5),  # Syriac, Thaana, N'Ko
    (0x0900, 0.39),  # Devanagari to Tamil
    (0x0C00, 0.50),  # Telugu to Sinhala
    (0x0E00, 0.43),  # Thai
    (0x0E80, 1.85),  # Lao
    (0x0F00, 2.0),  # Tibetan
    (0x1000, 0.60),  # Myanmar
    (0x10A0, 0.30),  # Georgian
    (0x1100, 0.8),  # Hangul letters
    (0x1200, 2.0),  # Ethiopic, Cherokee, syllabics
    (0x1780, 0.65),  # Khmer
    (0x1800, 2.0),  # Mongolian and others
    (0x1E00, 0.9),  # Latin and Greek with diacritics
    (0x2000, 0.6),  # typographic punctuation
    (0x2070, 1.0),  # symbols, arrows, boxes
    (0x2E80, 0.82),  # radicals, ideographic punctuation
    (0x3040, 0.68),  # kana
    (0x3100, 0.9),  # Bopomofo and others
    (0x3400, 0.83),  # ideographs
    (0xA000, 2.0),  # Yi and others
    (0xAC00, 0.70),  # Hangul
    (0xD7B0, 2.0),
    (0xF900, 1.0),  # compatibility forms, full width
    (0x10000, 2.0),  # historic scripts, emoji, rare ideographs
)
_STARTS = [start for start, _ in _RANGES]


def estimate_tokens(text: str) -> int:
    """Tokens that `text` costs, rather too many than too few; 0 for an empty text."""
    tokens = (
        sum(_word(w) for w in _WORD.findall(text))
        + DIGITS * sum((len(d) + 2) // 3 for d in _NUMBER.findall(text))
        + DIGITS * len(_LONE_SPACE.findall(text))
        + PUNCTUATION * len(_PUNCTUATION.findall(text))
        + SPACE * len(_SPACE.findall(text))
    )
    if not text.isascii():
        tokens += sum(_RANGES[bisect.bisect(_STARTS, ord(c)) - 1][1] for run in _NON_ASCII.findall(text) for c in run)
    return math.ceil(tokens * MARGIN)


def _word(word: str) -> float:
    cased = len(word) > 1 and not word.islower() and not word[1:].islower()
    return WORD + (WORD_TAIL * (len(word) - 6) if len(word) > 6 else 0) + (WORD_CASED if cased else 0)
