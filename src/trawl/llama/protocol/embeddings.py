"""Body and reply of `POST /v1/embeddings`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trawl.llama.protocol.bodies import json_body
from trawl.llama.protocol.replies import REPLY_BASE_BYTES, AnotherModel, by_index, invalid, reply_object

MAX_DIMENSION = 16_384
"""The largest models in use give vectors of 4,096 to 8,192 numbers."""
BYTES_PER_NUMBER = 28
"""A double in full precision with its comma, rounded up."""


def embeddings_body(model: str, inputs: Sequence[str | list[int]]) -> bytes:
    """Body of `POST /v1/embeddings`; an input is a text or its tokens."""
    return json_body({"model": model, "input": list(inputs), "encoding_format": "float"})


def embeddings_reply_limit(count: int) -> int:
    """Bytes that a reply with `count` vectors may have."""
    return REPLY_BASE_BYTES + count * MAX_DIMENSION * BYTES_PER_NUMBER


def parse_embeddings(
    status: int, body: bytes, *, count: int, dimension: int | None, url: str | None = None
) -> list[list[float]]:
    """The vectors in the order of the inputs, `count` of them, all of one length and finite.

    Args:
        status: HTTP status of the reply.
        body: the whole reply.
        count: how many inputs were sent.
        dimension: the length every vector must have; None: any, but the same for all.
        url: for messages.

    Raises:
        InputTooLarge: an input (or the batch) is too long for the server.
        AnotherModel: the vectors are good, and of another length than `dimension`.
        ModelUnavailable: it is loading, overloaded or wants another key.
        ModelReplyInvalid: anything else.
    """
    items = by_index(reply_object(status, body, url).get("data"), count, "vector", url)
    vectors = [_vector(item.get("embedding"), url) for item in items]
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        invalid(f"its vectors differ in length: {', '.join(map(str, sorted(lengths)))}", url)
    if dimension is not None and vectors and lengths != {dimension}:
        raise AnotherModel(f"its vectors have {lengths.pop()} numbers instead of {dimension}", url=url)
    return vectors


def _vector(value: Any, url: str | None) -> list[float]:
    if not isinstance(value, list) or not value:
        invalid("a vector is missing or not a list", url)
    if len(value) > MAX_DIMENSION:
        invalid(f"a vector has {len(value)} numbers, more than {MAX_DIMENSION}", url)
    # bool is an int to Python but not a number to JSON.
    if not all(type(number) is float or type(number) is int for number in value):
        invalid("a vector holds something that is not a number", url)
    try:
        vector = [float(number) for number in value]
    except OverflowError:
        invalid("a vector holds a number that is too large", url)
    if not all(map(math.isfinite, vector)):
        invalid("a vector holds a number that is not finite", url)
    if not any(vector):
        invalid("a vector is all zeros", url)
    return vector
