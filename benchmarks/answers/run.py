"""Is the answer in what is returned? Questions with literal answers over saved pages, at several token budgets.

    python benchmarks/answers/run.py --qa QA.jsonl --html DIR [--budgets 250,500,1000,2000] [--backend lexical|URL]
                                     [--max-chars N] [--chunk-budget N] [--k adaptive] [--limit N] [--misses]
                                     [--json OUT]

A line of QA.jsonl has `query`, `answers`, `all`, and `page` (DIR/page.html[.gz]) or `file` (DIR/file, with its
`content_type`). An answer counts as found when it stands in the heading paths and texts of the pieces that fit the
budget, case and white space aside.
URL is the base of an OpenAI-compatible embeddings server, such as http://127.0.0.1:8081/v1.

Peers in the same run: BM25 over the text Trafilatura keeps, in pieces of equal size; the beginning of the whole page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import httpx
import numpy as np

from trawl.chunking import MAX_CHARS, chunk_document
from trawl.errors import ExtractionError, FetchError
from trawl.extraction.reader import read_document_sync
from trawl.retrieval.bm25 import bm25_scores
from trawl.retrieval.choose import chunk_cost, pack
from trawl.retrieval.rank import Ranked, in_order, passage_text, prefilter, rank
from trawl.retrieval.terms import question_weights, terms
from trawl.types import Chunk, Document, Part

BATCH = 64
EMBED_CHARS = 1_800


@dataclass
class Saved:
    """A page read once for all its questions."""

    document: Document
    chunks: list[Chunk]
    fixed: list[Chunk]
    vectors: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Backend:
    """An embeddings server."""

    url: str
    model: str
    query_prefix: str
    passage_prefix: str

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        rows: list[list[float]] = []
        for i in range(0, len(texts), BATCH):
            body = {"model": self.model, "input": list(texts[i : i + BATCH])}
            reply = httpx.post(f"{self.url.rstrip('/')}/embeddings", json=body, timeout=300, trust_env=False)
            reply.raise_for_status()
            rows += [item["embedding"] for item in reply.json()["data"]]
        vectors = np.array(rows, dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def similarities(self, page: Saved, query: str, candidates: Sequence[int]) -> np.ndarray:
        missing = [i for i in candidates if i not in page.vectors]
        if missing:
            texts = [passage_text(page.chunks[i], page.document.title)[:EMBED_CHARS] for i in missing]
            page.vectors.update(zip(missing, self.embed([self.passage_prefix + t for t in texts]), strict=True))
        asked = self.embed([self.query_prefix + query])[0]
        return np.stack([page.vectors[i] for i in candidates]) @ asked


def adaptive_k(n: int) -> int:
    """The cap to compare with: 5 to 8 pieces of a short page, 12 of a long one."""
    if n < 30:
        return min(max(n // 2 + 2, 5), 8)
    if n < 100:
        return 8
    return 10 if n < 200 else 12


def main() -> None:
    options = _options()
    questions = [json.loads(line) for line in options.qa.read_text(encoding="utf-8").splitlines() if line.strip()]
    questions = questions[: options.limit]
    budgets = [int(b) for b in options.budgets.split(",")]
    backend = None
    if options.backend != "lexical":
        backend = Backend(options.backend, options.model, options.query_prefix, options.passage_prefix)
    pages = _pages(questions, options)
    ways: dict[str, Callable[[Saved, str], list[Ranked]]] = {
        "trawl": lambda page, query: _ours(page, query, backend, options.chunk_budget),
        "bm25 over trafilatura": lambda page, query: _bm25(page.fixed, query),
        "whole page": lambda page, query: in_order(page.chunks),
    }
    report: dict[str, Any] = {"questions": len(questions), "pages": len(pages), "backend": options.backend}
    visible = [_found(q, "\n".join(b.text for b in _page(pages, q).document.blocks if not b.hidden)) for q in questions]
    chunked = [_found(q, "\n".join(_shown(c) for c in _page(pages, q).chunks)) for q in questions]
    report["in the document"], report["in the chunks"] = fmean(visible), fmean(chunked)
    for name, way in ways.items():
        report[name] = _measure(name, way, questions, pages, budgets, options)
    _print(report, budgets)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--qa", type=Path, required=True)
    parser.add_argument("--html", type=Path, required=True, help="folder of the pages")
    parser.add_argument("--budgets", default="250,500,1000,2000", help="tokens, comma separated")
    parser.add_argument("--backend", default="lexical", help="lexical, or the URL of an embeddings server")
    parser.add_argument("--model", default="embedding")
    parser.add_argument("--query-prefix", default="", help="put before a question, e.g. 'query: ' for e5")
    parser.add_argument("--passage-prefix", default="", help="put before a passage, e.g. 'passage: ' for e5")
    parser.add_argument("--max-chars", type=int, default=MAX_CHARS)
    parser.add_argument("--chunk-budget", type=int, default=100, help="chunks that are embedded")
    parser.add_argument(
        "--k", choices=["budget", "adaptive"], default="budget", help="what limits the number of pieces"
    )
    parser.add_argument("--limit", type=int)
    parser.add_argument("--misses", action="store_true", help="name the questions missed within 1,000 tokens")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


# Pages


def _page_file(question: dict[str, Any], folder: Path) -> Path:
    if "file" in question:
        return folder / question["file"]
    plain = folder / f"{question['page']}.html"
    return plain if plain.exists() else plain.with_suffix(".html.gz")


def _page(pages: dict[Path, Saved], question: dict[str, Any]) -> Saved:
    return pages[question["_file"]]


def _pages(questions: Sequence[dict[str, Any]], options: argparse.Namespace) -> dict[Path, Saved]:
    pages: dict[Path, Saved] = {}
    seconds = []
    for question in questions:
        path = question["_file"] = _page_file(question, options.html)
        if path in pages:
            continue
        body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        started = time.perf_counter()
        document = _read(body, question)
        chunks = chunk_document(document, max_chars=options.max_chars)
        seconds.append(time.perf_counter() - started)
        pages[path] = Saved(document, chunks, _fixed(body, options.max_chars))
    if seconds:
        print(f"extraction and chunking: median {median(seconds) * 1000:.0f} ms per page")
    return pages


def _read(body: bytes, question: dict[str, Any]) -> Document:
    media_type, _, parameters = question.get("content_type", "text/html").partition(";")
    charset = re.search(r"charset=[\"']?([\w-]+)", parameters)
    try:
        return read_document_sync(
            body, url=question["url"], content_type=media_type.strip().lower(), charset=charset and charset[1]
        )
    except (ExtractionError, FetchError) as error:
        print(f"not read: {question.get('file') or question.get('page')}: {error}")
        return Document("", ())


def _fixed(body: bytes, max_chars: int) -> list[Chunk]:
    import trafilatura

    text = (trafilatura.extract(body, favor_recall=True, include_tables=True) if b"<" in body[:1000] else "") or ""
    pieces: list[Chunk] = []
    start = 0
    for match in re.finditer(r"\s+|$", text):
        if match.start() - start >= max_chars or match.end() == len(text):
            if text[start : match.start()].strip():
                part = Part(text[start : match.start()], start, match.start())
                pieces.append(Chunk(len(pieces), "prose", (), (part,)))
            start = match.end()
    return pieces


# Ways


def _ours(page: Saved, query: str, backend: Backend | None, budget: int) -> list[Ranked]:
    if backend is None or not page.chunks:
        return rank(page.chunks, query)
    candidates = prefilter(page.chunks, query, budget)
    similarities = backend.similarities(page, query, candidates)
    return rank(page.chunks, query, candidates=candidates, similarities=similarities)


def _bm25(chunks: Sequence[Chunk], query: str) -> list[Ranked]:
    scores = bm25_scores([terms(c.text) for c in chunks], question_weights(query))
    return sorted((Ranked(c, s) for c, s in zip(chunks, scores, strict=True)), key=lambda r: -(r.score or 0))


# Measure


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower())


def _found(question: dict[str, Any], text: str) -> bool:
    squeezed = _squeezed(text)
    hits = [_squeezed(answer) in squeezed for answer in question["answers"]]
    return all(hits) if question["all"] else any(hits)


def _shown(chunk: Chunk) -> str:
    return " > ".join(chunk.heading_path) + "\n" + chunk.text


def _measure(
    name: str,
    way: Callable[[Saved, str], list[Ranked]],
    questions: Sequence[dict[str, Any]],
    pages: dict[Path, Saved],
    budgets: Sequence[int],
    options: argparse.Namespace,
) -> dict[str, Any]:
    hits: dict[int, list[bool]] = defaultdict(list)
    groups: dict[str, list[bool]] = defaultdict(list)
    tokens: dict[int, list[int]] = defaultdict(list)
    first, ms, misses = [], [], []
    for question in questions:
        page = _page(pages, question)
        started = time.perf_counter()
        ranked = way(page, question["query"])
        ms.append((time.perf_counter() - started) * 1000)
        first.append(bool(ranked) and _found(question, _shown(ranked[0].chunk)))
        for budget in budgets:
            k = adaptive_k(len(page.chunks)) if options.k == "adaptive" and name == "trawl" else None
            pieces = pack(ranked, budget, k)
            hit = _found(question, "\n\n".join(_shown(p.chunk) for p in pieces))
            hits[budget].append(hit)
            tokens[budget].append(sum(chunk_cost(p.chunk) for p in pieces))
            if budget == 1000:
                for group in ("kind", "type", "lang"):
                    groups[f"{group} {question.get(group)}"].append(hit)
                if not hit:
                    misses.append(question["id"])
    return {
        "found": {b: fmean(h) for b, h in hits.items()},
        "first": fmean(first),
        "tokens": {b: median(t) for b, t in tokens.items()},
        "ms": {"p50": median(ms), "max": max(ms)},
        "within 1000": {g: (fmean(h), len(h)) for g, h in sorted(groups.items())},
        "misses": misses if options.misses else [],
    }


def _print(report: dict[str, Any], budgets: Sequence[int]) -> None:
    print(f"{report['questions']} questions, {report['pages']} pages, backend {report['backend']}")
    print(f"answer in the document {report['in the document']:.3f}, in the chunks {report['in the chunks']:.3f}\n")
    print("| way | " + " | ".join(str(b) for b in budgets) + " | first piece | tokens at each | ms p50 |")
    print("|---|" + "--:|" * (len(budgets) + 3))
    ways = [name for name, value in report.items() if isinstance(value, dict)]
    for name in ways:
        row = report[name]
        found = " | ".join(f"{row['found'][b]:.3f}" for b in budgets)
        used = " ".join(f"{row['tokens'][b]:.0f}" for b in budgets)
        print(f"| {name} | {found} | {row['first']:.3f} | {used} | {row['ms']['p50']:.1f} |")
    if report["trawl"]["within 1000"]:
        print("\n| within 1,000 tokens | n | " + " | ".join(ways) + " |\n|---|--:|" + "--:|" * len(ways))
        for group, (_, n) in report["trawl"]["within 1000"].items():
            print(f"| {group} | {n} | " + " | ".join(f"{report[w]['within 1000'][group][0]:.2f}" for w in ways) + " |")
    if report["trawl"]["misses"]:
        print("\nmissed within 1,000 tokens: " + " ".join(report["trawl"]["misses"]))


if __name__ == "__main__":
    main()
