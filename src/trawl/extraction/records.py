"""Repeated items of a page (cards, rows of results, posts, comments), found by their markup.

Items are siblings of the same tag that share a class: three or more in a row, or fewer when the same kind is nested in
them (replies). They hold more than one piece of text and are short. What an item says stays together in one chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import median

from trawl.extraction.dom import Element, names

MIN_ITEMS = 3
MIN_CHARS = 20
"""Median length of the items of a group below which they are buttons, tags or tabs."""
MAX_CHARS = 400
"""Median length beyond which they are the sections of a text rather than items of a list."""

_APART = names("nav aside footer header pre code select svg table form dialog")
_APART_ROLES = names("navigation complementary banner contentinfo tablist menu menubar toolbar dialog")
_APART_WORDS = names(
    "nav navbar navigation sidebar toc table-of-contents breadcrumb breadcrumbs menu site-header site-footer footer"
    " pagination tabs tab-list"
)
_ITEM_TAGS = names("div li article section a tr dd blockquote details")
_CLASSLESS = frozenset({"article"})
_STATE_CLASSES = names(
    "active current first last odd even selected visible hidden row col column item-wrapper clearfix"
)


_POST = re.compile(r"comment|repl(?:y|ies)|post|thing|message|answer|entry", re.I)
"""Classes of what people write in threads, where one item stands inside another."""
_NEAR = 24
"""Ancestors among which a post looks for the one it replies to."""


@dataclass(slots=True)
class _Measure:
    """What an element holds."""

    chars: int = 0
    fields: int = 0
    """Pieces of text that stand apart: the topmost elements that have text of their own."""


def find_records(body: Element) -> dict[int, str]:
    """The items of the page: element number -> id of the record."""
    order = [body, *body.elements()]
    measures = _measure(order)
    within = _within_apart(order)
    found: dict[int, str] = {}
    for parent in order:
        if parent.index in within:
            continue
        for run in _runs(parent):
            if _is_group(run, measures):
                for item in run:
                    found[item.index] = f"{run[0].index}.{item.index}"
    for thread in _threads([e for e in order if e.index not in within]):
        for item in thread:
            found.setdefault(item.index, f"{thread[0].index}.{item.index}")
    return found


def _measure(order: list[Element]) -> dict[int, _Measure]:
    measures = {e.index: _Measure() for e in order}
    for element in reversed(order):
        own = measures[element.index]
        text = [c for c in element.children if isinstance(c, str) and not c.isspace()]
        if text:
            own.chars += sum(len(" ".join(c.split())) for c in text)
            own.fields = 1
        parent = measures.get(element.parent.index) if element.parent is not None else None
        if parent is not None and element is not order[0]:
            parent.chars += own.chars
            parent.fields += own.fields
    return measures


def _within_apart(order: list[Element]) -> set[int]:
    """Elements in navigation and the like, by number."""
    within: set[int] = set()
    for element in order:
        parent = element.parent
        if (parent is not None and parent.index in within) or _is_apart(element):
            within.add(element.index)
    return within


def _is_apart(element: Element) -> bool:
    if element.tag in ("html", "body", "main", "article"):
        return False
    return (
        element.tag in _APART
        or element.get("role") in _APART_ROLES
        or not _APART_WORDS.isdisjoint(element.get("class").lower().split())
        or element.get("id").lower() in _APART_WORDS
    )


def _runs(parent: Element) -> Iterator[list[Element]]:
    """Neighbouring children of one tag that share a class."""
    run: list[Element] = []
    shared: set[str] = set()
    for child in parent.children:
        if not isinstance(child, Element):
            continue
        classes = set(child.classes) - _STATE_CLASSES
        common = classes & shared if run else classes
        same = bool(run) and child.tag == run[0].tag and (bool(common) or (not classes and child.tag in _CLASSLESS))
        if same:
            run.append(child)
            shared = common
            continue
        yield run
        run, shared = [], set()
        if child.tag in _ITEM_TAGS and (classes or child.tag in _CLASSLESS):
            run, shared = [child], classes
    yield run


def _is_group(run: list[Element], measures: dict[int, _Measure]) -> bool:
    if len(run) < MIN_ITEMS or any(e.get("role") in ("tab", "tabpanel") for e in run):
        return False
    own = [measures[e.index] for e in run]
    if not MIN_CHARS <= median(m.chars for m in own) <= MAX_CHARS:
        return False
    return median(m.fields for m in own) >= 2


def _threads(elements: list[Element]) -> Iterator[list[Element]]:
    """Posts of which some stand inside others, as replies do: three or more of one tag and the same classes."""
    groups: dict[tuple[str, str], list[Element]] = {}
    for element in elements:
        if element.tag in _ITEM_TAGS and _POST.search(element.get("class")):
            groups.setdefault((element.tag, " ".join(sorted(element.classes))), []).append(element)
    for group in groups.values():
        if len(group) < MIN_ITEMS:
            continue
        members = {e.index for e in group}
        nested = sum(any(a.index in members for a in islice(e.ancestors(), 1, _NEAR)) for e in group)
        # A wrapper around each of many is no reply.
        if 0 < nested < len(group):
            yield group
