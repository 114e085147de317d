"""The `trawl` command as a shell runs it: to its end, or for as long as a test wants."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

COMMAND = [sys.executable, "-c", "from trawl.cli import main; main()"]


def trawl(*args: str, cache: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TRAWL_CACHE_DIR": str(cache), **env},
    )


@contextmanager
def started(*args: str, cache: Path, stderr: int = subprocess.PIPE, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A running command; afterwards it and everything it started are gone."""
    environ = {**os.environ, "TRAWL_CACHE_DIR": str(cache), **env}
    process = subprocess.Popen(
        [*COMMAND, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ
    )
    try:
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for each in (process, *children):
            each.kill()
        process.communicate(timeout=10)


def wait_until(true: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
