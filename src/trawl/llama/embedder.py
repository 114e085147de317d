"""Texts in, unit vectors out: one embedding model on one server, and the vectors that were computed before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trawl.deadline import Deadline
from trawl.errors import ModelReplyInvalid
from trawl.llama.endpoint import Endpoint
from trawl.llama.models import ModelSpec
from trawl.llama.protocol.bodies import clean_text
from trawl.llama.protocol.replies import InputTooLarge
from trawl.store.vectors import VectorStore, rounded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

BATCH_INPUTS = 16
"""Larger batches were no faster against llama-server (18 chunks/s with 16 and with 64), and a batch is what a server
still computes for a caller that has gone."""
BATCH_TOKENS = 8_192
"""One input of the longest that bge-m3 takes, or sixteen of e5's."""
BYTES_PER_TOKEN = 3
"""At least, on average, for ordinary text of any script in UTF-8: what a batch holds more than estimated, the server
refuses, and gets in halves."""
MAX_CHARS_PER_TOKEN = 32
"""No tokenizer in use has longer pieces of ordinary text; what is beyond `max_tokens` of them is cut unseen."""
SMALLEST_LIMIT = 8
"""Tokens below which cutting further is no use: the server refuses something else."""

PAIRS = (
    ("A cat sleeps on the sofa.", "The kitten is napping on the couch."),
    ("Tax forms are due in April.", "The deadline for filing taxes is in April."),
    ("The train to Paris leaves at noon.", "At twelve o'clock the train departs for Paris."),
)
"""Texts that any embedding model puts together two by two. Vectors that mean nothing do so once in 455 times."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Unit vectors, one row each, and how many passages were known already."""

    questions: Vectors
    passages: Vectors
    others: Vectors
    cache_hits: int
    cache_misses: int


class Embedder:
    """Embeds with one model. Belongs to one event loop; close its endpoint.

    Args:
        endpoint: the server.
        spec: how texts are presented to the model.
        dimension: the length of every vector.
        identity: what tells the vectors of this server from those of another with the same model name.
        store: keeps the vectors of passages; None: every call computes them.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        spec: ModelSpec,
        dimension: int,
        *,
        identity: str = "",
        store: VectorStore | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.model = spec.name
        self.dimension = dimension
        self._spec = spec
        self._space = f"{spec.name} {identity} {spec.passage_prefix!r} {spec.max_tokens} {dimension}"
        self._store = store
        self._max_tokens = spec.max_tokens

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        spec: ModelSpec,
        deadline: Deadline,
        *,
        identity: str = "",
        store: VectorStore | None = None,
    ) -> Embedder:
        """An embedder that has shown that it tells related texts from unrelated ones; for arguments see the class.

        A chat or rerank model behind the same API answers 200 with numbers that mean nothing.

        Raises:
            ModelUnavailable, ModelReplyInvalid: it cannot, or does not answer as it should.
        """
        texts = [spec.passage_prefix + text for pair in PAIRS for text in pair]
        async with endpoint.permit(deadline) as client:
            vectors = [_unit(v) for v in await client.embed(spec.name, texts, deadline)]
        if not _tell_apart(vectors):
            raise ModelReplyInvalid(
                f"{spec.name} is no embedding model: its vectors do not tell texts apart", url=endpoint.name
            )
        return cls(endpoint, spec, len(vectors[0]), identity=identity, store=store)

    def __repr__(self) -> str:
        return f"Embedder({self.model!r} on {self.endpoint.name}, {self.dimension} dimensions)"

    async def embed(
        self,
        questions: Sequence[str],
        passages: Sequence[str],
        deadline: Deadline,
        *,
        others: Sequence[str] = (),
        keep: bool = True,
    ) -> Embeddings:
        """Vectors of the questions and the passages of one page, as one piece of work for the server.

        Passages embedded before come from the store. All vectors of passages have the precision they are stored in,
        so that a page is ranked the same the second time.

        Args:
            others: passages that are not of the page: neither kept nor counted.
            keep: put the vectors of passages into the store, and look for them there.

        Raises:
            ModelUnavailable, ModelReplyInvalid: no vectors; rank without them.
        """
        import numpy as np

        store = self._store if keep else None
        known = await store.get(self._space, passages, dimension=self.dimension) if store else [None] * len(passages)
        missing = list(dict.fromkeys(text for text, vector in zip(passages, known, strict=True) if vector is None))
        inputs = [self._spec.query_prefix + text for text in questions]
        inputs += [self._spec.passage_prefix + text for text in (*others, *missing)]
        vectors = np.empty((0, self.dimension), np.float32)
        if inputs:
            async with self.endpoint.permit(deadline):
                vectors = await self._embed(inputs, deadline)
        first = len(questions) + len(others)
        fresh = rounded(vectors[first:])
        if store and missing:
            store.put(self._space, missing, fresh)
        row_of = dict(zip(missing, fresh, strict=True))
        rows = [row_of[text] if vector is None else vector for text, vector in zip(passages, known, strict=True)]
        hits = sum(vector is not None for vector in known)
        return Embeddings(
            questions=vectors[: len(questions)],
            others=vectors[len(questions) : first],
            passages=np.stack(rows) if rows else np.empty((0, self.dimension), np.float32),
            cache_hits=hits,
            cache_misses=len(passages) - hits,
        )

    async def _embed(self, texts: list[str], deadline: Deadline) -> Vectors:
        import numpy as np

        vectors = np.empty((len(texts), self.dimension), np.float32)
        done = 0
        for batch in _batches([clean_text(text) for text in texts], self._max_tokens):
            for vector in await self._embed_batch(batch, deadline):
                vectors[done] = _unit(vector)
                done += 1
        return vectors

    async def _embed_batch(self, texts: list[str], deadline: Deadline, *, told: bool = False) -> list[list[float]]:
        """Vectors of one batch; where the server finds it too large, of its halves, and of shorter texts at last.

        Args:
            told: the server has named its limit for these texts. It is believed once: one that names another one each
                time would go on for as many requests as a text has tokens.
        """
        limit = self._max_tokens
        inputs = [await self._fitted(text, limit, deadline) for text in texts]
        try:
            return await self._request(inputs, deadline)
        except InputTooLarge as error:
            if not told and error.limit is not None and SMALLEST_LIMIT <= error.limit < limit:
                # What the server says of itself holds for all that follows.
                self._max_tokens = min(self._max_tokens, error.limit)
                return await self._embed_batch(texts, deadline, told=True)
            if len(texts) > 1:
                middle = len(texts) // 2
                first = await self._embed_batch(texts[:middle], deadline, told=told)
                return first + await self._embed_batch(texts[middle:], deadline, told=told)
        return [await self._embed_shortened(texts[0], limit // 2, deadline)]

    async def _embed_shortened(self, text: str, limit: int, deadline: Deadline) -> list[float]:
        """The vector of the longest beginning of `text` that the server takes, by halving."""
        while limit >= SMALLEST_LIMIT:
            try:
                return (await self._request([_cut_by_script(text, limit)], deadline))[0]
            except InputTooLarge:
                limit //= 2
        raise ModelReplyInvalid("it finds even a few words too long", url=self.endpoint.name)

    async def _request(self, inputs: Sequence[str | list[int]], deadline: Deadline) -> list[list[float]]:
        client = self.endpoint.client
        return await client.embed(self._spec.name, inputs, deadline, dimension=self.dimension)

    async def _fitted(self, text: str, limit: int, deadline: Deadline) -> str | list[int]:
        """`text` itself where it fits into `limit` tokens, else its first tokens (or a shorter text)."""
        if len(text.encode()) + 2 <= limit:  # a token has a byte at least; two stand around the text
            return text
        text = text[: limit * MAX_CHARS_PER_TOKEN]
        try:
            tokens = await self.endpoint.client.tokenize(text, deadline)
        except ModelReplyInvalid:  # not a llama-server: its client does not ask again
            return _cut_by_script(text, limit)
        # The last one closes the input (where the model wants that); it has to stay.
        return text if len(tokens) <= limit else tokens[: limit - 1] + tokens[-1:]


def _batches(texts: list[str], max_tokens: int) -> Iterator[list[str]]:
    """Runs of at most `BATCH_INPUTS` texts and about `BATCH_TOKENS` tokens, with each text cut at `max_tokens`."""
    batch: list[str] = []
    size = 0
    for text in texts:
        tokens = min(len(text.encode()) // BYTES_PER_TOKEN, max_tokens)
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


def _tell_apart(vectors: Sequence[Vectors]) -> bool:
    """Whether the vectors of `PAIRS` lie nearer to their partner than any two others lie to each other."""
    related: list[float] = []
    unrelated: list[float] = []
    for i, one in enumerate(vectors):
        for j in range(i):
            (related if i // 2 == j // 2 else unrelated).append(float(one @ vectors[j]))
    return min(related) > max(unrelated)


def _unit(vector: list[float]) -> Vectors:
    """`vector` with length one; scaled first, so that squares of extreme numbers neither overflow nor vanish."""
    import numpy as np

    array = np.asarray(vector, np.float64)
    array /= np.abs(array).max()
    return (array / np.linalg.norm(array)).astype(np.float32)
