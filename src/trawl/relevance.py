"""The retrieval stage: the chunks of a page in the order in which they answer, with as much model work as there is.

    (while the page is fetched)  servers are opened, the made-up answer is written
    chunks -> prefilter -> embed candidates -> rank -> rerank the best

A model that is missing, busy or broken takes its step away and nothing else; the result says which.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trawl.asking import Ask
from trawl.deadline import Deadline
from trawl.errors import ModelError
from trawl.retrieval.rank import Ranked, passage_text, prefilter, rank
from trawl.retrieval.rerank import Caps, candidates_wanted, capped, document_text, reordered
from trawl.types import Chunk, PipelineResult

if TYPE_CHECKING:
    import numpy as np

    from trawl.llama.backends import Opened
    from trawl.llama.embedder import Embedder
    from trawl.llama.reranker import Reranker
    from trawl.llama.servers import ModelServers

log = logging.getLogger(__name__)

_KEPT_BACK = 0.5
"""Seconds kept back from each model, so that a slow one leaves time to answer without it."""


@dataclass(frozen=True, slots=True)
class RankingLimits:
    """How much model work one page may cause."""

    chunk_budget: int
    """How many chunks the prefilter lets through to the embedder; 0 or less: all."""
    rerank: Caps
    rerank_titles: bool
    """Give the reranker the page title with each piece."""


class Preparation:
    """What can begin before the page is there. `aclose` it when the call ends."""

    def __init__(self, ask: Ask, models: ModelServers, deadline: Deadline) -> None:
        self.embedder = asyncio.create_task(models.embedder.get(deadline))
        self.reranker = asyncio.create_task(models.reranker.get(deadline)) if ask.use_rerank else None
        self.hypothetical = asyncio.create_task(_hypothetical(ask, models, deadline)) if ask.use_hyde else None

    async def aclose(self) -> None:
        """End what is still going on; nothing of it runs afterwards."""
        tasks = [task for task in (self.embedder, self.reranker, self.hypothetical) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def relevant(
    result: PipelineResult,
    chunks: Sequence[Chunk],
    ask: Ask,
    models: ModelServers,
    prepared: Preparation,
    limits: RankingLimits,
    deadline: Deadline,
) -> list[Ranked]:
    """All chunks, the best first; what was done, and what could not be, is told in `result`."""
    candidates = await asyncio.to_thread(prefilter, chunks, ask.questions, limits.chunk_budget)
    passages = [passage_text(chunks[i], result.page_title) for i in candidates]
    similarities = await _similarities(result, passages, ask, models, prepared, deadline)
    ranked = await asyncio.to_thread(rank, chunks, ask.questions, candidates=candidates, similarities=similarities)
    if prepared.reranker is None:
        return ranked
    return await _reranked(result, ranked, ask, models, await prepared.reranker, limits, deadline)


async def _similarities(
    result: PipelineResult,
    passages: Sequence[str],
    ask: Ask,
    models: ModelServers,
    prepared: Preparation,
    deadline: Deadline,
) -> np.ndarray | None:
    """Cosine of every question with every passage, shape (questions, passages); None: rank by words alone."""
    opened: Opened[Embedder] = await prepared.embedder
    if opened.backend is None:
        _tell_lexical(result, ask, str(opened))
        return None
    if opened.notable:
        result.warnings.append(f"embeddings by {opened}")
    hypothetical, why_none = await prepared.hypothetical if prepared.hypothetical else ("", "")
    if why_none:
        result.warnings.append(f"use_hyde had no effect: {why_none}")
    # The made-up answer is embedded like a passage: that is what it imitates.
    others = [hypothetical] if hypothetical else []
    within = Deadline(deadline.at - _KEPT_BACK)
    try:
        found = await models.embedder.use(
            opened.backend,
            lambda embedder: embedder.embed(ask.questions, passages, within, others=others, keep=not ask.no_store),
            within,
        )
    except ModelError as error:
        _tell_lexical(result, ask, str(error))
        return None
    questions = found.questions
    if hypothetical:
        questions = _drawn_towards(questions, found.others[0])
        result.hyde_used, result.hyde_text = True, hypothetical
    result.n_chunks_embedded = len(passages)
    result.embed_cache_hits, result.embed_cache_misses = found.cache_hits, found.cache_misses
    backend = opened.backend
    result.retrieval_diagnostics |= {"mode": "hybrid", "backend": backend.endpoint.name, "model": backend.model}
    similarities: np.ndarray = questions @ found.passages.T
    return similarities


def _drawn_towards(questions: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """The mean of each question and the made-up answer, as a direction: rows are unit vectors."""
    mean: np.ndarray = questions + answer
    length = (mean**2).sum(axis=1, keepdims=True) ** 0.5
    length[length == 0] = 1.0  # opposite vectors have no mean: nothing is near to such a question
    return mean / length


def _tell_lexical(result: PipelineResult, ask: Ask, reason: str) -> None:
    result.retrieval_diagnostics |= {"mode": "bm25_fallback"}
    result.warnings.append(f"embeddings unavailable, using lexical ranking: {reason}")
    if ask.use_hyde:
        result.warnings.append("use_hyde had no effect: it needs embeddings")


async def _reranked(
    result: PipelineResult,
    ranked: list[Ranked],
    ask: Ask,
    models: ModelServers,
    opened: Opened[Reranker],
    limits: RankingLimits,
    deadline: Deadline,
) -> list[Ranked]:
    """The best pieces in the reranker's order; as they were when it cannot say."""
    if opened.backend is None:
        if opened.notable:
            result.warnings.append(f"reranking unavailable: {opened}")
        return ranked
    started = time.perf_counter()
    title = result.page_title if limits.rerank_titles else ""
    wanted = ranked[: candidates_wanted(ask.k)]
    sent = capped(max(ask.questions, key=len), [document_text(r.chunk, title) for r in wanted], limits.rerank)
    if sent.clamped:
        result.rerank_capped = True
        log.warning("the reranker was sent less than all: %d of %d pieces, or cut", len(sent.documents), len(wanted))
    within = Deadline(deadline.at - _KEPT_BACK)
    try:
        scores = await models.reranker.use(
            opened.backend, lambda reranker: reranker.rerank(ask.questions, sent.documents, within), within
        )
    except ModelError as error:
        result.warnings.append(f"reranking unavailable: {error}")
        return ranked
    finally:
        result.rerank_ms = round((time.perf_counter() - started) * 1000)
    result.rerank_used = True
    result.retrieval_diagnostics |= {"reranker": opened.backend.model}
    return reordered(ranked, scores)


async def _hypothetical(ask: Ask, models: ModelServers, deadline: Deadline) -> tuple[str, str]:
    """A made-up answer, or an empty text and why there is none. Takes half of the call's time at most."""
    from trawl.llama.hyde import hypothetical_answer

    within = Deadline.after(deadline.remaining() / 2)
    opened = await models.chat.get(within)
    if opened.backend is None:
        return "", str(opened)
    try:
        text = await models.chat.use(
            opened.backend, lambda chat: hypothetical_answer(chat, ask.questions, within), within
        )
    except ModelError as error:
        return "", str(error)
    return text, "" if text else "the model wrote nothing"
