"""The command line: one file a command, what they share in `common`, all mounted in `app`."""

from trawl.cli.app import main

__all__ = ["main"]
