"""RSS, Atom, RDF and JSON feeds: one record for each entry, with its title, date, link and text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from trawl.extraction import composed
from trawl.types import Document

_ATOM = frozenset({"http://www.w3.org/2005/Atom", "http://purl.org/atom/ns#"})
_RSS = frozenset(
    {"", "http://purl.org/rss/1.0/", "http://my.netscape.com/rdf/simple/0.9/", "http://backend.userland.com/rss2"}
)
_CONTENT = "http://purl.org/rss/1.0/modules/content/"
_DC = "http://purl.org/dc/elements/1.1/"
_MEDIA = "http://search.yahoo.com/mrss/"
_ITUNES = "http://www.itunes.com/dtds/podcast-1.0.dtd"
_XML_BASE = "{http://www.w3.org/XML/1998/namespace}base"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a feed. `html` is safe to stand inside a page of ours."""

    title: str = ""
    link: str = ""
    date: str = ""
    author: str = ""
    categories: tuple[str, ...] = ()
    enclosure: str = ""
    html: str = ""


@dataclass(frozen=True, slots=True)
class Feed:
    title: str
    link: str
    description: str
    entries: Iterable[Entry]
    """Read as they are asked for."""


def is_feed(root: Any) -> bool:
    """Whether an XML root element (ElementTree or lxml) is that of a feed."""
    space, name = _name(root)
    if name == "rss" or (name == "feed" and (space in _ATOM or not space)):
        return True
    return name == "RDF" and any(_name(child)[1] in ("channel", "item") and _name(child)[0] in _RSS for child in root)


def is_json_feed(value: object) -> bool:
    """Whether parsed JSON is a JSON Feed (jsonfeed.org)."""
    return (
        isinstance(value, dict)
        and "jsonfeed.org" in str(value.get("version", ""))
        and isinstance(value.get("items"), list)
    )


def feed_document(root: Any, *, body: bytes, url: str = "", warnings: Iterable[str] = ()) -> Document:
    """An RSS, Atom or RDF feed as a Document.

    Args:
        root: the parsed root element.
        body: what was parsed, for the document's id.
    """
    feed = _read_atom(root, url) if _name(root)[1] == "feed" else _read_rss(root, url)
    kind = {"feed": "application/atom+xml", "RDF": "application/rdf+xml"}.get(_name(root)[1], "application/rss+xml")
    return _document(feed, body=body, url=url, content_type=kind, warnings=list(warnings))


def json_feed_document(value: dict[str, Any], *, body: bytes, url: str = "", warnings: Iterable[str] = ()) -> Document:
    """A parsed JSON Feed as a Document."""
    home = _string(value.get("home_page_url")) or url
    entries = (_json_entry(item, home) for item in value["items"] if isinstance(item, dict))
    feed = Feed(composed.plain(_string(value.get("title"))), home, _string(value.get("description")), entries)
    return _document(feed, body=body, url=url, content_type="application/feed+json", warnings=list(warnings))


def _document(feed: Feed, *, body: bytes, url: str, content_type: str, warnings: list[str]) -> Document:
    page = [f"<h1>{composed.text(feed.title)}</h1>"] if feed.title else []
    if feed.description and feed.description != feed.title:
        page.append(composed.lines(composed.plain(feed.description)))
    size = 0
    for number, entry in enumerate(feed.entries, 1):
        written = _write(entry, number)
        size += len(written)
        if size > composed.MAX_HTML:
            warnings.append(f"the feed is too large to show whole; it ends after {number - 1} entries")
            break
        page.append(written)
    return composed.compose(
        "".join(page), body=body, url=url, title=feed.title, content_type=content_type, warnings=warnings,
        metadata={"url": feed.link} if feed.link else None,
    )  # fmt: skip


def _write(entry: Entry, number: int) -> str:
    title = composed.text(entry.title or entry.date or f"Entry {number}")
    link = f'<a href="{composed.text(entry.link)}">{title}</a>' if entry.link else title
    facts = [composed.text(fact) for fact in (entry.date, entry.author) if fact and fact != entry.title]
    facts += [composed.text(", ".join(entry.categories))] if entry.categories else []
    if entry.enclosure:
        facts.append(
            f'<a href="{composed.text(entry.enclosure)}">{composed.text(entry.enclosure.rsplit("/", 1)[-1][:80])}</a>'
        )
    about = f"<p>{'<br>'.join(facts)}</p>" if facts else ""
    return f'<article {composed.RECORD}="entry-{number}"><h2>{link}</h2>{about}<div>{entry.html}</div></article>'


# RSS 0.9x, 1.0 (RDF), 2.0


def _read_rss(root: Any, url: str) -> Feed:
    channel = next((c for c in root if _name(c)[1] == "channel"), root)
    base = _base(channel, _base(root, url))
    # RSS 1.0 puts the items beside the channel.
    items = [
        c for holder in ([channel] if channel is root else [channel, root]) for c in holder if _name(c)[1] == "item"
    ]
    link = _text(channel, _RSS, "link")
    feed_base = _join(base, link) if link else base
    return Feed(
        title=composed.plain(_text(channel, _RSS, "title")),
        link=feed_base,
        description=_text(channel, _RSS, "description"),
        entries=(_rss_entry(item, feed_base) for item in items),
    )


def _rss_entry(item: Any, feed_base: str) -> Entry:
    link = _text(item, _RSS, "link") or _atom_link(item) or _permalink(item)
    link = _join(feed_base, link) if link else ""
    base = _base(item, link or feed_base)
    bodies = [
        _rss_html(_text(item, {_CONTENT}, "encoded"), base),
        _rss_html(_text(item, _RSS, "description"), base),
        _xhtml_body(item, base),
    ]
    if not any(bodies):
        bodies = [_rss_html(_text(item, {_ITUNES}, "summary"), base), _media_description(item)]
    enclosure = next((c.get("url") or "" for c in item if _name(c) in (("", "enclosure"),)), "")
    return Entry(
        title=composed.plain(_text(item, _RSS, "title") or _text(item, {_DC}, "title")),
        link=link,
        date=_text(item, _RSS, "pubDate") or _text(item, {_DC}, "date"),
        author=composed.plain(
            _text(item, {_DC}, "creator") or _text(item, {_ITUNES}, "author") or _text(item, _RSS, "author")
        ),
        categories=_categories(_content(c) for c in item if _name(c) in (("", "category"), (_DC, "subject"))),
        enclosure=_join(base, enclosure) if enclosure else "",
        html=max(bodies, key=len),
    )


def _rss_html(value: str, base: str) -> str:
    """RSS never says whether a text is HTML: it is when it has tags or entities."""
    if not value:
        return ""
    if composed.has_markup(value) or re.search(r"&(?:#\d+|#x[0-9a-f]+|[a-z]{2,8});", value, re.I):
        return composed.fragment(value, base, heading_floor=3)
    return composed.lines(value)


def _permalink(item: Any) -> str:
    guid = next((c for c in item if _name(c) == ("", "guid")), None)
    if guid is None or (guid.get("isPermaLink") or "true").lower() == "false":
        return ""
    value = _content(guid)
    return value if value.startswith(("http://", "https://")) else ""


def _xhtml_body(item: Any, base: str) -> str:
    node = next((c for c in item if _name(c) == ("http://www.w3.org/1999/xhtml", "body")), None)
    return "" if node is None else composed.fragment(_serialized(node), base, heading_floor=3)


# Atom 1.0 and 0.3


def _read_atom(root: Any, url: str) -> Feed:
    base = _base(root, url)
    link = _atom_link(root)
    return Feed(
        title=_atom_plain(root, "title"),
        link=_join(base, link) if link else base,
        description=_atom_plain(root, "subtitle") or _atom_plain(root, "tagline"),
        entries=(_atom_entry(child, base) for child in root if _name(child)[1] == "entry"),
    )


def _atom_entry(entry: Any, feed_base: str) -> Entry:
    base = _base(entry, feed_base)
    link = _atom_link(entry)
    link = _join(base, link) if link else ""
    bodies = [_atom_html(entry, "content", base, link), _atom_html(entry, "summary", base, link)]
    if not any(bodies):
        bodies = [_media_description(entry)]
    author = next((c for c in entry if _name(c)[1] == "author"), None)
    return Entry(
        title=_atom_plain(entry, "title"),
        link=link,
        date=next((d for n in ("published", "issued", "updated", "modified") if (d := _atom_text(entry, n))), ""),
        author="" if author is None else composed.plain(_atom_text(author, "name")),
        categories=_categories(
            c.get("label") or c.get("term") or "" for c in entry if _name(c)[1] == "category" and _is_atom(c)
        ),
        html=max(bodies, key=len),
    )


def _atom_html(entry: Any, name: str, base: str, link: str) -> str:
    best = ""
    for node in entry:
        if _name(node)[1] != name or not _is_atom(node):
            continue
        kind = (node.get("type") or "text").lower()
        mode = (node.get("mode") or "").lower()
        # Without xml:base, relative links are relative to the page the entry came from.
        around = _base(node, base if base != "" and _has_base(entry, node) else link or base)
        if len(node) and (kind in ("xhtml", "application/xhtml+xml") or mode == "xml" or kind == "text/html"):
            value = composed.fragment(_serialized(node), around, heading_floor=3)
        elif (
            kind in ("html", "text/html", "application/xhtml+xml")
            or mode == "escaped"
            or composed.has_markup(_content(node))
        ):
            value = composed.fragment(_content(node), around, heading_floor=3)
        else:
            value = composed.lines(_content(node))
        best = max(best, value, key=len)
    return best


def _atom_plain(parent: Any, name: str) -> str:
    node = next((c for c in parent if _name(c)[1] == name and _is_atom(c)), None)
    if node is None:
        return ""
    value = "".join(node.itertext()) if len(node) else node.text or ""
    if "html" in (node.get("type") or "").lower() and not len(node):
        return composed.plain(value)
    return " ".join(value.split())


def _atom_text(parent: Any, name: str) -> str:
    return next((_content(c) for c in parent if _name(c)[1] == name and _is_atom(c)), "")


def _atom_link(parent: Any) -> str:
    links = [c for c in parent if _name(c)[1] == "link" and c.get("href")]
    ranked = sorted(
        links, key=lambda c: ((c.get("rel") or "alternate") != "alternate", "html" not in (c.get("type") or "html"))
    )
    return (
        (ranked[0].get("href") or "").strip() if ranked and (ranked[0].get("rel") or "alternate") == "alternate" else ""
    )


def _is_atom(node: Any) -> bool:
    space = _name(node)[0]
    return space in _ATOM or not space


def _has_base(*nodes: Any) -> bool:
    return any(n.get(_XML_BASE) for n in nodes)


# JSON Feed


def _json_entry(item: dict[str, Any], home: str) -> Entry:
    link = _string(item.get("url")) or _string(item.get("external_url"))
    link = _join(home, link) if link else ""
    html = _string(item.get("content_html"))
    authors = item.get("authors") if isinstance(item.get("authors"), list) else [item.get("author")]
    tags = item.get("tags")
    return Entry(
        title=composed.plain(_string(item.get("title"))),
        link=link,
        date=_string(item.get("date_published")) or _string(item.get("date_modified")),
        author=", ".join(_string(a.get("name")) for a in authors or [] if isinstance(a, dict) and a.get("name")),
        categories=_categories(_string(t) for t in tags) if isinstance(tags, list) else (),
        html=composed.fragment(html, link or home, heading_floor=3)
        if html
        else composed.lines(_string(item.get("content_text")) or _string(item.get("summary"))),
    )


# What all of them need


def _string(value: object) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""


def _name(node: Any) -> tuple[str, str]:
    """(namespace, local name) of an element; comments and processing instructions have neither."""
    tag = node.tag
    if not isinstance(tag, str):
        return "", ""
    space, brace, name = tag.rpartition("}")
    return (space[1:], name) if brace else ("", tag)


def _text(parent: Any, spaces: Iterable[str], name: str) -> str:
    for node in parent:
        space, local = _name(node)
        if local == name and space in spaces and (value := _content(node)):
            return value
    return ""


def _content(node: Any) -> str:
    return "".join(node.itertext()).strip()


def _serialized(node: Any) -> str:
    """What stands inside an element, as HTML; namespaces dropped. Iterative: nesting is the sender's choice."""
    out: list[str] = [composed.text(node.text or "")]
    stack: list[tuple[Iterator[Any], str]] = [(iter(node), "")]
    while stack:
        children, closing = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            out.append(closing)
            continue
        name = _name(child)[1]
        tail = composed.text(child.tail or "")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", name):
            out.append(tail)
            continue
        attributes = "".join(
            f' {key}="{composed.text(child.get(key) or "")}"'
            for key in ("href", "src", "alt", "title")
            if child.get(key)
        )
        out += [f"<{name}{attributes}>", composed.text(child.text or "")]
        void = name.lower() in ("br", "img", "hr", "wbr", "input", "col")
        stack.append((iter(child), tail if void else f"</{name}>{tail}"))
    return "".join(out)


def _base(node: Any, around: str) -> str:
    return _join(around, node.get(_XML_BASE) or "")


def _join(base: str, address: str) -> str:
    """`address` made absolute; one that does not parse changes nothing."""
    try:
        return urljoin(base, address.strip())
    except ValueError:
        return base


def _media_description(node: Any) -> str:
    found = next((d for d in node.iter(f"{{{_MEDIA}}}description") if d.text), None)
    return composed.lines(found.text or "") if found is not None else ""


def _categories(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(composed.plain(n) for n in names if n.strip()))[:8]
