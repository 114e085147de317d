"""The tree of a page to drafts of its blocks.

A draft is a block before it is written: what it says (`pieces`, a table, or code), where it stands (list items, quotes)
and the element it comes from. `draft_blocks` makes them in one walk; `source.py` and `markdown.py` write the same
drafts twice, light and full, so that block N of one is block N of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from trawl.extraction import code, mathml, tables
from trawl.extraction.dom import Element, Tree, is_hidden, names
from trawl.extraction.inline import BREAK, SPACE, Mark, Piece, has_words, plain, siblings_before
from trawl.types import BlockKind

BLOCK_TAGS = names(
    "html body address article aside blockquote caption center dd details dialog dir div dl dt fieldset"
    " figcaption figure footer form frameset h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav"
    " noscript ol option p pre search section select shadow-root summary table tbody td textarea tfoot th"
    " thead tr ul listing plaintext xmp"
)
_HEADINGS = {f"h{n}": n for n in range(1, 7)}
_LISTS = frozenset({"ul", "ol", "menu", "dir"})
MARKUP = names("a b strong em i code kbd samp tt del s strike sup sub q")
"""Inline elements that matter to a writer; the others are only their text."""
_SEPARATED = frozenset({"a", "button", "label"})
_NO_TEXT = frozenset({"head", "template", "object", "rp", "annotation", "annotation-xml", "input", "title"})
_FIELD_TAGS = names("a span b strong small time cite em i label data")
_FIELD_PARENTS = names("div section article header footer li td th a span summary figure figcaption main aside")
"""Parents whose inline children are fields laid out side by side, when no text of their own stands between them. In a
paragraph or a heading they are pieces of one text."""
_HEADING_PARTS = 20
_LIST_DEPTH = 24
"""Lists in lists that are shown as such; deeper items are kept, their depth is not."""
_MARKUP_DEPTH = 16
"""Inline elements remembered as open at once; text deeper than that is kept, its markup is not."""
_BLOCK_STYLE = re.compile(r"display\s*:\s*(?:block|flex|grid|table|list-item)", re.I)
_PERMALINK_TEXT = re.compile(r"[\s¶#§🔗⚓︎∞]*")
_BACK_LINK = re.compile(r"\s*[↩⏎↵↑^\ufe0e]+\s*")
_HEADING_FURNITURE = frozenset({"mw-editsection", "headerlink", "header-anchor", "anchorjs-link", "hash-link"})
_MATH_GLYPHS = names(
    "MathJax MathJax_Display MathJax_Preview MathJax_SVG MathJax_CHTML MathJax_SVG_Display MJXc-display"
)


@dataclass(eq=False, slots=True)
class Item:
    """A list item, or a definition, that blocks stand in."""

    marker: str
    list_id: int
    element: Element
    quotes: int = 0
    """How many quotes it stands in."""


@dataclass(slots=True)
class Draft:
    """A block before it is written."""

    kind: BlockKind
    element: Element
    pieces: list[Piece] = field(default_factory=list)
    level: int = 0
    items: tuple[Item, ...] = ()
    quotes: int = 0
    hidden: bool = False
    list_id: int = -1
    """Element number of the outermost list; blocks of one list stand on neighbouring lines."""
    table: tables.Grid | None = None
    code: str = ""
    language: str = ""


@dataclass(slots=True)
class _List:
    element: Element
    next_number: int | None
    last_item: Item | None = None


def absolute(base: str, href: str) -> str | None:
    """`href` as an absolute http, https or mailto URL; None for anything else and for links within the page."""
    href = "".join(href.split("\n")).strip().replace("\t", "").replace("\r", "")
    if not href or href.startswith("#") or len(href) > 4_096:
        return None
    try:
        url = urljoin(base, href)
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme == "mailto":
        return url if "@" in parts.path else None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return None
    return url.replace(" ", "%20")


def image_source(image: Element) -> str:
    """The address of the picture itself where a script would put it in later; empty when there is none."""
    for name in ("src", "data-src", "data-original", "data-lazy-src"):
        value = image.get(name).strip()
        if value and not value.startswith(("data:", "about:")):
            return value
    for name in ("srcset", "data-srcset"):
        value = image.get(name).strip()
        if value and not value.startswith("data:"):
            return value.split()[0].rstrip(",")
    return ""


def draft_blocks(tree: Tree, records: Mapping[int, str] | None = None) -> list[Draft]:
    """The blocks of the page in document order, hidden ones included.

    Args:
        records: the repeated items of the page by element number; each begins and ends a block, a link too.
    """
    return _Walk(tree.revealed, records).run(tree.body)


def record_of(draft: Draft, records: Mapping[int, str]) -> str | None:
    """The innermost record that a draft stands in."""
    if not records:
        return None
    return next((records[e.index] for e in draft.element.ancestors() if e.index in records), None)


class _Walk:
    """One pass over the tree with a stack of its own: an element to enter, or a function to call when it ends."""

    def __init__(self, revealed: Set[str] = frozenset(), records: Mapping[int, str] | None = None) -> None:
        self.revealed = revealed
        self.records = records or {}
        self.drafts: list[Draft] = []
        self.pieces: list[Piece] = []
        self.markup: list[Element] = []
        self.has_text = False
        self.blocks: list[Element] = []
        self.lists: list[_List] = []
        self.items: list[Item] = []
        self.quotes = self.hidden = 0
        self.hidden_roots: list[tuple[int, int]] = []
        self.kinds: list[tuple[BlockKind, int]] = [("paragraph", 0)]
        self.deferred: list[Draft] = []
        self.stack: list[Element | str | Callable[[], object]] = []

    def run(self, top: Element) -> list[Draft]:
        self.blocks.append(top)
        self.push_children(top)
        while self.stack:
            node = self.stack.pop()
            if isinstance(node, str):
                self.add_text(node)
            elif isinstance(node, Element):
                self.enter(node)
            else:
                node()
        self.flush()
        self.show_guarded()
        return self.drafts

    def show_guarded(self) -> None:
        """Content that waits hidden for a script: an element that hides more than the whole page shows is a guard
        against flicker, not a secret."""
        if not self.hidden_roots:
            return
        shown = sum(_size(d) for d in self.drafts if not d.hidden)
        for start, end in self.hidden_roots:
            part = [d for d in self.drafts[start:end] if d.hidden]
            if sum(map(_size, part)) > shown:
                for draft in part:
                    draft.hidden = False

    def push_children(self, element: Element) -> None:
        self.stack.extend(reversed(element.children))

    def add_text(self, text: str) -> None:
        if text:
            self.pieces.append(text)
            if not self.has_text and not text.isspace():
                self.has_text = True

    # -- blocks ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Ends the block being collected."""
        if self.has_text:
            pieces = self.pieces + [Mark("close", e) for e in reversed(self.markup)]
            kind, level = self.kinds[-1]
            for part in _paragraphs(pieces):
                self.emit(Draft(kind, self.blocks[-1], part, level))
        self.pieces = [Mark("open", e) for e in self.markup]
        self.has_text = False
        if self.deferred:
            self.drafts += self.deferred
            self.deferred = []

    def emit(self, draft: Draft) -> None:
        if draft.kind != "heading":
            draft.items = tuple(self.items)
            draft.quotes = self.quotes
        if self.lists:
            draft.list_id = self.lists[0].element.index
        if draft.kind == "paragraph":
            if self.items or draft.list_id >= 0:
                draft.kind = "list"
            elif self.quotes:
                draft.kind = "quote"
        draft.hidden = draft.hidden or self.hidden > 0
        self.drafts.append(draft)

    def block(self, element: Element, leave: Callable[[], object] | None = None) -> None:
        """Enters a block element: what was collected ends here, and what it holds ends where it ends."""
        self.flush()
        self.blocks.append(element)

        def end() -> None:
            self.flush()
            self.blocks.pop()
            if leave:
                leave()

        self.stack.append(end)
        self.push_children(element)

    # -- elements -------------------------------------------------------------------------------------------------

    def enter(self, element: Element) -> None:
        tag = element.tag
        if tag in _NO_TEXT:
            if tag == "input" and element.get("type") == "checkbox" and self.items:
                self.add_checkbox(element)
            return
        block = tag in BLOCK_TAGS or ("style" in element.attrs and bool(_BLOCK_STYLE.search(element.get("style"))))
        if ((element.attrs or tag == "button") and self.special(element)) or code.is_copy_button(element):
            return
        if not self.hidden and is_hidden(element, self.revealed):
            self.enter_hidden(element, block)
        elif block:
            self.enter_block(element)
        else:
            self.enter_inline(element)

    def special(self, element: Element) -> bool:
        """Deals with elements known by class or role; False when this is not one."""
        if self.kinds[-1][0] == "heading" and _is_heading_furniture(element):
            return True
        if element.tag == "a" and (element.get("role") == "doc-backlink" or _BACK_LINK.fullmatch(element.text()[:8])):
            return True
        classes = element.classes
        if not classes:
            return False
        if not _MATH_GLYPHS.isdisjoint(classes) and _has_math_script(element):
            return True
        if "katex-html" in classes or any(c.startswith("mwe-math-fallback-image") for c in classes):
            return element.parent is not None and any(True for _ in element.parent.elements("math"))
        if "katex-mathml" in classes or "mwe-math-mathml-a11y" in classes or "mwe-math-mathml-inline" in classes:
            # Hidden from the eye only because a picture of the formula stands beside it.
            self.push_children(element)
            return True
        return False

    def enter_hidden(self, element: Element, block: bool) -> None:
        holds_blocks = block or any(e.tag in BLOCK_TAGS for e in element.elements())
        if not holds_blocks:
            text = SPACE.sub(" ", element.text()).strip()
            if any(c.isalnum() for c in text):
                self.deferred.append(Draft("paragraph", element, [text], hidden=True))
            return
        self.flush()
        self.hidden += 1
        start = len(self.drafts)

        def unhide() -> None:
            self.flush()
            self.hidden -= 1
            self.hidden_roots.append((start, len(self.drafts)))

        self.stack.append(unhide)
        self.enter_block(element)

    def enter_block(self, element: Element) -> None:
        tag = element.tag
        if tag in _HEADINGS or element.get("role") == "heading":
            self.enter_heading(element)
        elif tag in ("pre", "listing", "xmp", "plaintext"):
            self.add_code(element)
        elif tag == "textarea":
            if element.text().strip():
                self.block(element)
        elif tag in _LISTS:
            self.enter_list(element)
        elif tag == "li" or (element.get("role") == "listitem" and self.lists):
            self.enter_item(element)
        elif element.get("role") == "list":
            self.enter_list(element)
        elif element.get("role") in ("table", "grid", "treegrid") and tag != "table":
            self.enter_table(element)
        elif tag == "dl":
            self.flush()
            self.lists.append(_List(element, None))
            self.block(element, lambda: self.lists.pop())
        elif tag == "dd" and self.lists and len(self.items) < _LIST_DEPTH:
            self.flush()
            self.items.append(Item(": ", self.lists[-1].element.index, element, self.quotes))
            self.block(element, lambda: self.items.pop())
        elif tag == "blockquote":
            self.flush()
            self.quotes += 1
            self.block(element, self.leave_quote)
        elif tag in ("figcaption", "caption"):
            self.flush()
            self.kinds.append(("caption", 0))
            self.block(element, lambda: self.kinds.pop())
        elif tag == "table":
            self.enter_table(element)
        elif tag == "option":
            self.stack.append(lambda: self.pieces.append(BREAK))
            self.push_children(element)
        elif tag == "hr":
            self.flush()
        elif tag == "noscript" and _only_repeats_images(element):
            return
        else:
            self.block(element)

    def leave_quote(self) -> None:
        self.quotes -= 1

    def enter_heading(self, element: Element) -> None:
        level = _HEADINGS.get(element.tag)
        if level is None:
            given = element.get("aria-level")
            level = min(6, max(1, int(given))) if given.isascii() and given.isdigit() and len(given) < 3 else 2
        self.flush()
        self.kinds.append(("heading", level))
        self.block(element, lambda: self.kinds.pop())

    def enter_list(self, element: Element) -> None:
        self.flush()
        number = None
        if element.tag == "ol":
            start = element.get("start")
            number = int(start) if re.fullmatch(r"-?\d{1,9}", start) else 1
        outer = self.lists[-1] if self.lists else None
        adopted = None
        if (
            outer
            and outer.last_item
            and len(self.items) < _LIST_DEPTH
            and (not self.items or self.items[-1].list_id != outer.element.index)
        ):
            # A list placed directly inside a list belongs to the item before it.
            adopted = outer.last_item
            self.items.append(adopted)
        self.lists.append(_List(element, number))

        def leave() -> None:
            self.lists.pop()
            if adopted:
                self.items.pop()

        self.block(element, leave)

    def enter_item(self, element: Element) -> None:
        current = self.lists[-1] if self.lists else None
        marker = "- "
        if current and current.next_number is not None:
            value = element.get("value")
            if re.fullmatch(r"-?\d{1,9}", value):
                current.next_number = int(value)
            marker = f"{current.next_number}. "
            current.next_number += 1
        item = Item(marker, current.element.index if current else -1, element, self.quotes)
        self.flush()
        if len(self.items) >= _LIST_DEPTH:
            self.block(element)
            return
        if current:
            current.last_item = item
        self.items.append(item)
        self.block(element, lambda: self.items.pop())

    def add_code(self, element: Element) -> None:
        self.flush()
        listing = code.read_listing(element)
        if listing is not None and listing.strip():
            language = code.language_of(element)
            self.drop_label(language)
            self.emit(Draft("code", element, code=listing, language=language))

    def drop_label(self, language: str) -> None:
        """Takes away the line above a listing that says only what its fence says."""
        last = self.drafts[-1] if self.drafts else None
        if language and last and last.kind == "paragraph" and plain(last.pieces)[0].casefold() == language:
            self.drafts.pop()

    def enter_table(self, element: Element) -> None:
        listing = code.read_code_table(element)
        if listing is not None:
            self.flush()
            self.emit(Draft("code", element, code=listing, language=code.language_of(element)))
            return
        grid = None if element.get("role") in ("presentation", "none") else tables.read_grid(element, cell_pieces)
        if grid is None:
            self.block(element)
            return
        self.flush()
        for caption in grid.captions:
            pieces = cell_pieces(caption)
            if has_words(pieces):
                self.emit(Draft("caption", caption, pieces))
        if grid.rows:
            self.emit(Draft("table", element, table=grid))

    def enter_inline(self, element: Element) -> None:
        tag = element.tag
        if tag == "br":
            self.pieces.append(BREAK)
        elif tag in ("math", "mjx-container", "script"):
            tex = mathml.to_tex(element)
            if tex:
                self.pieces.append(Mark("math", element, tex))
                self.has_text = True
        elif tag == "img":
            self.add_image(element)
        elif tag == "code" and code.is_block_code(element):
            self.add_code(element)
        elif tag == "ruby":
            self.enter_ruby(element)
        else:
            if self.stands_apart(element):
                self.pieces.append(" ")
            card = element.index in self.records
            if card:
                self.flush()
                self.blocks.append(element)
                self.stack.append(self.leave_card)
            marked = (tag in MARKUP or tag in _SEPARATED) and len(self.markup) < _MARKUP_DEPTH
            if marked:
                mark = Mark("open", element)
                self.pieces.append(mark)
                self.markup.append(element)

                def end() -> None:
                    self.pieces.append(Mark("close", element))
                    self.markup.pop()

                self.stack.append(end)
            self.push_children(element)

    def add_checkbox(self, element: Element) -> None:
        """The state of a task: a box at the start of a list item that the reader cannot change."""
        item = self.items[-1].element
        if not self.has_text and ("disabled" in element.attrs or any("task" in c for c in item.classes)):
            self.add_text("[x] " if "checked" in element.attrs else "[ ] ")

    def leave_card(self) -> None:
        self.flush()
        self.blocks.pop()

    def stands_apart(self, element: Element) -> bool:
        """Whether a style sheet surely parts this inline element from the one before it, with no space between them
        in the page: two links or buttons never make one word, nor do fields of different kinds side by side."""
        parent = element.parent
        if not self.pieces or parent is None:
            return False
        last = next((c for c in siblings_before(element) if not isinstance(c, str) or c), None)
        if not isinstance(last, Element) or last.tag in BLOCK_TAGS:
            return False
        if (element.tag in _SEPARATED and last.tag in _SEPARATED) or "button" in (element.tag, last.tag):
            return True
        return (
            element.tag in _FIELD_TAGS
            and last.tag in _FIELD_TAGS
            and parent.tag in _FIELD_PARENTS
            and (element.tag != last.tag or element.get("class") != last.get("class") or parent.index in self.records)
            and not any(isinstance(c, str) and not c.isspace() for c in parent.children)
        )

    def add_image(self, element: Element) -> None:
        alt = SPACE.sub(" ", element.get("alt")).strip()
        tex = mathml.tex_of_image(element, alt)
        if tex:
            self.pieces.append(Mark("math", element, tex))
            self.has_text = True
        elif alt and len(alt) <= 500:
            self.pieces.append(Mark("image", element, alt))
            self.has_text = True

    def enter_ruby(self, element: Element) -> None:
        """The base text in one run, then the reading: a word must not be cut by its own pronunciation."""
        written: list[str] = []
        spoken: list[str] = []
        stack: list[tuple[Element | str, list[str]]] = [(c, written) for c in reversed(element.children)]
        while stack:
            node, out = stack.pop()
            if isinstance(node, str):
                out.append(node)
            elif node.tag not in _NO_TEXT:
                into = spoken if node.tag in ("rt", "rtc") else out
                stack.extend((c, into) for c in reversed(node.children))
        reading = "".join(spoken).strip()
        self.add_text("".join(written).strip() + (f" ({reading})" if reading else ""))


def _size(draft: Draft) -> int:
    """Characters of a draft, roughly."""
    own = len(draft.code) + sum(len(p) for p in draft.pieces if isinstance(p, str))
    return own + (sum(len(r) for r in draft.table.rows) * 10 if draft.table else 0)


def _paragraphs(pieces: list[Piece]) -> Iterable[list[Piece]]:
    """`pieces` cut where two line breaks in a row make a paragraph; parts without text are left out."""
    part: list[Piece] = []
    breaks = 0
    open_marks: list[Mark] = []
    for piece in pieces:
        if piece is BREAK:
            breaks += 1
        elif isinstance(piece, str) and piece.isspace():
            pass
        elif not (isinstance(piece, Mark) and piece.what in ("open", "close")):
            if breaks >= 2 and has_words(part):
                while part and (part[-1] is BREAK or (isinstance(part[-1], str) and part[-1].isspace())):
                    part.pop()
                yield part + [Mark("close", m.element) for m in reversed(open_marks)]
                part = list(open_marks)
            breaks = 0
        if isinstance(piece, Mark):
            if piece.what == "open":
                open_marks.append(piece)
            elif piece.what == "close" and open_marks:
                open_marks.pop()
        part.append(piece)
    if has_words(part):
        yield part


def cell_pieces(cell: Element) -> list[Piece]:
    """The content of a table cell or caption on one line: blocks are parted by spaces, list items by semicolons."""
    walk = _Walk()
    walk.kinds.append(("caption", 0))
    pieces: list[Piece] = []
    for draft in walk.run(cell):
        if draft.hidden:
            continue
        if pieces:
            pieces.append("; " if draft.items else " ")
        if draft.kind == "code":
            pieces.append(SPACE.sub(" ", draft.code).strip())
        elif draft.table is not None:
            rows = [" ".join(plain(c.pieces)[0] for c in row if c.pieces) for row in draft.table.cells]
            pieces.append("; ".join(r for r in rows if r.strip()))
        else:
            pieces.extend(" " if p is BREAK else p for p in draft.pieces)
    return pieces


def _is_heading_furniture(element: Element) -> bool:
    """Edit links and permalinks that wikis and documentation tools put into headings."""
    if not _HEADING_FURNITURE.isdisjoint(element.classes):
        return element.tag != "a" or bool(_PERMALINK_TEXT.fullmatch(element.text()))
    if element.tag == "button":
        # The button is the heading itself where a click opens the section.
        heading = next((a for a in element.ancestors() if a.tag in _HEADINGS), None)
        beside = heading.children[:_HEADING_PARTS] if heading is not None else []
        return any(
            bool(c.children) and c.tag != "button" if isinstance(c, Element) else not c.isspace() for c in beside
        )
    return element.tag == "a" and "#" in element.get("href") and bool(_PERMALINK_TEXT.fullmatch(element.text()))


def _has_math_script(element: Element) -> bool:
    """Whether MathJax left the source of this formula in a script beside it."""
    siblings = element.parent.children if element.parent else []
    if len(siblings) > 200:
        return False
    return any(isinstance(s, Element) and s.tag == "script" for s in siblings)


def _only_repeats_images(noscript: Element) -> bool:
    """Whether a `noscript` only shows pictures that a script would load into an image beside it."""
    images = list(noscript.elements("img"))
    if not images or noscript.text().strip() or noscript.parent is None:
        return False
    around = [e for e in noscript.parent.children if isinstance(e, Element) and e is not noscript][:50]
    return any(e.tag == "img" or next(e.elements("img"), None) is not None for e in around)
