"""What every command shares: exit codes, options, settings, messages and the spinner."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trawl.errors import UsageError
from trawl.safety.framing import showable_line

if TYPE_CHECKING:
    from trawl.settings import Settings

OK, NOTHING, USAGE, REFUSED, NETWORK, INTERNAL = range(6)

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
def usage_errors() -> Iterator[None]:
    """Turns a UsageError into a message and exit code 2."""
    try:
        yield
    except UsageError as error:
        typer.echo(showable_line(str(error)), err=True)
        raise typer.Exit(USAGE) from error


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
