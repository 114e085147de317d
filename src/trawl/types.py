"""The records that pass between the stages: fetch -> Page -> Document -> Chunk -> PipelineResult.

All but the last are frozen. Positions are code points into `Document.source`, half-open: `source[start:end]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

Outcome = Literal[
    "ok",
    "blocked",
    "login",
    "consent",
    "paywall",
    "js_shell",
    "soft_404",
    "http_error",
    "empty",
    "truncated",
    "unsupported",
    "refused",
    "network_error",
    "internal_error",
]
"""What happened to the page, in one word. `ok` and `truncated` carry its content; of `paywall` and `js_shell` what
could be read is returned, of the others nothing."""

Render = Literal["auto", "always", "never"]
"""Whether a browser renders the page: when it needs it, in any case, or not at all."""

BlockKind = Literal["heading", "paragraph", "list", "table", "code", "quote", "caption"]
ChunkKind = Literal["prose", "table", "code", "list", "record"]

CONTENT_THRESHOLD = 0.5
"""Blocks at or above this probability make up the main content (`Document.text`, `Document.markdown`)."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a fetcher brings back: the bytes as served (only Content-Encoding is undone) and what is known of them."""

    url: str
    """As asked for."""
    final_url: str
    """After redirects."""
    status: int
    body: bytes
    content_type: str
    """Media type in lower case without parameters, e.g. `text/html`; sniffed when the server gave none."""
    charset: str | None = None
    """The charset parameter of Content-Type, as sent."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Response headers, names in lower case."""
    via: str = "http"
    """Who fetched it: `http`, `browser`, `pdf`, `passthrough`, `local`."""
    outcome: Outcome = "ok"
    evidence: str = ""
    """Why the outcome is what it is, e.g. the phrase found; empty for `ok`."""
    title: str = ""
    """A title known to the fetcher; empty when the content itself must tell."""
    truncated: bool = False
    """The body reached the size cap and its end is missing."""
    fetched_at: float = 0.0
    """Seconds since the epoch."""
    fetch_ms: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the page; `start:end` is its text in `source` (an image link may span nothing)."""

    start: int
    end: int
    url: str
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the page as its author laid it out: a paragraph, a heading, a list item, a table, a code listing."""

    kind: BlockKind
    start: int
    end: int
    """The whole slice of `source`, with its marker: `## Title`, `- item`, a fenced listing, a pipe table."""
    text: str
    """The words alone, without marker, fence or rule."""
    level: int = 0
    """Heading: 1 to 6. List item: its depth from 1. Otherwise 0."""
    content_p: float = 1.0
    """Probability in 0..1 that the block is main content rather than boilerplate."""
    hidden: bool = False
    """Invisible to a person reading the page (inline style, `hidden`, `aria-hidden`)."""
    record: str | None = None
    """Id of the repeated item (card, row, post) this block belongs to; None outside such a run."""
    page: int | None = None
    """Page number from 1 in a paged document (PDF)."""


@dataclass(frozen=True)
class Document:
    """The whole page as text. `source` is light Markdown: heading marks, list markers, pipe tables and code fences are
    kept, inline markup and link targets are not (those are in `links` and `markdown`)."""

    source: str
    blocks: tuple[Block, ...]
    url: str = ""
    title: str = ""
    content_type: str = "text/html"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    confidence: float = 1.0
    """0..1: how sure the extractor is of which blocks are the main content."""
    document_id: str = ""
    """Hash of body and extractor version: the same bytes read by the same code give the same id."""
    warnings: tuple[str, ...] = ()
    render: Callable[[Sequence[Block]], str] | None = field(default=None, repr=False, compare=False)
    """Renders chosen blocks as full Markdown (links, emphasis). None: slices of `source` are Markdown already."""

    @cached_property
    def main_blocks(self) -> tuple[Block, ...]:
        """The blocks judged to be main content, in document order."""
        return tuple(b for b in self.blocks if b.content_p >= CONTENT_THRESHOLD and not b.hidden)

    @cached_property
    def text(self) -> str:
        """The main content as plain text, one block after another."""
        return "\n\n".join(b.text for b in self.main_blocks)

    @cached_property
    def markdown(self) -> str:
        """The main content as Markdown with links, emphasis, code and tables."""
        if self.render is not None:
            return self.render(self.main_blocks)
        return "\n\n".join(self.source[b.start : b.end] for b in self.main_blocks)


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a chunk's text: a literal slice of `source`, or (`start` is None) context repeated for the reader."""

    text: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The unit of ranking: small enough to be cheap, whole enough to be understood.

    `parts` joined give `text`. Parts that are slices of the source are its `spans`; the others (a repeated table
    header, a fence around a slice of code) are context.
    """

    index: int
    kind: ChunkKind
    heading_path: tuple[str, ...]
    parts: tuple[Part, ...]
    content_p: float = 1.0
    record: str | None = None
    page: int | None = None

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.parts)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        return tuple((p.start, p.end) for p in self.parts if p.start is not None and p.end is not None)

    @property
    def start(self) -> int:
        return min(s for s, _ in self.spans)

    @property
    def end(self) -> int:
        return max(e for _, e in self.spans)


@dataclass
class PipelineResult:
    """What one call gives back. The fields are a contract: they are only ever added to.

    `chunks` are dictionaries, best first: `text`, `heading` (path joined by " > "), `heading_path`, `score` (None when
    nothing was ranked), `kind`, `char_count`, `chunk_index`, `spans`, `start`, `end` (code points of the document's
    source), `tokens`, `anchor` (a link that leads to the words), `content_p`.
    """

    url: str
    query: str
    fetcher_used: str = ""
    fetch_ms: int = 0
    chunk_ms: int = 0
    retrieval_ms: int = 0
    total_ms: int = 0
    page_chars: int = 0
    n_chunks_total: int = 0
    structured_path: bool = False
    hyde_used: bool = False
    hyde_text: str = ""
    chunks: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    profile_used: bool = False
    profile_hash: str | None = None
    path: str = "full_page_retrieval"
    suggest_profile: bool = False
    suggest_profile_reason: str | None = None
    rerank_used: bool = False
    rerank_ms: int = 0
    content_type: str | None = None
    truncated: bool = False
    page_title: str = ""
    excerpts: list[dict[str, Any]] = field(default_factory=list)
    outbound_links: list[dict[str, Any]] = field(default_factory=list)
    page_entities: list[str] = field(default_factory=list)
    chain_hints: dict[str, Any] = field(default_factory=dict)
    cache_hit: bool = False
    n_chunks_embedded: int = 0
    rerank_capped: bool = False
    warnings: list[str] = field(default_factory=list)
    embed_cache_hits: int = 0
    embed_cache_misses: int = 0
    retrieval_diagnostics: dict[str, Any] = field(default_factory=dict)
    contextual_retrieval_used: bool = False
    context_prefix_chars_total: int = 0
    context_prefix_chars_avg: float = 0.0
    content_images: list[str] = field(default_factory=list)
    # Beyond the older contract:
    final_url: str = ""
    status: int = 0
    outcome: Outcome = "ok"
    evidence: str = ""
    fetched_at: float = 0.0
    document_id: str = ""
    tokens: int = 0
    """Estimated tokens of the chunks as returned."""
    answerable: float | None = None
    """Calibrated probability that the page answers the question; None until it is measured."""
    more: str | None = None
    """A handle for the pieces after these (`Engine.more`); None when there are none."""

    @property
    def output_chars(self) -> int:
        return sum(int(c["char_count"]) for c in self.chunks)

    @property
    def compression_ratio(self) -> float:
        return self.page_chars / max(self.output_chars, 1)


def to_dict(result: PipelineResult) -> dict[str, Any]:
    """`result` as plain JSON-ready data, with `output_chars` and `compression_ratio` (one decimal) added."""
    return asdict(result) | {
        "output_chars": result.output_chars,
        "compression_ratio": round(result.compression_ratio, 1),
    }
