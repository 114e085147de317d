"""Media types: which reader each belongs to, and what a body is by its first bytes. Pure.

A declared type holds unless the bytes cannot be it: a PDF sent as an attachment, JSON sent as HTML, a picture sent as
text. The order and the signatures follow the WHATWG MIME Sniffing standard; JSON, feeds and Office files are added.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal["html", "pdf", "json", "xml", "feed", "text", "binary"]

_SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBPVP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"AVI ", 8, "video/avi"),
    (b"II*\x00", 0, "image/tiff"),
    (b"MM\x00*", 0, "image/tiff"),
    (b"\x00\x00\x01\x00", 0, "image/x-icon"),
    (b"ftyp", 4, "video/mp4"),
    (b"\x1aE\xdf\xa3", 0, "video/webm"),
    (b"OggS\x00", 0, "application/ogg"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"fLaC", 0, "audio/flac"),
    (b"PK\x03\x04", 0, "application/zip"),
    (b"PK\x05\x06", 0, "application/zip"),
    (b"\x1f\x8b\x08", 0, "application/gzip"),
    (b"BZh", 0, "application/x-bzip2"),
    (b"\xfd7zXZ\x00", 0, "application/x-xz"),
    (b"(\xb5/\xfd", 0, "application/zstd"),
    (b"7z\xbc\xaf\x27\x1c", 0, "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", 0, "application/vnd.rar"),
    (b"ustar", 257, "application/x-tar"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 0, "application/x-ole-storage"),
    (b"\x7fELF", 0, "application/x-executable"),
    (b"MZ\x90\x00", 0, "application/x-msdownload"),
    (b"\x00asm", 0, "application/wasm"),
    (b"\xca\xfe\xba\xbe", 0, "application/java-vm"),
    (b"wOFF", 0, "font/woff"),
    (b"wOF2", 0, "font/woff2"),
    (b"SQLite format 3\x00", 0, "application/vnd.sqlite3"),
    (b"%!PS-Adobe-", 0, "application/postscript"),
)
_OFFICE = (
    (b"word/", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    (b"xl/", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    (b"ppt/", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    (b"mimetypeapplication/epub+zip", "application/epub+zip"),
)
_HTML_START = re.compile(
    rb"<(?:!doctype html|html|head|body|script|iframe|h1|h2|div|font|table|a|style|title|b|br|p|meta|link|center|main"
    rb"|article|section|header|noscript|span|ul|form)[\s/>]",
    re.I,
)
_XML_PROLOGUE = re.compile(rb"(?:<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>|\s)+", re.I | re.S)
_ROOT = re.compile(rb"<([A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)([^>]{0,2000})")

MARKDOWN = frozenset({"text/markdown", "text/x-markdown"})
_UNTOLD = frozenset(
    {"", "application/octet-stream", "binary/octet-stream", "application/unknown", "unknown/unknown", "*/*"}
    | {"application/force-download", "application/download", "application/x-download", "text/plain"}
)
_JSON = frozenset({"application/json", "text/json", "application/x-json", "application/x-ndjson", "application/jsonl"})
_FEEDS = {b"rss": "application/rss+xml", b"feed": "application/atom+xml", b"RDF": "application/rdf+xml"}
_TEXT_APPLICATIONS = frozenset(
    f"application/{name}"
    for name in (
        *("javascript", "x-javascript", "ecmascript", "typescript", "x-sh", "x-shellscript", "sql", "toml", "yaml"),
        *("x-yaml", "x-python", "x-ruby", "x-perl", "x-php", "x-httpd-php", "graphql", "x-tex", "x-latex", "x-subrip"),
        *("x-bibtex", "x-research-info-systems", "mbox"),
    )
)
_BY_SUFFIX = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".json": "application/json",
    ".ipynb": "application/json",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
}
_PAGE_SUFFIXES = {
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "application/xhtml+xml",
    ".pdf": "application/pdf",
    ".xml": "application/xml",
    ".rss": "application/rss+xml",
    ".atom": "application/atom+xml",
    ".txt": "text/plain",
}
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:+-]{1,40})", re.I)


def kind_of(media_type: str) -> Kind:
    """Which reader a media type (lower case, no parameters) belongs to."""
    if media_type in ("text/html", "application/xhtml+xml"):
        return "html"
    if media_type in ("application/pdf", "application/x-pdf"):
        return "pdf"
    if media_type in ("application/rss+xml", "application/atom+xml", "application/rdf+xml", "application/feed+json"):
        return "feed"
    if media_type in _JSON or media_type.endswith("+json"):
        return "json"
    if media_type == "image/svg+xml":
        return "binary"
    if media_type in ("application/xml", "text/xml") or media_type.endswith("+xml"):
        return "xml"
    if media_type.startswith("text/") or media_type in _TEXT_APPLICATIONS:
        return "text"
    return "binary"


def media_type(content_type: str | None) -> tuple[str, str | None]:
    """(media type in lower case without parameters, charset as sent) of a Content-Type; empty when there is none."""
    told, _, parameters = (content_type or "").partition(";")
    charset = _CHARSET.search(parameters)
    return told.strip().lower(), charset[1] if charset else None


def type_of_name(name: str) -> str:
    """The media type a file's name stands for; empty when the bytes must tell."""
    suffix = PurePosixPath(name).suffix.lower()
    return _BY_SUFFIX.get(suffix) or _PAGE_SUFFIXES.get(suffix, "")


def sniff(told: str, body: bytes, url: str = "") -> str:
    """The media type of `body`, in lower case without parameters.

    Args:
        told: the media type the server gave; empty when it gave none.
        body: the whole body, or its beginning.
        url: its path's suffix decides between kinds of plain text.
    """
    head = body[:4096].lstrip(b"\xef\xbb\xbf \t\r\n\f")
    # Readers accept a PDF header within the first 1,024 bytes (ISO 32000, Annex H).
    if b"%PDF-" in (head[:8] if told and kind_of(told) != "pdf" and told not in _UNTOLD else body[:1024]):
        return "application/pdf"
    if binary := _signature(body):
        # A zip is also what Office and e-book types say they are.
        return told if binary == "application/zip" and told not in _UNTOLD and kind_of(told) == "binary" else binary
    if told in _UNTOLD:
        return _untold(told, head, body, url)
    kind = kind_of(told)
    if kind == "feed" and re.search(rb"<(?:rss|feed|rdf:RDF)[\s>]", head):
        return told
    if kind == "html" and head[:1] in b"{[" and _is_json(head, body):
        return "application/json"
    if (
        kind in ("html", "xml", "feed")
        and (root := _xml_type(head))
        and not (kind == "html" and root == "application/xml")
    ):
        return told if kind == kind_of(root) else root
    if kind in ("json", "xml", "feed") and _HTML_START.match(head):
        return "text/html"
    return told


def _untold(told: str, head: bytes, body: bytes, url: str) -> str:
    suffix = PurePosixPath(urlsplit(url).path).suffix.lower()
    if told != "text/plain" and _HTML_START.match(_without_comments(head)):
        return "text/html"
    if xml := _xml_type(head):
        return xml if told != "text/plain" or xml != "text/html" else told
    if head[:1] in (b"{", b"[") and _is_json(head, body):
        return "application/x-ndjson" if suffix in (".jsonl", ".ndjson") else "application/json"
    if _looks_binary(body):
        return "application/octet-stream"
    return _BY_SUFFIX.get(suffix, "text/plain") if suffix != ".json" else "text/plain"


def _signature(body: bytes) -> str | None:
    for magic, offset, name in _SIGNATURES:
        if body[offset : offset + len(magic)] == magic:
            if name == "application/zip":
                return next((office for mark, office in _OFFICE if mark in body[:4096]), name)
            return name
    return None


def _xml_type(head: bytes) -> str | None:
    """The XML type by the root element; `text/html` for XHTML; None when this is not XML for sure."""
    prologue = _XML_PROLOGUE.match(head)
    rest = head[prologue.end() :] if prologue else head
    root = _ROOT.match(rest)
    if root is None:
        return "application/xml" if head.startswith(b"<?xml") else None
    name = root[2]
    if name.lower() == b"html":
        return "text/html"
    if name in _FEEDS and (name != b"feed" or b"Atom" in root[3] or b"atom" in root[3]):
        # RDF is a feed only as RSS 1.0.
        if name != b"RDF" or b"purl.org/rss" in root[3] or b"netscape.com/rdf" in root[3]:
            return _FEEDS[name]
        return "application/xml"
    return "application/xml" if head.startswith(b"<?xml") else None


def _is_json(head: bytes, body: bytes) -> bool:
    """Whether `body` is JSON, or lines of JSON: parsed whole when small, judged by its first line otherwise."""
    if len(body) <= 1_000_000:
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            pass
        else:
            return True
    lines = head.split(b"\n", 2)
    if len(lines) > 1:
        try:
            return isinstance(json.loads(lines[0]), dict | list) and lines[1][:1] in (b"{", b"[", b"")
        except (ValueError, RecursionError):
            pass
    return len(body) > 1_000_000 and re.match(rb'(?:\{\s*"[^"\\]{0,200}"\s*:|\[\s*[{\["0-9tfn])', head) is not None


def _without_comments(head: bytes) -> bytes:
    return re.sub(rb"\A(?:\s*<!--.*?-->)+\s*", b"", head, flags=re.S)


def _looks_binary(body: bytes) -> bool:
    """Control characters that no text holds (the standard's binary data bytes), unless UTF-16 explains them."""
    head = body[:1445]
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return False
    return any(b <= 0x08 or b == 0x0B or 0x0E <= b <= 0x1A or 0x1C <= b <= 0x1F for b in head)
