"""The recorded inputs in tests/data are what their index and README say, may be here, and hold nobody's address."""

from __future__ import annotations

import gzip
import hashlib
import json
import re

import pymupdf
import pytest

from tests.replay import REPO, ReplayWeb, load_payload_index, load_questions, replay_client, wcxb_page

DATA = REPO / "tests" / "data"
PAYLOADS = DATA / "payloads"
WCXB = DATA / "wcxb"
INDEX = load_payload_index(PAYLOADS)
QUESTIONS = load_questions(DATA / "qa.jsonl")
PAGES = sorted(path.name.removesuffix(".html.gz") for path in (WCXB / "html").iterdir())


def test_every_payload_is_in_the_index_with_its_licence_and_in_the_readme() -> None:
    files = {str(path.relative_to(PAYLOADS)) for path in PAYLOADS.rglob("*") if path.is_file()}
    assert files - {"README.md", "index.jsonl"} == set(INDEX)
    readme = (PAYLOADS / "README.md").read_text("utf-8")
    for name, row in INDEX.items():
        body = (PAYLOADS / name).read_bytes()
        assert (len(body), hashlib.sha256(body).hexdigest()) == (row["bytes"], row["sha256"]), name
        assert len(body) <= 30_000, name
        assert f"| `{name}` | {row['source_repo']} |" in readme
        assert row["licence"], name


def test_every_payload_with_a_url_is_served_with_its_status(web: ReplayWeb) -> None:
    rows = [row for row in INDEX.values() if row["url"]]
    with replay_client(web) as client:
        for row in rows:
            answer = client.get(web.add_payload(row, PAYLOADS))
            assert (answer.status_code, len(answer.content)) == (row["status"], row["bytes"]), row["file"]
    assert len(rows) >= 10


def test_our_pdf_has_text_and_its_scan_has_none() -> None:
    with pymupdf.open(PAYLOADS / "pdf/hut_water_report.pdf") as document:
        assert len(document) == 2
        assert "a tank of 9,000 litres" in document[0].get_text()
        assert "17,400 crowns" in document[1].get_text()
    with pymupdf.open(PAYLOADS / "pdf/hut_water_report_scan.pdf") as document:
        assert [page.get_text().strip() for page in document] == ["", ""]


@pytest.mark.parametrize("page_id", PAGES)
def test_every_wcxb_page_has_questions_whose_answers_it_holds(page_id: str) -> None:
    url, _ = wcxb_page(page_id, WCXB)
    truth = json.loads((WCXB / "ground-truth" / f"{page_id}.json").read_bytes())
    text = " ".join(truth["ground_truth"]["main_content"].split())
    questions = [question for question in QUESTIONS if question["page"] == page_id]
    assert questions
    for question in questions:
        assert question["url"] == url
        assert any(" ".join(answer.split()) in text for answer in question["answers"]), question["id"]


def test_the_wcxb_pages_are_of_at_least_five_types() -> None:
    assert len({question["type"] for question in QUESTIONS}) >= 5
    assert len(PAGES) == 12


def test_nobodys_address_is_in_what_was_copied() -> None:
    # A version (`script@1.2.3`) is no address.
    address = re.compile(rb"[\w.+-]+@[a-z][\w-]*\.[a-z]{2,}|mailto:|data-cfemail", re.IGNORECASE)
    for path in DATA.rglob("*"):
        if path.is_file():
            body = path.read_bytes()
            assert not address.search(gzip.decompress(body) if path.suffix == ".gz" else body), path
