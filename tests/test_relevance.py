"""Model work is done where there is a model, told where it was done, and missed by nobody where there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.llama.conftest import reply, serving, vectors
from trawl import AsyncEngine, Settings
from trawl.llama.weights import embedded_missing

EMBED, MODELS, RERANK, CHAT = "/v1/embeddings", "/v1/models", "/v1/rerank", "/v1/chat/completions"
PARAGRAPHS = [
    "The hut was built by shepherds in 1911 and burned down twice.",
    "In winter the stove is fed with birch wood only, never with pine.",
    "The path from the valley takes two hours and is steep at the end.",
    "Breakfast is served from six until nine in the large room.",
    "Dogs may sleep in the shed; blankets are by the door.",
]
PAGE = "<title>Hut</title><main><h1>Hut</h1>" + "".join(
    f"<h2>Part {i}</h2><p>{p}</p>" for i, p in enumerate(PARAGRAPHS)
)
QUESTION = "Which wood is the stove fed with?"

needs_embedded = pytest.mark.skipif(bool(embedded_missing()), reason=embedded_missing() or "there")


def reranks(body: Any) -> bytes:
    """A reranker that knows the test pairs, and that thinks dogs answer everything."""
    pairs = ("Cats eat", "opened to traffic", "Dogs may")
    scores = [5.0 if any(words in text for words in pairs) else -5.0 for text in body["documents"]]
    return reply({"results": [{"index": i, "relevance_score": s} for i, s in enumerate(scores)]})


async def ask(settings: Settings, **options: Any) -> Any:
    async with AsyncEngine(settings) as engine:
        return await engine.extract_relevant(PAGE, QUESTION, url="https://hut.example.org/", **options)


async def test_the_reranker_decides_the_order_and_the_result_says_so() -> None:
    async with serving({RERANK: reranks, MODELS: lambda _: reply({"data": [{"id": "bge"}]})}) as fake:
        settings = Settings(rerank_url=fake.url, embedded=False)
        result = await ask(settings)
        without = await ask(settings, use_rerank=False)
    assert result.rerank_used
    assert not result.rerank_capped
    assert result.retrieval_diagnostics["reranker"] == "bge"
    assert "Dogs" in result.chunks[0]["text"]
    scores = [c["score"] for c in result.chunks]
    assert scores == sorted(scores, reverse=True)
    assert not without.rerank_used
    assert "birch" in without.chunks[0]["text"]
    sent = fake.bodies(RERANK)[2]
    assert sent["query"] == QUESTION
    assert all(text.startswith("Hut\n") for text in sent["documents"])


async def test_titles_are_left_out_where_the_settings_say_so() -> None:
    async with serving({RERANK: reranks, MODELS: lambda _: reply({"data": [{"id": "bge"}]})}) as fake:
        await ask(Settings(rerank_url=fake.url, embedded=False, rerank_include_title=False))
    assert not any(text.startswith("Hut\n\n") for text in fake.bodies(RERANK)[2]["documents"])


async def test_what_the_reranker_is_sent_is_capped_and_told() -> None:
    async with serving({RERANK: reranks, MODELS: lambda _: reply({"data": [{"id": "bge"}]})}) as fake:
        result = await ask(
            Settings(rerank_url=fake.url, embedded=False, rerank_max_docs=2, rerank_max_per_doc_chars=40)
        )
    assert result.rerank_capped
    assert [len(text) for text in fake.bodies(RERANK)[2]["documents"]] == [40, 40]
    assert len(result.chunks) > 2, "nothing is lost"


def dies_after(good: int, answer: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    calls = 0

    def handle(body: Any) -> bytes:
        nonlocal calls
        calls += 1
        return answer(body) if calls <= good else reply({"error": {"message": "out of memory"}}, 500)

    return handle


async def test_a_reranker_that_fails_leaves_the_order_and_is_told() -> None:
    async with serving({RERANK: dies_after(2, reranks), MODELS: lambda _: reply({"data": [{"id": "bge"}]})}) as fake:
        result = await ask(Settings(rerank_url=fake.url, embedded=False))
    assert not result.rerank_used
    assert "birch" in result.chunks[0]["text"]
    assert any("reranking unavailable" in w and "out of memory" in w for w in result.warnings)
    assert result.error is None


async def test_a_configured_reranker_that_is_not_there_is_told_and_an_unconfigured_one_is_not() -> None:
    told = await ask(Settings(rerank_url="http://127.0.0.1:9/v1", embedded=False))
    assert any("reranking unavailable" in w for w in told.warnings)
    silent = await ask(Settings(embedded=False))
    assert not any("rerank" in w for w in silent.warnings)


async def test_a_chat_model_that_is_missing_costs_a_warning_only() -> None:
    result = await ask(Settings(embedded=False), use_hyde=True)
    assert not result.hyde_used
    assert sum("use_hyde had no effect" in w for w in result.warnings) == 1
    assert "birch" in result.chunks[0]["text"]


@needs_embedded
@pytest.mark.embedded
async def test_the_embedded_server_does_not_stand_in_unsaid_for_one_that_was_named() -> None:
    result = await ask(Settings(embed_url="http://127.0.0.1:9/v1"))
    assert result.retrieval_diagnostics["backend"] == "embedded"
    (warning,) = result.warnings
    assert "the embeddings server at http://127.0.0.1:9/v1 cannot be used" in warning
    unnamed = await ask(Settings())
    assert unnamed.warnings == []


def streamed(*texts: str) -> Callable[[Any], bytes]:
    import json

    events = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(data)}\r\n\r\n"
    return lambda _: (head + data).encode()


async def test_the_made_up_answer_moves_the_question_and_is_told() -> None:
    embeds = {EMBED: lambda b: reply(vectors(b)), MODELS: lambda _: reply({"data": [{"id": "one"}]})}
    made_up = "Dogs may sleep in the shed; blankets are by the door."
    async with serving({**embeds, CHAT: streamed(*made_up.split(" ", 3))}) as fake:
        settings = Settings(embed_url=fake.url, hyde_url=fake.url, hyde_slot=1, embedded=False)
        result = await ask(settings, use_hyde=True)
        plain = await ask(settings)
    assert result.hyde_used
    assert result.hyde_text.startswith("Dogsmay")
    assert not plain.hyde_used
    assert plain.hyde_text == ""
    position = {c["text"]: i for i, c in enumerate(plain.chunks)}
    moved = {c["text"]: i for i, c in enumerate(result.chunks)}
    assert moved[PARAGRAPHS[4]] <= position[PARAGRAPHS[4]]
    (request,) = fake.bodies(CHAT)
    assert request["stream"] is True
    assert request["max_tokens"] == 300
    assert request["id_slot"] == 1
    assert request["chat_template_kwargs"] == {"enable_thinking": False}
    assert QUESTION in request["messages"][0]["content"]


async def test_what_was_prepared_in_vain_is_over_when_the_call_is() -> None:
    async def hangs(_: Any) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    asked = asyncio.Event()
    # With embeddings the call waits for the made-up answer; without, it would be over before that was asked for.
    routes = {CHAT: hangs, EMBED: lambda b: reply(vectors(b)), MODELS: lambda _: reply({"data": [{"id": "one"}]})}
    async with (
        serving(routes) as fake,
        AsyncEngine(Settings(embed_url=fake.url, hyde_url=fake.url, embedded=False)) as engine,
    ):
        call = asyncio.create_task(engine.extract_relevant(PAGE, QUESTION, use_hyde=True))
        await asked.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert not [task for task in asyncio.all_tasks() if "/src/trawl/" in repr(task)]


async def test_a_made_up_answer_opposite_to_the_question_breaks_nothing() -> None:
    def opposite(text: str) -> list[float]:
        known = {
            QUESTION: [1.0, 0.0],
            "It is the opposite.": [-1.0, 0.0],
            "cat": [1.0, 0.1],
            "taxes": [0.1, -1.0],
            "train": [-1.0, 0.1],
        }
        return known.get(text, [0.0, 1.0])

    embeds = {EMBED: lambda b: reply(vectors(b, opposite)), MODELS: lambda _: reply({"data": [{"id": "one"}]})}
    async with serving({**embeds, CHAT: streamed("It is the opposite.")}) as fake:
        result = await ask(Settings(embed_url=fake.url, hyde_url=fake.url, embedded=False), use_hyde=True)
    assert result.error is None
    assert result.hyde_used
    assert "birch" in result.chunks[0]["text"]


@pytest.fixture
async def real_engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine() as engine:
        yield engine


@needs_embedded
@pytest.mark.embedded
async def test_the_second_question_about_a_page_finds_its_vectors(real_engine: AsyncEngine) -> None:
    first = await real_engine.extract_relevant(PAGE, QUESTION)
    before = real_engine.stats().endpoints["embedded"].completed
    again = await real_engine.extract_relevant(PAGE, QUESTION)
    other = await real_engine.extract_relevant(PAGE, "When is breakfast served?")
    n = first.n_chunks_embedded
    assert n > 0
    assert (first.embed_cache_hits, first.embed_cache_misses) == (0, n)
    assert (again.embed_cache_hits, again.embed_cache_misses) == (n, 0)
    assert (other.embed_cache_hits, other.embed_cache_misses) == (n, 0)
    assert [c["text"] for c in again.chunks] == [c["text"] for c in first.chunks]
    # The last digits of the question's vector depend on what was computed together with it.
    assert [c["score"] for c in again.chunks] == pytest.approx([c["score"] for c in first.chunks], abs=1e-4)
    assert "Breakfast" in other.chunks[0]["text"]
    stats = real_engine.stats()
    assert (stats.vectors.hits, stats.vectors.misses) == (2 * n, n)
    assert stats.endpoints["embedded"].completed - before == 2


@needs_embedded
@pytest.mark.embedded
async def test_vectors_outlive_the_engine_but_not_where_nothing_is_to_be_kept(tmp_path: Path) -> None:
    settings = Settings(store_path=tmp_path / "store.sqlite3")
    for hits in (False, True):
        async with AsyncEngine(settings) as engine:
            assert bool((await engine.extract_relevant(PAGE, QUESTION)).embed_cache_hits) is hits
    off = Settings(store_path=tmp_path / "other.sqlite3", embed_cache_ttl=0)
    for _ in range(2):
        async with AsyncEngine(off) as engine:
            assert (await engine.extract_relevant(PAGE, QUESTION)).embed_cache_hits == 0
    assert not off.store_path.exists()
