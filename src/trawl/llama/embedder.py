"""Texts in, unit vectors out, and the choice of who computes them: the server of the settings, one found on the default
port, the embedded one, or nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trawl.deadline import Deadline
from trawl.errors import ModelError, ModelReplyInvalid, ModelUnavailable
from trawl.llama.client import LlamaClient
from trawl.llama.models import ModelSpec, model_spec
from trawl.llama.protocol.bodies import clean_text
from trawl.llama.protocol.replies import InputTooLarge
from trawl.llama.protocol.server import ServedModel
from trawl.llama.server_process import Lease, lease_server
from trawl.llama.weights import INSTALL_HINT, embedded_missing
from trawl.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

DEFAULT_URL = "http://localhost:8081/v1"
OWN_SERVER_HINT = "Set TRAWL_EMBED_URL to an embeddings server that answers."
UNCONFIGURED_PROBE_SECONDS = 1.0
"""For whatever may listen on the default port: every call without a server of its own waits this long at most."""
CONFIGURED_PROBE_SECONDS = 10.0
"""A server that was asked for may be busy."""
BATCH_INPUTS = 16
"""Larger batches were no faster against llama-server (18 chunks/s with 16 and with 64), and a batch is what a server
still computes for a caller that has gone."""
BATCH_TOKENS = 16_384
MAX_CHARS_PER_TOKEN = 32
"""No tokenizer in use has longer pieces of ordinary text; what is beyond `max_tokens` of them is cut unseen."""
SMALLEST_LIMIT = 8
"""Tokens below which cutting further is no use: the server refuses something else."""
DYING_SECONDS = 0.3
"""After its sockets are closed, a killed process takes some milliseconds until the system reports it dead."""

_CAT, _KITTEN, _TAXES = (
    "A cat sleeps on the sofa.",
    "The kitten is napping on the couch.",
    "Tax forms are due in April.",
)


class Embedder:
    """Embeds with one model on one server. Belongs to one event loop; close it with `aclose`.

    Attributes:
        name: who computes, for reports: the endpoint's address or `embedded`.
        model: the model's name, part of the identity of a vector.
        dimension: the length of every vector.
    """

    def __init__(
        self, client: LlamaClient, spec: ModelSpec, dimension: int, *, name: str, lease: Lease | None = None
    ) -> None:
        self.name = name
        self.model = spec.name
        self.dimension = dimension
        self._client = client
        self._spec = spec
        self._lease = lease
        self._max_tokens = spec.max_tokens
        self._tokenizes = True

    def __repr__(self) -> str:
        return f"Embedder({self.model!r} on {self.name}, {self.dimension} dimensions)"

    @property
    def server_pid(self) -> int | None:
        """Process id of the embedded server; None for an endpoint."""
        return self._lease.pid if self._lease else None

    async def embed_queries(self, texts: Sequence[str], deadline: Deadline) -> Vectors:
        """Unit vectors of questions, one row each.

        Raises:
            ModelUnavailable, ModelReplyInvalid: no vectors; rank without them.
        """
        return await self._embed([self._spec.query_prefix + text for text in texts], deadline)

    async def embed_passages(self, texts: Sequence[str], deadline: Deadline) -> Vectors:
        """Unit vectors of pieces of a page, one row each; errors as for `embed_queries`."""
        return await self._embed([self._spec.passage_prefix + text for text in texts], deadline)

    async def answers(self, deadline: Deadline) -> bool:
        """Whether its server answers at all, whatever it says."""
        try:
            if self._lease:
                self._lease.check()
            await self._client.healthy(deadline)
        except ModelReplyInvalid:
            return True
        except ModelUnavailable:
            return False
        return True

    async def aclose(self) -> None:
        """Closes connections and gives up the embedded server. May be called again."""
        if self._lease:
            self._lease.release()
        await self._client.aclose()

    async def _embed(self, texts: list[str], deadline: Deadline) -> Vectors:
        import numpy as np

        if self._lease:
            self._lease.check()
        vectors = np.empty((len(texts), self.dimension), np.float32)
        done = 0
        for batch in _batches([clean_text(text) for text in texts], self._max_tokens):
            for vector in await self._embed_batch(batch, deadline):
                vectors[done] = _unit(vector)
                done += 1
        return vectors

    async def _embed_batch(self, texts: list[str], deadline: Deadline) -> list[list[float]]:
        """Vectors of one batch; where the server finds it too large, of its halves, and of shorter texts at last."""
        limit = self._max_tokens
        inputs = [await self._fitted(text, limit, deadline) for text in texts]
        try:
            return await self._request(inputs, deadline)
        except InputTooLarge as error:
            if error.limit is not None and SMALLEST_LIMIT <= error.limit < limit:
                # What the server says of itself holds for all that follows.
                self._max_tokens = min(self._max_tokens, error.limit)
                return await self._embed_batch(texts, deadline)
            if len(texts) > 1:
                middle = len(texts) // 2
                first = await self._embed_batch(texts[:middle], deadline)
                return first + await self._embed_batch(texts[middle:], deadline)
        return [await self._embed_shortened(texts[0], limit // 2, deadline)]

    async def _embed_shortened(self, text: str, limit: int, deadline: Deadline) -> list[float]:
        """The vector of the longest beginning of `text` that the server takes, by halving."""
        while limit >= SMALLEST_LIMIT:
            try:
                return (await self._request([_cut_by_script(text, limit)], deadline))[0]
            except InputTooLarge:
                limit //= 2
        raise ModelReplyInvalid("it finds even a few words too long", url=self._client.label)

    async def _request(self, inputs: Sequence[str | list[int]], deadline: Deadline) -> list[list[float]]:
        return await self._client.embed(self._spec.name, inputs, deadline, dimension=self.dimension)

    async def _fitted(self, text: str, limit: int, deadline: Deadline) -> str | list[int]:
        """`text` itself where it fits into `limit` tokens, else its first tokens (or a shorter text)."""
        if len(text.encode()) + 2 <= limit:  # a token has a byte at least; two stand around the text
            return text
        text = text[: limit * MAX_CHARS_PER_TOKEN]
        if self._tokenizes:
            try:
                tokens = await self._client.tokenize(text, deadline)
            except ModelReplyInvalid:
                self._tokenizes = False  # not a llama-server
            else:
                # The last one closes the input (where the model wants that); it has to stay.
                return text if len(tokens) <= limit else tokens[: limit - 1] + tokens[-1:]
        return _cut_by_script(text, limit)


def _batches(texts: list[str], max_tokens: int) -> Iterator[list[str]]:
    """Runs of at most `BATCH_INPUTS` texts and about `BATCH_TOKENS` tokens, with each text cut at `max_tokens`."""
    batch: list[str] = []
    size = 0
    for text in texts:
        tokens = min(len(text) // 3, max_tokens)
        if batch and (len(batch) == BATCH_INPUTS or size + tokens > BATCH_TOKENS):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += tokens
    if batch:
        yield batch


def _cut_by_script(text: str, limit: int) -> str:
    """The beginning of `text` that surely has at most about `limit` tokens, without a tokenizer.

    Counted per character on the high side of what multilingual vocabularies need: half a token for an ASCII letter or a
    space (dense code and random words have two characters to a token), one for every other ASCII character and for
    letters of scripts written with spaces, two beyond the basic plane.
    """
    left = 2.0 * (limit - 2)
    for position, character in enumerate(text[: 2 * limit]):
        if character.isascii() and (character.isalpha() or character == " "):
            left -= 1
        else:
            left -= 2 if ord(character) < 0x10000 else 4
        if left < 0:
            return text[:position]
    return text[: 2 * limit]


def _unit(vector: list[float]) -> Vectors:
    """`vector` with length one; scaled first, so that squares of extreme numbers neither overflow nor vanish."""
    import numpy as np

    array = np.asarray(vector, np.float64)
    array /= np.abs(array).max()
    return (array / np.linalg.norm(array)).astype(np.float32)


async def open_embedder(settings: Settings, deadline: Deadline) -> tuple[Embedder | None, str]:
    """The embedder these settings and this machine allow, and one sentence: how it was chosen, or why there is none.

    In this order: the configured endpoint; one on the default port, when it lists a model and tells related texts from
    unrelated ones; the embedded server. Never raises for what a server does.

    The embedded server takes 1 to 3 s to start and is stopped again when `deadline` comes first: give the opening a
    deadline of its own (30 s) apart from the call that wants it.
    """
    because, hint = [], OWN_SERVER_HINT
    key = settings.embed_api_key.get_secret_value() if settings.embed_api_key else None
    if settings.embed_url:
        try:
            embedder = await _open_endpoint(
                settings.embed_url, settings, deadline.sooner(CONFIGURED_PROBE_SECONDS), key=key
            )
        except ModelError as error:
            because.append(
                f"the embeddings server {error.url or 'of TRAWL_EMBED_URL'} cannot be used ({error.message})"
            )
            hint = error.hint or hint
        else:
            return embedder, f"Embeddings by {embedder.model} on {embedder.name}, as configured."
    else:
        try:
            # Without the key: it was not meant for whoever happens to listen there.
            embedder = await _open_endpoint(DEFAULT_URL, settings, deadline.sooner(UNCONFIGURED_PROBE_SECONDS))
        except ModelError:
            because.append(f"no usable embeddings server at {DEFAULT_URL}")
        else:
            return embedder, f"Embeddings by {embedder.model}, found on {embedder.name}."
    if not settings.embedded:
        because.append("the embedded server is switched off")
    elif missing := embedded_missing():
        because.append(f"the embedded server is not installed ({missing})")
        hint = INSTALL_HINT
    else:
        try:
            embedder = await _open_embedded(settings, deadline)
        except ModelError as error:
            because.append(f"the embedded server cannot be used ({error.message})")
            hint = error.hint or hint
        else:
            return embedder, f"Embeddings by {embedder.model} in the embedded server: {'; '.join(because)}."
    return None, f"{'; '.join(because)}. {hint}"


async def _open_endpoint(url: str, settings: Settings, deadline: Deadline, *, key: str | None = None) -> Embedder:
    client = LlamaClient(url, key, ca_file=settings.ca_file)
    try:
        served = await _served(client, settings.embed_model, deadline, required=not settings.embed_url)
        return await _checked(client, served, deadline, name=client.label)
    except BaseException:
        await client.aclose()
        raise


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


async def _open_embedded(settings: Settings, deadline: Deadline) -> Embedder:
    try:
        return await _open_leased(settings, deadline)
    except ModelUnavailable:
        if deadline.remaining() <= DYING_SECONDS:
            raise
    # The server of another engine may have been on its last legs.
    await asyncio.sleep(DYING_SECONDS)
    return await _open_leased(settings, deadline)


async def _open_leased(settings: Settings, deadline: Deadline) -> Embedder:
    lease = await lease_server(settings.cache_dir, deadline)
    try:
        client = LlamaClient(lease.url, lease.key)
    except BaseException:
        lease.release()
        raise
    try:
        if not await client.healthy(deadline):
            raise ModelUnavailable("its health check fails")
        served = (await client.models(deadline))[0]
        return await _checked(client, served, deadline, name="embedded", lease=lease)
    except BaseException:
        lease.release()
        await client.aclose()
        raise


async def _checked(
    client: LlamaClient, served: ServedModel, deadline: Deadline, *, name: str, lease: Lease | None = None
) -> Embedder:
    """An embedder that has shown that it tells related texts from unrelated ones.

    A chat or rerank model behind the same API answers 200 with numbers that mean nothing.

    Raises:
        ModelUnavailable, ModelReplyInvalid: it cannot, or does not answer as it should.
    """
    spec = model_spec(served.id)
    spec = replace(spec, max_tokens=max(SMALLEST_LIMIT, served.max_tokens or spec.max_tokens))
    texts = [spec.passage_prefix + text for text in (_CAT, _KITTEN, _TAXES)]
    cat, kitten, taxes = (_unit(v) for v in await client.embed(spec.name, texts, deadline))
    if not cat @ kitten > cat @ taxes:
        raise ModelReplyInvalid(
            f"{spec.name} is no embedding model: its vectors do not tell texts apart", url=client.label
        )
    return Embedder(client, spec, len(cat), name=name, lease=lease)
