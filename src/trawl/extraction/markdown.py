"""Drafts to full Markdown: links, emphasis, code, escapes. Not on the way from fetch to chunks: asked for, then done.

Structure (headings, lists, quotes, tables, fences) is written from the drafts; the running text inside a block goes
through markdownify's converter, adapted here.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from bs4 import BeautifulSoup
from markdownify import MarkdownConverter

from trawl.extraction import tables
from trawl.extraction.blocks import MARKUP, Draft, absolute, image_source
from trawl.extraction.code import fence_for
from trawl.extraction.inline import BREAK, Mark, Piece, is_bare_reference, is_note_reference
from trawl.extraction.source import Prefixes

_SPECIAL = re.compile(
    r"\\(?=[!-/:-@\[-`{-~])"  # a backslash that would escape what follows
    r"|`"
    r"|(?<!\s)\*|\*(?!\s|$)"  # stars between spaces are only stars
    r"|(?<![^\W_])_|_(?![^\W_])"  # underscores inside words are only underscores
    r"|<(?=[a-zA-Z/!?])|&(?=#?\w{2,31};)"
    r"|\](?=[(\[:])"
    r"|~(?=~)"
)
_LINE_START = re.compile(
    r"^(\s*)(#{1,6}(?=\s|$)|[-+](?=\s|$)|>|=+\s*$|-{3,}\s*$|~{3,}|(\d{1,9})([.)])(?=\s|$)|\|)", re.M
)
_NO_FORMAT = frozenset({"code", "kbd", "samp", "tt", "_noformat"})
_SUPERSCRIPT = str.maketrans("0123456789+-−()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁽⁾ⁿ")
_EXPONENT = re.compile(r"[+−-]?\d{1,4}|n")


_OPENS, _CLOSES = "\ufdd0", "\ufdd1"
"""Stand before a mark of emphasis until its neighbours are known; no text has these code points."""
_MARKED = re.compile("[\ufdd0\ufdd1](\\*\\*|\\*|~~)")
_SAME_AGAIN = re.compile("\ufdd1(\\*\\*|\\*|~~)\ufdd0\\1(?!\\*)")
# TeX that a script of the page sets: \( \), \[ \], $$ $$, and $ $ around what can only be TeX.
_RAW_TEX = re.compile(
    r"\\\((?P<inline>[^\n]{1,500}?)\\\)|\\\[(?P<display>.{1,2000}?)\\\]|(?P<dollars>\$\$.{1,2000}?\$\$)"
    r"|(?P<dollar>\$(?!\s)[^$\n]{0,200}?(?:\\[a-zA-Z]+|[_^]\{|[\w)][_^]\w)[^$\n]{0,200}?(?<!\s)\$(?!\d))",
    re.S,
)


def _emphasised(mark: str) -> Any:
    def convert(self: _Inline, el: Any, text: str, parent_tags: set[str]) -> str:
        bare = text.strip()
        if not bare or not _NO_FORMAT.isdisjoint(parent_tags):
            return text
        lead, tail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        return f"{lead}{_OPENS}{mark}{bare}{_CLOSES}{mark}{tail}"

    return convert


class _Inline(MarkdownConverter):
    """Running text only: what comes in has no block elements."""

    class DefaultOptions(MarkdownConverter.DefaultOptions):  # type: ignore[misc,name-defined]
        autolinks = False
        strong_em_symbol = "*"
        newline_style = "backslash"

    def escape(self, text: str, parent_tags: set[str]) -> str:
        if not text:
            return ""
        out: list[str] = []
        position = 0
        for tex in _RAW_TEX.finditer(text) if "$" in text or "\\" in text else ():
            out.append(_SPECIAL.sub(r"\\\g<0>", text[position : tex.start()]))
            if tex["inline"] or tex["display"]:
                sign = "$" if tex["inline"] else "$$"
                out.append(f"{sign}{(tex['inline'] or tex['display']).strip()}{sign}")
            else:
                out.append(tex[0])
            position = tex.end()
        out.append(_SPECIAL.sub(r"\\\g<0>", text[position:]))
        return "".join(out)

    def convert_img(self, el: Any, text: str, parent_tags: set[str]) -> str:
        alt = re.sub(r"([\[\]\\])", r"\\\1", el.get("alt") or "").replace("\n", " ")
        return f"![{alt}]({el.get('src')})"

    def convert_a(self, el: Any, text: str, parent_tags: set[str]) -> str:
        bare = text.strip()
        href = el.get("href")
        if not bare or not href:
            return text
        lead, tail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        bare = bare.replace("\n", " ").replace("\\ ", " ")
        if not el.find("img"):
            bare = re.sub(r"(?<!\\)([\[\]])", r"\\\1", bare)
        return f"{lead}[{bare}]({href}){tail}"

    def convert_sup(self, el: Any, text: str, parent_tags: set[str]) -> str:
        return text.translate(_SUPERSCRIPT) if _EXPONENT.fullmatch(text.strip()) else text

    def convert_sub(self, el: Any, text: str, parent_tags: set[str]) -> str:
        return text

    def convert_q(self, el: Any, text: str, parent_tags: set[str]) -> str:
        return f"“{text}”"

    def convert_x_math(self, el: Any, text: str, parent_tags: set[str]) -> str:
        return f"${el.get('tex')}$"

    def convert_br(self, el: Any, text: str, parent_tags: set[str]) -> str:
        return "\\\n"

    convert_b = convert_strong = _emphasised("**")
    convert_em = convert_i = _emphasised("*")
    convert_del = convert_s = convert_strike = _emphasised("~~")
    convert_tt = MarkdownConverter.convert_code  # type: ignore[attr-defined]


def write_markdown(drafts: Sequence[Draft], base: str) -> str:
    """Full Markdown of the drafts; links and pictures get absolute addresses."""
    converter = _Inline()
    prefixes = Prefixes()
    out: list[str] = []
    for draft in drafts:
        if draft.kind == "code":
            fence = fence_for(draft.code)
            body = f"{fence}{draft.language}\n{draft.code}\n{fence}"
        elif draft.table is not None:
            body = _table(draft.table, converter, base)
        else:
            body = inline(draft.pieces, converter, base)
            if draft.kind == "heading":
                body = f"{'#' * draft.level} {_one_line(body)}"
            else:
                body = _LINE_START.sub(_escape_line_start, body)
        if not body:
            continue
        separator, first, rest, _ = prefixes.of(draft, indent_all=True)
        if first or rest:
            body = first + body.replace("\n", "\n" + rest)
        out += [separator, body]
    return re.sub(r"(?m)^((?:> )*>) +$", r"\1", "".join(out))


def _escape_line_start(match: re.Match[str]) -> str:
    indent, mark, number, point = match.groups()
    return f"{indent}{number}\\{point}" if number else f"{indent}\\{mark}"


def _one_line(text: str) -> str:
    return re.sub(r"\s*\\?\n\s*", " ", text).strip()


def inline(pieces: Iterable[Piece], converter: _Inline, base: str) -> str:
    """Running text as Markdown."""
    markup = _markup(pieces, base)
    text: str
    if "<" not in markup and "&" not in markup:
        text = converter.escape(re.sub(r"[ \t\n\r\f]+", " ", markup), set())
    else:
        text = converter.convert_soup(BeautifulSoup(markup, "html.parser"))
    text = _resolved(text)
    lines = [line.strip() for line in text.strip().removesuffix("\\").split("\n")]
    return re.sub(r"[ \t]{2,}", " ", "\n".join(lines)).strip()


def _resolved(text: str) -> str:
    """`text` with its marks of emphasis in place; pairs that CommonMark would not take for emphasis, because of the
    punctuation at their edges and the letters around them, are left out, and what is emphasised twice in a row becomes
    one."""
    if _OPENS not in text:
        return text
    text = _SAME_AGAIN.sub("", text)
    bare = _MARKED.sub("", text)
    plain = 0  # position in `bare`
    opened: list[tuple[int, bool]] = []
    out: list[str] = []
    position = 0
    for match in _MARKED.finditer(text):
        out.append(text[position : match.start()])
        plain += match.start() - position
        position = match.end()
        before, after = bare[plain - 1 : plain], bare[plain : plain + 1]
        if match[0][0] == _OPENS:
            opened.append((len(out), _binds(before, after)))
            out.append(match[1])
        elif opened:
            at, binds = opened.pop()
            if binds and _binds(after, before):
                out.append(match[1])
            else:
                out[at] = ""
    out.append(text[position:])
    return "".join(out)


def _binds(outside: str, inside: str) -> bool:
    """Whether a mark of emphasis between these two characters counts (CommonMark 0.31, flanking delimiter runs)."""
    if not inside or inside.isspace():
        return False
    return not _is_punctuation(inside) or not outside or outside.isspace() or _is_punctuation(outside)


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def _markup(pieces: Iterable[Piece], base: str) -> str:
    """The pieces as HTML for the converter: known elements only, addresses absolute, never deeper than the walk saw."""
    out: list[str] = []
    opened: list[int] = []  # where in `out` the elements that hold nothing but white space so far were opened
    for piece in pieces:
        if isinstance(piece, str):
            out.append(html.escape(piece, quote=False))
            if not piece.isspace():
                opened.clear()
            continue
        if piece.what == "open":
            opened.append(len(out))
        elif piece.what == "close" and opened:
            # An element around a space is the space.
            del out[opened.pop()]
            continue
        elif piece.what != "close":
            opened.clear()
        out.append(_mark(piece, base))
    return "".join(out)


def _mark(mark: Mark, base: str) -> str:
    if mark is BREAK:
        return "<br>"
    element = mark.element
    if element is None:
        return ""
    if mark.what == "math":
        return f'<x-math tex="{html.escape(mark.text)}"></x-math>'
    if mark.what == "image":
        source = absolute(base, image_source(element))
        if not source:
            return html.escape(mark.text, quote=False)
        return f'<img src="{_destination(source)}" alt="{html.escape(mark.text)}">'
    if element.tag == "a":
        if is_note_reference(element):
            return ("[" if mark.what == "open" else "]") if is_bare_reference(element) else ""
        url = absolute(base, element.get("href"))
        if not url:
            return ""
        return f'<a href="{_destination(url)}">' if mark.what == "open" else "</a>"
    if element.tag not in MARKUP:
        return ""
    if element.tag == "sup" and (
        next(element.elements("a"), None) is not None
        or (element.parent is not None and is_note_reference(element.parent))
    ):
        return ""
    return f"<{element.tag}>" if mark.what == "open" else f"</{element.tag}>"


def _destination(url: str) -> str:
    """`url` for a Markdown link inside an HTML attribute."""
    for char, code in ((" ", "%20"), ("(", "%28"), (")", "%29"), ("<", "%3C"), (">", "%3E"), ("\n", "")):
        url = url.replace(char, code)
    return html.escape(url)


def _table(grid: tables.Grid, converter: _Inline, base: str) -> str:
    lines = []
    for number, row in enumerate(grid.rows):
        cells = [tables.escape_cell(_one_line(inline(cell.pieces, converter, base))) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
        if number == 0:
            lines.append("|" + " --- |" * len(row))
    return "\n".join(lines)
