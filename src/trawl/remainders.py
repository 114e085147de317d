"""The pieces that did not fit into a budget, kept for whoever asks for more of the same result."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass

from trawl.asking import Ask
from trawl.errors import UsageError
from trawl.retrieval.rank import Ranked
from trawl.types import Document, PipelineResult

MOST_KEPT = 32
"""Results that can be read on; each holds its document, at the very most 10 MB of page."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """The pieces after those returned, in order, and what is needed to return them."""

    result: PipelineResult
    document: Document
    ranked: tuple[Ranked, ...]
    ask: Ask


class Remainders:
    """The last few remainders by handle, the oldest giving way."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Remainder] = OrderedDict()

    def keep(self, remainder: Remainder) -> str:
        """Keep `remainder`; returns its handle, which no other caller can guess."""
        handle = secrets.token_urlsafe(9)
        self._kept[handle] = remainder
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return handle

    def get(self, handle: str) -> Remainder:
        """The remainder kept under `handle`.

        Raises:
            UsageError: the handle is unknown, or too many results came after it.
        """
        remainder = self._kept.get(handle)
        if remainder is None:
            raise UsageError("this handle is unknown or has expired", hint="Ask for the page again.")
        return remainder

    def clear(self) -> None:
        self._kept.clear()
