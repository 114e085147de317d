"""How long one call takes, warm, on recorded pages served on loopback.

    python benchmarks/speed/call.py [--wcxb DIR] [--qa FILE] [--backend lexical|embedded] [--repeat N] [--json OUT]

DIR holds `html/ID.html.gz` and `ground-truth/ID.json`; FILE the questions. No vectors are kept, but for the row `asked
again`: the same page and question once more by an engine that keeps them. Peer in the same run: fetching the page with
httpx and extracting its text with Trafilatura, which ranks nothing. Times are wall clock, of calls one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

import trafilatura  # noqa: E402

import trawl  # noqa: E402
from tests.replay import ReplayWeb, replay_client  # noqa: E402
from tests.replay.data import load_questions, wcxb_page  # noqa: E402

STAGES = ("fetch_ms", "chunk_ms", "retrieval_ms", "total_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wcxb", type=Path, default=REPO / "tests/data/wcxb")
    parser.add_argument("--qa", type=Path, default=REPO / "tests/data/qa.jsonl")
    parser.add_argument("--backend", choices=("lexical", "embedded"), default="lexical")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    questions = load_questions(options.qa)
    with ReplayWeb() as web, tempfile.TemporaryDirectory() as folder:
        for question in questions:
            question["url"], html = wcxb_page(question["page"], options.wcxb)
            web.add(question["url"], html)
        settings = trawl.Settings(
            ca_file=web.ca_file,
            embedded=options.backend == "embedded",
            render="never",
            timeout=120,
            store_path=Path(folder) / "store.sqlite3",
        )
        afresh = settings.model_copy(update={"embed_cache_ttl": 0})
        ours: dict[str, list[float]] = {stage: [] for stage in STAGES}
        chunks, peer = [], []
        with (
            trawl.Engine(afresh, connect_to=web.connect_to) as engine,
            trawl.Engine(settings, connect_to=web.connect_to) as keeping,
            replay_client(web) as client,
        ):
            engine.fetch_relevant(questions[0]["url"], questions[0]["query"])  # loads libraries, starts the model
            for _ in range(options.repeat):
                for question in questions:
                    result = engine.fetch_relevant(question["url"], question["query"])
                    for stage in STAGES:
                        ours[stage].append(getattr(result, stage))
                    chunks.append(result.n_chunks_total)
                    began = time.perf_counter()
                    trafilatura.extract(client.get(question["url"]).content)
                    peer.append((time.perf_counter() - began) * 1000)
            for question in questions:
                keeping.fetch_relevant(question["url"], question["query"])
            again = [keeping.fetch_relevant(q["url"], q["query"]).total_ms for q in questions]
    rows = {**ours, "asked again": again, "httpx + trafilatura": peer}
    print(
        f"{len(questions)} questions x {options.repeat}, {options.backend}, median {median(chunks):.0f} chunks a page"
    )
    for name, times in rows.items():
        print(f"{name:22} p50 {median(times):8.1f} ms   p95 {quantiles(times, n=20)[-1]:8.1f} ms")
    print(f"ratio to the peer      p50 {median(ours['total_ms']) / median(peer):8.2f}")
    if options.json:
        options.json.write_text(json.dumps({name: {"p50": median(t), "runs": len(t)} for name, t in rows.items()}))


if __name__ == "__main__":
    main()
