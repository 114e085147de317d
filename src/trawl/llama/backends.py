"""Who does the model work: the server of the settings, one found on its default port, the embedded one, or nobody.

Nothing here raises for what a server does: what is opened is told in one sentence, and so is why there is nothing. A
server that was not configured is used only after it has shown what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pydantic import SecretStr

from trawl.deadline import Deadline
from trawl.errors import ModelError, ModelReplyInvalid, ModelUnavailable, without_secrets
from trawl.llama.admission import Admission, EndpointStats, Limits
from trawl.llama.client import LlamaClient
from trawl.llama.embedder import SMALLEST_LIMIT, Embedder
from trawl.llama.endpoint import DYING_SECONDS, Endpoint
from trawl.llama.hyde import Chat
from trawl.llama.models import CHAT_PORT, E5, E5_DIMENSION, EMBED_PORT, RERANK_PORT, ModelSpec, model_spec
from trawl.llama.protocol.server import ServedModel
from trawl.llama.rendezvous import Lease, lease_server
from trawl.llama.reranker import Reranker
from trawl.llama.weights import INSTALL_HINT, embedded_missing
from trawl.settings import Settings
from trawl.store.vectors import VectorStore

EMBED_URL = f"http://localhost:{EMBED_PORT}/v1"
CHAT_URL = f"http://localhost:{CHAT_PORT}/v1"
RERANK_URL = f"http://localhost:{RERANK_PORT}/v1"
UNCONFIGURED_PROBE_SECONDS = 1.0
"""For whatever may listen on a default port: every call without a server of its own waits this long at most."""
CONFIGURED_PROBE_SECONDS = 10.0
"""A server that was asked for may be busy."""

T = TypeVar("T", Embedder, Reranker, Chat)


@dataclass(frozen=True, slots=True)
class Opened(Generic[T]):
    """A backend and how it was chosen, or None and why."""

    backend: T | None
    reason: str
    """One clause."""
    notable: bool = False
    """Something is missing that somebody counts on: what was configured cannot be used (also when the embedded server
    stands in for it), or what answers on a default port is of no use and nothing stands in."""
    hint: str = ""
    """What to do about it."""

    def __str__(self) -> str:
        return f"{self.reason}. {self.hint}".rstrip()


@dataclass(frozen=True, slots=True)
class _Role:
    """What the settings say of one kind of server."""

    what: str
    variable: str
    default_url: str
    url: str | None
    model: str
    key: SecretStr | None

    def probe(self, deadline: Deadline) -> Deadline:
        return deadline.sooner(CONFIGURED_PROBE_SECONDS if self.url else UNCONFIGURED_PROBE_SECONDS)

    def chosen(self, model: str, endpoint: Endpoint) -> str:
        return f"{model} on {endpoint.name}, {'as configured' if self.url else 'found there'}"

    def refused(self, error: ModelError) -> str:
        if self.url:
            return f"the {self.what} at {without_secrets(self.url)} cannot be used ({error.message})"
        if isinstance(error, ModelReplyInvalid):
            return f"what answers at {self.default_url} is no {self.what} to use ({error.message})"
        return f"no {self.what} at {self.default_url}"


class Backends:
    """Opens the backends of one engine: they share a queue per server, and the store of vectors.

    Args:
        settings: what to use, and for how much at once.
        vectors: keeps the vectors of passages.
        progress: told what takes long, for whoever is watching.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        vectors: VectorStore | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._vectors = vectors
        self._progress = progress
        self._limits = Limits(settings.max_inflight, settings.queue_depth, settings.queue_wait)
        self._queues: dict[str, Admission] = {}

    def stats(self) -> dict[str, EndpointStats]:
        """How each server's queue has fared, by the server's address."""
        return {name: queue.stats() for name, queue in self._queues.items()}

    async def open_embedder(self, deadline: Deadline) -> Opened[Embedder]:
        """The embedder. The embedded server takes 1 to 3 s to start, and waiting for it is given up when `deadline`
        comes first: give the opening a deadline of its own, apart from the call that wants it."""
        settings = self._settings
        role = _Role(
            "embeddings server",
            "TRAWL_EMBED",
            EMBED_URL,
            settings.embed_url,
            settings.embed_model,
            settings.embed_api_key,
        )

        async def opened(endpoint: Endpoint, served: ServedModel, within: Deadline) -> Embedder:
            return await self._embedder(endpoint, served, within, identity=endpoint.name)

        found = await self._open(role, opened, deadline)
        if found.backend is not None:
            return found
        if not settings.embedded:
            because, hint = "the embedded server is switched off", "Set TRAWL_EMBED_URL to a server that answers."
        elif missing := embedded_missing():
            because, hint = f"the embedded server is not installed ({missing})", INSTALL_HINT
        else:
            try:
                embedder = await self._embedded(deadline)
            except ModelError as error:
                because, hint = f"the embedded server cannot be used ({error.message})", error.hint
            else:
                how = f"{embedder.model} in the embedded server: {found.reason}"
                return Opened(embedder, how, notable=bool(settings.embed_url), hint=found.hint)
        return Opened(None, f"{found.reason}; {because}", notable=True, hint=found.hint or hint)

    async def open_reranker(self, deadline: Deadline) -> Opened[Reranker]:
        """The reranker, if one is there and can tell an answer from something else."""
        settings = self._settings
        role = _Role(
            "reranker",
            "TRAWL_RERANK",
            RERANK_URL,
            settings.rerank_url,
            settings.rerank_model,
            settings.rerank_api_key,
        )

        async def opened(endpoint: Endpoint, served: ServedModel, within: Deadline) -> Reranker:
            reranker = Reranker(endpoint, served.id)
            await reranker.check(within)
            return reranker

        return await self._open(role, opened, deadline)

    async def open_chat(self, deadline: Deadline) -> Opened[Chat]:
        """The utility model."""
        settings = self._settings
        role = _Role(
            "chat server", "TRAWL_HYDE", CHAT_URL, settings.hyde_url, settings.hyde_model, settings.hyde_api_key
        )

        async def opened(endpoint: Endpoint, served: ServedModel, _: Deadline) -> Chat:
            return Chat(endpoint, served.id, settings.hyde_slot)

        return await self._open(role, opened, deadline)

    async def _open(
        self, role: _Role, opened: Callable[[Endpoint, ServedModel, Deadline], Awaitable[T]], deadline: Deadline
    ) -> Opened[T]:
        within = role.probe(deadline)
        endpoint: Endpoint | None = None
        try:
            # The key was not meant for whoever happens to listen on a default port.
            key = role.key.get_secret_value() if role.url and role.key else None
            url = role.url or role.default_url
            endpoint = self._endpoint(LlamaClient(url, key, ca_file=self._settings.ca_file, setting=role.variable))
            served = await _served(endpoint.client, role.model, within, required=not role.url)
            backend = await opened(endpoint, served, within)
        except BaseException as error:
            if endpoint is not None:
                await endpoint.aclose()
            if not isinstance(error, ModelError):
                raise
            notable = bool(role.url) or isinstance(error, ModelReplyInvalid)
            return Opened(None, role.refused(error), notable, error.hint if role.url else "")
        return Opened(backend, role.chosen(backend.model, endpoint))

    def _endpoint(self, client: LlamaClient, lease: Lease | None = None) -> Endpoint:
        name = "embedded" if lease else client.label
        queue = self._queues.setdefault(name, Admission(name, self._limits))
        if lease:
            queue.begin_anew()
        return Endpoint(client, queue, lease)

    async def _embedder(
        self, endpoint: Endpoint, served: ServedModel, deadline: Deadline, *, identity: str
    ) -> Embedder:
        spec = _presented(served)
        return await Embedder.open(endpoint, spec, deadline, identity=identity, store=self._vectors)

    async def _embedded(self, deadline: Deadline) -> Embedder:
        try:
            return await self._leased(deadline)
        except ModelUnavailable:
            if deadline.remaining() <= DYING_SECONDS:
                raise
        # It may have been on its last legs.
        await asyncio.sleep(DYING_SECONDS)
        return await self._leased(deadline)

    async def _leased(self, deadline: Deadline) -> Embedder:
        started = False

        def starting() -> None:
            nonlocal started
            started = True
            self._progress("starting the embedded model server")

        settings = self._settings
        lease = await lease_server(settings.cache_dir, settings.runtime_dir, deadline, starting=starting)
        try:
            endpoint = self._endpoint(LlamaClient(lease.url, lease.key), lease)
        except BaseException:
            lease.release()
            raise
        try:
            served = (await endpoint.client.models(deadline))[0]
            if started:
                return await self._embedder(endpoint, served, deadline, identity=E5.sha256)
            # Its weights were checked by their hash, and whoever started it has its vectors tested.
            return Embedder(endpoint, _presented(served), E5_DIMENSION, identity=E5.sha256, store=self._vectors)
        except BaseException:
            await endpoint.aclose()
            raise


def _presented(served: ServedModel) -> ModelSpec:
    """How texts are presented to a model; what the server says of its limit counts more than what is known."""
    spec = model_spec(served.id)
    return replace(spec, max_tokens=max(SMALLEST_LIMIT, served.max_tokens or spec.max_tokens))


async def _served(client: LlamaClient, wanted: str, deadline: Deadline, *, required: bool) -> ServedModel:
    """The model to ask for: the wanted one where the server has it, else the only one it has.

    A server need not list its models (then the wanted name is sent) unless that is `required`.
    """
    try:
        models = await client.models(deadline)
    except ModelReplyInvalid:
        if required:
            raise
        return ServedModel(wanted)
    named = [m for m in models if m.id == wanted]
    if named:
        return named[0]
    return models[0] if len(models) == 1 else ServedModel(wanted)
