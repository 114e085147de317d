"""What a page says about itself, from wherever it says it."""

from __future__ import annotations

import json

import pytest

from trawl.extraction.html import html_document


def facts(head: str, body: str = "<h1>Ferry strike ends</h1><p>Text.</p>") -> dict[str, str]:
    return dict(
        html_document(f"<html lang=nl><head>{head}</head><body>{body}</body></html>", url="https://e.test/a").metadata
    )


def ld(*nodes: object) -> str:
    return f'<script type="application/ld+json">{json.dumps(list(nodes))}</script>'


def test_graph_with_references() -> None:
    found = facts(
        ld(
            {"@type": "WebSite", "name": "Kystradio"},
            {
                "@graph": [
                    {
                        "@type": "NewsArticle",
                        "headline": "Ferry strike ends",
                        "datePublished": "2021-03-05T07:10:00+01:00",
                        "dateModified": "2021-09-20",
                        "author": [{"@id": "#p"}, {"@type": "Person", "name": "Bo"}],
                    },
                    {"@type": "Person", "@id": "#p", "name": "Ilse"},
                ]
            },
        ),
        body="<h1>Ferry strike ends</h1><aside><time datetime=2020-01-01>x</time></aside>",
    )
    assert found == {
        "title": "Ferry strike ends",
        "author": "Ilse; Bo",
        "date": "2021-03-05T07:10:00+01:00",
        "modified": "2021-09-20",
        "site_name": "Kystradio",
        "language": "nl",
    }


@pytest.mark.parametrize(
    "head",
    [
        "<title>Ferry strike ends - Inselbote</title>",
        "<title>Inselbote | Ferry strike ends</title>",
        '<title>Ferry strike ends - Inselbote</title><meta property="og:title" content="Inselbote">'
        '<meta property="og:site_name" content="Inselbote">',
        ld({"@type": "Article", "name": "Inselbote", "headline": "Ferry strike ends"}),
        '<meta property="og:title" content="Ferry strike ends">',
    ],
)
def test_title_is_the_page_not_the_site(head: str) -> None:
    assert facts(head)["title"] == "Ferry strike ends"


def test_title_keeps_its_own_dashes() -> None:
    assert facts("<title>Rome - a history</title>", body="<p>x</p>")["title"] == "Rome - a history"


def test_meta_elements() -> None:
    found = facts(
        '<meta name=author content="Ada  Brink"><meta property="article:published_time" content="2031-04-02T10:00:00Z">'
        '<meta name=description content="What happened"><link rel=canonical href="/c">'
    )
    assert found["author"] == "Ada Brink"
    assert found["date"] == "2031-04-02T10:00:00Z"
    assert found["description"] == "What happened"
    assert found["canonical"] == "https://e.test/c"


@pytest.mark.parametrize(
    "broken", ["{", "[" * 50_000, '{"@type": 5, "author": [[]], "@graph": 3}', "null", '{"name": {}}']
)
def test_broken_json_ld_is_passed_over(broken: str) -> None:
    assert facts(f'<script type="application/ld+json">{broken}</script>')["title"] == "Ferry strike ends"


def test_lengths_are_bounded() -> None:
    found = facts(f'<title>{"x" * 100_000}</title><meta name=description content="{"y" * 100_000}">', body="<p>z</p>")
    assert len(found["title"]) <= 500
    assert len(found["description"]) <= 2_000
