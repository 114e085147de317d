"""What a caller asks for, checked: wrong arguments are the only thing trawl raises for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from trawl.errors import UsageError
from trawl.types import Render

DEFAULT_MAX_TOKENS = 1000
_MOST_TOKENS = 1_000_000
_MOST_QUESTIONS = 20
_LONGEST_QUESTION = 4_000
"""Characters. A longer text is no question, and would cost the embedder more than the page."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The questions (none: the main content in order) and how much may come back."""

    questions: tuple[str, ...]
    k: int | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    use_rerank: bool = True
    use_hyde: bool = False

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
        use_rerank: bool = True,
        use_hyde: bool = False,
    ) -> Ask:
        """Check the arguments of a call.

        Raises:
            UsageError: a wrong type, or a number out of range; the message names the argument.
        """
        if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
            raise UsageError(f"k must be a whole number from 1, not {k!r}")
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or not 1 <= max_tokens <= _MOST_TOKENS:
            raise UsageError(f"max_tokens must be a whole number from 1 to {_MOST_TOKENS:,}, not {max_tokens!r}")
        return cls(_questions(query), k, max_tokens, bool(use_rerank), bool(use_hyde))


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
        UsageError: not a positive number.
    """
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not 0 < timeout <= 3600:
        raise UsageError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    return float(timeout)
