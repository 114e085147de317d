"""A small llama-server as a program: `python -m trawl.llama.embedded`.

It serves the real llama.cpp HTTP server (through `xllamacpp`) under llama-server's own flags; without `--model` it
serves multilingual-e5-small, the model that comes with `trawl[embedded]`. It is a process of its own because the
library holds the interpreter's lock while it loads, and because a crash of native code must not be the caller's crash.

This file holds the command line, its translation into llama.cpp's parameters, and how the process ends. With
`--shared` it is the one server of all processes of a user: `rendezvous` starts it and tells it when to end.
"""

from __future__ import annotations

import argparse
import errno
import os
import secrets
import select
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import platformdirs

from trawl.errors import ModelUnavailable
from trawl.llama.listening import try_to_listen
from trawl.llama.models import E5, E5_NAME, EMBED_PORT
from trawl.llama.rendezvous import SharedServer
from trawl.llama.run_directory import Running
from trawl.llama.weights import INSTALL_HINT, ensure_e5

E5_TOKENS = E5.spec.max_tokens
"""Also its batch, because an input must fit into one."""
LLAMA_SERVER_PORT = 8080
E5_SLOTS = 2
"""Inputs computed together. Against 1, two gave 1.09 and four 1.05 times the chunks/s on two idle cores, for 115 and
330 MB more (benchmarks/speed/slots.py, notes/0005)."""
MAX_THREADS = 8
"""By default. The matrices of small models are too small to share out among more."""
MAX_SLOTS = 256
"""llama.cpp's own limit (LLAMA_MAX_SEQ)."""
KEY_VARIABLE = "TRAWL_EMBED_API_KEY"

DESCRIPTION = """\
A small llama-server: the HTTP API of llama.cpp, with the flags of llama-server that matter most.
Without --model it serves multilingual-e5-small for embeddings."""
EXAMPLES = f"""\
examples:
  python -m trawl.llama.embedded
  python -m trawl.llama.embedded -m chat.gguf -c 8192 -np 2
  python -m trawl.llama.embedded -m bge-m3.gguf --embedding -ub 8192 --port 8081
  python -m trawl.llama.embedded -m bge-reranker.gguf --reranking --port 8083

A key that clients must send is best given as {KEY_VARIABLE}: other users of the machine can read
command lines. It ends at once on Ctrl-C or SIGTERM, whatever it is doing."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Serves until told to stop; see the module's docstring."""
    options = parse_options(argv, os.environ)
    # A shell that starts it in the background has SIGINT ignored. Until the model is loaded no Python code can run:
    # the system itself ends the process.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if options.shared:
        _serve_shared(options)
    try:
        server = start_server(options)
    except ModelUnavailable as error:
        print(_sentence(error), file=sys.stderr, flush=True)
        os._exit(1)
    stopped = _stop_signals()
    with suppress(OSError):  # whoever started it may not be reading any more
        print(f"listening on {server.listening_address} with {options.alias}", flush=True)
    select.select([stopped], [], [])
    # Not by way of the server's destructor: it waits for open streams, up to 30 s.
    os._exit(0)


# The command line


def parse_options(argv: list[str] | None, environ: Mapping[str, str]) -> argparse.Namespace:
    """The options, checked and with every default filled in; a mistake ends the program with a usage message."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.model is None:
        for name in ("mmproj", "rerank", "pooling"):
            if getattr(options, name):
                parser.error(f"--{name} needs a --model")
        options.embedding = True
    if options.rerank and options.pooling not in (None, "rank"):
        parser.error("--rerank goes with --pooling rank only")
    if options.api_key == "":
        parser.error("--api-key is empty")
    key = options.api_key or environ.get(KEY_VARIABLE, "")
    if not key.isascii() or not key.isprintable() or " " in key:
        parser.error("the API key may have only printable ASCII characters and no spaces")
    options.api_key = key
    options.alias = options.alias or (options.model.name if options.model else E5_NAME)
    if options.port is None:
        options.port = LLAMA_SERVER_PORT if options.model else EMBED_PORT
    if options.parallel is None:
        options.parallel = 1 if options.model else E5_SLOTS
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m trawl.llama.embedded",
        usage="%(prog)s [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    switch = argparse.BooleanOptionalAction

    model = parser.add_argument_group("model")
    model.add_argument("-m", "--model", type=Path, metavar="GGUF", help="the model's file")
    model.add_argument("--mmproj", type=Path, metavar="GGUF", help="the projector of a vision model")
    model.add_argument("-a", "--alias", metavar="NAME", help="its name in the API (default: the file's name)")
    model.add_argument("--cache-dir", type=Path, metavar="DIR", default=Path(platformdirs.user_cache_dir("trawl")))
    model.description = "--cache-dir is where the model that comes with trawl[embedded] is kept."

    task = parser.add_argument_group("what it does (default: chat and completion)")
    task.add_argument("--embedding", "--embeddings", action="store_true", help="serve embeddings only")
    task.add_argument("--rerank", "--reranking", action="store_true", help="serve reranking only")
    task.add_argument("--pooling", choices=("none", "mean", "cls", "last", "rank"), help="default: the model's own")
    task.add_argument("--jinja", action=switch, default=True, help="use the model's own chat template")

    address = parser.add_argument_group("address and access")
    address.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    address.add_argument(
        "--port", type=_number(0, 65535), metavar="N", help=f"0: any free one (default: {LLAMA_SERVER_PORT}, "
        f"without --model {EMBED_PORT})"
    )  # fmt: skip
    address.add_argument("--api-key", metavar="KEY", help=f"visible to others in the process list: see {KEY_VARIABLE}")
    address.add_argument("--slots", action=switch, default=True, help="serve /slots, which shows what is being done")
    address.add_argument("--props", action="store_true", help="let clients change properties by POST /props")
    address.add_argument("--metrics", action="store_true", help="serve /metrics for Prometheus")

    size = parser.add_argument_group("size")
    count = _number(1, 2**20)
    size.add_argument(
        "-c", "--ctx-size", type=_number(0, 2**24), default=0, metavar="N", help="tokens, shared out over the slots "
        "(default: the model's own)"
    )  # fmt: skip
    size.add_argument("-b", "--batch-size", type=count, metavar="N", help="tokens taken up at once (default: 2048)")
    size.add_argument(
        "-ub", "--ubatch-size", type=count, metavar="N", help="tokens computed at once; an input to embed or rerank "
        "must fit (default: 512)"
    )  # fmt: skip
    size.add_argument(
        "-np",
        "--parallel",
        type=_number(1, MAX_SLOTS),
        metavar="N",
        help=f"slots (default: 1, without --model {E5_SLOTS})",
    )
    size.add_argument(
        "-t", "--threads", type=_number(1, 512), default=_threads(), metavar="N", help="default: %(default)s"
    )
    size.add_argument("-tb", "--threads-batch", type=_number(1, 512), metavar="N", help="default: as --threads")
    size.add_argument("--warmup", action=switch, default=True, help="one empty run before it is ready")

    parser.add_argument("-v", "--verbose", action="store_true", help="llama.cpp's own log on stderr")
    # How `rendezvous` starts it.
    parser.add_argument("--shared", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lock-fd", type=int, help=argparse.SUPPRESS)
    for name in ("--start-seconds", "--idle-seconds", "--grace-seconds"):
        parser.add_argument(name, type=float, help=argparse.SUPPRESS)
    return parser


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return number


def _threads() -> int:
    """Processors for this process; a container's quota counts, as threads beyond it only wait for each other."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        processors = min(processors, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return max(1, min(processors, MAX_THREADS))


# The server


def start_server(options: argparse.Namespace) -> Any:
    """The running server; its `listening_address` says where.

    Raises:
        ModelUnavailable: the library cannot run here, the model cannot be loaded, or the address is not free.
    """
    xllamacpp = _library()
    for path in (options.model, options.mmproj):
        _check_gguf(path)
    model = options.model or ensure_e5(options.cache_dir)
    try:
        return xllamacpp.Server(_parameters(xllamacpp, options, model))
    except RuntimeError:
        # Which of the two it was, llama.cpp says in its log only.
        _check_address(options.host, options.port)
        files = f"{model.name} with {options.mmproj.name}" if options.mmproj else model.name
        raise ModelUnavailable(
            f"llama.cpp cannot load {files}: damaged, of an unknown kind, or too large for the memory left",
            hint="--verbose shows its own account.",
        ) from None


def _library() -> Any:
    if sys.platform == "linux" and os.uname().machine == "x86_64":
        with suppress(OSError):
            # Without AVX2 the library would end the process by an illegal instruction.
            if " avx2" not in Path("/proc/cpuinfo").read_text():
                raise ModelUnavailable("this processor lacks AVX2, which the embedded llama.cpp needs")
    # Before the library loads: idle OpenMP threads that spin took 6 of 7 embeddings per second on two busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # A damaged model trips an assertion, and llama.cpp would have gdb print every thread.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        import xllamacpp
    except ImportError as error:
        hint = "Install libgomp1 (libgomp on some systems)." if "libgomp" in str(error) else INSTALL_HINT
        raise ModelUnavailable(f"xllamacpp cannot be loaded: {error}", hint=hint) from error
    return xllamacpp


def _parameters(xllamacpp: Any, options: argparse.Namespace, model: Path) -> Any:
    """What llama-server makes of the same flags."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {options.alias}
    params.hostnames, params.port = [options.host], options.port
    params.api_keys = [options.api_key] if options.api_key else []
    # llama.cpp's default lets any page in a browser on this machine read the replies.
    params.cors_origins = ""
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx_size
    params.n_batch = options.batch_size or params.n_batch
    params.n_ubatch = options.ubatch_size or params.n_ubatch
    if options.mmproj:
        params.mmproj.path = str(options.mmproj)
    if options.model is None:
        params.n_ctx = options.ctx_size or E5_TOKENS * options.parallel
        params.n_ubatch = options.ubatch_size or E5_TOKENS * options.parallel
    pooling = options.pooling or ("rank" if options.rerank else None)
    if pooling:
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    params.embedding = options.embedding or options.rerank
    if params.embedding:
        # Every token of an input is an output here: it is computed in one piece or not at all.
        params.n_batch = params.n_ubatch
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads_batch or options.threads
    params.use_jinja = options.jinja
    params.warmup = options.warmup and options.model is not None
    params.endpoint_slots, params.endpoint_props = options.slots, options.props
    params.endpoint_metrics = options.metrics
    params.ui = False
    # 0 is silent, 3 what llama-server prints. Its errors repeat in many lines what is said here in one.
    params.verbosity = 3 if options.verbose else 0
    return params


def _check_gguf(path: Path | None) -> None:
    if path is None:
        return
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelUnavailable(f"the model file {path} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelUnavailable(f"{path} is not a model file in GGUF format")


def _check_address(host: str, port: int) -> None:
    """Raises `ModelUnavailable` when nobody could listen there now."""
    try:
        try_to_listen(host, port)
    except ValueError:
        raise ModelUnavailable(f"{host} is not an address to listen on") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ModelUnavailable(
                f"port {port} of {host} is in use already", hint="Give another --port; 0 takes any free one."
            ) from None
        raise ModelUnavailable(f"it cannot listen on {host}, port {port}: {error.strerror}") from None


def _sentence(error: ModelUnavailable) -> str:
    return f"{error.message}. {error.hint}".rstrip(". ")


# Shared by the processes of a user


def _serve_shared(options: argparse.Namespace) -> NoReturn:
    """Serves with a key of its own until nobody needs it; see `rendezvous`."""
    if os.fork():
        os._exit(0)  # whoever started it has nothing to wait for, and the server no parent to outlive
    os.chdir("/")
    # The system ends it when loading takes too long: no Python code could.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, options.start_seconds)
    options.api_key = secrets.token_urlsafe(24)
    try:
        shared = SharedServer(options.shared, options.lock_fd, options.idle_seconds, options.grace_seconds)
        try:
            server = start_server(options)
        except ModelUnavailable as error:
            shared.fail(_sentence(error))
            raise
        signal.setitimer(signal.ITIMER_REAL, 0)
        shared.serve(Running(server.listening_address, options.api_key, os.getpid(), options.alias), _stop_signals())
    except ModelUnavailable as error:
        print(_sentence(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


# How it ends


def _stop_signals() -> int:
    """From here on SIGINT and SIGTERM make the returned file readable.

    Not `sigwait`, which needs them blocked, also while the model loads: then nothing could end it.
    """
    stopped, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    # Whichever of the server's threads gets the signal, the interpreter writes its number here.
    signal.set_wakeup_fd(wakeup)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return stopped


if __name__ == "__main__":
    main()
