"""Plain text and source code as Documents: the source is the text itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from trawl.extraction.code import fence_for
from trawl.extraction.identity import document_id
from trawl.types import Block, Document

TEXT_VERSION = "text-1"
"""Changes whenever the same text may give another document."""
MAX_TEXT = 10 * 2**20
"""Characters of plain text read."""

_CODE_SUFFIXES = {
    ".py": "python", ".js": "javascript", ".mjs": "javascript", ".ts": "typescript", ".tsx": "tsx", ".jsx": "jsx",
    ".c": "c", ".h": "c", ".cc": "cpp", ".cpp": "cpp", ".hpp": "cpp", ".cs": "csharp", ".java": "java",
    ".kt": "kotlin", ".go": "go", ".rs": "rust", ".rb": "ruby", ".php": "php", ".pl": "perl", ".sh": "bash",
    ".bash": "bash", ".ps1": "powershell", ".swift": "swift", ".scala": "scala", ".lua": "lua", ".r": "r",
    ".jl": "julia", ".sql": "sql", ".css": "css", ".scss": "scss", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml",
    ".ini": "ini", ".cfg": "ini", ".tf": "hcl", ".hs": "haskell", ".ml": "ocaml", ".ex": "elixir", ".erl": "erlang",
    ".clj": "clojure", ".dart": "dart", ".vue": "vue", ".diff": "diff", ".patch": "diff", ".json": "json",
    ".xml": "xml", ".proto": "proto", ".asm": "asm", ".el": "lisp",
}  # fmt: skip
_CODE_NAMES = {"dockerfile": "dockerfile", "makefile": "makefile", "cmakelists.txt": "cmake"}
_PARAGRAPH_END = re.compile(r"\n[ \t\r\f]*\n\s*")


def text_document(text: str, *, url: str = "", warnings: Sequence[str] = ()) -> Document:
    """`text` as a Document whose source is the text itself. Source code (by the name in `url`) is one listing."""
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT]
        warnings = (*warnings, f"the text is longer than {MAX_TEXT // 2**20} MB; its end was not read")
    language = _language(url)
    blocks: list[Block] = []
    render: Callable[[Sequence[Block]], str] | None = None
    if language is not None:
        if text.strip():
            end = len(text.rstrip())
            blocks.append(Block("code", 0, end, text[:end]))

        def render_listing(chosen: Sequence[Block]) -> str:
            fence = fence_for(text)
            return "\n\n".join(f"{fence}{language}\n{text[b.start : b.end]}\n{fence}" for b in chosen)

        render = render_listing
    else:
        blocks.extend(_paragraphs(text))
    return Document(
        source=text,
        blocks=tuple(blocks),
        url=url,
        content_type="text/plain",
        document_id=document_id(text.encode("utf-8", "surrogatepass"), TEXT_VERSION),
        warnings=tuple(warnings),
        render=render,
    )


def _paragraphs(text: str) -> Iterable[Block]:
    position = len(text) - len(text.lstrip())
    while position < len(text):
        gap = _PARAGRAPH_END.search(text, position)
        end = gap.start() if gap else len(text.rstrip())
        if end > position:
            yield Block("paragraph", position, end, text[position:end].strip())
        if gap is None:
            return
        position = gap.end()


def _language(url: str) -> str | None:
    name = PurePosixPath(urlsplit(url).path).name.lower()
    return _CODE_NAMES.get(name) or _CODE_SUFFIXES.get(PurePosixPath(name).suffix)
