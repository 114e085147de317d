"""What a reranker is given, and what its scores do to the order. Pure; the scores come as numbers.

ranked -> candidates -> documents (title, section, text) -> capped -> [reranker] -> reordered
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trawl.retrieval.rank import Ranked
from trawl.types import Chunk

__all__ = ["Capped", "Caps", "candidates_wanted", "capped", "document_text", "reordered"]

CANDIDATES = 30
"""Pieces worth reranking when the caller named no number: a budget of 1,000 tokens holds 8 to 12 of them."""
SMALLEST_SHARE = 200
"""Characters that every document keeps when the total is shared out."""


@dataclass(frozen=True, slots=True)
class Caps:
    """What one request to a reranker may hold; 0 or less: no cap.

    The defaults are measured limits of bge-reranker-v2-m3 on llama-server: 40,000 characters pass its context of 8,192
    tokens and 50,000 do not; 1,500 characters pass a batch of 512 tokens also when they are code.
    """

    documents: int = 30
    chars_each: int = 1500
    chars_in_all: int = 40_000


@dataclass(frozen=True, slots=True)
class Capped:
    """The documents that are sent, and whether anything was left out of them."""

    documents: list[str]
    clamped: bool


def candidates_wanted(k: int | None) -> int:
    """How many pieces are worth reranking: twice the number asked for, as the first order is not yet the right one."""
    return 2 * k if k else CANDIDATES


def document_text(chunk: Chunk, title: str = "") -> str:
    """A piece as the reranker reads it: the title, the section, an empty line, the text; lines that say nothing new
    are left out."""
    section = " > ".join(chunk.heading_path)
    head = [line for line in (title, section if section != title else "") if line]
    return "\n".join([*head, "", chunk.text] if title and head else [*head, chunk.text])


def capped(question: str, documents: Sequence[str], caps: Caps) -> Capped:
    """The documents within the caps: too many lose their tail, too long ones their end, and when question and
    documents are still too much each gets an equal share, of `SMALLEST_SHARE` at least, even if that is too much."""
    kept = list(documents[: caps.documents] if caps.documents > 0 else documents)
    if caps.chars_each > 0:
        kept = [text[: caps.chars_each] for text in kept]
    if caps.chars_in_all > 0 and kept and len(question) + sum(map(len, kept)) > caps.chars_in_all:
        share = max(SMALLEST_SHARE, (caps.chars_in_all - len(question)) // len(kept))
        kept = [text[:share] for text in kept]
    return Capped(kept, kept != list(documents))


def reordered(ranked: Sequence[Ranked], scores: Sequence[float]) -> list[Ranked]:
    """The first `len(scores)` pieces by the reranker's scores, then the others as they were.

    A published score is the one that decided the order: of the first pieces the reranker's, as a probability, of the
    others their own, scaled to lie below.
    """
    relevance = _probabilities(scores)
    best = sorted(range(len(scores)), key=lambda i: -scores[i])
    first = [replace(ranked[i], score=relevance[i]) for i in best]
    below = min(relevance, default=1.0)
    return [*first, *(replace(r, score=below * (r.score or 0.0)) for r in ranked[len(scores) :])]


def _probabilities(scores: Sequence[float]) -> list[float]:
    """llama-server's scores are raw logits; other servers give probabilities already."""
    if all(0 <= score <= 1 for score in scores):
        return list(scores)
    # tanh instead of exp: it cannot overflow.
    return [0.5 + 0.5 * math.tanh(score / 2) for score in scores]
