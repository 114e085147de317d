"""What somebody else on the same small server notices of our heavy work, with the queue of `trawl.llama.admission` and
without it.

    python benchmarks/speed/admission.py [--wcxb DIR] [--calls N] [--passages N] [--json OUT]

Starts an embedded llama-server of its own. N callers at once embed passages of 450 characters, while a plain HTTP
client that knows nothing of trawl sends a request of 16 tokens every half second, whether the last one was answered or
not. DIR holds `ground-truth/ID.json`, as in WCXB. Peer in the same run: all calls sent off at once (max_inflight = N).
The goal is a p90 of the small requests under 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import httpx
from pydantic import SecretStr

from trawl import Settings
from trawl.deadline import Deadline
from trawl.errors import ModelBusy, ModelError
from trawl.llama.admission import EndpointStats
from trawl.llama.backends import Backends
from trawl.llama.servers import ModelServers

REPO = Path(__file__).resolve().parents[2]
WCXB = Path(os.environ.get("TRAWL_WCXB_DIR") or REPO.parent / "shared/data/wcxb") / "dev"
PASSAGE_CHARS = 450
PROBE_TOKENS = 16
PROBE_EVERY = 0.5
GOAL_SECONDS = 5.0
CALL_SECONDS = 120.0


@dataclass
class Load:
    """How the heavy calls went and what the small requests took meanwhile, in seconds."""

    probes: list[float]
    endings: Counter[str]
    seconds: float
    stats: EndpointStats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wcxb", type=Path, default=WCXB)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--passages", type=int, default=60, help="of each call")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work = passages(options.wcxb, options.calls, options.passages)
    with embedded_server() as (url, key):
        idle, limited, peer = asyncio.run(measure(url, key, work))

    print(f"{options.calls} calls x {options.passages} passages of {PASSAGE_CHARS} characters")
    print(row("idle server", idle))
    for name, load in (("max_inflight=2", limited), (f"max_inflight={options.calls}", peer)):
        ended = ", ".join(f"{count} {how}" for how, count in load.endings.most_common())
        print(f"{row(name, load.probes)}   {load.seconds:5.1f} s of load: {ended}")
    wait = limited.stats.wait
    print(f"waits for a permit     p50 {wait.p50:6.2f} s   p90 {wait.p90:6.2f} s   max {wait.max:6.2f} s")
    ours, theirs = p90(limited.probes), p90(peer.probes)
    verdict = "met" if ours < GOAL_SECONDS else "missed"
    print(f"goal p90 < {GOAL_SECONDS:g} s: {verdict}; the peer's is {theirs / ours:.1f} x")
    if options.json:
        rows = {"idle": idle, "limited": limited.probes, "peer": peer.probes}
        figures = {name: {"p50": median(t), "p90": p90(t), "max": max(t), "n": len(t)} for name, t in rows.items()}
        options.json.write_text(json.dumps(figures))


def passages(wcxb: Path, calls: int, each: int) -> list[list[str]]:
    """`calls` lists of `each` different passages of real pages."""
    found: list[str] = []
    for file in sorted((wcxb / "ground-truth").glob("*.json")):
        text = json.loads(file.read_bytes())["ground_truth"]["main_content"] or ""
        ends = range(PASSAGE_CHARS, len(text), PASSAGE_CHARS)
        found += [text[end - PASSAGE_CHARS : end] for end in ends]
        if len(found) >= calls * each:
            return [found[n * each : (n + 1) * each] for n in range(calls)]
    sys.exit(f"only {len(found)} passages in {wcxb}; TRAWL_WCXB_DIR or --wcxb names a larger set")


@contextmanager
def embedded_server() -> Iterator[tuple[str, str]]:
    """Address and key of a server that nobody else uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = secrets.token_urlsafe(16)
    command = [sys.executable, "-m", "trawl.llama.embedded", "--port", str(port)]
    environ = {**os.environ, "TRAWL_EMBED_API_KEY": key}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until_ready(server, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}", key
        finally:
            server.kill()


def wait_until_ready(server: subprocess.Popen[bytes], health: str) -> None:
    deadline = Deadline.after(60)
    while server.poll() is None and deadline.remaining():
        try:
            if httpx.get(health, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    sys.exit("the embedded server did not start")


async def measure(url: str, key: str, work: list[list[str]]) -> tuple[list[float], Load, Load]:
    headers = {"Authorization": f"Bearer {key}"}
    limited = Settings(embed_url=url, embed_api_key=SecretStr(key), embedded=False)
    unlimited = limited.model_copy(update={"max_inflight": len(work)})
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=CALL_SECONDS) as other:
        body = {"model": "any", "input": [await sixteen_tokens(other)]}

        async def probe() -> float:
            began = time.perf_counter()
            (await other.post("/v1/embeddings", json=body)).raise_for_status()
            return time.perf_counter() - began

        idle = [await probe() for _ in range(20)]
        return idle, await load(limited, work, probe), await load(unlimited, work, probe)


async def sixteen_tokens(client: httpx.AsyncClient) -> list[int]:
    text = "How long does the other client wait for an answer of the server that it shares with us?"
    reply = await client.post("/tokenize", json={"content": text, "add_special": True})
    tokens: list[int] = reply.raise_for_status().json()["tokens"]
    return tokens[: PROBE_TOKENS - 1] + tokens[-1:]


async def load(settings: Settings, work: list[list[str]], probe: Callable[[], Awaitable[float]]) -> Load:
    """All calls at once through one queue, and the probes that were sent meanwhile."""
    servers = ModelServers(Backends(settings))
    opened = await servers.embedder.get(Deadline.after(60))
    embedder = opened.backend
    if embedder is None:
        sys.exit(str(opened))
    began = time.perf_counter()

    async def call(texts: list[str]) -> str:
        try:
            await embedder.embed(["What do they say?"], texts, Deadline.after(CALL_SECONDS))
        except ModelBusy as error:
            return error.reason
        except ModelError as error:
            return error.message
        return "done"

    calls = asyncio.gather(*(call(texts) for texts in work))
    probes = []
    while not calls.done():
        probes.append(asyncio.ensure_future(probe()))
        await asyncio.wait([calls], timeout=PROBE_EVERY)
    seconds = time.perf_counter() - began
    (stats,) = servers.stats().values()
    await servers.aclose()
    return Load(await asyncio.gather(*probes), Counter(await calls), seconds, stats)


def row(name: str, probes: list[float]) -> str:
    return (
        f"{name:22} p50 {median(probes):6.2f} s   p90 {p90(probes):6.2f} s   max {max(probes):6.2f} s"
        f"   of {len(probes):3} small requests"
    )


def p90(times: list[float]) -> float:
    """The 90th percentile."""
    return quantiles(times, n=10)[-1]


if __name__ == "__main__":
    main()
