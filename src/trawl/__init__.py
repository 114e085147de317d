"""trawl: a URL and a question in, the few pieces of that page that answer it out.

    import trawl

    result = trawl.fetch_relevant("https://docs.python.org/3/library/asyncio-task.html", "how do I run tasks together?")
    for piece in result.chunks:
        print(piece["heading"], piece["text"], piece["anchor"])
    result.outcome          # "ok", or what stood in the way: "blocked", "login", "js_shell", ...

    trawl.extract_relevant(html, "what does it cost?", url=url)     # the same for content you already have
    trawl.extract(html).markdown                                    # its main content as Markdown
    with trawl.Engine() as engine: ...                              # your own engine: browser and model stay warm
    async with trawl.AsyncEngine() as engine: ...

What the web or a model server does never raises from `fetch_relevant` and `extract_relevant`: it is told in
`result.error`, `result.outcome` and `result.warnings`. `fetch_document` and `extract` return a document or raise one of
`trawl.errors`. A wrong argument raises `UsageError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trawl import errors
    from trawl.api import (
        extract,
        extract_relevant,
        fetch_document,
        fetch_relevant,
        html_to_markdown,
    )
    from trawl.engine import AsyncEngine, Engine
    from trawl.settings import Settings
    from trawl.types import Document, PipelineResult, to_dict

__version__ = "0.1.0"

__all__ = [
    "AsyncEngine",
    "Document",
    "Engine",
    "PipelineResult",
    "Settings",
    "__version__",
    "errors",
    "extract",
    "extract_relevant",
    "fetch_document",
    "fetch_relevant",
    "html_to_markdown",
    "to_dict",
]

_HOME = {
    "AsyncEngine": "trawl.engine",
    "Document": "trawl.types",
    "Engine": "trawl.engine",
    "PipelineResult": "trawl.types",
    "Settings": "trawl.settings",
    "extract": "trawl.api",
    "extract_relevant": "trawl.api",
    "fetch_document": "trawl.api",
    "fetch_relevant": "trawl.api",
    "html_to_markdown": "trawl.api",
    "to_dict": "trawl.types",
}


def __getattr__(name: str) -> Any:
    # Names are loaded when first used, so that `import trawl` costs nothing.
    if name == "errors":
        return import_module("trawl.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'trawl' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
