"""What every command shares: exit codes, options, settings, messages and the spinner."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trawl.errors import GuardRefused, NetworkError, TooManyRedirects, TrawlError, UsageError
from trawl.safety.framing import showable_line

if TYPE_CHECKING:
    from trawl.settings import Settings

OK, NOTHING, USAGE, REFUSED, NETWORK, INTERNAL = range(6)
STOPPED = 130
"""What shells say of a program that was interrupted: 128 and the number of SIGINT."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")]
ConfigFile = Annotated[Path | None, typer.Option(help="Settings file to read instead of your own.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print what was done and how long it took.")]


def settings_from(config: Path | None) -> Settings:
    """The settings of this user.

    Raises:
        UsageError: the named file cannot be read.
    """
    from trawl.settings import Settings

    return Settings.from_env(config_file=config)


@contextmanager
def told() -> Iterator[None]:
    """Turns every error of ours into a message, what to do about it on a line of its own, and an exit code."""
    try:
        yield
    except TrawlError as error:
        where = f" ({error.url})" if error.url else ""
        stop(_exit_code(error), f"{error.stage}: {error.message}{where}", error.hint)
    except KeyboardInterrupt:
        stop(STOPPED, "stopped")


def stop(code: int, *lines: str) -> NoReturn:
    """End the command with a message on standard error."""
    for line in filter(None, lines):
        typer.echo(showable_line(line), err=True)
    raise typer.Exit(code)


def _exit_code(error: TrawlError) -> int:
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, GuardRefused):
        return REFUSED
    return NETWORK if isinstance(error, NetworkError | TooManyRedirects) else NOTHING


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error when a person is watching; what is yielded changes its text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)) as status:
        yield lambda text: status.update(escape(text))


def log_to_stderr(verbose: bool) -> None:
    """Log warnings, or everything of note, on standard error."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs whole URLs, secrets included
