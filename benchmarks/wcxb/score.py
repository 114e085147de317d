"""The WCXB measure: how well the words of an extracted text agree with those of the ground truth."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    precision: float
    recall: float
    f1: float


def words(text: str) -> list[str]:
    """Lower-cased runs of word characters."""
    return re.findall(r"\w+", text.lower())


def score(found: str, wanted: str) -> Score:
    """Precision, recall and F1 of the bags of words. Nothing wanted scores 1 for nothing found, else 0."""
    have, want = Counter(words(found)), Counter(words(wanted))
    if not want or not have:
        value = float(have == want)
        return Score(value, value, value)
    common = sum((have & want).values())
    precision, recall = common / have.total(), common / want.total()
    return Score(precision, recall, 2 * precision * recall / (precision + recall) if common else 0.0)


def snippets_found(text: str, snippets: list[str]) -> float | None:
    """The share of `snippets` that occur in `text`, case and white space aside; None when there are none."""

    def tidy(value: str) -> str:
        return " ".join(value.lower().split())

    text = tidy(text)
    return sum(tidy(s) in text for s in snippets) / len(snippets) if snippets else None
