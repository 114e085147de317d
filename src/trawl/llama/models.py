"""What is known of models before anything is asked: prefixes, limits, dimension, pooling; and the catalogue of those
that trawl can fetch by name. Facts only; the files are kept by `weights`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

Pooling = Literal["mean", "cls", "rank"]
"""How a model makes one output of its tokens, in llama-server's words (`--pooling`)."""

EMBED_PORT, CHAT_PORT, RERANK_PORT = 8081, 8082, 8083
"""Where servers of each kind are looked for when none is configured (contracts A.5)."""

E5_NAME = "multilingual-e5-small"
E5_DIMENSION = 384
E5_SHA256 = "394c5c6f6800597d617651b4636e023a716c45b168c22178759533a0d4e14cfc"
"""What `gguf_e5.convert` makes of the known weights, the same on every machine."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """How texts have to be presented to a model, and what it answers."""

    name: str
    query_prefix: str = ""
    passage_prefix: str = ""
    max_tokens: int = 512
    """Tokens of one input, special tokens included. 512 is what the smallest models in use take."""
    dimension: int | None = None
    """Length of its vectors; None: not known, or it makes none."""
    pooling: Pooling | None = None
    """None: not known; the model's own file says."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that trawl knows by name and the one file it is: pinned by revision, size and hash."""

    spec: ModelSpec
    kind: Literal["embed", "rerank"]
    licence: str
    file: str
    """Name of the GGUF file."""
    size: int
    """Bytes."""
    sha256: str
    repo: str | None = None
    """`owner/name` on the hub; None: the file is made from an installed package."""
    revision: str = ""
    """The commit of `repo`."""

    @property
    def name(self) -> str:
        return self.spec.name

    def url(self, endpoint: str) -> str:
        """Where the hub at `endpoint` (or a mirror of it) has the file; empty for one that is not from the hub."""
        return f"{endpoint.rstrip('/')}/{self.repo}/resolve/{self.revision}/{self.file}" if self.repo else ""


E5 = NamedModel(
    spec=ModelSpec(E5_NAME, "query: ", "passage: ", 512, E5_DIMENSION, "mean"),
    kind="embed",
    licence="MIT",
    file=f"{E5_NAME}-q4_0.gguf",
    size=73_631_232,
    sha256=E5_SHA256,
)

BGE_M3 = NamedModel(
    spec=ModelSpec("bge-m3", max_tokens=8192, dimension=1024, pooling="cls"),
    kind="embed",
    licence="MIT",
    file="bge-m3-Q8_0.gguf",
    size=634_553_760,
    sha256="950f4a8e5e19477a6d3c26d2f162233c20002c601f75e4b002e3239997821167",
    repo="gpustack/bge-m3-GGUF",
    revision="2d48f1737679ad900d5c26c5aad5410e9c70fdca",
)

BGE_RERANKER = NamedModel(
    spec=ModelSpec("bge-reranker-v2-m3", max_tokens=8192, pooling="rank"),
    kind="rerank",
    licence="Apache-2.0",
    file="bge-reranker-v2-m3-Q8_0.gguf",
    size=635_676_416,
    sha256="a43c7c9b11a4c1517e5bf95151960e1621d1b72f7a493364b01e386cf1aaa1d3",
    repo="gpustack/bge-reranker-v2-m3-GGUF",
    revision="3093af03b1a635e67b084b1d8c03c5f5e020fd05",
)

CATALOGUE: dict[str, NamedModel] = {model.name: model for model in (E5, BGE_M3, BGE_RERANKER)}
"""By name. Sizes and hashes were checked against several public sources for exactly these revisions."""


def model_spec(name: str) -> ModelSpec:
    """The description for a model name as users and servers write it (`bge-m3-Q8_0.gguf`, `intfloat/e5-base-v2`).

    Prefixes follow the model cards: e5 was trained with `query: ` and `passage: `, its instruct variants and bge-m3
    without. A model that is not known gets no prefix and the smallest limit.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if {"bge", "m3"} <= words:
        return replace(BGE_RERANKER.spec if "reranker" in words else BGE_M3.spec, name=name)
    if "e5" in words and not words & {"instruct", "mistral"}:
        known = {"multilingual", "small"} <= words
        return replace(E5.spec, name=name, dimension=E5.spec.dimension if known else None)
    return ModelSpec(name)
