"""Hostile pages end soon, in bounded memory, without recursion, and say what was left out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trawl.extraction import dom
from trawl.extraction.html import html_document

# Each is a Python expression for the page; it is evaluated in the child process, so that nothing large is passed along.
HOSTILE = {
    "nested div": "'<div>' * 100_000 + 'last'",
    "nested div with text": "'<div>x ' * 100_000 + 'last'",
    "distinct open formatting": "''.join(f'<b id={i}>x' for i in range(50_000)) + 'last'",
    "formatting reopened": "'<p>' + ''.join(f'<b id={i}>' for i in range(150)) + '<p>x' * 50_000 + 'last'",
    "attributes": "'<div ' + ' '.join(f'a{i}=1' for i in range(300_000)) + '>last</div>'",
    "attributes behind a quoted bracket": "'<div b=\">\" ' + ' '.join(f'a{i}' for i in range(300_000)) + '>last</div>'",
    "one long line": "'<p>' + 'word ' * 400_000 + 'last'",
    "nested tables": "'<table><tr><td>' * 340 + 'last'",
    "nested data tables": "'<table><tr><th>a<th>b<tr><td>c<td>' * 340 + 'last'",
    "spans": "'<table><tr>' + '<td rowspan=65534 colspan=1000>x' * 500 + '<tr><td>y' * 2000 + '</table>last'",
    "nothing closed": "'<ul><li><a href=x><b><i><div>x' * 10_000 + 'last'",
    "nested lists": "'<ul><li>x' * 5_000 + 'last'",
    "nested quotes": "'<blockquote>x' * 5_000 + 'last'",
    "nested definitions": "'<dl><dt>x<dd>' * 3_000 + 'last'",
    "entities": "'&amp;' * 500_000 + '<p>last'",
    "open comments": "'<p>last</p>' + '<!--' * 500_000",
    "brackets": "'<' * 500_000 + '<p>last'",
    "nested MathML": "'last<math>' + '<mrow>' * 1_500 + '<mi>x'",
    "nested shadow roots": "'<p>last</p>' + '<template shadowrootmode=open><div>' * 1_000",
    "framesets": "'<frameset><frame src=x>' * 10_000 + '<noframes>last'",
    "SVG": "'<svg>' + '<g><use href=#a />' * 30_000 + '</svg><p>last'",
}
CHILD = """
import resource, sys, time
from trawl.extraction.html import html_document
page = eval(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.process_time()
document = html_document(page, url="https://example.test/")
print(time.process_time() - started, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
document.markdown
print(time.process_time() - started, "last" in document.source)
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_page(name: str) -> None:
    """A document within 5 s of CPU and 500 MB, and its Markdown too."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, HOSTILE[name]], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, megabytes, all_seconds, found = done.stdout.split()
    assert float(seconds) < 5
    assert float(megabytes) < 500
    assert float(all_seconds) < 10
    assert found == "True" or name == "framesets"


@pytest.mark.parametrize(
    "body",
    [b"", b" \n\t ", b"\0" * 5_000, bytes(range(256)) * 50, b"\x89PNG\r\n\x1a\n" + b"\xff\x00" * 500, b"<", b"</p>"],
)
def test_nothing_to_read_is_an_empty_document_or_text(body: bytes) -> None:
    document = html_document(body)
    assert isinstance(document.source, str)
    assert isinstance(document.markdown, str)


def test_empty_page_has_no_blocks() -> None:
    document = html_document("")
    assert (document.source, document.blocks, document.text, document.markdown) == ("", (), "", "")


def test_too_long_page_is_cut_and_told() -> None:
    html, _, warnings = dom.bounded("<p>x</p>" * (dom.MAX_CHARS // 8 + 10))
    assert len(html) == dom.MAX_CHARS
    assert "was not read" in warnings[0]


def test_ordinary_page_is_not_touched() -> None:
    page = '<div a="x > y"><p>a<p>b<script>if (a<b) "<div><div>"</script><!-- <div> --></div>' * 50
    assert dom.bounded(page) == (page, 2, ())


def test_flattening_keeps_words_apart() -> None:
    document = html_document("<div>" * 3_000 + "one</div>two</div>three")
    assert document.source.split() == ["one", "two", "three"]
    assert "flattened" in document.warnings[0]


def test_element_numbers_are_those_of_the_same_page_read_again() -> None:
    page = "<main><p>a<b>c</b></p><template shadowrootmode=open><p>d</p></template><ul><li>e</ul></main>"
    one, two = dom.parse(page), dom.parse(page)
    assert [(e.index, e.tag) for e in one.root.elements()] == [(e.index, e.tag) for e in two.root.elements()]
