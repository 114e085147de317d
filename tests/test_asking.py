"""Wrong arguments are told at once, by name."""

import pytest

from trawl.asking import Ask, checked_render, checked_timeout, checked_url
from trawl.errors import UsageError


def test_one_question_several_or_none():
    assert Ask.of("why?").questions == ("why?",)
    assert Ask.of(["why?", " when? "]).questions == ("why?", "when?")
    assert Ask.of(None).questions == Ask.of("").questions == Ask.of("  ").questions == ()
    assert Ask.of(["a", "b"]).query == "a; b"


@pytest.mark.parametrize(
    "options",
    [
        {"k": 0},
        {"k": -1},
        {"k": "3"},
        {"k": True},
        {"k": 1.5},
        {"max_tokens": 0},
        {"max_tokens": "1000"},
        {"max_tokens": None},
    ],
)
def test_numbers_out_of_range_are_named(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        Ask.of("q", **options)


@pytest.mark.parametrize("query", [5, [1], ["a", None], ["q"] * 21, "x" * 4001])
def test_a_query_that_is_none_is_told(query):
    with pytest.raises(UsageError):
        Ask.of(query)


def test_url_render_and_timeout_are_checked():
    assert checked_url(" https://example.org/ ") == "https://example.org/"
    assert checked_render("never") == "never"
    assert checked_timeout(2) == 2.0
    for check, wrong in (
        (checked_url, None),
        (checked_url, " "),
        (checked_render, "maybe"),
        (checked_timeout, 0),
        (checked_timeout, "9"),
        (checked_timeout, float("nan")),
    ):
        with pytest.raises(UsageError):
            check(wrong)


def test_a_usage_error_is_a_value_error():
    assert issubclass(UsageError, ValueError)
