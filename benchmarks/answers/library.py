"""Is the answer in what the library returns, at the price its callers pay? Questions over saved pages.

    python benchmarks/answers/library.py --qa QA.jsonl --html DIR [--backend lexical|embedded] [--chunk-budget N]
                                         [--budgets 250,500,1000,2000] [--limit N]

Unlike `run.py`, which ranks and packs by itself so that parts can be swept, this goes through `Engine.extract_relevant`
and counts `tokens` as the result states them. A line of QA.jsonl has `page`, `url`, `query`, `answers`, `all`.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import trawl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qa", type=Path, required=True)
    parser.add_argument("--html", type=Path, required=True)
    parser.add_argument("--backend", choices=("lexical", "embedded"), default="lexical")
    parser.add_argument("--chunk-budget", type=int, default=trawl.Settings().chunk_budget)
    parser.add_argument("--budgets", default="250,500,1000,2000")
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()

    budgets = [int(b) for b in options.budgets.split(",")]
    questions = [json.loads(line) for line in options.qa.read_text(encoding="utf-8").splitlines()][: options.limit]
    settings = trawl.Settings(
        embedded=options.backend == "embedded",
        chunk_budget=options.chunk_budget,
        timeout=300,
        render="never",
        embed_cache_ttl=0,  # several questions share a page: each is to cost what the first does
    )
    found = dict.fromkeys(budgets, 0)
    times, modes = [], set()
    with trawl.Engine(settings) as engine:
        for done, question in enumerate(questions, 1):
            html = gzip.decompress((options.html / f"{question['page']}.html.gz").read_bytes())
            result = engine.extract_relevant(html, question["query"], url=question["url"], max_tokens=max(budgets))
            times.append(result.total_ms)
            modes.add(result.retrieval_diagnostics["mode"])
            for budget in budgets:
                found[budget] += answered(within(result.chunks, budget), question)
            print(f"\r{done}/{len(questions)}", end="", flush=True)
    print(
        f"\n{len(questions)} questions, {options.backend} ({', '.join(sorted(modes))}), {options.chunk_budget} embedded"
    )
    print("  ".join(f"within {budget}: {found[budget] / len(questions):.3f}" for budget in budgets))
    print(f"one call: p50 {median(times):.0f} ms, p95 {quantiles(times, n=20)[-1]:.0f} ms")


def within(pieces: list[dict[str, Any]], budget: int) -> str:
    """What a caller with `budget` tokens would have got: the same pieces, those that do not fit passed over."""
    texts: list[str] = []
    for piece in pieces:
        if piece["tokens"] <= budget:
            budget -= piece["tokens"]
            texts.append(f"{piece['heading']}\n{piece['text']}")
    return "\n".join(texts)


def answered(text: str, question: dict[str, Any]) -> bool:
    """Whether the literal answers stand in `text`, case and white space aside."""
    hits = [collapsed(answer) in collapsed(text) for answer in question["answers"]]
    return all(hits) if question["all"] else any(hits)


def collapsed(text: str) -> str:
    return " ".join(text.lower().split())


if __name__ == "__main__":
    main()
