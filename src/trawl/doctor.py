"""What works on this machine and what does not, one row a part: for `trawl doctor` and for bug reports.

Rows say what a call of the engine would find now: the same code chooses the servers.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trawl.deadline import Deadline
from trawl.errors import ModelError
from trawl.llama.backends import Backends, Opened, T
from trawl.llama.client import LlamaClient
from trawl.llama.endpoint import Endpoint
from trawl.settings import Settings, variable_of

Status = Literal["ok", "warn", "fail"]

OPEN_SECONDS = 45.0
"""For starting the embedded server, the conversion of its model included."""
VISION_SECONDS = 10.0
SAMPLE = "The quick brown fox jumps over the lazy dog near the river bank."


@dataclass(frozen=True, slots=True)
class Row:
    """What was found of one part."""

    name: str
    status: Status
    message: str
    required: bool = False
    """Python itself, and every server that the settings name: without it trawl does not do what it was told to."""
    detail: Mapping[str, str | int | float] = field(default_factory=dict)
    """The facts of the message one by one: endpoint, model, dimension, latency in milliseconds."""


async def examine(
    settings: Settings, *, network: bool = True, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Look at every part; model servers are asked (and the embedded one started) unless `network` is False."""
    rows = [_python(), _settings(settings), _browser(settings), _store(settings)]
    if not network:
        return rows
    backends = Backends(settings, progress=progress)
    deadline = Deadline.after(OPEN_SECONDS)
    asked = await asyncio.gather(
        _embeddings(settings, backends, deadline),
        _reranker(settings, backends, deadline),
        _chat(settings, backends, deadline),
        _vision(settings, deadline.sooner(VISION_SECONDS)),
    )
    return [*rows, *asked]


def _python() -> Row:
    version = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()}"
    return Row("python", "ok", version, required=True)


def _settings(settings: Settings) -> Row:
    """What is set, wherever it came from; values may be secrets."""
    given = sorted(variable_of(field) for field in settings.model_fields_set)
    return Row("settings", "ok", f"set: {', '.join(given)}" if given else "all defaults")


def _browser(settings: Settings) -> Row:
    from trawl.net.chromium import find_browser, no_browser

    if found := find_browser(settings):
        return Row("browser", "ok", str(found))
    return Row("browser", "warn", f"{no_browser(settings)} Pages that need a browser are read without one.")


def _store(settings: Settings) -> Row:
    path = settings.store_path
    if not (path.is_file() and os.access(path, os.W_OK) if path.exists() else _can_be_made(path)):
        return Row("store", "warn", f"{path} cannot be written: nothing is kept. Set TRAWL_STORE_PATH.")
    size = f"{path.stat().st_size / 2**20:.1f} MB" if path.is_file() else "nothing yet"
    return Row("store", "ok", f"{path} ({size})")


def _can_be_made(path: Path) -> bool:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


async def _embeddings(settings: Settings, backends: Backends, deadline: Deadline) -> Row:
    opened = await backends.open_embedder(deadline)
    if opened.backend is None:
        return _absent("embeddings", opened, "Ranking goes by words alone", configured=bool(settings.embed_url))
    embedder = opened.backend

    async def once() -> None:
        await embedder.embed([SAMPLE], [], deadline)

    latency, facts = await _timed(embedder.endpoint, embedder.model, once)
    message = f"{opened} {embedder.dimension} dimensions, {latency} for one text."
    # Notable: the embedded server stands in for the one that was named.
    status: Status = "fail" if opened.notable else "ok"
    return Row("embeddings", status, message, opened.notable, {**facts, "dimension": embedder.dimension})


async def _reranker(settings: Settings, backends: Backends, deadline: Deadline) -> Row:
    opened = await backends.open_reranker(deadline)
    if opened.backend is None:
        return _absent("reranker", opened, "Pieces keep their first order", configured=bool(settings.rerank_url))
    reranker = opened.backend

    async def once() -> None:
        await reranker.rerank(["What does the fox do?"], [SAMPLE], deadline)

    latency, facts = await _timed(reranker.endpoint, reranker.model, once)
    return Row("reranker", "ok", f"{opened} {latency} for one piece.", detail=facts)


async def _chat(settings: Settings, backends: Backends, deadline: Deadline) -> Row:
    opened = await backends.open_chat(deadline)
    if opened.backend is None:
        return _absent("chat", opened, "use_hyde has no effect", configured=bool(settings.hyde_url))
    chat = opened.backend
    await chat.endpoint.aclose()
    return Row("chat", "ok", str(opened), detail={"endpoint": chat.endpoint.name, "model": chat.model})


async def _vision(settings: Settings, deadline: Deadline) -> Row:
    if not settings.vlm_url:
        return Row("vision", "ok", "None configured (TRAWL_VLM_URL).")
    key = settings.vlm_api_key.get_secret_value() if settings.vlm_api_key else None
    try:
        client = LlamaClient(settings.vlm_url, key, ca_file=settings.ca_file, setting="TRAWL_VLM")
    except ModelError as error:
        return Row("vision", "fail", str(error), required=True)
    try:
        served, props = await asyncio.gather(client.models(deadline), client.props(deadline))
    except ModelError as error:
        return Row("vision", "fail", str(error), required=True)
    finally:
        await client.aclose()
    if props is not None and props.vision is False:
        return Row("vision", "fail", f"{served[0].id} on {client.label} does not see pictures.", required=True)
    facts = {"endpoint": client.label, "model": served[0].id}
    return Row("vision", "ok", f"{served[0].id} on {client.label}.", detail=facts)


def _absent(name: str, opened: Opened[T], effect: str, *, configured: bool) -> Row:
    status: Status = "fail" if configured else "warn" if opened.notable else "ok"
    return Row(name, status, f"{effect}: {opened}", required=configured)


async def _timed(
    endpoint: Endpoint, model: str, once: Callable[[], Awaitable[None]]
) -> tuple[str, dict[str, str | int | float]]:
    """How long the second of two calls takes (the first may load what the server keeps), in words and among the facts;
    closes the endpoint."""
    facts: dict[str, str | int | float] = {"endpoint": endpoint.name, "model": model}
    try:
        await once()
        started = time.perf_counter()
        await once()
        facts["latency_ms"] = round((time.perf_counter() - started) * 1000, 1)
        return f"{facts['latency_ms']:.0f} ms", facts
    except ModelError as error:
        return f"no answer ({error.message})", facts
    finally:
        await endpoint.aclose()
