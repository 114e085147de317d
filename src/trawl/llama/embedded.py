"""The embedded llama-server as a program: `python -m trawl.llama.embedded`. Runs in a process of its own.

It serves the real llama.cpp HTTP server (through `xllamacpp`) with multilingual-e5-small on a loopback port. A process
of its own, because the library holds the interpreter's lock while it loads, and because a crash of native code must not
be the caller's crash.

On its own it serves until Ctrl-C, with the key of `TRAWL_EMBED_API_KEY` if that is set. With `--leased` (how
`server_process` starts it) the first line of stdin is the key, a report goes to stdout when it is ready or has failed,
and it ends at once when stdin does: the other end is held by the parent alone, so however the parent ends, this ends.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import platformdirs

from trawl.errors import ModelUnavailable
from trawl.llama.models import E5_NAME
from trawl.llama.weights import INSTALL_HINT, ensure_e5

REPORT = b"@trawl "
"""Begins the line that tells the parent: `{"url": …}` or `{"error": …}`."""
MAX_TOKENS = 512
"""What multilingual-e5-small was trained on; also the batch, because an input must fit into one."""
PARENT_CHECK_MS = 500
MAX_THREADS = 8
"""The model's matrices have 384 columns: too small to share out among more."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Serves until told to stop; see the module's docstring."""
    options = _options(argv)
    key = _lease() if options.leased else os.environ.get("TRAWL_EMBED_API_KEY", "")
    try:
        server = _serve(ensure_e5(options.cache_dir), options.host, options.port, options.threads, key)
    except ModelUnavailable as error:
        _tell(options.leased, error=error.message)
        os._exit(1)
    _tell(options.leased, url=server.listening_address)
    if options.leased:
        _wait_for_end_of_stdin()
    else:
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    # Not by way of the server's destructor: it waits for open streams, up to 30 s.
    os._exit(0)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("trawl.llama.embedded", description="A small llama-server for embeddings.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8081, help="0: any free one (default: 8081)")
    parser.add_argument("--threads", type=int, default=_threads(), help="default: %(default)s")
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=Path(platformdirs.user_cache_dir("trawl")),
        help="where the converted model is kept (default: %(default)s)",
    )
    parser.add_argument(
        "--leased", action="store_true", help="live as long as stdin is open; its first line is the key"
    )
    options = parser.parse_args(argv)
    if not options.leased:
        # Blocked before the server starts its threads, so that `sigwait` gets them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    return options


def _threads() -> int:
    """Processors for this process; a container's quota counts, as threads beyond it only wait for each other."""
    processors = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        processors = min(processors, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return max(1, min(processors, MAX_THREADS))


def _lease() -> str:
    """The key from stdin. From here on the end of stdin ends the process, even while native code loads the model."""
    key = sys.stdin.buffer.readline(256).decode("ascii").strip()
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    # The kernel itself raises SIGIO (default: terminate) when the last writer is gone; Python would not come to look.
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if _stdin_ended(0) or not key:
        os._exit(0)
    return key


def _wait_for_end_of_stdin() -> None:
    parent = os.getppid()
    # A process forked from the parent by foreign code may hold the other end open: look at the parent too.
    while not _stdin_ended(PARENT_CHECK_MS) and os.getppid() == parent:
        pass


def _stdin_ended(wait_ms: int) -> bool:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(wait_ms))


def _serve(model: Path, host: str, port: int, threads: int, key: str) -> Any:
    # Before the library loads: idle OpenMP threads that spin took 6 of 7 embeddings per second on two busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp
    except ImportError as error:
        raise ModelUnavailable(f"xllamacpp cannot be loaded: {error}", hint=INSTALL_HINT) from error
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {E5_NAME}
    params.hostnames = [host]
    params.port = port
    params.api_keys = [key] if key else []
    params.embedding = True
    # One slot: two and four gave the same 18 chunks/s on two cores and took 240 MB more.
    params.n_parallel = 1
    params.n_ctx = params.n_batch = params.n_ubatch = MAX_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup = False
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 2
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise ModelUnavailable(f"llama.cpp did not start: {error}") from error


def _tell(leased: bool, **report: str) -> None:
    if leased:
        os.write(1, b"\n" + REPORT + json.dumps(report).encode() + b"\n")
    elif "error" in report:
        print(report["error"], file=sys.stderr)
    else:
        print(f"listening on {report['url']} with {E5_NAME}", flush=True)


if __name__ == "__main__":
    main()
