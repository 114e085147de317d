"""HTML tables to grids of cells: spans resolved, one header row, empty rows and columns gone.

A table is data when its cells are values; a table that only lays the page out is not read here (`read_grid` returns
None) and the caller walks into its cells as into any other element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from trawl.extraction.dom import Element, names
from trawl.extraction.inline import Piece

MAX_COLUMNS = 200
"""Columns kept; browsers allow spans of 1,000, pages that need more than this are built to do harm."""
MAX_CELLS = 100_000
"""Cells of one table after its spans are resolved."""
_LAYOUT_CONTENT = names("h1 h2 h3 h4 h5 h6 pre form article section main nav dl blockquote hr")
_CELL_CONTENT = names("h1 h2 h3 h4 h5 h6 pre dl blockquote hr section")
"""Of these, what stands in the cells of real tables too; only a table with header cells is believed."""
_LONG_LISTING = 3
"""Lines of code in a cell beyond which it is better shown as the listing it is."""
_CELL_ROLES = names("cell gridcell columnheader rowheader")
_LONG_CELL = 1_200
"""Characters in one cell beyond which a table without header cells is taken for layout."""
_NESTED_TABLES = 20
"""Small tables in the cells of a data table; with more of them, or tables in those, it is layout."""
_REPEATED_LENGTH = 60
"""A value that spans columns is repeated in each when it is this short: every cell of a row then stands for itself."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell in place. `repeated`: the value of a span, written again where it reaches."""

    pieces: list[Piece] = field(default_factory=list)
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A data table: rows of equal width, the first being the header."""

    captions: list[Element]
    rows: list[list[Cell]]

    @property
    def cells(self) -> Iterator[list[Cell]]:
        """The rows without repeated values."""
        return ([c for c in row if not c.repeated] for row in self.rows)


def escape_cell(text: str) -> str:
    """`text` for a pipe table's cell."""
    return text.replace("|", "\\|")


def read_grid(table: Element, read_cell: Callable[[Element], list[Piece]]) -> Grid | None:
    """The table as a grid, or None when it is layout."""
    captions, head, body, foot = _rows_of(table)
    rows = head + body + foot
    if not _is_data(rows, has_head=bool(head or captions)):
        return None
    lines = _resolve(rows, read_cell)
    head_lines = len(head)
    if head_lines > 1:
        lines = [_joined(lines[:head_lines]), *lines[head_lines:]]
    elif not head:
        spanned = _header_depth(rows)
        if spanned > 1:
            lines = [_joined(lines[:spanned]), *lines[spanned:]]
    lines = [line for line in lines if any(c.pieces for c in line)]
    used = [i for i in range(max(map(len, lines), default=0)) if any(i < len(r) and r[i].pieces for r in lines)]
    return Grid(captions, [[r[i] if i < len(r) else Cell() for i in used] for r in lines])


def _rows_of(table: Element) -> tuple[list[Element], list[list[Element]], list[list[Element]], list[list[Element]]]:
    captions: list[Element] = []
    head: list[list[Element]] = []
    body: list[list[Element]] = []
    foot: list[list[Element]] = []
    if table.tag != "table":
        return captions, head, _rows_by_role(table), foot
    for child in table.children:
        if not isinstance(child, Element):
            continue
        if child.tag == "caption":
            captions.append(child)
        elif child.tag in ("thead", "tbody", "tfoot"):
            part = {"thead": head, "tbody": body, "tfoot": foot}[child.tag]
            for row in child.children:
                if isinstance(row, Element) and row.tag == "tr":
                    part.append([c for c in row.children if isinstance(c, Element) and c.tag in ("td", "th")])
    if len(head) > 3 and not body:
        # Some pages put every row into the head.
        head, body = head[:1], head[1:]
    return captions, head, body, foot


def _rows_by_role(table: Element) -> list[list[Element]]:
    """The rows of a table made of other elements, which say by their roles what they are."""
    rows: list[list[Element]] = []
    stack: list[Element] = [table]
    while stack:
        node = stack.pop()
        children = [c for c in node.children if isinstance(c, Element)]
        if node.get("role") == "row":
            rows.append([c for c in children if c.get("role") in _CELL_ROLES])
        else:
            stack.extend(reversed(children))
    return [row for row in rows if row]


def _is_header(cell: Element) -> bool:
    return cell.tag == "th" or cell.get("role") in ("columnheader", "rowheader")


def _is_data(rows: list[list[Element]], *, has_head: bool) -> bool:
    width = max(map(len, rows), default=0)
    headers = sum(_is_header(c) for row in rows for c in row)
    if not rows or (width < 2 and not (headers and len(rows) > 1)):
        return False
    total = nested = tables = 0
    longest = 0
    for row in rows:
        for cell in row:
            length = 0
            for node in cell.descend():
                if isinstance(node, str):
                    length += len(node) if not node.isspace() else 0
                elif node.tag == "table":
                    tables += 1
                    if not headers or tables > _NESTED_TABLES or next(node.elements("table"), None) is not None:
                        return False
                    nested += len(node.text())
                elif node.tag in _LAYOUT_CONTENT and not (headers and _may_stand_in_cell(node)):
                    return False
            total += length
            longest = max(longest, length)
    if nested * 3 > total:
        return False
    if headers or has_head:
        return longest < 20 * _LONG_CELL
    return len(rows) > 1 and longest <= _LONG_CELL


def _may_stand_in_cell(node: Element) -> bool:
    return node.tag in _CELL_CONTENT and (node.tag != "pre" or node.text().strip().count("\n") < _LONG_LISTING)


def _span(cell: Element, name: str) -> int:
    value = cell.get(name).strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else 1


def _resolve(rows: list[list[Element]], read_cell: Callable[[Element], list[Piece]]) -> list[list[Cell]]:
    lines: list[list[Cell]] = []
    reaching: dict[int, tuple[int, Cell]] = {}  # column -> (rows left, value)
    cells = 0
    width = min(MAX_COLUMNS, max((sum(max(1, _span(c, "colspan")) for c in r) for r in rows), default=1))
    for number, row in enumerate(rows):
        line: list[Cell] = []

        def fill(line: list[Cell] = line) -> None:
            while len(line) in reaching:
                left, value = reaching.pop(len(line))
                if left > 1:
                    reaching[len(line)] = (left - 1, value)
                line.append(value)

        for element in row:
            fill()
            if len(line) >= MAX_COLUMNS:
                break
            pieces = read_cell(element)
            columns = min(max(1, _span(element, "colspan")), MAX_COLUMNS - len(line))
            down = _span(element, "rowspan") or len(rows)
            down = min(down, len(rows) - number)
            again = Cell(pieces, repeated=True)
            length = sum(len(p) for p in pieces if isinstance(p, str))
            whole_row = columns >= width and len(row) == 1
            for offset in range(columns):
                if offset == 0:
                    cell = Cell(pieces)
                elif whole_row or length > _REPEATED_LENGTH:
                    cell = Cell()
                else:
                    cell = again
                if down > 1:
                    reaching[len(line)] = (down - 1, again if offset == 0 else cell)
                line.append(cell)
        fill()
        lines.append(line)
        cells += len(line)
        if cells > MAX_CELLS:
            break
    return lines


def _header_depth(rows: list[list[Element]]) -> int:
    """How many leading rows are one header: rows of header cells only, while spans of the first reach over them."""
    depth = 0
    for row in rows[:3]:
        if not row or not all(_is_header(c) for c in row):
            break
        depth += 1
    spans = any(_span(c, "colspan") > 1 for c in rows[0]) and len(rows[0]) > 1
    return depth if depth > 1 and spans and depth < len(rows) else 1


def _joined(lines: list[list[Cell]]) -> list[Cell]:
    """Several header rows as one, each column saying what stands above it from top to bottom."""
    joined: list[Cell] = []
    for column in range(max(map(len, lines), default=0)):
        pieces: list[Piece] = []
        seen: list[list[Piece]] = []
        fresh = False
        for line in lines:
            cell = line[column] if column < len(line) else Cell()
            if cell.pieces and cell.pieces not in seen:
                seen.append(cell.pieces)
                pieces += [" ", *cell.pieces] if pieces else cell.pieces
                fresh = fresh or not cell.repeated
        joined.append(Cell(pieces, repeated=not fresh))
    return joined
