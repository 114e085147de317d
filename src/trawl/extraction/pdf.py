"""PDF to a Document, by PyMuPDF. Runs in a child process (`isolated`): MuPDF is C and PDFs come from anywhere."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from trawl.errors import ExtractionError
from trawl.extraction.identity import document_id
from trawl.types import Block, BlockKind, Document, Link

EXTRACTOR_VERSION = "pdf-1"
"""Changes whenever the same bytes may give another document."""
MAX_PAGES = 500
MAX_CHARS = 3_000_000
MAX_LINKS = 2_000
HEADING_RATIO = 1.12
"""How much larger than the body text a heading is set; bold lines of the body's own size count too."""
HEADING_CHARS = 160

_HYPHEN = re.compile(r"(\w{2,})[-\u2010\u00ad]$")
_BULLET = re.compile(r"^(?:[•‣◦▪●○■□–—∙·\uf0b7\uf0a7*-]|\(?(?:\d{1,2}|[a-z]|[ivx]{1,4})[.)])\s+(?=\S)")
_CJK = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_NO_LETTERS = re.compile(r"[\ufffd\ue000-\uf8ff]")
_USELESS_TITLE = re.compile(
    r"untitled.*|microsoft (?:word|powerpoint|excel) ?-?.*|powerpoint presentation|title|\W*"
    r"|.*\.(?:docx?|pdf|tex|dvi|indd|qxd|pptx?|xlsx?|exe|txt|html?)",
    re.I,
)
_PDF_DATE = re.compile(r"D:(\d{4})(\d{2})?(\d{2})?")
_BOLD = 1 << 4


@dataclass(slots=True)
class _Line:
    text: str
    size: float
    bold: bool
    top: float
    bottom: float
    left: float


@dataclass(slots=True)
class _Piece:
    """A block before it is written."""

    kind: BlockKind
    text: str
    page: int
    level: int = 0


@dataclass(slots=True)
class _Reading:
    """What was read so far."""

    pages: list[list[list[_Line]]] = field(default_factory=list)
    links: list[tuple[int, str, str]] = field(default_factory=list)
    """(page, URL, text under it)."""
    chars: int = 0
    pictures: int = 0
    warnings: list[str] = field(default_factory=list)


def pdf_document(body: bytes, *, url: str = "", seconds: float | None = None) -> Document:
    """The text of a PDF: blocks in the order the file gives them, with page numbers from 1.

    Headings are guessed from the size and weight of the type, words broken at line ends are joined.

    Args:
        seconds: when they are over the pages read so far are returned, with a warning; None: no limit.

    Raises:
        ExtractionError: not a PDF, broken beyond repair, needs a password, or has no text in it.
    """
    import pymupdf

    mupdf: Any = pymupdf
    mupdf.TOOLS.mupdf_display_errors(False)
    mupdf.TOOLS.mupdf_display_warnings(False)
    try:
        pdf = mupdf.open(stream=body, filetype="pdf")
    except Exception as error:
        raise ExtractionError(f"this PDF cannot be opened: {_one_line(error)}", url=url) from error
    with pdf:
        if pdf.needs_pass:
            raise ExtractionError("this PDF is encrypted and needs a password", url=url, hint="Save it without one.")
        reading = _read(pdf, seconds)
        details = dict(pdf.metadata or {})
        count = pdf.page_count
    if not any(line.text.strip() for page in reading.pages for block in page for line in block):
        _no_text(count, reading, url)
    pieces = list(_pieces(reading))
    return _write(pieces, reading, details, body=body, url=url, count=count)


def _no_text(count: int, reading: _Reading, url: str) -> None:
    if count == 0:
        raise ExtractionError("this PDF has no pages, or they cannot be read", url=url)
    if reading.pictures:
        raise ExtractionError(
            f"this PDF has no text layer: its {count} page{'s are pictures' if count > 1 else ' is a picture'}",
            url=url,
            hint="It must go through text recognition (OCR) first.",
        )
    raise ExtractionError(f"this PDF has no text on its {count} page{'s' if count > 1 else ''}", url=url)


def _read(pdf: Any, seconds: float | None) -> _Reading:
    import pymupdf

    # Ligatures are taken apart and pictures left out; text outside the page's box is not what a reader sees.
    flags = pymupdf.TEXT_PRESERVE_WHITESPACE | pymupdf.TEXT_MEDIABOX_CLIP
    reading = _Reading()
    until = time.monotonic() + seconds if seconds is not None else None
    broken = 0
    for number in range(min(pdf.page_count, MAX_PAGES)):
        if until is not None and time.monotonic() > until:
            reading.warnings.append(f"time was up after {number} of {pdf.page_count} pages")
            break
        try:
            page = pdf[number]
            content = page.get_text("dict", flags=flags)
            reading.pictures += len(page.get_images())
            links = page.get_links() if len(reading.links) < MAX_LINKS else []
            reading.links += [
                (number + 1, link["uri"], _squeeze(page.get_textbox(link["from"])))
                for link in links
                if str(link.get("uri") or "").startswith(("http://", "https://"))
            ]
        except Exception:
            # MuPDF raises its own and plain errors alike on damaged pages; the other pages may be whole.
            broken += 1
            reading.pages.append([])
            continue
        blocks = [_lines(block) for block in content["blocks"] if block.get("type") == 0]
        reading.pages.append([b for b in blocks if b])
        reading.chars += sum(len(line.text) for b in blocks for line in b)
        if reading.chars > MAX_CHARS:
            reading.warnings.append(f"the PDF is too long; what is after page {number + 1} was not read")
            break
    else:
        if pdf.page_count > MAX_PAGES:
            reading.warnings.append(f"only the first {MAX_PAGES} of {pdf.page_count} pages were read")
    if broken:
        reading.warnings.append(f"{broken} of {pdf.page_count} pages are damaged and were left out")
    return reading


def _lines(block: dict[str, Any]) -> list[_Line]:
    """The lines of a text block; pieces of one line that stand side by side become one, as cells of a row."""
    lines: list[_Line] = []
    for raw in block["lines"]:
        spans = raw["spans"]
        text = "".join(s["text"] for s in spans).replace("\x00", "")
        if not text.strip():
            continue
        weights = Counter[tuple[float, bool]]()
        for span in spans:
            bold = bool(span["flags"] & _BOLD) or "bold" in span["font"].lower() or "black" in span["font"].lower()
            weights[round(span["size"] * 2) / 2, bold] += len(span["text"].strip())
        (size, bold), _ = weights.most_common(1)[0]
        left, top, _, bottom = raw["bbox"]
        previous = lines[-1] if lines else None
        middle = (top + bottom) / 2
        if previous and previous.top < middle < previous.bottom and left > previous.left:
            previous.text = f"{previous.text.rstrip()}  {text.strip()}"
            previous.bold = previous.bold and bold
            continue
        lines.append(_Line(text.rstrip(), size, bold, top, bottom, left))
    return lines


def _pieces(reading: _Reading) -> Iterator[_Piece]:
    sizes = Counter[float]()
    for page in reading.pages:
        for block in page:
            for line in block:
                sizes[line.size] += len(line.text)
    body = sizes.most_common(1)[0][0]
    larger = sorted({s for s, _ in sizes.items() if s >= body * HEADING_RATIO}, reverse=True)
    levels = {size: min(rank, 4) for rank, size in enumerate(larger[:12], 1)}
    kept_hyphens = {
        word.lower()
        for page in reading.pages
        for block in page
        for line in block
        for word in re.findall(r"\w+-\w+", line.text)
    }
    lowest = min(len(set(levels.values())) + 1, 5)
    for number, page in enumerate(reading.pages, 1):
        for block in page:
            yield from _of_block(block, number, body, levels, lowest, kept_hyphens)


def _of_block(
    block: list[_Line], page: int, body: float, levels: dict[float, int], lowest: int, kept: set[str]
) -> Iterator[_Piece]:
    run: list[_Line] = []
    heading: list[_Line] = []

    def close() -> Iterator[_Piece]:
        if heading:
            text = _joined(heading, kept)
            level = levels.get(heading[0].size, lowest)
            yield _Piece("heading", text, page, level) if _is_title_like(text) else _Piece("paragraph", text, page)
            heading.clear()
        if run:
            yield from _of_run(run, page, kept)
            run.clear()

    for position, line in enumerate(block):
        big = line.size in levels
        # A bold line above other text, or alone, heads it; bold words inside a paragraph do not.
        alone = (
            line.bold
            and (position == 0 or bool(heading))
            and line.size >= body
            and not line.text.rstrip().endswith((".", ",", ";"))
        )
        if (big or alone) and "  " not in line.text.strip():
            if heading and (heading[-1].size != line.size or heading[-1].bold != line.bold):
                yield from close()
            if run:
                yield from close()
            heading.append(line)
            continue
        if heading:
            yield from close()
        run.append(line)
    yield from close()


def _of_run(lines: list[_Line], page: int, kept: set[str]) -> Iterator[_Piece]:
    """Lines of ordinary text: rows of cells stay lines, list items are told apart, the rest is one paragraph."""
    rows = sum("  " in line.text.strip() for line in lines)
    if rows >= 2 and rows >= len(lines) / 2:
        yield _Piece("paragraph", "\n".join(_cells(line.text) for line in lines), page)
        return
    group: list[_Line] = []
    for line in lines:
        if _BULLET.match(line.text.strip()) and group:
            yield _paragraph(group, page, kept)
            group = []
        group.append(line)
    if group:
        yield _paragraph(group, page, kept)


def _paragraph(lines: list[_Line], page: int, kept: set[str]) -> _Piece:
    text = _joined(lines, kept)
    bullet = _BULLET.match(text)
    if bullet and len(text) > bullet.end():
        return _Piece("list", text, page, 1)
    return _Piece("paragraph", text, page)


def _joined(lines: list[_Line], kept: set[str]) -> str:
    """Lines of one paragraph as running text; words broken at a line's end are made whole."""
    out = ""
    for line in lines:
        text = " ".join(line.text.split())
        if not out:
            out = text
            continue
        broken = _HYPHEN.search(out)
        if broken and text[:1].islower():
            following = re.match(r"\w*", text)
            whole = f"{broken[1]}-{following[0] if following else ''}".lower()
            out = out + text if whole in kept else out[:-1] + text
        elif _CJK.match(out[-1]) and _CJK.match(text[:1]):
            out += text
        else:
            out = f"{out} {text}"
    return out.replace("\u00ad", "")


def _cells(text: str) -> str:
    return "  ".join(cell.strip() for cell in re.split(r" {2,}", text.strip()))


def _is_title_like(text: str) -> bool:
    return 1 < len(text) <= HEADING_CHARS and any(c.isalpha() for c in text)


def _write(
    pieces: list[_Piece], reading: _Reading, details: dict[str, Any], *, body: bytes, url: str, count: int
) -> Document:
    out: list[str] = []
    blocks: list[Block] = []
    starts: dict[int, int] = {}
    length = 0
    for piece in pieces:
        words = _NO_LETTERS.sub("\ufffd", piece.text.encode("utf-8", "replace").decode())
        marker = ""
        if piece.kind == "heading":
            marker = "#" * piece.level + " "
        elif piece.kind == "list":
            bullet = _BULLET.match(words)
            written = bullet[0].strip() if bullet else ""
            marker = "- " if not any(c.isalnum() for c in written) else f"{written} "
            words = words[bullet.end() :] if bullet else words
        separator = "" if not blocks else "\n" if piece.kind == "list" and blocks[-1].kind == "list" else "\n\n"
        start = length + len(separator)
        length = start + len(marker) + len(words)
        out += [separator, marker, words]
        starts.setdefault(piece.page, start)
        blocks.append(Block(piece.kind, start, length, words, level=piece.level, page=piece.page))
    source = "".join(out)
    warnings = list(reading.warnings)
    if reading.chars and len(_NO_LETTERS.findall(source)) > 0.1 * len(source):
        warnings.append("fonts of this PDF do not say which letters they show: part of the text is unreadable")
    title = _title(details, pieces)
    metadata: dict[str, Any] = {"pages": count}
    if title:
        metadata["title"] = title
    if author := _squeeze(details.get("author") or ""):
        metadata["author"] = author
    if date := _PDF_DATE.match(details.get("creationDate") or ""):
        metadata["date"] = "-".join(part for part in date.groups() if part)
    return Document(
        source=source,
        blocks=tuple(blocks),
        url=url,
        title=title,
        content_type="application/pdf",
        metadata=metadata,
        links=tuple(_links(source, reading, starts)),
        document_id=document_id(body, EXTRACTOR_VERSION),
        warnings=tuple(warnings),
    )


def _links(source: str, reading: _Reading, starts: dict[int, int]) -> Iterator[Link]:
    reached: dict[int, int] = {}
    for page, address, text in reading.links:
        try:
            if not urlsplit(address).netloc or len(address) > 4_096:
                continue
        except ValueError:
            continue
        begin = starts.get(page, 0)
        found = source.find(text, reached.get(page, begin)) if text else -1
        if found < 0:
            yield Link(begin, begin, address, "")
        else:
            reached[page] = found + len(text)
            yield Link(found, found + len(text), address, text)


def _title(details: dict[str, Any], pieces: list[_Piece]) -> str:
    given = _squeeze(details.get("title") or "")
    if given and not _USELESS_TITLE.fullmatch(given):
        return given[:300]
    first = [p for p in pieces[:12] if p.kind == "heading" and p.page == 1]
    return min(first, key=lambda p: p.level).text if first else ""


def _squeeze(text: str) -> str:
    return " ".join(str(text).replace("\x00", "").split())


def _one_line(error: Exception) -> str:
    return _squeeze(str(error))[:200] or type(error).__name__
