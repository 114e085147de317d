"""PDF to a Document, over small files made here."""

from __future__ import annotations

from collections.abc import Sequence

import pymupdf
import pytest

from trawl.errors import ExtractionError
from trawl.extraction.pdf import pdf_document
from trawl.types import Document

Piece = tuple[float, float, str, float, str]
"""x, y, text, size, font."""
URL = "https://papers.example/a.pdf"


def pdf(*pages: Sequence[Piece], **saving: object) -> bytes:
    document = pymupdf.open()
    for pieces in pages:
        page = document.new_page()
        for x, y, text, size, font in pieces:
            page.insert_text((x, y), text.split("\n"), fontsize=size, fontname=font)
    return document.tobytes(**saving)


BODY = (
    "The mill at the upper bridge was built when the river\nstill ran on the other side of the church, and nobody\n"
    "now can say who paid for it."
)
OAK = "Oak was used for the wheels, as it lasts longest in wa-\nter. A well-kept wheel turns for forty years."
REPORT = pdf(
    [
        (72, 80, "Mills of the valley", 24, "hebo"),
        (72, 130, BODY, 11, "helv"),
        (72, 220, "Wheels", 16, "hebo"),
        (72, 250, OAK, 11, "helv"),
    ],
    [(72, 80, "Prices", 16, "hebo"), (72, 110, "A wheel cost 90 crowns in 1731.", 11, "helv")],
)


def check_slices(document: Document) -> None:
    for block in document.blocks:
        assert document.source[block.start : block.end].endswith(block.text)


def test_text_headings_and_pages() -> None:
    document = pdf_document(REPORT, url=URL)
    check_slices(document)
    assert document.title == "Mills of the valley"
    assert document.content_type == "application/pdf"
    assert [(b.level, b.text) for b in document.blocks if b.kind == "heading"] == [
        (1, "Mills of the valley"),
        (2, "Wheels"),
        (2, "Prices"),
    ]
    assert [b.page for b in document.blocks] == [1, 1, 1, 1, 2, 2]
    assert document.metadata["pages"] == 2
    assert "## Prices\n\nA wheel cost 90 crowns in 1731." in document.source


def test_lines_become_running_text_and_broken_words_whole() -> None:
    document = pdf_document(REPORT, url=URL)
    assert BODY.replace("\n", " ") in document.source
    assert "longest in water. A well-kept wheel" in document.source


def test_a_hyphen_that_belongs_to_the_word_stays() -> None:
    document = pdf_document(
        pdf([(72, 80, "A well-known mill. It is called the well-\nknown mill of the valley.", 11, "helv")])
    )
    assert "the well-known mill of" in document.source


def test_columns_are_read_one_after_the_other() -> None:
    left = "\n".join(f"Left column line {n} goes on" for n in range(6))
    right = "\n".join(f"Right column line {n} goes on" for n in range(6))
    source = pdf_document(pdf([(60, 100, left, 11, "helv"), (320, 100, right, 11, "helv")])).source
    assert source.index("Left column line 5") < source.index("Right column line 0")


def test_list_items_are_told_apart() -> None:
    document = pdf_document(pdf([(72, 80, "• oak for the wheel\n• elm for the trough\n1. the first step", 11, "helv")]))
    check_slices(document)
    assert [b.kind for b in document.blocks] == ["list"] * 3
    assert document.source == "- oak for the wheel\n- elm for the trough\n1. the first step"


def test_metadata_and_links() -> None:
    made = pymupdf.open(stream=REPORT)
    made.set_metadata({"title": "The Mills", "author": "I. Miller", "creationDate": "D:20310405120000Z"})
    page = made[0]
    where = page.search_for("Oak was used")[0]
    page.insert_link({"kind": pymupdf.LINK_URI, "from": where, "uri": "https://oak.example/"})
    document = pdf_document(made.tobytes(), url=URL)
    assert document.title == "The Mills"
    assert document.metadata["author"] == "I. Miller"
    assert document.metadata["date"] == "2031-04-05"
    (link,) = document.links
    assert link.url == "https://oak.example/"
    assert document.source[link.start : link.end] == link.text == "Oak was used"


@pytest.mark.parametrize("title", ["Untitled", "Microsoft Word - report_final.docx", "a.pdf", ""])
def test_a_title_that_says_nothing_is_not_taken(title: str) -> None:
    made = pymupdf.open(stream=REPORT)
    made.set_metadata({"title": title})
    assert pdf_document(made.tobytes()).title == "Mills of the valley"


def test_a_password_is_asked_for() -> None:
    locked = pdf([(72, 80, "secret", 11, "helv")], encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="x", owner_pw="y")
    with pytest.raises(ExtractionError, match="needs a password"):
        pdf_document(locked, url=URL)


def test_owner_restrictions_do_not_stop_reading() -> None:
    restricted = pdf([(72, 80, "readable", 11, "helv")], encryption=pymupdf.PDF_ENCRYPT_AES_256, owner_pw="y")
    assert "readable" in pdf_document(restricted).source


def test_a_scan_is_told_as_a_scan() -> None:
    made = pymupdf.open()
    page = made.new_page()
    picture = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, 50, 50))
    picture.clear_with(120)
    page.insert_image(page.rect, pixmap=picture)
    with pytest.raises(ExtractionError, match="no text layer") as caught:
        pdf_document(made.tobytes(), url=URL)
    assert "OCR" in caught.value.hint


def test_a_blank_page_has_no_text() -> None:
    with pytest.raises(ExtractionError, match="no text on its 1 page"):
        pdf_document(pdf([]), url=URL)


@pytest.mark.parametrize("body", [b"", b"%PDF-1.7\nnot really", b"<html></html>", bytes(500)])
def test_what_is_no_pdf_is_refused(body: bytes) -> None:
    with pytest.raises(ExtractionError):
        pdf_document(body, url=URL)


def test_a_file_cut_off_gives_what_is_left_or_a_typed_error() -> None:
    for part in (0.3, 0.6, 0.9):
        try:
            document = pdf_document(REPORT[: int(len(REPORT) * part)], url=URL)
        except ExtractionError:
            continue
        check_slices(document)


def test_time_is_up_gives_the_pages_read_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("trawl.extraction.pdf.time.monotonic", lambda: next(ticks))
    document = pdf_document(pdf(*[[(72, 80, f"Page {n} has words", 11, "helv")] for n in range(6)]), seconds=2.5)
    assert "Page 1" in document.source
    assert "Page 5" not in document.source
    assert any("time was up" in warning for warning in document.warnings)
