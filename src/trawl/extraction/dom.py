"""HTML text to a small tree of plain Python objects, within bounds on size, depth and work.

The parser (Lexbor, HTML5 rules) is fast on pages as they are, but takes more than linear time on deep nesting, on many
attributes and on formatting elements left open. `bounded` removes these in one linear pass before parsing. The tree
resolves what a reader of the page would see resolved: declarative shadow roots are in place, server-streamed pieces are
where their script would put them, `noscript` is read. Nothing here or in the code that walks the tree recurses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Union

from selectolax.lexbor import LexborHTMLParser, LexborNode

MAX_CHARS = 10 * 2**20
"""Characters of HTML read; what is beyond is cut, with a warning."""
MAX_DEPTH = 2_000
"""Elements open at once. Lexbor needs 0.05 s for 8,000 nested `div`s and 14 s for 100,000."""
MAX_ATTRIBUTES = 256
"""Attributes of one element. Lexbor compares every new attribute with all before it: 14 s for 100,000."""
MAX_FORMATTING = 100
"""Formatting elements open at once; Lexbor's time for them grows with the square."""
MAX_REOPENED = 20_000
"""Formatting elements (`b`, `font`, ...) the HTML5 rules may reopen in later blocks; beyond it they are dropped."""


def names(listed: str) -> frozenset[str]:
    """The set of the names in `listed`, which are separated by spaces."""
    return frozenset(listed.split())


VOID = names("area base br col embed hr img input link meta param source track wbr")
_FORMATTING = names("a b big code em font i nobr s small strike strong tt u")
_OPTIONAL_END = names("p li dt dd option optgroup tr td th thead tbody tfoot colgroup rt rp")
# Tags after which the parser reads HTML again although an `svg` is open; only in foreign content does `/>` close.
_ENDS_FOREIGN = names(
    "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta"
    " nobr ol p pre ruby s small span strong strike sub sup table tt u ul var font foreignobject desc title template"
)
_RAW_TEXT = names("script style textarea title xmp iframe noembed noframes")
_SKIPPED = names("style svg canvas iframe noembed noframes frame embed audio video source track param datalist")

INDEXED = frozenset({"base", "meta", "link", "title", "h1", "time"})
_END_TAGS = {name: re.compile(rf"</{name}", re.I) for name in _RAW_TEXT}
_TAG = re.compile(r"<!--|<(/?)([a-zA-Z][^\s/>]{0,40})")
_ATTRIBUTE = re.compile(
    r"""[\s/]*+(?:(>)|[^\s>/][^\s>/=]*+(?:\s*+=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>"'][^\s>]*+)?+)?+)"""
)
MAX_ELEMENTS = 100_000
"""Elements of the tree; the largest real pages have a quarter of that. What is beyond is not read, with a warning."""
_LONG_TAG = 2_048
_STREAMED = re.compile(r"S:[0-9a-f]+")
_REVEALED_CLASS = re.compile(r"tab-?(?:pane|panel|content)|accordion|collaps|expand|(?:read|show)-?more", re.I)
_CONTROLS = ("aria-controls", "data-target", "data-bs-target", "href")
_HIDING_STYLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?:left|right|top|text-indent|margin-left)\s*:\s*-\d{4,}(?:\.\d+)?(?:px|pt|em)",
    re.I,
)
"""Not shown, or put off the screen. Opacity 0 is no sign: what fades in while the page is read begins with it."""

# Soft hyphens and zero-width characters split words that a reader sees whole; no-break spaces are spaces.
# Joiners (U+200C, U+200D) carry meaning in Persian, Indic scripts and emoji and stay.
_INVISIBLE: dict[int, str | None] = {0x00AD: None, 0x200B: None, 0x2060: None, 0xFEFF: None, 0x00A0: " ", 0x202F: " "}
_HAS_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff\u00a0\u202f]")

Child = Union["Element", str]


class Element:
    """An element of the page. `index` is its number in document order, the same for the same HTML."""

    __slots__ = ("attrs", "children", "index", "parent", "tag")

    def __init__(self, index: int, tag: str, attrs: dict[str, str | None], parent: Element | None) -> None:
        self.index = index
        self.tag = tag
        self.attrs = attrs
        self.parent = parent
        self.children: list[Child] = []

    def __repr__(self) -> str:
        return f"<{self.tag} #{self.index}>"

    def get(self, name: str) -> str:
        """The attribute's value; empty when absent or without a value."""
        return self.attrs.get(name) or ""

    @property
    def classes(self) -> list[str]:
        return self.get("class").split()

    def ancestors(self) -> Iterator[Element]:
        """The element itself, then its parents up to the root."""
        node: Element | None = self
        while node is not None:
            yield node
            node = node.parent

    def descend(self) -> Iterator[Child]:
        """Everything below in document order, elements and text."""
        stack: list[Child] = self.children[::-1]
        while stack:
            node = stack.pop()
            yield node
            if isinstance(node, Element):
                stack.extend(reversed(node.children))

    def elements(self, *tags: str) -> Iterator[Element]:
        """The elements below, of these tags if any are given."""
        for node in self.descend():
            if isinstance(node, Element) and (not tags or node.tag in tags):
                yield node

    def text(self) -> str:
        """All text below, as it stands."""
        return "".join(n for n in self.descend() if isinstance(n, str))


@dataclass(slots=True)
class Tree:
    """A parsed page."""

    root: Element
    body: Element
    html: str
    """The bounded HTML that was parsed."""
    depth: int
    """Upper estimate of the deepest nesting."""
    count: int
    """How many elements the tree has."""
    json_ld: list[str] = field(default_factory=list)
    indexed: dict[str, list[Element]] = field(default_factory=dict)
    """Elements a page has few of and that say something about the whole of it, by tag: `INDEXED`."""
    revealed: set[str] = field(default_factory=set)
    """Ids that controls of the page name as what they show."""
    warnings: tuple[str, ...] = ()


def is_hidden(element: Element, revealed: Set[str] = frozenset()) -> bool:
    """Whether the element's own attributes hide it from a person reading the page.

    What a click shows is not hidden: tab panels, accordions, elements whose id a control names (`revealed`).
    """
    attrs = element.attrs
    if not attrs or element.tag in ("html", "body"):
        # A hidden body is a flicker guard that a script takes away.
        return False
    if attrs.get("id") in revealed or attrs.get("role") == "tabpanel":
        return False
    if "class" in attrs and _REVEALED_CLASS.search(attrs["class"] or ""):
        return False
    if "hidden" in attrs and (attrs["hidden"] or "").lower() != "until-found":
        return True
    if (attrs.get("aria-hidden") or "").strip().lower() == "true":
        return True
    style = attrs.get("style")
    return bool(style and _HIDING_STYLE.search(style)) or (element.tag == "dialog" and "open" not in attrs)


def clean(text: str) -> str:
    """`text` without invisible characters, with plain spaces for no-break ones."""
    return text if text.isascii() or not _HAS_INVISIBLE.search(text) else text.translate(_INVISIBLE)


def bounded(html: str) -> tuple[str, int, tuple[str, ...]]:
    """`html` fit for parsing: (text, depth estimate, warnings).

    NUL characters are dropped. Tags beyond `MAX_DEPTH` become spaces, attributes beyond `MAX_ATTRIBUTES` go, and
    formatting elements go when reopening them would cost more than `MAX_REOPENED`. Elements with optional end tags are
    not counted as nesting, so the depth is an estimate; it is exact within a factor of four.
    """
    warnings = []
    if len(html) > MAX_CHARS:
        html = html[:MAX_CHARS]
        warnings.append(f"the page is longer than {MAX_CHARS // 2**20} MB; its end was not read")
    if "\0" in html:
        html = html.replace("\0", "")
    flat, depth, said = _flatten(html, keep_formatting=True) or _flatten(html, keep_formatting=False) or ("", 0, ())
    return flat, depth, (*warnings, *said)


def _flatten(html: str, *, keep_formatting: bool) -> tuple[str, int, tuple[str, ...]] | None:
    """`html` within the bounds on depth and attributes; None when its formatting elements cost too much to keep."""
    warnings = []
    out: list[str] = []
    copied = position = 0
    depth = deepest = formatting = reopened = 0
    flattened = trimmed = foreign = False
    while match := _TAG.search(html, position):
        start, position = match.span()
        closing, name = match.groups()
        if name is None:
            end = html.find("-->", position)
            position = len(html) if end < 0 else end + 3
            continue
        name = name.lower()
        end = html.find(">", position, position + _LONG_TAG) + 1
        if not end or html.count('"', position, end) % 2 or html.count("'", position, end) % 2:
            end, cut = _attributes_end(html, position)
            if cut is not None:
                out += [html[copied:cut], ">"]
                copied, trimmed = end, True
        position = end
        drop = False
        if name == "svg":
            foreign = not closing
        elif foreign and name in _ENDS_FOREIGN:
            foreign = False
        if foreign and html.endswith("/>", start, position):
            continue
        if name in _FORMATTING:
            formatting = max(0, formatting + (-1 if closing else 1))
            drop = formatting > MAX_FORMATTING or not keep_formatting
        elif name in _OPTIONAL_END:
            reopened += formatting
        elif name not in VOID:
            if closing:
                drop = depth > MAX_DEPTH
                depth = max(0, depth - 1)
            else:
                depth += 1
                deepest = max(deepest, depth)
                drop = depth > MAX_DEPTH
                reopened += formatting
        if keep_formatting and reopened > MAX_REOPENED:
            return None
        if drop:
            if copied <= start:
                out.append(html[copied:start])
            else:
                out.pop()  # its start was written when its attributes were cut
                out.pop()
            out.append("" if name in _FORMATTING else " ")
            copied, flattened = position, True
        elif not closing and name in _RAW_TEXT:
            # Raw text holds no tags; without its end tag the rest of the page belongs to it.
            end_tag = _END_TAGS[name].search(html, position)
            position = end_tag.start() if end_tag else len(html)
    if out:
        out.append(html[copied:])
        html = "".join(out)
    if flattened:
        warnings.append("the page nests deeper than any reader could follow; its deepest parts were flattened")
    if trimmed:
        warnings.append(f"an element has more than {MAX_ATTRIBUTES} attributes; the rest were dropped")
    return html, deepest, tuple(warnings)


def _attributes_end(html: str, position: int) -> tuple[int, int | None]:
    """Where the tag whose attributes begin at `position` ends, and where to cut it if it has too many attributes."""
    count, cut = 0, None
    while match := _ATTRIBUTE.match(html, position):
        if match.end() == position:
            break
        position = match.end()
        if match.group(1):
            return position, cut
        count += 1
        if count == MAX_ATTRIBUTES:
            cut = position
    return len(html), cut


def parse(html: str) -> Tree:
    """The tree of a page. Never raises for what the page contains."""
    html, depth, warnings = bounded(html)
    parser = LexborHTMLParser(html)
    root = Element(0, "html", {}, None)
    tree = Tree(root, root, html, depth, 1, warnings=warnings)
    if parser.root is None:
        return tree
    root.attrs = parser.root.attributes
    streamed, placeholders = _build(tree, parser.root, root)
    tree.body = next((c for c in root.children if isinstance(c, Element) and c.tag in ("body", "frameset")), root)
    _place_streamed(streamed, placeholders)
    return tree


def _build(tree: Tree, top: LexborNode, root: Element) -> tuple[dict[str, Element], dict[str, Element]]:
    """Copies the parser's tree below `root`; returns the server-streamed pieces and the places they belong to."""
    streamed: dict[str, Element] = {}
    placeholders: dict[str, Element] = {}
    stack: list[tuple[LexborNode | None, Element]] = [(top.first_child, root)]
    while stack:
        node, parent = stack.pop()
        while node is not None:
            tag = node.tag
            if tag == "-text":
                text = node.text_content
                if text:
                    parent.children.append(clean(text))
            elif tag and tag[0] != "-" and tag not in _SKIPPED:
                attrs = node.attributes
                if tag == "script":
                    kind = (attrs.get("type") or "").lower()
                    if kind.startswith("application/ld+json"):
                        tree.json_ld.append(node.text(deep=True))
                    if not kind.startswith("math/"):
                        node = node.next
                        continue
                element = Element(tree.count, tag, attrs, parent)
                tree.count += 1
                parent.children.append(element)
                if tag in INDEXED:
                    tree.indexed.setdefault(tag, []).append(element)
                if tree.count > MAX_ELEMENTS:
                    tree.warnings += (f"the page has more than {MAX_ELEMENTS:,} elements; the rest was not read",)
                    return streamed, placeholders
                if attrs:
                    for control in _CONTROLS:
                        value = attrs.get(control)
                        if value and (control == "aria-controls" or value[0] == "#"):
                            tree.revealed.add(value.lstrip("#"))
                    identity = attrs.get("id") or ""
                    if tag == "template" and identity.startswith("B:"):
                        placeholders[identity[2:]] = element
                    elif _STREAMED.fullmatch(identity):
                        streamed[identity[2:]] = element
                # The rest of the siblings waits until this element's children are done.
                stack.append((node.next, parent))
                if tag != "template":
                    stack.append((node.first_child, element))
                elif "shadowrootmode" in attrs or "shadowroot" in attrs:
                    element.tag = "shadow-root"
                    fragments = node.template_fragments()
                    stack.extend((f.first_child if f.tag is None else f, element) for f in reversed(fragments[:1]))
                break
            node = node.next
    return streamed, placeholders


def _place_streamed(streamed: dict[str, Element], placeholders: dict[str, Element]) -> None:
    for key, piece in streamed.items():
        place = placeholders.get(key)
        if place is None or piece.parent is None or any(a is piece for a in place.ancestors()):
            continue
        piece.parent.children = [c for c in piece.parent.children if c is not piece]
        place.tag, piece.parent = "div", place
        place.children = [piece]
        piece.attrs = {k: v for k, v in piece.attrs.items() if k != "hidden"}
