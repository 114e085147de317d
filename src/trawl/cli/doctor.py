"""`trawl doctor`: what works on this machine, row by row."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from trawl.cli.common import NOTHING, AsJson, ConfigFile, Verbose, log_to_stderr, progress, settings_from, told
from trawl.safety.framing import showable_json, showable_line


def doctor(
    network: Annotated[
        bool, typer.Option("--network/--no-network", help="Ask the model servers (starts the embedded one).")
    ] = True,
    as_json: AsJson = False,
    verbose: Verbose = False,
    config: ConfigFile = None,
) -> None:
    """Say what works on this machine: browser, store, and which model servers answer.

    Exit code 1 when a server that the settings name is not there, or is not what it should be.
    """
    from trawl.doctor import examine

    log_to_stderr(verbose)
    with told(), progress("looking around") as tell:
        rows = asyncio.run(examine(settings_from(config), network=network, progress=tell))
    if as_json:
        typer.echo(showable_json([asdict(row) for row in rows]))
    else:
        width = max(len(row.name) for row in rows)
        for row in rows:
            typer.echo(f"{row.status:4}  {row.name:{width}}  {showable_line(row.message)}")
    if any(row.status == "fail" and row.required for row in rows):
        raise typer.Exit(NOTHING)
