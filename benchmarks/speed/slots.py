"""What more slots give the embedded server, and what they cost.

    python benchmarks/speed/slots.py [--wcxb DIR] [--slots 1,2,4] [--threads N] [--passages N] [--rounds N]

For every number of slots a server of its own (`python -m trawl.llama.embedded -np N`), in turns; one client sends
passages of 450 characters in batches as the library does. Chunks per second, median over the rounds, and the server's
memory after the last. The first number of slots is the peer of the others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import httpx
import psutil
from embed import WCXB, passages

from trawl.llama.embedder import BATCH_INPUTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wcxb", type=Path, default=WCXB)
    parser.add_argument("--slots", default="1,2,4")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--passages", type=int, default=192, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts = [f"passage: {text}" for text in passages(options.wcxb, options.passages)]
    slots = [int(number) for number in options.slots.split(",")]
    flags = ["--threads", str(options.threads)] if options.threads else []
    found = {number: [round_of(texts, ["-np", str(number), *flags]) for _ in range(options.rounds)] for number in slots}
    first = median(speed for speed, _ in found[slots[0]])
    for number, rounds in found.items():
        speed, memory = median(s for s, _ in rounds), rounds[-1][1]
        print(f"{number} slots: {speed:6.2f} chunks/s   {speed / first:5.2f} x   {memory / 2**20:5.0f} MB")


def round_of(texts: list[str], flags: list[str]) -> tuple[float, int]:
    """Chunks per second and the server's bytes of memory."""
    command = [sys.executable, "-m", "trawl.llama.embedded", "--port", "0", *flags]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        httpx.Client(trust_env=False) as client,
    ):
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[2]  # "listening on URL with NAME"
            embed(client, url, texts[:4])
            began = time.perf_counter()
            for start in range(0, len(texts), BATCH_INPUTS):
                embed(client, url, texts[start : start + BATCH_INPUTS])
            return len(texts) / (time.perf_counter() - began), psutil.Process(server.pid).memory_info().rss
        finally:
            server.kill()


def embed(client: httpx.Client, url: str, texts: list[str]) -> None:
    client.post(f"{url}/v1/embeddings", json={"model": "any", "input": texts}, timeout=120).raise_for_status()


if __name__ == "__main__":
    main()
