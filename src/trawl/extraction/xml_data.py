"""XML as a Document, written like JSON in `json_data.py`; what does not parse is shown as its text."""

from __future__ import annotations

import re
from typing import Any

from trawl.extraction import composed, feeds
from trawl.extraction.composed import MAX_DEPTH, SHORT
from trawl.extraction.plain_text import text_document
from trawl.types import Document

_DOCTYPE = re.compile(r"<!DOCTYPE[^\[>]*+(?:\[(?:[^\]\"']|\"[^\"]*+\"|'[^']*+')*+\]\s*+)?>", re.I)


def xml_document(text: str, *, url: str = "") -> Document:
    """XML as a Document. A feed is read as a feed.

    Entities are never expanded. XML that is broken or cut off is read as far as it goes, with a warning; what gives
    no element at all is shown as text, with a warning.
    """
    body = text.encode("utf-8", "surrogatepass")
    root, warnings = _parse_xml(text)
    if root is None:
        return text_document(text, url=url, warnings=warnings)
    if feeds.is_feed(root):
        return feeds.feed_document(root, body=body, url=url, warnings=warnings)
    page = _XmlPage()
    title = page.write(root)
    return composed.compose(
        "".join(page.parts),
        body=body,
        url=url,
        title=title,
        content_type="application/xml",
        warnings=warnings + page.warnings,
    )


def _parse_xml(text: str) -> tuple[Any, list[str]]:
    """(root element, warnings); the root is None when there is no XML to speak of."""
    from xml.etree.ElementTree import ParseError

    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    text = text.lstrip("\ufeff \t\r\n")
    try:
        return fromstring(text), []
    except DefusedXmlException:
        warnings = ["the XML declares entities, which were not expanded"]
    except (ParseError, ValueError, LookupError):
        warnings = ["the XML is broken or ends early; it was read as far as it goes"]
    root = _recover(text)
    return (root, warnings) if root is not None else (None, ["this is not valid XML; it is shown as text"])


def _recover(text: str) -> Any:
    from lxml import etree

    # Without its document type there is no entity left to expand, inside or outside.
    start = text[:10_000].upper().find("<!DOCTYPE")
    if start >= 0 and (doctype := _DOCTYPE.match(text, start)):
        text = text[:start] + text[doctype.end() :]
    text = re.sub(r"\A<\?xml[^>]*\?>", "", text)
    if re.search(r"<!(?:DOCTYPE|ENTITY)", text[:10_000], re.I):
        return None
    parser = etree.XMLParser(
        recover=True,
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        huge_tree=False,
        remove_pis=True,
        remove_comments=True,
    )
    try:
        root = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    return root if root is not None and (len(root) or (root.text or "").strip()) else None


class _XmlPage:
    """Writes an XML tree as a small HTML page: leaves as `name: text`, repeated elements as records."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.warnings: list[str] = []
        self._size = 0
        self._records = 0
        self._lines: list[str] = []

    def write(self, root: Any) -> str:
        """Write the whole tree; returns the document's title."""
        title = _xml_title(root)
        if title:
            self._add(f"<h1>{composed.text(title)}</h1>")
        self._children(root, level=2, depth=0)
        self._flush()
        return title

    def _is_full(self) -> bool:
        if self._size <= composed.MAX_HTML:
            return False
        if not self.warnings:
            self.warnings.append("the data is too large to show whole; its end was left out")
        return True

    def _add(self, html: str) -> None:
        self._size += len(html)
        self.parts.append(html)

    def _flush(self) -> None:
        if self._lines:
            self._add(f"<p>{'<br>'.join(composed.text(line) for line in self._lines)}</p>")
            self._lines = []

    def _children(self, node: Any, *, level: int, depth: int) -> None:
        names = [_local(child) for child in node]
        for name, child in zip(names, node, strict=True):
            if self._is_full():
                break
            if not name:
                continue
            if _is_leaf(child):
                self._leaf(name, child)
                continue
            self._flush()
            if depth >= MAX_DEPTH or _is_mixed(child):
                self._add(f"<p>{composed.text(_all_text(child))}</p>")
                continue
            repeated = names.count(name) > 1 if len(names) <= 50 else True
            self._records += repeated
            self._add(f'<section {composed.RECORD}="item-{self._records}">' if repeated else "<section>")
            title = _xml_title(child)
            heading = title or ("" if repeated else name)
            if heading:
                self._add(f"<h{min(level, 6)}>{composed.text(heading)}</h{min(level, 6)}>")
            self._lines.extend(_attributes(child))
            self._children(child, level=level + bool(heading), depth=depth + 1)
            self._flush()
            self._add("</section>")

    def _leaf(self, name: str, node: Any) -> None:
        value = _all_text(node)
        about = _attributes(node)
        if not value and not about:
            return
        if len(value) > SHORT or composed.has_markup(value):
            self._flush()
            html = (
                composed.fragment(value, "", heading_floor=3) if composed.has_markup(value) else composed.lines(value)
            )
            self._add(f"<div>{html}</div>")
        else:
            self._lines.append(f"{name}: {value}" if value else f"{name}: {', '.join(about)}")


def _xml_title(node: Any) -> str:
    for child in node:
        if _local(child).lower() in ("title", "name", "headline", "invention-title") and not len(child):
            value = _all_text(child)
            if 0 < len(value) <= 300:
                return value
    return ""


def _is_leaf(node: Any) -> bool:
    return len(node) == 0


def _is_mixed(node: Any) -> bool:
    """Running text with elements in it."""
    return bool((node.text or "").strip()) or any((child.tail or "").strip() for child in node)


def _all_text(node: Any) -> str:
    return " ".join("".join(t for t in node.itertext() if isinstance(t, str)).split())


def _attributes(node: Any) -> list[str]:
    return [f"{key.rpartition('}')[2]}: {value}" for key, value in node.attrib.items() if value.strip()]


def _local(node: Any) -> str:
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""
