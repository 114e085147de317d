"""Drafts written as light Markdown: the source of a document, its blocks and its links."""

from __future__ import annotations

from collections.abc import Sequence

from trawl.extraction import tables
from trawl.extraction.blocks import Draft, absolute
from trawl.extraction.code import fence_for
from trawl.extraction.dom import Element
from trawl.extraction.inline import plain
from trawl.types import Block, Link


class Prefixes:
    """What stands at the start of a draft's lines: quote marks, list markers, indents."""

    def __init__(self) -> None:
        self.started: set[int] = set()
        self.previous: Draft | None = None
        self.previous_quote = ""

    def of(self, draft: Draft, *, indent_all: bool) -> tuple[str, str, str, int]:
        """(separator from the block before, prefix of the first line, prefix of the others, list depth).

        `indent_all` puts code and tables inside their list item; otherwise they stand at the left edge, where they
        can be cut out as they are.
        """
        quoted = min(draft.quotes, 6) if indent_all or draft.kind not in ("code", "table") else 0
        # Quotes around the lists, and those inside the innermost item.
        outer = min(quoted, draft.items[-1].quotes) if draft.items else quoted
        quote, inner = "> " * outer, "> " * (quoted - outer)
        first = rest = quote
        depth = 0
        begins_item = False
        if draft.items and (draft.kind == "list" or indent_all):
            started = [i for i in draft.items[:-1] if id(i) in self.started]
            item = draft.items[-1]
            indent = " " * sum(len(i.marker) for i in started)
            depth = len(started) + 1
            if id(item) in self.started:
                first = rest = quote + indent + " " * len(item.marker) + inner
            elif draft.kind == "list":
                self.started.add(id(item))
                begins_item = True
                first, rest = quote + indent + item.marker + inner, quote + indent + " " * len(item.marker) + inner
            else:
                first = rest = quote + indent + inner
                depth -= 1
        previous = self.previous
        if previous is None:
            separator = ""
        elif draft.kind == previous.kind == "list" and draft.list_id == previous.list_id and draft.list_id >= 0:
            definition = begins_item and draft.items[-1].marker == ": "
            term = not draft.items
            separator = "\n" if begins_item or definition or (term and not previous.items) else "\n\n"
        elif quote and self.previous_quote:
            separator = f"\n{min(quote, self.previous_quote, key=len).rstrip()}\n"
        else:
            separator = "\n\n"
        if quote and self.previous_quote and separator == "\n\n":
            separator = f"\n{min(quote, self.previous_quote, key=len).rstrip()}\n"
        self.previous, self.previous_quote = draft, quote
        return separator, first, rest, depth


def write_source(drafts: Sequence[Draft], base: str) -> tuple[str, list[Block], list[Link]]:
    """Light Markdown of all drafts, its blocks (one for each draft, in order) and its links."""
    out: list[str] = []
    length = 0
    blocks: list[Block] = []
    links: list[Link] = []
    prefixes = Prefixes()
    for draft in drafts:
        separator, first, rest, depth = prefixes.of(draft, indent_all=False)
        start = length + len(separator)
        spans: list[tuple[int, int, Element]] = []
        level = draft.level
        if draft.kind == "code":
            fence = fence_for(draft.code)
            body, words = f"{fence}{draft.language}\n{draft.code}\n{fence}", draft.code
        elif draft.table is not None:
            body, words, spans = _write_table(draft.table)
        else:
            body, spans = plain(draft.pieces)
            words = body if "![" not in body else plain(draft.pieces, alts=False)[0] or body[2:-1]
            if draft.kind == "heading":
                first = f"{'#' * level} "
                body, words = body.replace("\n", " "), words.replace("\n", " ")
            elif draft.kind == "list":
                level = max(depth, 1)
        if first or rest:
            spans = [
                (
                    s + len(first) + body.count("\n", 0, s) * len(rest),
                    e + len(first) + body.count("\n", 0, e) * len(rest),
                    a,
                )
                for s, e, a in spans
            ]
            body = first + (body.replace("\n", "\n" + rest) if rest else body)
        for s, e, anchor in spans:
            url = absolute(base, anchor.get("href"))
            if url and (s == e or not body[s:e].isspace()):
                links.append(Link(start + s, start + e, url, body[s:e]))
        out += [separator, body]
        length = start + len(body)
        blocks.append(Block(draft.kind, start, length, words, level=level, hidden=draft.hidden))
    return "".join(out), blocks, links


def _write_table(grid: tables.Grid) -> tuple[str, str, list[tuple[int, int, Element]]]:
    """A pipe table, its words, and the spans of its links."""
    out: list[str] = []
    length = 0
    spans: list[tuple[int, int, Element]] = []
    words: list[str] = []
    for number, row in enumerate(grid.rows):
        line_words = []
        for cell in row:
            text, links = plain(cell.pieces)
            text = text.replace("\n", " ")
            escaped = tables.escape_cell(text)
            lead = length + 2
            if not cell.repeated:
                line_words.append(text)
                spans += [(lead + s + text.count("|", 0, s), lead + e + text.count("|", 0, e), a) for s, e, a in links]
            out.append(f"| {escaped} ")
            length += len(escaped) + 3
        out.append("|\n")
        length += 2
        if number == 0:
            rule = "|" + " --- |" * len(row) + "\n"
            out.append(rule)
            length += len(rule)
        words.append(" ".join(w for w in line_words if w))
    return "".join(out)[:-1], "\n".join(w for w in words if w), spans
