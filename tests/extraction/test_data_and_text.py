"""JSON, XML and plain text as readable documents."""

from __future__ import annotations

import json
import time

import pytest

from trawl.extraction.json_data import json_document
from trawl.extraction.plain_text import text_document
from trawl.extraction.xml_data import xml_document
from trawl.types import Document

URL = "https://api.example/v1/thing.json"


def records(document: Document) -> dict[str, str]:
    found: dict[str, str] = {}
    for block in document.blocks:
        if block.record:
            found[block.record] = found.get(block.record, "") + document.source[block.start : block.end] + "\n"
    return found


# JSON


def test_a_forum_topic_reads_as_a_conversation() -> None:
    topic = {
        "title": "Glue for bark",
        "post_stream": {
            "posts": [
                {"username": "lotte_b", "created_at": "2031-04-02", "cooked": "<p>Which glue holds?</p>"},
                {
                    "username": "sven-t",
                    "cooked": "<p>Hide glue, at <strong>60 degrees</strong>.</p>\n"
                    "<pre><code>1 part glue\n2 parts water</code></pre>",
                },
            ]
        },
    }
    document = json_document(json.dumps(topic), url=URL)
    assert document.title == "Glue for bark"
    first, second = records(document).values()
    assert "username: lotte_b\ncreated_at: 2031-04-02" in first
    assert "Which glue holds?" in first
    assert "sven-t" in second
    assert "Hide glue, at 60 degrees." in second
    assert "```\n1 part glue\n2 parts water\n```" in second
    assert "<" not in document.source
    assert "\\n" not in document.source


def test_values_stand_as_they_were_written() -> None:
    document = json_document(
        '{"price": 1240.00, "count": 12345678901234567890, "ok": true, "none": null, "tags": ["a", "b"]}', url=URL
    )
    assert document.source == "price: 1240.00\ncount: 12345678901234567890\nok: true\nnone: null\ntags: a, b"


def test_the_list_is_the_records_not_what_wraps_it() -> None:
    listing = [{"kind": "Listing", "data": {"children": [{"title": f"Row {n}", "score": n} for n in range(5)]}}]
    document = json_document(json.dumps(listing), url=URL)
    assert len(records(document)) == 5
    assert all(f"Row {n}" in text for n, text in enumerate(records(document).values()))


def test_a_record_keeps_what_is_nested_in_it() -> None:
    products = {
        "products": [{"name": "Saw", "sizes": [{"mm": n} for n in range(2)]}, {"name": "File"}, {"name": "Rasp"}]
    }
    document = json_document(json.dumps(products), url=URL)
    saw = next(text for text in records(document).values() if "Saw" in text)
    assert "mm: 0" in saw
    assert "mm: 1" in saw
    assert "File" not in saw


def test_links_in_html_strings_are_absolute() -> None:
    document = json_document('{"body": "<p>See <a href=\\"/faq\\">the answers</a></p>"}', url=URL)
    assert [link.url for link in document.links] == ["https://api.example/faq"]
    assert "[the answers](https://api.example/faq)" in document.markdown


def test_text_with_signs_is_no_html() -> None:
    document = json_document(json.dumps({"note": "use x<y and List<int> " * 20}), url=URL)
    assert "x<y and List<int>" in document.source


def test_long_text_keeps_its_paragraphs() -> None:
    document = json_document(
        json.dumps({"description": "First paragraph.\n\nSecond paragraph,\nsecond line."}), url=URL
    )
    assert [b.text for b in document.blocks] == ["First paragraph.", "Second paragraph,\nsecond line."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}\n{"a": 2}\n{"a": 3}\n', ["a: 1", "a: 2", "a: 3"]),
        ('callback({"a": 1});', ["a: 1"]),
        (')]}\'\n{"a": 1}', ["a: 1"]),
        ('\ufeff{"a": 1}', ["a: 1"]),
        ('["x", "y"]', ["x", "y"]),
        ("[[1, 2], [3, 4]]", ["1, 2", "3, 4"]),
    ],
    ids=["lines", "jsonp", "prefix", "bom", "strings", "rows"],
)
def test_json_in_its_other_clothes(text: str, expected: list[str]) -> None:
    document = json_document(text, url=URL)
    for line in expected:
        assert line in document.source
    assert document.warnings == ()


@pytest.mark.parametrize("cut", range(20, 230, 7))
def test_json_cut_off_anywhere_is_read_as_far_as_it_goes(cut: int) -> None:
    rows = [{"title": f"Row {n}", "text": 'quoted \\" and {braces} [x], 雪', "n": n} for n in range(5)]
    text = json.dumps({"first": "value one", "rows": rows})
    document = json_document(text[:cut], url=URL)
    assert "value" in document.source
    assert document.warnings


def test_a_string_cut_in_the_middle_is_kept() -> None:
    document = json_document('{"id": 7, "description": "The tower was built in 1401 by the to', url=URL)
    assert "The tower was built in 1401 by the to" in document.source


@pytest.mark.parametrize(
    "text", ["{not json}", "hello", '{"a": 1} trailing', "[1, 2", "", "{" * 100_000, "[" * 100_000]
)
def test_what_is_no_json_is_shown_as_text_or_as_far_as_it_goes(text: str) -> None:
    began = time.perf_counter()
    document = json_document(text, url=URL)
    assert document.warnings
    assert time.perf_counter() - began < 2


def test_deep_json_ends_in_compact_text() -> None:
    value: object = "the bottom"
    for _ in range(60):
        value = {"in": value}
    document = json_document(json.dumps(value), url=URL)
    assert "the bottom" in document.source


def test_large_json_is_cut_with_a_warning() -> None:
    document = json_document(json.dumps([{"text": "word " * 2_000, "n": n} for n in range(600)]), url=URL)
    assert any("too large" in warning for warning in document.warnings)
    assert len(document.source) < 6 * 2**20


# XML


def test_xml_reads_as_names_and_values_with_records() -> None:
    document = xml_document(
        """<?xml version="1.0" encoding="latin-1"?><catalog><title>Tools</title>
        <tool id="a1"><name>Saw</name><price>12.50</price></tool>
        <tool id="a2"><name>File</name><price>3</price></tool></catalog>""",
        url=URL,
    )
    assert document.title == "Tools"
    saw, file = records(document).values()
    assert "price: 12.50" in saw
    assert "id: a1" in saw
    assert "File" in file
    assert document.warnings == ()


def test_a_sitemap_has_a_record_for_each_address() -> None:
    document = xml_document(
        "<urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9'>"
        + "".join(f"<url><loc>https://x.test/{n}</loc><lastmod>2031-01-0{n}</lastmod></url>" for n in range(1, 4))
        + "</urlset>",
        url=URL,
    )
    assert len(records(document)) == 3
    assert "loc: https://x.test/2\nlastmod: 2031-01-02" in document.source


def test_running_text_with_elements_in_it_stays_together() -> None:
    document = xml_document("<doc><p>The <b>old</b> mill stands.</p><p>It <i>turns</i> no more.</p></doc>", url=URL)
    assert "The old mill stands." in document.source


BOMB = (
    '<!DOCTYPE lolz [<!ENTITY lol "lol">'
    + "".join(f'<!ENTITY lol{n} "{("&lol" + (str(n - 1) if n > 1 else "") + ";") * 10}">' for n in range(1, 10))
    + "]><lolz><a>&lol9;</a><b>kept</b></lolz>"
)
OUTSIDE = '<!DOCTYPE x [<!ENTITY file SYSTEM "file:///etc/passwd">]><x><a>&file;</a><b>kept</b></x>'
PARAMETER = '<!DOCTYPE x [<!ENTITY % p SYSTEM "http://127.0.0.1:9/x"> %p;]><x><b>kept</b></x>'


@pytest.mark.parametrize("text", [BOMB, OUTSIDE, PARAMETER], ids=["bomb", "file", "parameter"])
def test_entities_are_never_expanded(text: str) -> None:
    began = time.perf_counter()
    document = xml_document(text, url=URL)
    assert time.perf_counter() - began < 2
    assert "kept" in document.source
    assert "lollol" not in document.source
    assert "root:" not in document.source
    assert any("entities" in warning for warning in document.warnings)


@pytest.mark.parametrize(
    "text", ["<!DOCTYPE " * 100_000, "<!DOCTYPE a [" + '<!ENTITY x "' * 30_000, "<?xml " * 100_000]
)
def test_prologues_without_end_take_no_time(text: str) -> None:
    began = time.perf_counter()
    assert xml_document(text, url=URL).warnings
    assert time.perf_counter() - began < 3


@pytest.mark.parametrize("text", ["[" + '"a\\' * 500_000, '{"a":"' * 200_000], ids=["escapes", "objects"])
def test_json_without_end_takes_no_time(text: str) -> None:
    began = time.perf_counter()
    assert json_document(text, url=URL).warnings
    assert time.perf_counter() - began < 3


def test_broken_xml_is_read_as_far_as_it_goes() -> None:
    document = xml_document("<list><item><name>One</name></item><item><name>Two</name></item><item><na", url=URL)
    assert "One" in document.source
    assert "Two" in document.source
    assert any("ends early" in warning for warning in document.warnings)


@pytest.mark.parametrize("text", ["", "no xml at all", "<", "{}"])
def test_what_is_no_xml_is_shown_as_text(text: str) -> None:
    document = xml_document(text, url=URL)
    assert document.source == text
    assert document.warnings


def test_deep_xml_takes_neither_time_nor_the_stack() -> None:
    began = time.perf_counter()
    xml_document("<a>" * 50_000 + "bottom" + "</a>" * 50_000, url=URL)
    assert time.perf_counter() - began < 5


# Plain text


def test_the_source_of_plain_text_is_the_text() -> None:
    text = "  A title\n\n\nFirst paragraph\nsecond line.\r\n \r\nLast.\n\n"
    document = text_document(text, url="https://x.test/notes.txt")
    assert document.source == text
    assert [b.text for b in document.blocks] == ["A title", "First paragraph\nsecond line.", "Last."]
    assert all(text[b.start : b.end].strip() == b.text for b in document.blocks)


def test_source_code_is_one_listing() -> None:
    text = "import os\n\n\ndef main():\n    # not a heading\n    return os\n"
    document = text_document(text, url="https://x.test/src/main.py?raw=1")
    assert document.source == text
    assert [b.kind for b in document.blocks] == ["code"]
    assert document.markdown == "```python\n" + text.rstrip() + "\n```"


def test_empty_text_has_no_blocks() -> None:
    assert text_document(" \n ", url="").blocks == ()
    assert text_document("", url="https://x.test/a.py").blocks == ()
