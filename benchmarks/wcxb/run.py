"""Scores extractors on a folder in WCXB's shape.

    python benchmarks/wcxb/run.py --html DIR --ground-truth DIR [--ids FILE] [--limit N]
                                  [--extractor trawl --extractor trafilatura] [--json OUT]

Extractors named in one run see the same pages, one after another, so that their times compare. Each page is scored by
word-F1 in two ways: over all pages, and over pages whose ground truth is not empty.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from score import score, snippets_found

Extractor = Callable[[bytes, str], str]


def by_trawl(html: bytes, url: str) -> str:
    from trawl.extraction.html import html_document

    return html_document(html, url=url).text


def by_trafilatura(html: bytes, url: str) -> str:
    import trafilatura

    return trafilatura.extract(html, url=url) or ""


EXTRACTORS: dict[str, Extractor] = {"trawl": by_trawl, "trafilatura": by_trafilatura}


def measure(name: str, pages: list[dict[str, Any]], html_dir: Path) -> dict[str, Any]:
    """Runs one extractor over all pages and sums up."""
    extract = EXTRACTORS[name]
    rows = []
    errors = 0
    for number, page in enumerate(pages, 1):
        truth = page["ground_truth"]
        body = gzip.decompress((html_dir / f"{page['file_id']}.html.gz").read_bytes())
        started = time.process_time()
        try:
            text = extract(body, page.get("url", ""))
        except Exception as error:  # one page must not end the run; errors are part of the result
            errors += 1
            text = ""
            print(f"\n{page['file_id']}: {type(error).__name__}: {error}", file=sys.stderr)
        cpu_ms = (time.process_time() - started) * 1000
        wanted = truth.get("main_content") or ""
        result = score(text, wanted)
        rows.append(
            {
                "id": page["file_id"],
                "type": page["_internal"]["page_type"]["primary"],
                "f1": result.f1,
                "precision": result.precision,
                "recall": result.recall,
                "has_truth": bool(wanted.strip()),
                "empty": not text.strip(),
                "with": snippets_found(text, truth.get("with") or []),
                "without": snippets_found(text, truth.get("without") or []),
                "cpu_ms": cpu_ms,
            }
        )
        if number % 25 == 0 or number == len(pages):
            mean = statistics.fmean(r["f1"] for r in rows)
            print(f"\r{name}: {number}/{len(pages)} F1 {mean:.4f}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {"extractor": name, "errors": errors, **summary(rows), "pages": rows}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the pages; times in CPU milliseconds."""

    def mean(key: str, chosen: list[dict[str, Any]]) -> float:
        values = [r[key] for r in chosen if r[key] is not None]
        return round(statistics.fmean(values), 4) if values else 0.0

    scored = [r for r in rows if r["has_truth"]]
    types = defaultdict(list)
    for row in scored:
        types[row["type"]].append(row)
    times = sorted(r["cpu_ms"] for r in rows)
    return {
        "n": len(rows),
        "n_with_truth": len(scored),
        "f1": mean("f1", rows),
        "f1_with_truth": mean("f1", scored),
        "precision": mean("precision", scored),
        "recall": mean("recall", scored),
        "snippets_kept": mean("with", rows),
        "boilerplate_avoided": round(1 - mean("without", rows), 4),
        "by_type": {k: {"n": len(v), "f1": mean("f1", v)} for k, v in sorted(types.items())},
        "empties": sum(r["empty"] for r in rows),
        "cpu_ms_median": round(statistics.median(times), 1) if times else 0.0,
        "cpu_ms_p95": round(times[int(len(times) * 0.95)], 1) if times else 0.0,
    }


def load_pages(folder: Path, ids: Path | None, limit: int | None) -> list[dict[str, Any]]:
    wanted = set(ids.read_text().split()) if ids else None
    files = [f for f in sorted(folder.glob("*.json")) if wanted is None or f.stem in wanted]
    return [json.loads(f.read_text(encoding="utf-8")) | {"file_id": f.stem} for f in files[:limit]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--html", type=Path, required=True, help="folder of ID.html.gz")
    parser.add_argument("--ground-truth", type=Path, required=True, help="folder of ID.json")
    parser.add_argument("--ids", type=Path, help="file with the page ids to use, separated by white space")
    parser.add_argument("--limit", type=int, help="use the first N pages only")
    parser.add_argument("--extractor", action="append", choices=sorted(EXTRACTORS), help="repeatable; default: trawl")
    parser.add_argument("--json", type=Path, help="write everything, page by page, to this file")
    options = parser.parse_args()
    pages = load_pages(options.ground_truth, options.ids, options.limit)
    if not pages:
        parser.error(f"no pages in {options.ground_truth}")
    results = [measure(name, pages, options.html) for name in options.extractor or ["trawl"]]
    for result in results:
        print(json.dumps({k: v for k, v in result.items() if k != "pages"}, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        machine = f"{platform.machine()} {platform.system()}, Python {platform.python_version()}"
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
