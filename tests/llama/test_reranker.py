"""The reranker behind a real llama-server: one that cannot tell texts apart is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.llama.servers import RunningServer, llama_server
from tests.llama.tiny_models import make_reranker
from trawl.deadline import Deadline
from trawl.llama.backends import Backends
from trawl.settings import Settings

pytestmark = pytest.mark.embedded

BLIND_SEED = 1
"""Its random weights put the wrong document first in both test pairs."""


async def test_a_real_reranker_scores_every_document_in_order(rerank_server: RunningServer) -> None:
    backends = Backends(Settings(rerank_url=rerank_server.url))
    opened = await backends.open_reranker(Deadline.after(20))
    assert opened.backend is not None, opened.reason
    documents = ["a cat", "the train", "", "日本語の文", "a cat"]
    scores = await opened.backend.rerank(["What do cats eat?"], documents, Deadline.after(20))
    assert len(scores) == 5
    assert scores[0] == pytest.approx(scores[4], abs=1e-4), "the same text, the same score"
    assert len({round(score, 3) for score in scores}) == 4
    again = await opened.backend.rerank(["What do cats eat?"], documents[::-1], Deadline.after(20))
    assert again == pytest.approx(scores[::-1], abs=1e-3)
    await opened.backend.endpoint.aclose()
    assert backends.stats()[opened.backend.endpoint.name].completed == 4


async def test_a_reranker_that_prefers_the_wrong_document_is_not_used(tmp_path: Path) -> None:
    model = tmp_path / "blind.gguf"
    make_reranker(model, seed=BLIND_SEED)
    with llama_server("-m", model, "--reranking", "-c", "512", "-ub", "512") as server:
        opened = await Backends(Settings(rerank_url=server.url)).open_reranker(Deadline.after(20))
    assert opened.backend is None
    assert opened.notable
    assert "does not tell an answer from something else" in opened.reason


async def test_a_chat_server_is_no_reranker(chat_server: RunningServer) -> None:
    opened = await Backends(Settings(rerank_url=chat_server.url)).open_reranker(Deadline.after(20))
    assert opened.backend is None
    assert opened.notable


async def test_a_reranker_is_no_embeddings_server(rerank_server: RunningServer) -> None:
    settings = Settings(embed_url=rerank_server.url, embedded=False)
    opened = await Backends(settings).open_embedder(Deadline.after(20))
    assert opened.backend is None
    assert "cannot be used" in opened.reason
