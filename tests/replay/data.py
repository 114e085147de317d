"""The recorded pages and questions tests are measured on: small ones in tests/data, large ones outside the checkout.

Where the large ones are is a setting of the test run (`TRAWL_WCXB_DIR`, `TRAWL_PAYLOADS_DIR`, `TRAWL_QA_DIR`), read
once, before the fixtures hide the caller's environment. Absent ones skip a test, or fail it with
`TRAWL_REQUIRE_DATA=1`.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
CALLER_ENV: Mapping[str, str] = dict(os.environ)
"""The environment the test run was started with."""


def require_data(variable: str, default: Path) -> Path:
    """The folder named by `variable`, else `default`; skips (or fails) the test when it does not exist."""
    folder = Path(CALLER_ENV.get(variable) or default).resolve()
    if not folder.is_dir():
        reason = f"{folder} does not exist; {variable} names the folder of these recorded inputs"
        if CALLER_ENV.get("TRAWL_REQUIRE_DATA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


def wcxb_dir() -> Path:
    """The development pages of WCXB: `html/NNNN.html.gz` and `ground-truth/NNNN.json`."""
    return require_data("TRAWL_WCXB_DIR", REPO.parent / "shared/data/wcxb") / "dev"


def payloads_dir() -> Path:
    """Recorded answers of real sites with their `index.jsonl`."""
    return require_data("TRAWL_PAYLOADS_DIR", REPO.parent / "shared/data/payloads")


def qa_dir() -> Path:
    """Questions with literal answers: `qa_dev.jsonl` (WCXB pages), `qa_payloads.jsonl`."""
    return require_data("TRAWL_QA_DIR", REPO.parent / "shared/data/qa")


def wcxb_page(page_id: str, folder: Path) -> tuple[str, bytes]:
    """URL and HTML of one WCXB page. `folder` holds `html` and `ground-truth`, like `wcxb_dir()`.

    Some pages have no URL on record; those get one of ours.
    """
    truth = json.loads((folder / "ground-truth" / f"{page_id}.json").read_bytes())
    url = truth["url"] or f"https://wcxb.example/{page_id}"
    return url, gzip.decompress((folder / "html" / f"{page_id}.html.gz").read_bytes())


def load_payload_index(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of `folder/index.jsonl` by file name."""
    return {row["file"]: row for row in _json_lines(folder / "index.jsonl")}


def load_questions(file: Path) -> list[dict[str, Any]]:
    """Questions, one JSON object a line: `query`, `answers`, `url` and where the page is."""
    return _json_lines(file)


def _json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
