"""Each construct of a page, as it must stand in the source and in the full Markdown."""

from __future__ import annotations

import pytest

from trawl.extraction.html import html_document, html_to_markdown
from trawl.types import CONTENT_THRESHOLD, Block, Document

URL = "https://example.test/dir/page"
FILLER = (
    "<p>The crew gathered these notes over two seasons and kept them short on purpose. They are meant for people who "
    "know the building and only need the exact values, and they are checked every spring.</p>"
)


def read(body: str, head: str = "") -> Document:
    return html_document(
        f"<html><head>{head}</head><body><main><article>{FILLER}{body}</article></main></body></html>", url=URL
    )


def source(body: str) -> str:
    """The source of `body` without the filler before it."""
    return read(body).source.partition("every spring.")[2].strip("\n")


def markdown(body: str) -> str:
    """Full Markdown of all visible blocks of `body`."""
    document = read(body)
    assert document.render is not None
    return document.render([b for b in document.blocks if not b.hidden]).partition("every spring.")[2].strip("\n")


CONSTRUCTS = {
    "headings": (
        "<h2>One <em>two</em></h2><p>a</p><h4>Three<br>four</h4>",
        "## One two\n\na\n\n#### Three four",
        "## One *two*\n\na\n\n#### Three four",
    ),
    "heading furniture": (
        '<h2 id="t">Tolls<a class="headerlink" href="#t">¶</a></h2>'
        '<h3><span>Works</span><span class="mw-editsection">[<a href="/e">edit</a>]</span></h3>',
        "## Tolls\n\n### Works",
        "## Tolls\n\n### Works",
    ),
    "nested lists": (
        "<ul><li>a<ol><li>b</li><li>c<ul><li>d</li></ul></li></ol></li><li>e</li></ul>",
        "- a\n  1. b\n  2. c\n     - d\n- e",
        "- a\n  1. b\n  2. c\n     - d\n- e",
    ),
    "list directly in a list": (
        "<ul><li>a</li><ul><li>b</li></ul><li>c</li></ul>",
        "- a\n  - b\n- c",
        "- a\n  - b\n- c",
    ),
    "items with paragraphs": (
        "<ol start=3><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>",
        "3. a\n\n   b\n4. c",
        "3. a\n\n   b\n4. c",
    ),
    "link-only items": (
        '<ul><li><a href="/x">X</a></li><li>see <a href="y">Y</a>, too</li></ul>',
        "- X\n- see Y, too",
        "- [X](https://example.test/x)\n- see [Y](https://example.test/dir/y), too",
    ),
    "text before and after a list": (
        "<div>first<ul><li>a</li></ul>last</div>",
        "first\n\n- a\n\nlast",
        "first\n\n- a\n\nlast",
    ),
    "table with header, caption and foot": (
        "<table><caption>Season</caption><colgroup><col></colgroup><tr><th>A</th><th>B</th></tr>"
        "<tr><td>1</td><td>2</td></tr><tfoot><tr><td>Sum</td><td>3</td></tr></tfoot></table>",
        "Season\n\n| A | B |\n| --- | --- |\n| 1 | 2 |\n| Sum | 3 |",
        "Season\n\n| A | B |\n| --- | --- |\n| 1 | 2 |\n| Sum | 3 |",
    ),
    "table with spans": (
        "<table><tr><th>Day</th><th>Open</th></tr><tr><td rowspan=2>Mon</td><td>8</td></tr><tr><td>14</td></tr>"
        "<tr><td colspan=2>Closed on feast days, and also in August</td></tr></table>",
        "| Day | Open |\n| --- | --- |\n| Mon | 8 |\n| Mon | 14 |\n| Closed on feast days, and also in August |  |",
        "| Day | Open |\n| --- | --- |\n| Mon | 8 |\n| Mon | 14 |\n| Closed on feast days, and also in August |  |",
    ),
    "two header rows": (
        "<table><thead><tr><th rowspan=2>Year</th><th colspan=2>Sales</th></tr><tr><th>Q1</th><th>Q2</th></tr></thead>"
        "<tbody><tr><td>2030</td><td>1</td><td>2</td></tr></tbody></table>",
        "| Year | Sales Q1 | Sales Q2 |\n| --- | --- | --- |\n| 2030 | 1 | 2 |",
        "| Year | Sales Q1 | Sales Q2 |\n| --- | --- | --- |\n| 2030 | 1 | 2 |",
    ),
    "table without th": (
        "<table><tr><td><b>Tier</b></td><td><b>Fee</b></td></tr><tr><td>S</td><td>4</td></tr></table>",
        "| Tier | Fee |\n| --- | --- |\n| S | 4 |",
        "| **Tier** | **Fee** |\n| --- | --- |\n| S | 4 |",
    ),
    "pipes in cells": (
        "<table><tr><th>Task</th><th>Command</th></tr><tr><td>a|b</td><td><code>x | wc</code></td></tr></table>",
        "| Task | Command |\n| --- | --- |\n| a\\|b | x \\| wc |",
        "| Task | Command |\n| --- | --- |\n| a\\|b | `x \\| wc` |",
    ),
    "layout table": (
        "<table><tr><td><b>Keys</b><table><tr><td>J</td><td>join</td></tr><tr><td>R</td><td>repeat</td></tr></table></td>"
        "<td><p>Text</p></td></tr></table>",
        "Keys\n\n| J | join |\n| --- | --- |\n| R | repeat |\n\nText",
        "**Keys**\n\n| J | join |\n| --- | --- |\n| R | repeat |\n\nText",
    ),
    "cells with lists and breaks": (
        "<table><tr><th>A</th><td>x<br>y</td></tr><tr><th>B</th><td><ul><li>p</li><li>q</li></ul></td></tr></table>",
        "| A | x y |\n| --- | --- |\n| B | p; q |",
        "| A | x y |\n| --- | --- |\n| B | p; q |",
    ),
    "code with language and backticks": (
        '<pre><code class="language-sh">a\n\n```\n  b # c\n```\n</code></pre>',
        "````sh\na\n\n```\n  b # c\n```\n````",
        "````sh\na\n\n```\n  b # c\n```\n````",
    ),
    "code with a gutter table": (
        '<figure class="highlight python"><table><tr><td class="gutter"><pre>1<br>2</pre></td>'
        '<td class="code"><pre><span>def f():</span><br><span>    return 1</span></pre></td></tr></table></figure>',
        "```python\ndef f():\n    return 1\n```",
        "```python\ndef f():\n    return 1\n```",
    ),
    "language on a wrapper": (
        '<div class="highlight-ruby notranslate"><div class="highlight"><pre>x\n  y</pre></div></div>',
        "```ruby\nx\n  y\n```",
        "```ruby\nx\n  y\n```",
    ),
    "quote": (
        "<blockquote><p>a</p><p>b<br>c</p></blockquote><p>d</p>",
        "> a\n>\n> b\n> c\n\nd",
        "> a\n>\n> b\\\n> c\n\nd",
    ),
    "definition list": (
        "<dl><div><dt>T</dt><dt>U</dt><dd>x</dd></div><div><dt>V</dt><dd><p>y</p><p>z</p></dd></div></dl>",
        "T\nU\n: x\n\nV\n: y\n\n  z",
        "T\nU\n: x\n\nV\n: y\n\n  z",
    ),
    "line breaks": ("<p>a<br>b</p>c<br><br>d", "a\nb\n\nc\n\nd", "a\\\nb\n\nc\n\nd"),
    "spaces in elements of their own": (
        "<p><b>North</b><b> </b><b>Quay</b> and<em> </em>the<code> </code>slip</p>",
        "North Quay and the slip",
        "**North** **Quay** and the slip",
    ),
    "no escapes in the source": (
        '<p>set snake_case to 5 * 3 in <code>mode="before"</code></p>',
        'set snake_case to 5 * 3 in mode="before"',
        'set snake_case to 5 * 3 in `mode="before"`',
    ),
    "math": (
        r'<p>is <math alttext="\delta"><semantics><mi>δ</mi><annotation encoding="application/x-tex">'
        r"\delta</annotation></semantics></math> a</p>",
        r"is $\delta$ a",
        r"is $\delta$ a",
    ),
    "KaTeX once": (
        '<p>x <span class="katex"><span class="katex-mathml"><math><semantics><mi>a</mi><annotation '
        'encoding="application/x-tex">a_1</annotation></semantics></math></span><span class="katex-html" '
        'aria-hidden="true"><span>a1</span></span></span> y</p>',
        "x $a_1$ y",
        "x $a_1$ y",
    ),
    "MathJax script": (
        '<p>x <span class="MathJax_Preview">a</span><span class="MathJax">a</span>'
        '<script type="math/tex">a^2</script> y</p>',
        "x $a^2$ y",
        "x $a^2$ y",
    ),
    "MathML without an annotation": (
        "<p><math><mfrac><mn>1</mn><msup><mi>x</mi><mn>2</mn></msup></mfrac></math></p>",
        r"$\frac{1}{x^{2}}$",
        r"$\frac{1}{x^{2}}$",
    ),
    "footnotes": (
        '<p>Doubled.<sup><a href="#fn1">1</a></sup></p><div class="footnotes"><ol><li id="fn1"><p>Measured. '
        '<a href="#r1" role="doc-backlink">↩</a></p></li></ol></div>',
        "Doubled.[1]\n\n1. Measured.",
        "Doubled.[1]\n\n1. Measured.",
    ),
    "details": ("<details><summary>More</summary><p>inside</p></details>", "More\n\ninside", "More\n\ninside"),
    "ruby": ("<p><ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby>へ</p>", "東京 (とうきょう)へ", "東京 (とうきょう)へ"),
    "picture": (
        '<figure><img src="data:image/gif;base64,xx" data-src="/w.jpg" alt="The weir"><noscript><img src="/w.jpg" '
        'alt="The weir"></noscript><figcaption>Before</figcaption></figure>',
        "![The weir]\n\nBefore",
        "![The weir](https://example.test/w.jpg)\n\nBefore",
    ),
    "invisible characters": (
        "<p>Obst\u00adannahme ab 50\u00a0Kilo\u200bpreis</p>",
        "Obstannahme ab 50 Kilopreis",
        None,
    ),
    "inline elements": (
        "<p><nobr>a b</nobr> <data>c</data> <x-y>d</x-y> under<wbr>water <mark>e</mark></p>",
        "a b c d underwater e",
        None,
    ),
    "links with awkward addresses": (
        '<p><a href="https://e.test/a (b.pdf">one</a> <a href="\n https://e.test/c ">[two]</a></p>',
        "one [two]",
        "[one](https://e.test/a%20%28b.pdf) [\\[two\\]](https://e.test/c)",
    ),
    "superscripts": ("<p>10<sup>2</sup> m, the 21<sup>st</sup></p>", "102 m, the 21st", "10² m, the 21st"),
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_construct(name: str) -> None:
    """Light Markdown in the source, full Markdown on request, from the same walk."""
    body, light, full = CONSTRUCTS[name]
    assert source(body) == light
    if full is not None:
        assert markdown(body) == full


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_blocks_are_slices_of_the_source(name: str) -> None:
    document = read(CONSTRUCTS[name][0])
    check_spans(document)


def check_spans(document: Document) -> None:
    """Blocks lie in order, do not overlap, cover all but white space, and say what they span."""
    end = 0
    for block in document.blocks:
        assert end <= block.start < block.end <= len(document.source)
        assert document.source[end : block.start].strip(" \n>") == ""
        assert 0.0 <= block.content_p <= 1.0
        assert_words(document.source[block.start : block.end], block)
        end = block.end
    assert document.source[end:].strip() == ""
    for link in document.links:
        assert (
            document.source[link.start : link.end].replace("\\|", "|").split() == link.text.replace("\\|", "|").split()
        )
        assert link.url.startswith(("http://", "https://", "mailto:"))


def assert_words(piece: str, block: Block) -> None:
    """Every word of the block's text stands in its slice, in order."""
    position = 0
    for word in block.text.split():
        found = piece.replace("\\|", "|").find(word, position)
        assert found >= 0, (word, piece)
        position = found


def test_kinds_and_levels() -> None:
    document = read("<h3>H</h3><ul><li>a<ul><li>b</li></ul></li></ul><blockquote>q</blockquote><pre>c</pre>")
    assert [(b.kind, b.level) for b in document.blocks[1:]] == [
        ("heading", 3),
        ("list", 1),
        ("list", 2),
        ("quote", 0),
        ("code", 0),
    ]


def test_links_are_absolute_and_span_their_text() -> None:
    document = read(
        '<p>Go <a href="/x">to <b>this</b> place</a>, <a href="javascript:x()">no</a>, <a href="#y">nor</a>, '
        '<a href="mailto:office@example.test">mail</a></p><ul><li>see <a href="../z?q=1">Z</a></li></ul>'
    )
    assert [(document.source[link.start : link.end], link.url) for link in document.links] == [
        ("to this place", "https://example.test/x"),
        ("mail", "mailto:office@example.test"),
        ("Z", "https://example.test/z?q=1"),
    ]


def test_base_element_moves_relative_links() -> None:
    document = read('<p><a href="a">a</a></p>', head='<base href="https://other.test/b/">')
    assert document.links[0].url == "https://other.test/b/a"


def test_hidden_text_is_kept_and_marked() -> None:
    document = read(
        '<div style="display: none"><p>secret one</p></div><p>seen <span hidden>secret two</span> text</p>'
        '<div aria-hidden="true">secret three</div>'
    )
    hidden = {b.text for b in document.blocks if b.hidden}
    assert hidden == {"secret one", "secret two", "secret three"}
    assert "seen text" in document.text
    assert "secret" not in document.text
    assert "secret" not in document.markdown


def test_noscript_is_read() -> None:
    document = html_document("<body><div id=app></div><noscript><h1>Topic</h1><p>Only here.</p></noscript></body>")
    assert document.source == "# Topic\n\nOnly here."


def test_declarative_shadow_dom_is_read_and_inert_templates_are_not() -> None:
    document = html_document(
        "<body><x-page><template shadowrootmode=open><style>:host{}</style><h1>Router</h1><slot></slot></template>"
        "<p>Light</p></x-page><template><p>Never</p></template></body>"
    )
    assert document.source == "# Router\n\nLight"


def test_streamed_pieces_stand_where_their_script_puts_them() -> None:
    document = html_document(
        '<body><main><h1>Lathe</h1><template id="B:0"></template></main><footer>Imprint</footer>'
        '<div hidden id="S:0"><p>Belt change.</p></div></body>'
    )
    assert document.source == "# Lathe\n\nBelt change.\n\nImprint"
    assert not any(b.hidden for b in document.blocks)


def test_boilerplate_is_told_from_content() -> None:
    document = html_document(
        '<body><nav><a href="/">Home</a> <a href="/local">Local</a></nav><main><article><h1>Fire on the quay</h1>'
        f"<p>A fire broke out in the rope store early on Saturday. Nobody was hurt.</p>{FILLER}"
        '<p><a href="/n"><strong>Only last week the owner had asked for a second hydrant.</strong></a></p></article>'
        '</main><footer><a href="/imprint">Imprint</a> <a href="/privacy">Privacy</a></footer></body>'
    )
    assert "second hydrant" in document.text
    assert "Fire on the quay" in document.text
    for word in ("Home", "Imprint", "Privacy"):
        assert word not in document.text
        assert word in document.source


def test_rendering_chosen_blocks_only() -> None:
    document = read("<ul><li>a</li><li>b<ul><li>c <b>d</b></li></ul></li></ul>")
    assert document.render is not None
    deepest = [b for b in document.blocks if b.level == 2]
    assert document.render(deepest) == "- c **d**"


def test_markdown_escapes_what_would_be_read_as_markup() -> None:
    text = markdown("<p># not a heading</p><p>1. not a list</p><p>a &lt;b&gt; *c* `d` [e](f)</p>")
    assert text == "\\# not a heading\n\n1\\. not a list\n\na \\<b> \\*c\\* \\`d\\` [e\\](f)"


def test_the_same_bytes_give_the_same_document() -> None:
    one, two = read("<p>x</p>"), read("<p>x</p>")
    assert one == two
    assert one.document_id == two.document_id != read("<p>y</p>").document_id


def test_html_to_markdown_gives_the_main_content() -> None:
    text = html_to_markdown(f"<body><nav><a href=/>Home</a></nav><main><h1>T</h1>{FILLER}</main></body>", url=URL)
    assert text.startswith("# T\n\nThe crew")
    assert "Home" not in text


def test_threshold_is_the_documents() -> None:
    document = read("")
    assert all((b.content_p >= CONTENT_THRESHOLD) == (b in document.main_blocks) for b in document.blocks)


ARTICLE = "<h1>Head</h1><p>The notes below were gathered over two seasons and are kept short on purpose.</p>"


def in_article(body: str) -> str:
    page = f"<html><head><title>T</title></head><body><main><article>{ARTICLE}{body}</article></main></body></html>"
    return html_document(page, url="https://a.test/").markdown


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("<ul><li>Item<blockquote>Quoted</blockquote>after</li></ul>", "- Item\n\n  > Quoted\n\n  after"),
        ("<ul><li class=task><input type=checkbox checked disabled> Done</li></ul>", "- [x] Done"),
        ("<div role=list><div role=listitem>Alpha</div><div role=listitem>Beta</div></div>", "- Alpha\n- Beta"),
        (
            "<div role=table><div role=row><span role=columnheader>A</span><span role=columnheader>B</span></div>"
            "<div role=rowgroup><div role=row><span role=cell>1</span><span role=cell>2</span></div></div></div>",
            "| A | B |\n| --- | --- |\n| 1 | 2 |",
        ),
        (
            "<table><tr><th>Type</th><th>Example</th></tr><tr><td>x</td><td><pre>p | q</pre></td></tr></table>",
            "| Type | Example |\n| --- | --- |\n| x | p \\| q |",
        ),
        ("<code class=language-go><span class=line>a {</span>\n<span class=line>}</span></code>", "```go\na {\n}\n```"),
        ("<p>rust<button>Copy</button></p><pre class=lang-rust>fn a</pre>", "on purpose.\n\n```rust\nfn a"),
        ("<pre lang=php>echo 1;</pre>", "```php\necho 1;\n```"),
        ("<h2>Delta <button>Copy link</button><button>Edit</button></h2><p>x</p>", "## Delta\n"),
        ("<h2><button>Opens</button></h2><p>x</p>", "## Opens\n"),
        ("<p>これは<b>「重要」</b>です。</p>", "これは「重要」です。"),
        ("<p>a <b>bold:</b> b <em>c</em><em>d</em></p>", "a **bold:** b *cd*"),
        ("<p>B.<sup>[<a href='#n'>2</a>]</sup> C<a href='#f' class=footnote-ref><sup>3</sup></a></p>", "B.[2] C[3]"),
        ("<p>raw \\(a_1*b_2*c\\) and $$x_{i}*y$$ for $5 or $6</p>", "raw $a_1*b_2*c$ and $$x_{i}*y$$ for $5 or $6"),
        ("<figure><img src=/x.png alt='a]b'></figure>", "![a\\]b](https://a.test/x.png)"),
        ("<div><b class=u>ann</b><span>3 posts</span><time>4 May</time></div>", "**ann** 3 posts 4 May"),
        ("<p><span class=a>wa</span><span class=b>ter</span></p>", "water"),
    ],
)  # fmt: skip
def test_markup_of_many_kinds_becomes_the_markdown_a_reader_expects(body: str, wanted: str) -> None:
    written = in_article(body)
    assert wanted in written
    assert "Copy" not in written
    assert "Edit" not in written


def test_text_put_off_the_screen_is_hidden() -> None:
    document = html_document(f"{ARTICLE}<p style='position:absolute; left:-9999px'>Far away</p>")
    assert "Far away" not in document.text
    assert "Far away" in document.source


def test_a_form_that_only_wraps_text_is_no_form() -> None:
    text = html_document(f"<body><form action=/x><input type=hidden name=s>{ARTICLE * 3}</form></body>").text
    assert "gathered over two seasons" in text


@pytest.mark.parametrize(
    ("words", "is_kept"), [("Try four weeks for 1 euro.", False), ("The paid text is here. " * 40, True)]
)
def test_the_offer_in_place_of_the_paid_part_is_no_content(words: str, is_kept: bool) -> None:
    part = '{"@type":"WebPageElement","isAccessibleForFree":false,"cssSelector":".rest"}'
    data = f'<script type="application/ld+json">{{"@type":"NewsArticle","hasPart":{part}}}</script>'
    page = (
        f"<html><head>{data}</head><body><main><article>{ARTICLE}<div class=rest><p>{words}</p></div></article></main>"
    )
    assert (words[:20] in html_document(page).text) is is_kept


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        ("<title>Long head - Kyst</title>", "Long head"),
        ("<title>Kyst – Long head</title><meta property=og:site_name content=Kyst>", "Long head"),
    ],
)
def test_a_logo_that_is_a_heading_is_not_the_title(head: str, wanted: str) -> None:
    headings = "<h1><a href=/>Kyst</a></h1><main><h1>Long head<a href=#a>¶</a></h1><p>x</p></main>"
    page = f"<html><head>{head}</head><body>{headings}</body></html>"
    assert html_document(page).title == wanted


def test_scraps_of_a_menu_are_not_the_beginning_of_the_text() -> None:
    topics = ["Vitamins", "Weight", "Salt", "Sugar", "Fibre", "Iron", "Zinc", "Iodine"]
    menu = "".join(f"<li><a href=/{t}>{t}</a></li>" for t in topics)
    text = "".join(
        f"<p>A paragraph about {t} that is long enough to be taken for content by anyone.</p>" for t in topics[:2]
    )
    page = f"<body><nav><ul>{menu}</ul></nav><main><h1>Food</h1>{text * 12}</main></body>"
    assert html_document(page).text.startswith("Food")
