"""What a caller gets of a ranked chunk, and what it costs. Pure.

A token budget is what the reader pays for a piece written as JSON: its text and the headings above it. The heading path
is shown without the page's own title where it begins with it, since a reader has the title already. Score, offsets and
link are for programs and are not counted; a face that writes them too has to find room for them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trawl.chunking import same_words
from trawl.retrieval.rank import Ranked
from trawl.retrieval.tokens import estimate_tokens

SEPARATOR = " > "
"""Between the headings of a path."""


def shown_heading(path: Sequence[str], page_title: str) -> str:
    """The heading path as one line, without the page title at its beginning."""
    below = path[1:] if path and same_words(path[0], page_title) else path
    return SEPARATOR.join(below)


def piece_tokens(text: str, path: Sequence[str], page_title: str) -> int:
    """Estimated tokens that a piece costs its reader."""
    shown = {"heading": shown_heading(path, page_title), "text": text}
    return estimate_tokens(json.dumps(shown, ensure_ascii=False))


def piece(ranked: Ranked, link: str, page_title: str) -> dict[str, Any]:
    """One entry of `PipelineResult.chunks`."""
    chunk = ranked.chunk
    return {
        "text": chunk.text,
        "heading": SEPARATOR.join(chunk.heading_path),
        "heading_path": list(chunk.heading_path),
        "kind": chunk.kind,
        "score": ranked.score,
        "char_count": len(chunk.text),
        "chunk_index": chunk.index,
        "spans": [list(span) for span in chunk.spans],
        "start": chunk.start,
        "end": chunk.end,
        "tokens": piece_tokens(chunk.text, chunk.heading_path, page_title),
        "anchor": link,
        "content_p": round(chunk.content_p, 3),
    }
