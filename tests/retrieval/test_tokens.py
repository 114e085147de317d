"""The token estimate: near, and rather above, in every script. The counts beside this file are those of o200k_base."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from trawl.retrieval.tokens import estimate_tokens

SAMPLES = [json.loads(line) for line in Path(__file__).with_name("token_counts.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("sample", [pytest.param(s, id=s["label"]) for s in SAMPLES])
def test_the_estimate_is_near_and_never_far_below(sample: dict[str, Any]) -> None:
    assert 0.85 * sample["tokens"] <= estimate_tokens(sample["text"]) <= 1.4 * sample["tokens"]


def test_many_samples_together_are_not_underestimated() -> None:
    real = sum(s["tokens"] for s in SAMPLES)
    assert real <= sum(estimate_tokens(s["text"]) for s in SAMPLES) <= 1.2 * real


def test_nothing_costs_nothing_and_more_costs_more() -> None:
    assert estimate_tokens("") == 0
    assert 0 < estimate_tokens("a") <= estimate_tokens("a b") < estimate_tokens("a b " * 50)


@pytest.mark.parametrize("char", ["\x00", "\ud800", "\U0001f9ff", "\U0010ffff", "༄", "ꀀ"])
def test_any_character_costs_something(char: str) -> None:
    assert estimate_tokens(char * 10) >= 1 or char == "\x00"


def test_a_long_run_without_spaces_is_read_in_linear_time() -> None:
    started = time.perf_counter()
    assert estimate_tokens("A" * 1_000_000) > 100_000
    assert estimate_tokens("-\n " * 300_000) > 100_000
    assert estimate_tokens(" \t" * 300_000) > 0
    assert time.perf_counter() - started < 5
