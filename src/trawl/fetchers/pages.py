"""From a body and what came with it to a Page: its type, its cap, its outcome. Pure; may take CPU time.

Whatever brought the body (the network, a browser, a file), it is judged here, so that all say the same of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trawl.extraction.charset import decode
from trawl.extraction.media_types import Kind, kind_of, sniff
from trawl.fetchers.facts import PageFacts, look
from trawl.fetchers.outcome import Verdict, classify, classify_status
from trawl.settings import Settings
from trawl.types import Page

_VIA: dict[Kind, str] = {
    "html": "http",
    "pdf": "pdf",
    "json": "passthrough",
    "xml": "passthrough",
    "feed": "passthrough",
    "text": "passthrough",
    "binary": "http",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A page, and what the quick look saw if it is HTML."""

    page: Page
    facts: PageFacts | None = None


def judge(
    body: bytes,
    *,
    url: str,
    final_url: str,
    status: int,
    headers: Mapping[str, str],
    content_type: str,
    charset: str | None,
    truncated: bool,
    settings: Settings,
    via: str | None = None,
    capped: bool = True,
) -> Judged:
    """The Page that `body` makes.

    Args:
        content_type: the media type told by whoever sent it; empty when untold.
        truncated: the end of the body is missing already.
        via: who brought it, if it is HTML; other types, and None: `http`, `pdf` or `passthrough`, as its type says.
        capped: JSON, XML and feeds are cut at `settings.passthrough_max_bytes`.
    """
    media_type = sniff(content_type, body, final_url)
    kind = kind_of(media_type)
    if capped and kind in ("json", "xml", "feed") and len(body) > settings.passthrough_max_bytes:
        body, truncated = body[: settings.passthrough_max_bytes], True
    facts: PageFacts | None = None
    if kind == "html":
        facts = look(decode(body, charset)[0])
        verdict = classify(
            facts, status=status, headers=headers, url=url, final_url=final_url, rendered=via == "browser"
        )
    else:
        verdict = _not_html(kind, media_type, status, body)
    if truncated and verdict.outcome == "ok":
        verdict = Verdict("truncated", f"only the first {len(body):,} bytes were read")
    page = Page(
        url=url,
        final_url=final_url,
        status=status,
        body=body,
        content_type=media_type,
        charset=charset,
        headers=headers,
        via=via if via is not None and kind == "html" else _VIA[kind],
        outcome=verdict.outcome,
        evidence=verdict.evidence,
        truncated=truncated,
    )
    return Judged(page, facts)


def _not_html(kind: Kind, media_type: str, status: int, body: bytes) -> Verdict:
    verdict = classify_status(status)
    if verdict.outcome != "ok":
        return verdict
    if kind == "binary" and body:
        return Verdict("unsupported", f"{media_type or 'binary data'}, {len(body):,} bytes")
    if not body.strip():
        return Verdict("empty", "the body is empty")
    return verdict
