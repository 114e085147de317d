"""The killable child: reads one document that native code could hang or crash in, and writes it out as JSON.

    python -m trawl._worker KIND  <in  >out

Input: one line of JSON (`url`, `seconds`, `memory`), then the body. Output: one JSON object, either the document's
fields or `error`. The parent is `extraction.isolated`. Imports stay few: every call pays for them.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from math import ceil
from typing import BinaryIO

from trawl.errors import ExtractionError
from trawl.types import Document

MAX_OUTPUT = 64 * 2**20
"""Bytes the child may write."""
READING_SHARE = 0.8
"""Share of the time given to reading; the rest is for writing out what was read."""


def main() -> None:
    kind = sys.argv[1]
    source = sys.stdin.buffer
    request = json.loads(source.readline())
    # What native code prints must not end up in the answer.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit(request["seconds"], request["memory"])
    json_bytes = json.dumps(_answer(kind, source, request["url"], request["seconds"])).encode("ascii")
    out.write(json_bytes)
    out.flush()
    # Leaving by the front door would run native destructors over whatever the file has done to them.
    os._exit(0)


def _limit(seconds: float, memory: int) -> None:
    """Bounds of this process, so that it ends even if the parent is gone."""
    cpu = ceil(seconds) + 1
    signal.alarm(ceil(seconds) + 2)
    for what, soft in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, MAX_OUTPUT),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        _, hard = resource.getrlimit(what)
        limit = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        # Not every system takes every limit; the alarm and the parent remain.
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (limit, limit))


def _answer(kind: str, source: BinaryIO, url: str, seconds: float) -> dict[str, object]:
    try:
        body = source.read()
        if kind != "pdf":
            return {"error": f"no reader for {kind}", "hint": ""}
        from trawl.extraction.pdf import pdf_document

        return _fields(pdf_document(body, url=url, seconds=seconds * READING_SHARE))
    except ExtractionError as error:
        return {"error": error.message, "hint": error.hint}
    except MemoryError:
        return {"error": "reading it takes more memory than is allowed", "hint": ""}
    except Exception as error:
        return {"error": f"the reader failed: {type(error).__name__}: {str(error)[:200]}", "hint": ""}


def _fields(document: Document) -> dict[str, object]:
    return {
        "source": document.source,
        "blocks": [[b.kind, b.start, b.end, b.text, b.level, b.page] for b in document.blocks],
        "links": [[link.start, link.end, link.url, link.text] for link in document.links],
        "title": document.title,
        "metadata": dict(document.metadata),
        "content_type": document.content_type,
        "document_id": document.document_id,
        "warnings": list(document.warnings),
    }


if __name__ == "__main__":
    main()
