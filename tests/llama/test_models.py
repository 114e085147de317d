"""What is known of models: by the names users and servers write, and by name in the catalogue."""

from __future__ import annotations

import re

import pytest

from trawl.llama.models import CATALOGUE, model_spec


@pytest.mark.parametrize(
    ("name", "query", "passage", "tokens"),
    [
        ("multilingual-e5-small", "query: ", "passage: ", 512),
        ("intfloat/e5-base-v2", "query: ", "passage: ", 512),
        ("multilingual-e5-large-Q8_0.gguf", "query: ", "passage: ", 512),
        ("Multilingual_E5_Small", "query: ", "passage: ", 512),
        ("multilingual-e5-large-instruct", "", "", 512),
        ("e5-mistral-7b", "", "", 512),
        ("bge-m3", "", "", 8192),
        ("BAAI/bge-m3", "", "", 8192),
        ("bge-m3-Q8_0.gguf", "", "", 8192),
        ("some-model-of-tomorrow", "", "", 512),
        ("cafe5", "", "", 512),
        ("", "", "", 512),
    ],
)
def test_a_model_is_known_by_its_name(name: str, query: str, passage: str, tokens: int) -> None:
    spec = model_spec(name)
    assert (spec.query_prefix, spec.passage_prefix, spec.max_tokens) == (query, passage, tokens)


@pytest.mark.parametrize(
    ("name", "dimension", "pooling"),
    [
        ("multilingual-e5-small", 384, "mean"),
        ("Multilingual_E5_Small.gguf", 384, "mean"),
        ("intfloat/e5-base-v2", None, "mean"),
        ("multilingual-e5-large-instruct", None, None),
        ("bge-m3-Q8_0.gguf", 1024, "cls"),
        ("bge-reranker-v2-m3", None, "rank"),
        ("some-model-of-tomorrow", None, None),
    ],
)
def test_dimension_and_pooling_are_said_only_where_they_are_known(
    name: str, dimension: int | None, pooling: str | None
) -> None:
    spec = model_spec(name)
    assert (spec.dimension, spec.pooling) == (dimension, pooling)


def test_a_catalogued_model_is_known_by_its_name_and_by_that_of_its_file() -> None:
    for model in CATALOGUE.values():
        assert model_spec(model.name) == model.spec
        by_file = model_spec(model.file)
        assert (by_file.max_tokens, by_file.dimension, by_file.pooling) == (
            model.spec.max_tokens,
            model.spec.dimension,
            model.spec.pooling,
        )


def test_every_catalogued_file_is_pinned() -> None:
    for model in CATALOGUE.values():
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)
        assert model.size > 0
        assert model.repo is None or re.fullmatch(r"[0-9a-f]{40}", model.revision)
