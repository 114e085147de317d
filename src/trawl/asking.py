"""What a caller asks for, checked: wrong arguments are the only thing trawl raises for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, get_args

from trawl.deadline import LONGEST_TIMEOUT
from trawl.errors import UsageError
from trawl.types import Render

DEFAULT_MAX_TOKENS = 1000
_MOST_TOKENS = 1_000_000
_MOST_QUESTIONS = 20
_LONGEST_QUESTION = 4_000
"""Characters. A longer text is no question, and would cost the embedder more than the page."""


class AskOptions(TypedDict, total=False):
    """How much may come back, and how it is ranked: the options that every kind of call takes."""

    k: int | None
    max_tokens: int
    use_hyde: bool
    use_rerank: bool
    timeout: float | None


class FetchOptions(AskOptions, total=False):
    """Options of a call that fetches."""

    render: str | None
    max_cache_age_s: float | None
    no_store: bool


class ExtractOptions(AskOptions, total=False):
    """Options of a call over content the caller has."""

    url: str | None
    content_type: str
    status: int


class DocumentOptions(TypedDict, total=False):
    """Options of a call that brings the whole page."""

    render: str | None
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Ask:
    """The questions (none: the main content in order) and how much may come back."""

    questions: tuple[str, ...]
    k: int | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    use_hyde: bool = False
    use_rerank: bool = True
    no_store: bool = False

    @property
    def query(self) -> str:
        """The questions as one line, for `PipelineResult.query`."""
        return "; ".join(self.questions)

    @classmethod
    def of(
        cls,
        query: str | Sequence[str] | None,
        *,
        k: int | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        use_hyde: bool = False,
        use_rerank: bool = True,
        no_store: bool = False,
    ) -> Ask:
        """Check the arguments of a call.

        Raises:
            UsageError: a wrong type, or a number out of range; the message names the argument.
        """
        if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
            raise UsageError(f"k must be a whole number from 1, not {k!r}")
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or not 1 <= max_tokens <= _MOST_TOKENS:
            raise UsageError(f"max_tokens must be a whole number from 1 to {_MOST_TOKENS:,}, not {max_tokens!r}")
        return cls(_questions(query), k, max_tokens, bool(use_hyde), bool(use_rerank), bool(no_store))


def _questions(query: str | Sequence[str] | None) -> tuple[str, ...]:
    if query is not None and not isinstance(query, Sequence):
        raise UsageError(f"query must be a string, a list of strings or None, not {type(query).__name__}")
    given = [] if query is None else [query] if isinstance(query, str) else list(query)
    if not all(isinstance(q, str) for q in given):
        raise UsageError("query must be a string, a list of strings or None; one of its items is no string")
    if len(given) > _MOST_QUESTIONS:
        raise UsageError(f"at most {_MOST_QUESTIONS} questions in one call, not {len(given)}")
    if any(len(q) > _LONGEST_QUESTION for q in given):
        raise UsageError(f"a question may have {_LONGEST_QUESTION:,} characters at most")
    return tuple(q.strip() for q in given if q.strip())


def checked_url(url: object) -> str:
    """`url` if it is a string; whether it is allowed is the guard's to say.

    Raises:
        UsageError: it is not a string, or empty.
    """
    if not isinstance(url, str):
        raise UsageError(f"url must be a string, not {type(url).__name__}")
    if not url.strip():
        raise UsageError("url is empty")
    return url.strip()


def checked_render(render: object) -> Render:
    """`render` if it is one of the three words.

    Raises:
        UsageError: it is not.
    """
    for allowed in get_args(Render):
        if render == allowed:
            return allowed  # type: ignore[no-any-return]
    raise UsageError(f"render must be one of {', '.join(get_args(Render))}, not {render!r}")


def checked_timeout(timeout: object) -> float:
    """`timeout` in seconds.

    Raises:
        UsageError: not a number above 0 and up to `LONGEST_TIMEOUT`.
    """
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not 0 < timeout <= LONGEST_TIMEOUT:
        raise UsageError(f"timeout must be a number of seconds above 0, at most {LONGEST_TIMEOUT}, not {timeout!r}")
    return float(timeout)


def check_age(seconds: object) -> None:
    """Check `max_cache_age_s`.

    Raises:
        UsageError: neither None nor a number from 0.
    """
    if seconds is None:
        return
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds >= 0:
        raise UsageError(f"max_cache_age_s must be a number of seconds from 0, not {seconds!r}")


def check_content(content: object, url: object, content_type: object, status: object = 200) -> None:
    """Check what a caller says of content it has.

    Raises:
        UsageError: one of them is of a wrong type; the message names it.
    """
    if not isinstance(content, (str, bytes)):
        raise UsageError(f"content must be bytes or a string, not {type(content).__name__}")
    if url is not None and not isinstance(url, str):
        raise UsageError(f"url must be a string or None, not {type(url).__name__}")
    if not isinstance(content_type, str):
        raise UsageError(f"content_type must be a string, not {type(content_type).__name__}")
    if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 999:
        raise UsageError(f"status must be an HTTP status, not {status!r}")
