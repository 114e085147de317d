"""Real llama-servers for tests: `python -m trawl.llama.embedded` as a child process, with any model and flags."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

START_SECONDS = 60
_LISTENING = re.compile(r"listening on (http://\S+)")


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready. `url` is the API's base, ending in `/v1`."""

    url: str
    pid: int


@contextmanager
def llama_server(*arguments: str | Path, key: str | None = None) -> Iterator[RunningServer]:
    """A server on a free port, from the moment it is ready until the block is left.

    Args:
        arguments: of `trawl.llama.embedded`; the host and the port are given here.
        key: the API key it wants.
    """
    command = [sys.executable, "-m", "trawl.llama.embedded", "--host", "127.0.0.1", "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAWL_")}
    if key:
        environment["TRAWL_EMBED_API_KEY"] = key
    child = subprocess.Popen(
        [*command, *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        yield RunningServer(_address(child) + "/v1", child.pid)
    finally:
        child.kill()
        child.wait()


def _address(child: subprocess.Popen[str]) -> str:
    """What it says it listens on. Its output is read to the end of its life, so that it never waits for a reader."""
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        assert child.stdout
        with child.stdout:
            for line in child.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    said = []
    try:
        while (line := lines.get(timeout=START_SECONDS)) is not None:
            said.append(line)
            if match := _LISTENING.search(line):
                return match[1]
    except Empty:
        raise AssertionError(f"the server is not ready after {START_SECONDS} s; it said: {''.join(said)}") from None
    raise AssertionError(f"the server ended at start; it said: {''.join(said)}")
