"""What stands inside a block: text, inline elements that open and close, line breaks, images, formulas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from trawl.extraction.dom import Child, Element

_SIBLINGS = 200
"""In longer rows nobody looks for neighbours: it would take quadratic time."""
SPACE = re.compile(r"[ \t\n\r\f]+")


@dataclass(frozen=True, slots=True)
class Mark:
    """In a draft's pieces: an inline element opens or closes, a line breaks, or an image stands."""

    what: Literal["open", "close", "break", "image", "math"]
    element: Element | None = None
    text: str = ""
    """Alternative text of an image, TeX of a formula."""


Piece = str | Mark
BREAK = Mark("break")


def siblings_before(element: Element) -> Iterator[Child]:
    """What stands before an element in its parent, the nearest first."""
    siblings = element.parent.children if element.parent is not None else []
    if len(siblings) > _SIBLINGS:
        return
    at = next((i for i, c in enumerate(siblings) if c is element), 0)
    yield from reversed(siblings[:at])


def has_words(pieces: Iterable[Piece]) -> bool:
    """Whether there is anything to read."""
    return any((p.what in ("image", "math")) if isinstance(p, Mark) else not p.isspace() for p in pieces)


def plain(pieces: Iterable[Piece], *, alts: bool = True) -> tuple[str, list[tuple[int, int, Element]]]:
    """The words of `pieces` and the spans of its links; white space as a browser would show it."""
    out: list[str] = []
    length = 0
    spaced = True  # the text so far ends in white space, or is empty
    opened: list[tuple[Element, int]] = []
    links: list[tuple[int, int, Element]] = []

    def write(text: str) -> None:
        nonlocal length, spaced
        if spaced:
            text = text.lstrip(" ")
        if text:
            out.append(text)
            length += len(text)
            spaced = text.endswith((" ", "\n"))

    for piece in pieces:
        if isinstance(piece, str):
            write(SPACE.sub(" ", piece))
            continue
        element = piece.element
        if piece.what == "break":
            if out:
                while out and out[-1].endswith(" "):
                    length -= len(out[-1]) - len(out[-1].rstrip(" "))
                    out[-1] = out[-1].rstrip(" ")
                    if not out[-1]:
                        out.pop()
                write("\n")
                spaced = True
        elif piece.what == "image":
            if alts:
                write(f"![{piece.text}]")
        elif piece.what == "math":
            write(f"${piece.text}$")
        elif element is not None and element.tag == "a":
            if piece.what == "open":
                opened.append((element, length))
                if is_note_reference(element) and is_bare_reference(element):
                    write("[")
            elif opened:
                if is_note_reference(element) and is_bare_reference(element):
                    write("]")
                start = opened.pop()[1]
                links.append((start, length, element))
        elif element is not None and element.tag == "q":
            write("“" if piece.what == "open" else "”")
    text = "".join(out)
    stripped = text.rstrip()
    end = len(stripped)
    return stripped, [(min(s, end), min(e, end), el) for s, e, el in links]


def is_note_reference(link: Element) -> bool:
    """Whether a link is the mark of a footnote: in a `sup`, or said to be one, leading to a place on the page."""
    if not link.get("href").startswith("#"):
        return False
    if link.get("role") == "doc-noteref" or "footnote-ref" in link.classes:
        return True
    around = [link.parent, link.parent.parent if link.parent else None]
    inside = next(link.elements(), None)
    return any(e is not None and e.tag == "sup" for e in (*around, inside))


def is_bare_reference(link: Element) -> bool:
    """Whether the mark of a note has no brackets of its own, in it or around it."""
    if link.text().strip().startswith("["):
        return False
    before = next((c for c in siblings_before(link) if not isinstance(c, str) or not c.isspace()), None)
    return not (isinstance(before, str) and before.rstrip().endswith("["))
