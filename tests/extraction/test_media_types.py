"""What a body is, when the server says nothing or something impossible."""

from __future__ import annotations

import gzip

import pytest

from trawl.extraction.media_types import kind_of, media_type, sniff, type_of_name

HTML = b"<!DOCTYPE html><html><head><title>x</title></head><body>y</body></html>"
RSS = b'<?xml version="1.0"?><rss version="2.0"><channel><title>x</title></channel></rss>'
ATOM = b'<feed xmlns="http://www.w3.org/2005/Atom"><title>x</title></feed>'
RDF = b'<?xml version="1.0"?>\n<!-- c -->\n<rdf:RDF xmlns:rdf="r" xmlns="http://purl.org/rss/1.0/"><channel/></rdf:RDF>'
XHTML = b'<?xml version="1.0"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"><body/></html>'
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj"
DOCX = b"PK\x03\x04" + bytes(26) + b"word/document.xml" + bytes(40)


@pytest.mark.parametrize(
    ("told", "body", "url", "expected"),
    [
        # What the server says holds where the bytes can be it.
        ("text/html", HTML, "", "text/html"),
        ("text/html", b"just words", "", "text/html"),
        ("text/html", b"", "", "text/html"),
        ("application/xhtml+xml", XHTML, "", "application/xhtml+xml"),
        ("application/json", b'{"a": 1}', "", "application/json"),
        ("application/json", b'{"a": ', "", "application/json"),
        ("application/vnd.api+json", b"{}", "", "application/vnd.api+json"),
        ("text/markdown", b"# x", "", "text/markdown"),
        ("text/css", b"a{}", "", "text/css"),
        ("image/svg+xml", b"<svg></svg>", "", "image/svg+xml"),
        ("application/x-json", b"{}", "", "application/x-json"),
        ("application/x-python", b"import os", "", "application/x-python"),
        ("application/javascript", b"var a", "", "application/javascript"),
        # PDF under any flag.
        ("application/octet-stream", PDF, "", "application/pdf"),
        ("text/html", PDF, "", "application/pdf"),
        ("", b"\n\n" + PDF, "", "application/pdf"),
        ("application/x-download", b"junk\n" + PDF, "", "application/pdf"),
        ("text/html", HTML + b" a page that writes %PDF-1.4", "", "text/html"),
        # Nothing said.
        ("", HTML, "", "text/html"),
        ("", b"<!-- c --><p>x", "", "text/html"),
        ("application/octet-stream", HTML, "", "text/html"),
        ("", b'{"a": [1, 2]}', "", "application/json"),
        ("", b'[{"a": 1}]', "", "application/json"),
        ("", b'{"a": 1}\n{"a": 2}\n', "https://x.test/a.jsonl", "application/x-ndjson"),
        ("", RSS, "", "application/rss+xml"),
        ("", ATOM, "", "application/atom+xml"),
        ("", b'<?xml version="1.0"?><urlset/>', "", "application/xml"),
        ("", b"plain words", "", "text/plain"),
        ("", b"[1] a footnote", "", "text/plain"),
        ("", b"# Title", "https://x.test/README.md", "text/markdown"),
        ("", b"a,b\n1,2", "https://x.test/t.csv?v=1", "text/csv"),
        ("", b"\xff\xfea\x00b\x00", "", "text/plain"),
        ("", b"\x00\x01\x02\x03", "", "application/octet-stream"),
        # The wrong thing said.
        ("text/html", RSS, "", "application/rss+xml"),
        ("text/html", ATOM, "", "application/atom+xml"),
        ("text/html", b'\n{"a": 1}', "", "application/json"),
        ("text/xml", RSS, "", "application/rss+xml"),
        ("text/xml", RDF, "", "application/rdf+xml"),
        ("application/xml", XHTML, "", "text/html"),
        ("text/plain", b'{"a": 1}', "https://x.test/a.json", "application/json"),
        ("text/plain", RSS, "", "application/rss+xml"),
        ("text/plain", b"<p>shown as written</p>", "", "text/plain"),
        ("application/json", HTML, "", "text/html"),
        ("application/rss+xml", HTML, "", "text/html"),
        ("text/html", PNG, "", "image/png"),
        ("text/plain", gzip.compress(b"x"), "", "application/gzip"),
        ("application/octet-stream", b"PK\x03\x04" + bytes(60), "", "application/zip"),
        ("", DOCX, "", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("application/epub+zip", b"PK\x03\x04" + bytes(60), "", "application/epub+zip"),
        ("application/atom+xml", XHTML.replace(b"<body/>", b"<body><feed><title>x"), "", "application/atom+xml"),
    ],
)
def test_the_type_of_a_body(told: str, body: bytes, url: str, expected: str) -> None:
    assert sniff(told, body, url) == expected


@pytest.mark.parametrize(
    ("media", "kind"),
    [
        ("text/html", "html"),
        ("application/xhtml+xml", "html"),
        ("application/pdf", "pdf"),
        ("application/ld+json", "json"),
        ("application/x-ndjson", "json"),
        ("application/rss+xml", "feed"),
        ("application/feed+json", "feed"),
        ("text/xml", "xml"),
        ("application/mathml+xml", "xml"),
        ("text/csv", "text"),
        ("application/javascript", "text"),
        ("image/svg+xml", "binary"),
        ("image/png", "binary"),
        ("application/zip", "binary"),
        ("", "binary"),
    ],
)
def test_the_reader_of_a_type(media: str, kind: str) -> None:
    assert kind_of(media) == kind


def test_a_content_type_is_taken_apart() -> None:
    assert media_type('Text/HTML; charset="UTF-8"; x=y') == ("text/html", "UTF-8")
    assert media_type("application/json") == ("application/json", None)
    assert media_type(None) == ("", None)


def test_file_names() -> None:
    assert type_of_name("page.HTM") == "text/html"
    assert type_of_name("paper.pdf") == "application/pdf"
    assert type_of_name("README.md") == "text/markdown"
    assert type_of_name("page") == ""
