"""Who does the model work is chosen as promised and said in one sentence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.llama.conftest import NOBODY, reply, vectors
from trawl.deadline import Deadline
from trawl.llama import backends as backends_module
from trawl.llama import weights
from trawl.llama.backends import Backends, Opened
from trawl.llama.embedder import Embedder
from trawl.llama.reranker import Reranker
from trawl.settings import Settings

Serving = Callable[..., Any]
EMBED, MODELS, RERANK = "/v1/embeddings", "/v1/models", "/v1/rerank"


def listing(name: str = "bge-m3", **meta: int) -> Callable[[Any], bytes]:
    return lambda _: reply({"data": [{"id": name, "meta": meta}]})


def embeds(body: Any) -> bytes:
    return reply(vectors(body))


def reranks(body: Any) -> bytes:
    """Scores by the words that question and document share."""
    asked = set(body["query"].lower().split())
    scores = [len(asked & set(text.lower().split())) for text in body["documents"]]
    return reply({"results": [{"index": i, "relevance_score": float(s)} for i, s in enumerate(scores)]})


def only(url: str | None) -> Settings:
    return Settings(embed_url=url, embedded=False)


async def embedder_of(settings: Settings, seconds: float = 5) -> Opened[Embedder]:
    return await Backends(settings).open_embedder(Deadline.after(seconds))


async def reranker_of(settings: Settings, seconds: float = 5) -> Opened[Reranker]:
    return await Backends(settings).open_reranker(Deadline.after(seconds))


async def close(opened: Opened[Any]) -> None:
    await opened.backend.endpoint.aclose()


async def test_a_configured_endpoint_is_used_after_a_test_vector(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing()}) as fake:
        opened = await embedder_of(only(fake.url))
        embedder = opened.backend
        assert embedder is not None
        assert (embedder.model, embedder.dimension, embedder.endpoint.name) == ("bge-m3", 64, fake.url)
        assert str(opened) == f"bge-m3 on {fake.url}, as configured."
        assert EMBED in fake.paths()
        await close(opened)


async def test_a_configured_endpoint_need_not_list_its_models(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds}) as fake:
        opened = await embedder_of(only(fake.url))
        assert opened.backend is not None
        assert opened.backend.model == "bge-m3"
        await close(opened)


@pytest.mark.parametrize(
    ("served", "sent"),
    [("multilingual-e5-small-Q8_0.gguf", ["query: q", "passage: p"]), ("bge-m3", ["q", "p"])],
)
async def test_the_only_model_a_server_has_decides_the_prefixes(
    fake_server: Serving, served: str, sent: list[str]
) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing(served)}) as fake:
        opened = await embedder_of(only(fake.url))
        assert opened.backend is not None
        await opened.backend.embed(["q"], ["p"], Deadline.after(5))
        await close(opened)
    assert fake.bodies(EMBED)[-1]["input"] == sent


async def test_what_is_found_on_the_default_port_is_used_without_the_key(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing()}) as fake:
        monkeypatch.setattr(backends_module, "EMBED_URL", fake.url)
        opened = await embedder_of(Settings(embedded=False, embed_api_key="k3y"))
        assert str(opened) == f"bge-m3 on {fake.url}, found there."
        await close(opened)
    assert fake.paths()[0] == MODELS
    assert not any("authorization" in headers for _, headers, _ in fake.seen)


async def hang(_: Any) -> bytes:
    await asyncio.sleep(30)
    return b""


UNFIT: dict[str, dict[str, Callable[[Any], Any]]] = {
    "not a model server": {},
    "a web page": {MODELS: lambda _: reply(b"<html>hello</html>"), EMBED: lambda _: reply(b"<html>hello</html>")},
    "no embeddings": {MODELS: listing()},
    "null vectors": {MODELS: listing(), EMBED: lambda b: reply(vectors(b, lambda _: None))},
    "the same vector for all": {MODELS: listing(), EMBED: lambda b: reply(vectors(b, lambda _: [1.0, 2.0]))},
    "hangs": {MODELS: hang, EMBED: hang},
    "hangs while embedding": {MODELS: listing(), EMBED: hang},
}


@pytest.mark.parametrize("routes", UNFIT.values(), ids=UNFIT.keys())
async def test_whatever_else_listens_on_the_default_port_costs_a_second_at_most(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch, routes: dict[str, Any]
) -> None:
    async with fake_server(routes) as fake:
        monkeypatch.setattr(backends_module, "EMBED_URL", fake.url)
        began = time.monotonic()
        opened = await embedder_of(Settings(embedded=False), 20)
        assert time.monotonic() - began < 2
    assert opened.backend is None
    assert fake.url in str(opened)


@pytest.mark.parametrize("routes", [UNFIT["a web page"], UNFIT["the same vector for all"], UNFIT["null vectors"]])
async def test_a_configured_endpoint_that_is_unfit_is_named_with_the_reason(
    fake_server: Serving, routes: dict[str, Any]
) -> None:
    async with fake_server(routes) as fake:
        opened = await embedder_of(only(fake.url))
    assert opened.backend is None
    assert opened.notable
    assert f"the embeddings server at {fake.url} cannot be used" in str(opened)
    assert "switched off" in str(opened)


async def test_a_refused_key_is_told_with_the_setting_to_check(fake_server: Serving) -> None:
    refusal = reply({"error": {"message": "Invalid API Key"}}, 401)
    async with fake_server({EMBED: lambda _: refusal, MODELS: lambda _: refusal}) as fake:
        opened = await embedder_of(only(fake.url))
    assert "401: Invalid API Key" in str(opened)
    assert "TRAWL_EMBED_API_KEY" in str(opened)


async def test_a_chat_server_on_the_default_port_gets_no_text_when_it_lists_no_model(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_server({EMBED: embeds}) as fake:
        monkeypatch.setattr(backends_module, "EMBED_URL", fake.url)
        assert (await embedder_of(Settings(embedded=False))).backend is None
    assert fake.paths() == [MODELS]


async def test_without_the_extra_there_is_no_embedder_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    opened = await embedder_of(Settings())
    assert opened.backend is None
    assert "not installed" in str(opened)
    assert "trawl[embedded]" in str(opened)
    assert "\n" not in str(opened)


async def test_no_time_left_gives_no_embedder_instead_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    assert (await embedder_of(Settings(embed_url=NOBODY), 0)).backend is None


# The reranker


async def test_a_reranker_that_tells_an_answer_from_something_else_is_used(fake_server: Serving) -> None:
    async with fake_server({RERANK: reranks, MODELS: listing("bge-reranker-v2-m3")}) as fake:
        opened = await reranker_of(Settings(rerank_url=fake.url))
        assert str(opened) == f"bge-reranker-v2-m3 on {fake.url}, as configured."
        assert opened.backend is not None
        scores = await opened.backend.rerank(["red apple", "green"], ["a red apple", "sky", "green"], Deadline.after(5))
        assert scores == [2.0, 0.0, 1.0], "each document counts as good as it is for its best question"
        await close(opened)


def constant(score: float) -> Callable[[Any], bytes]:
    return lambda b: reply({"results": [{"index": i, "relevance_score": score} for i in range(len(b["documents"]))]})


def first_best(body: Any) -> bytes:
    return reply({"results": [{"index": i, "relevance_score": -float(i)} for i in range(len(body["documents"]))]})


def backwards(body: Any) -> bytes:
    scores = [-len(set(body["query"].split()) & set(text.split())) for text in body["documents"]]
    return reply({"results": [{"index": i, "relevance_score": float(s)} for i, s in enumerate(scores)]})


BROKEN = {
    "the same for all": constant(0.5),
    "next to nothing": constant(4.8e-24),
    "the first is best": first_best,
    "backwards": backwards,
    "null": lambda b: reply({"results": [{"index": 0, "relevance_score": None}] * len(b["documents"])}),
    "a web page": lambda _: reply(b"<html>hi</html>"),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_reranker_is_not_used_and_that_is_worth_a_warning(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    async with fake_server({RERANK: broken, MODELS: listing("bge-reranker-v2-m3")}) as fake:
        opened = await reranker_of(Settings(rerank_url=fake.url))
        assert opened.backend is None
        assert opened.notable
        monkeypatch.setattr(backends_module, "RERANK_URL", fake.url)
        opened = await reranker_of(Settings())
        assert opened.backend is None
        assert opened.notable, "it answers there, so somebody counts on it"


async def test_no_reranker_anywhere_is_nothing_to_warn_about() -> None:
    opened = await reranker_of(Settings())
    assert opened.backend is None
    assert not opened.notable


async def test_the_utility_model_keeps_its_slot(fake_server: Serving) -> None:
    async with fake_server({MODELS: listing("gemma")}) as fake:
        opened = await Backends(Settings(hyde_url=fake.url, hyde_slot=3)).open_chat(Deadline.after(5))
        assert opened.backend is not None
        assert (opened.backend.model, opened.backend.slot) == ("gemma", 3)
        await close(opened)


async def test_two_backends_on_one_server_share_its_queue(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds, RERANK: reranks, MODELS: listing()}) as fake:
        backends = Backends(Settings(embed_url=fake.url, rerank_url=fake.url))
        embedder = await backends.open_embedder(Deadline.after(5))
        reranker = await backends.open_reranker(Deadline.after(5))
        assert embedder.backend is not None
        assert reranker.backend is not None
        assert embedder.backend.endpoint.admission is reranker.backend.endpoint.admission
        assert backends.stats()[fake.url].completed == 3, "one test vector, two test pairs"
        await close(embedder)
        await close(reranker)
