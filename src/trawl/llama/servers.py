"""All model servers of one engine, each opened when it is first needed."""

from __future__ import annotations

import asyncio

from trawl.llama.admission import EndpointStats
from trawl.llama.backends import Backends
from trawl.llama.embedder import Embedder
from trawl.llama.hyde import Chat
from trawl.llama.reranker import Reranker
from trawl.llama.shared import Shared


class ModelServers:
    """Belongs to one event loop; close it with `aclose`."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self.embedder: Shared[Embedder] = Shared(backends.open_embedder)
        self.reranker: Shared[Reranker] = Shared(backends.open_reranker)
        self.chat: Shared[Chat] = Shared(backends.open_chat)

    def stats(self) -> dict[str, EndpointStats]:
        """How each server's queue has fared, by the server's address."""
        return self._backends.stats()

    async def aclose(self) -> None:
        """Close all connections and give the embedded server back. Idempotent."""
        await asyncio.gather(self.embedder.aclose(), self.reranker.aclose(), self.chat.aclose())
