"""Content the caller already has, as a Page like any other. Nothing is fetched."""

from __future__ import annotations

import time
from dataclasses import replace

from trawl.extraction.media_types import media_type
from trawl.fetchers.pages import judge
from trawl.settings import Settings
from trawl.types import Page


def local_page(content: bytes | str, *, url: str, content_type: str, status: int, settings: Settings) -> Page:
    """`content` with its type and outcome told as for a fetched page. May take CPU time.

    Args:
        url: where it came from; empty when unknown.
        content_type: as the server said, with parameters; empty: the bytes tell.
        status: the HTTP status it came with.
    """
    told, charset = media_type(content_type)
    if isinstance(content, str):
        # A label in the text (`<meta charset>`) speaks of bytes that are gone.
        body, charset = content.encode("utf-8", "replace"), "utf-8"
    else:
        body = content
    truncated = len(body) > settings.max_bytes
    judged = judge(
        body[: settings.max_bytes],
        url=url,
        final_url=url,
        status=status,
        headers={},
        content_type=told,
        charset=charset,
        truncated=truncated,
        settings=settings,
        via="local",
        capped=False,
    )
    return replace(judged.page, fetched_at=time.time())
