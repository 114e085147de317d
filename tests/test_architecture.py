"""The direction of imports, and what importing costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# What each part may import of trawl besides itself. Nothing that is missing here may be imported.
_BASE = {"trawl.types", "trawl.errors", "trawl.deadline"}
MAY_IMPORT = {
    "trawl.types": set(),
    "trawl.errors": {"trawl.types"},
    "trawl.deadline": {"trawl.errors"},
    "trawl.asking": _BASE,
    "trawl.settings": _BASE,
    "trawl.background": _BASE,
    "trawl.safety": set(),
    "trawl.net": {*_BASE, "trawl.settings"},
    "trawl.breaker": set(),
    "trawl.llama": {*_BASE, "trawl.breaker", "trawl.settings", "trawl.store"},
    "trawl.store": _BASE,
    "trawl.extraction": _BASE,
    "trawl._worker": {*_BASE, "trawl.extraction"},
    "trawl.fetchers": {*_BASE, "trawl.settings", "trawl.extraction"},
    "trawl.chunking": _BASE,
    "trawl.anchors": {*_BASE, "trawl.chunking"},
    "trawl.retrieval": {*_BASE, "trawl.chunking"},
    "trawl.pieces": {*_BASE, "trawl.chunking", "trawl.retrieval"},
    "trawl.remainders": {*_BASE, "trawl.asking", "trawl.retrieval"},
    "trawl.relevance": {*_BASE, "trawl.asking", "trawl.llama", "trawl.retrieval"},
    "trawl.pipeline": {
        *_BASE,
        "trawl.asking",
        "trawl.anchors",
        "trawl.chunking",
        "trawl.extraction",
        "trawl.llama",
        "trawl.pieces",
        "trawl.relevance",
        "trawl.remainders",
        "trawl.retrieval",
    },
    "trawl.engine": {
        *_BASE,
        "trawl.asking",
        "trawl.background",
        "trawl.extraction",
        "trawl.fetchers",
        "trawl.llama",
        "trawl.net",
        "trawl.pipeline",
        "trawl.relevance",
        "trawl.remainders",
        "trawl.retrieval",
        "trawl.settings",
        "trawl.store",
    },
    "trawl.doctor": {*_BASE, "trawl.llama", "trawl.net", "trawl.settings"},
    "trawl.api": {*_BASE, "trawl.asking", "trawl.engine", "trawl.extraction", "trawl.settings"},
    "trawl.cli": {
        *_BASE,
        "trawl",
        "trawl.asking",
        "trawl.doctor",
        "trawl.engine",
        "trawl.extraction",
        "trawl.llama",
        "trawl.net",
        "trawl.safety",
        "trawl.settings",
    },
    "trawl_mcp": {
        *_BASE,
        "trawl",
        "trawl.asking",
        "trawl.engine",
        "trawl.pieces",
        "trawl.retrieval",
        "trawl.safety",
        "trawl.settings",
    },
}


def part_of(module: str) -> str:
    """`trawl.net.guard` belongs to `trawl.net`; `trawl_mcp.reply` to `trawl_mcp`."""
    names = module.split(".")
    return names[0] if names[0] == "trawl_mcp" else ".".join(names[:2])


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SRC.rglob("*.py")):
        names = list(path.relative_to(SRC).with_suffix("").parts)
        found.append((".".join(names[:-1] if names[-1] == "__init__" else names), path))
    return found


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            known = {name for name, _ in modules()}
            found |= {s if s in known else node.module for s in submodules}
    return {name for name in found if name.split(".")[0] in ("trawl", "trawl_mcp")}


@pytest.mark.parametrize(("module", "path"), [(m, p) for m, p in modules() if m != "trawl"])
def test_a_module_imports_only_what_lies_below_it(module, path):
    part = part_of(module)
    allowed = MAY_IMPORT[part]
    for imported in imports_of(path):
        target = part_of(imported)
        assert target == part or target in allowed, f"{module} must not import {imported}"


def test_the_table_names_only_parts_that_exist():
    assert set(MAY_IMPORT) == {part_of(module) for module, _ in modules() if module != "trawl"}


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def test_importing_trawl_loads_no_library_and_opens_nothing():
    heavy = run(
        "import sys, trawl; print([m for m in ('httpx', 'playwright', 'numpy', 'trafilatura', 'pymupdf', 'mcp', 'lxml',"
        " 'selectolax', 'pydantic', 'rich', 'typer', 'asyncio') if m in sys.modules])"
    )
    assert heavy == "[]"


def test_making_an_engine_starts_no_thread_process_or_browser():
    assert (
        run(
            "import threading, trawl; e = trawl.Engine(); print(threading.active_count());"
            "import sys; print([m for m in ('playwright', 'trafilatura', 'pymupdf') if m in sys.modules])"
        )
        == "1\n[]"
    )


def test_the_front_door_exports_what_it_says_sorted():
    import trawl

    assert trawl.__all__ == sorted(trawl.__all__)
    for name in trawl.__all__:
        assert getattr(trawl, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        trawl.no_such_name  # noqa: B018
