"""The `trawl` command and what stands under it.

Exit codes: 0 pieces were found, 1 no pieces or an outcome other than ok and truncated, 2 wrong usage, 3 refused by the
guard, 4 the network failed, 5 an internal error.
"""

from __future__ import annotations

import io
import sys
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from trawl.cli.ask import ask, extract
from trawl.cli.doctor import doctor
from trawl.cli.models import models
from trawl.cli.serve import serve_models


class _QuestionFirst(typer.core.TyperGroup):
    """Lets `trawl URL "question"` stand beside the named commands: what is no command is a question."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {"--help", "--version", "--install-completion", "--show-completion"}
        if args and args[0] not in self.commands and args[0] not in own:
            # A URL has a dot, a colon or a slash, or a question after it: a lone word is a command, mistyped.
            if len(args) == 1 and (meant := get_close_matches(args[0], self.commands, n=1)):
                ctx.fail(f"there is no command {args[0]}. Did you mean {meant[0]}?")
            args = ["ask", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_QuestionFirst,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help='Find the pieces of a page that answer a question: trawl URL "question".',
)
app.command("ask")(ask)
app.command("extract")(extract)
app.command("doctor")(doctor)
app.command("serve-models")(serve_models)
app.add_typer(models, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        from trawl import __version__

        typer.echo(f"trawl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = (
        False
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the `trawl` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a page may hold what the terminal's encoding does not
    app()
