"""How far `estimate_tokens` is from a real tokenizer, by kind of text.

    python benchmarks/tokens/calibrate.py COUNTED.jsonl [--field tokens]

Every line of the file: {"label": kind or script, "text": ..., "tokens": count of the real tokenizer}. How such a file
is made is told in notes/0003-token-estimate.md.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean, quantiles

from trawl.retrieval.tokens import estimate_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--field", default="tokens", help="which count of the file to compare with")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = defaultdict(list)
    quarters: dict[str, list[float]] = defaultdict(list)
    with options.file.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            ratios[row["label"]].append(estimate_tokens(row["text"]) / row[options.field])
            quarters[row["label"]].append(-(-len(row["text"]) // 4) / row[options.field])
    print("| text | n | estimate / real, mean | 5% | 50% | 95% | characters / 4, mean |\n|---|--:|--:|--:|--:|--:|--:|")
    for label, values in sorted(ratios.items()):
        cut = quantiles(values, n=20, method="inclusive") if len(values) > 1 else values * 19
        figures = [fmean(values), cut[0], cut[9], cut[18], fmean(quarters[label])]
        print(f"| {label} | {len(values)} | " + " | ".join(f"{x:.2f}" for x in figures) + " |")


if __name__ == "__main__":
    main()
