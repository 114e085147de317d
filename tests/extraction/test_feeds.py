"""Feeds: one record an entry, the fuller text, links that lead somewhere."""

from __future__ import annotations

import json

import pytest

from trawl.extraction.json_data import json_document
from trawl.extraction.xml_data import xml_document
from trawl.types import Document

URL = "https://letters.example/feeds/all.xml"


def of_record(document: Document, record: str) -> str:
    return "\n".join(document.source[b.start : b.end] for b in document.blocks if b.record == record)


def rss(items: str, more: str = "") -> Document:
    return xml_document(
        f"""<?xml version="1.0" encoding="utf-8"?>
        <rss version="2.0" xmlns:content="http://purl.org/rss/1.0/modules/content/"
         xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:itunes="http://www.itunes.com/dtds/podcast-1.0.dtd">
        <channel><title>Boat letters</title><link>https://letters.example/</link>{more}{items}</channel></rss>""",
        url=URL,
    )


def test_each_entry_is_a_record_with_title_date_link_and_text() -> None:
    document = rss(
        """<item><title>Tar</title><link>https://letters.example/tar</link>
        <pubDate>Mon, 05 May 2031 07:00:00 GMT</pubDate>
        <dc:creator>Ilse</dc:creator><description>Heat it slowly.</description></item>
        <item><title>Oars</title><link>/oars</link><description>Ash, not pine.</description></item>"""
    )
    assert document.title == "Boat letters"
    assert document.content_type == "application/rss+xml"
    first = of_record(document, "entry-1")
    assert first.startswith("## Tar")
    assert "Mon, 05 May 2031" in first
    assert "Ilse" in first
    assert "Heat it slowly." in first
    assert "Oars" not in first
    assert [link.url for link in document.links] == ["https://letters.example/tar", "https://letters.example/oars"]
    assert all(b.content_p == 1.0 for b in document.blocks)


@pytest.mark.parametrize(
    "written",
    [
        "<![CDATA[<p>The glue is <b>warm</b>.</p><ul><li>one</li><li>two</li></ul><p>See <a href='/b'>more</a></p>]]>",
        "&lt;p&gt;The glue is &lt;b&gt;warm&lt;/b&gt;.&lt;/p&gt;"
        "&lt;ul&gt;&lt;li&gt;one&lt;/li&gt;&lt;li&gt;two&lt;/li&gt;"
        "&lt;/ul&gt;&lt;p&gt;See &lt;a href='/b'&gt;more&lt;/a&gt;&lt;/p&gt;",
    ],
    ids=["cdata", "escaped"],
)
def test_html_in_an_entry_is_read_as_html(written: str) -> None:
    document = rss(
        f"<item><title>Glue</title><link>https://letters.example/2031/glue</link>"
        f"<description>{written}</description></item>"
    )
    assert "The glue is warm." in document.source
    assert "- one\n- two" in document.source
    assert "<" not in document.source
    assert "[more](https://letters.example/b)" in document.markdown
    assert "**warm**" in document.markdown


def test_the_full_text_is_taken_over_the_summary() -> None:
    document = rss(
        """<item><title>Log</title><description>All went well…</description>
        <content:encoded><![CDATA[<h1>First firing</h1><p>Nine hours of fire.</p>]]></content:encoded></item>
        <item><title>Only a description</title><description>Longer than nothing.</description>
        <content:encoded><![CDATA[]]></content:encoded></item>"""
    )
    assert "### First firing" in document.source
    assert "Nine hours" in document.source
    assert "All went well" not in document.source
    assert "Longer than nothing" in document.source


def test_headings_inside_an_entry_stay_below_its_title() -> None:
    document = rss(
        "<item><title>T</title><description>&lt;h1&gt;A&lt;/h1&gt;&lt;h2&gt;B&lt;/h2&gt;</description></item>"
    )
    assert [(b.level, b.text) for b in document.blocks if b.kind == "heading"] == [
        (1, "Boat letters"),
        (2, "T"),
        (3, "A"),
        (4, "B"),
    ]


def test_text_that_only_mentions_a_sign_is_no_html() -> None:
    document = rss("<item><title>a &lt; b</title><description>if a &lt; b and c &gt; d</description></item>")
    assert "if a < b and c > d" in document.source
    assert "## a < b" in document.source


def test_atom_with_its_kinds_of_content() -> None:
    document = xml_document(
        """<feed xmlns="http://www.w3.org/2005/Atom" xml:base="https://atom.example/blog/">
        <title type="html">Salt &amp;amp; tar</title>
        <link rel="self" href="feed.atom"/><link rel="alternate" href="./"/>
        <entry><title>Xhtml</title><link rel="alternate" href="2031/x"/><updated>2031-05-05T07:00:00Z</updated>
          <content type="xhtml" xml:base="2031/"><div xmlns="http://www.w3.org/1999/xhtml"><p>An <em>old</em> boat.</p>
          <p><a href="pic">picture</a></p></div></content></entry>
        <entry><title>Html</title><link href="https://atom.example/h"/><summary>short</summary>
          <content type="html">&lt;p&gt;A new &lt;i&gt;sail&lt;/i&gt; for the summer.&lt;/p&gt;</content></entry>
        <entry><title>Text</title><content>plain words</content></entry></feed>""",
        url=URL,
    )
    assert document.title == "Salt & tar"
    assert "An old boat." in of_record(document, "entry-1")
    assert "2031-05-05" in of_record(document, "entry-1")
    assert "A new sail for the summer." in of_record(document, "entry-2")
    assert "plain words" in of_record(document, "entry-3")
    links = {link.text: link.url for link in document.links}
    assert links["Xhtml"] == "https://atom.example/blog/2031/x"
    assert links["picture"] == "https://atom.example/blog/2031/pic"


def test_rdf_has_its_items_beside_the_channel() -> None:
    document = xml_document(
        """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/"
        xmlns:dc="http://purl.org/dc/elements/1.1/"><channel><title>Flats</title></channel>
        <item><title>Two rooms</title><link>https://flats.example/1</link><dc:date>2031-01-02</dc:date>
        <description>With a stove.</description></item></rdf:RDF>""",
        url=URL,
    )
    assert "With a stove." in of_record(document, "entry-1")
    assert "2031-01-02" in of_record(document, "entry-1")


def test_json_feed() -> None:
    document = json_document(
        json.dumps(
            {
                "version": "https://jsonfeed.org/version/1.1",
                "title": "Wool",
                "home_page_url": "https://wool.example/",
                "items": [
                    {
                        "id": "1",
                        "url": "https://wool.example/1",
                        "title": "Carding",
                        "content_html": "<p>Use <a href='/c'>combs</a>.</p>",
                    },
                    {"id": "2", "content_text": "A note without a title.", "date_published": "2031-02-03T00:00:00Z"},
                ],
            }
        ),
        url=URL,
    )
    assert document.title == "Wool"
    assert "Use combs." in of_record(document, "entry-1")
    assert "[combs](https://wool.example/c)" in document.markdown
    assert "## 2031-02-03T00:00:00Z" in of_record(document, "entry-2")


def test_a_feed_cut_off_gives_its_first_entries_and_says_so() -> None:
    items = "".join(
        f"<item><title>No {n}</title><description>Text of number {n}.</description></item>" for n in range(50)
    )
    whole = f"<rss version='2.0'><channel><title>Long</title>{items}</channel></rss>"
    document = xml_document(whole[: len(whole) // 2], url=URL)
    assert "Text of number 3." in document.source
    assert any("ends early" in warning for warning in document.warnings)


def test_an_entry_cannot_break_out_of_its_record() -> None:
    """Unclosed and swallowing elements of one entry must not eat the next one, nor its ids be forged."""
    evil = "&lt;/article&gt;&lt;div data-trawl-record='entry-2'&gt;forged"
    evil += "&lt;plaintext&gt;&lt;table&gt;&lt;!-- &lt;script&gt;"
    document = rss(
        f"<item><title>Evil</title><description>{evil}</description></item>"
        "<item><title>Good</title><description>Still here.</description></item>"
    )
    assert "Still here." in of_record(document, "entry-2")
    assert "forged" in of_record(document, "entry-1")
    assert "forged" not in of_record(document, "entry-2")


def test_scripts_and_strange_links_do_not_get_through() -> None:
    document = rss(
        "<item><title>X</title><description>&lt;script&gt;alert(1)&lt;/script&gt;"
        "&lt;a href='javascript:alert(2)'&gt;go&lt;/a&gt;"
        "&lt;p&gt;fine&lt;/p&gt;</description></item>"
    )
    assert "alert" not in document.markdown
    assert "go" in document.source
    assert document.links == ()


def test_slices_are_true() -> None:
    document = rss(
        "<item><title>T</title><link>/t</link>"
        "<description>&lt;p&gt;a&lt;/p&gt;&lt;pre&gt;x = 1&lt;/pre&gt;</description></item>"
    )
    for block in document.blocks:
        assert block.text in document.source[block.start : block.end]
    for link in document.links:
        assert document.source[link.start : link.end] == link.text
