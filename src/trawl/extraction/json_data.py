"""JSON as a Document: titles as headings, short values as `key: value` lines, strings that hold HTML as the text they
are, the objects of an array as records. What does not parse is shown as its text.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trawl.extraction import composed, feeds
from trawl.extraction.composed import MAX_DEPTH, SHORT
from trawl.extraction.plain_text import text_document
from trawl.types import Document

LONG_LINE = 20_000
MAX_NESTING = 200
_TITLE_KEYS = ("title", "headline", "full_name", "name", "display_name", "subject", "question", "label")
_BODY_KEYS = frozenset(
    {"body", "content", "text", "html", "cooked", "rendered", "description", "summary", "comment", "message", "excerpt"}
    | {"selftext", "abstract", "bio", "extract", "body_html", "content_html", "body_text", "selftext_html"}
)
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\],]', re.S)
_WRAPPED = re.compile(r"\s*(?:\)\]\}'?,?|while\s*\(1\);|for\s*\(;;\);)\s*|\s*(?:/\*\*/)?[\w$.]{1,80}\s*\((?=\s*[\[{])")


class _Number(str):
    """A number as it was written: `1240.00` stays `1240.00`, and no digit count is too large."""

    __slots__ = ()


def json_document(text: str, *, url: str = "") -> Document:
    """JSON, or lines of JSON, as a Document. A JSON Feed is read as a feed.

    JSON that was cut off is closed where its last complete value ends, with a warning; what does not parse at all is
    shown as text, with a warning.
    """
    body = text.encode("utf-8", "surrogatepass")
    value, warnings = _parse_json(text)
    if value is None:
        return text_document(text, url=url, warnings=warnings)
    if feeds.is_json_feed(value):
        return feeds.json_feed_document(value, body=body, url=url, warnings=warnings)
    page = _JsonPage(url)
    title = page.write(value)
    return composed.compose(
        "".join(page.parts),
        body=body,
        url=url,
        title=title,
        content_type="application/json",
        warnings=warnings + page.warnings,
    )


def _parse_json(text: str) -> tuple[Any, list[str]]:
    """(value, warnings); value is None when this is no JSON."""
    stripped = text.strip().removeprefix("\ufeff")
    for candidate in (stripped, _unwrapped(stripped)):
        if candidate and (value := _loads(candidate)) is not None:
            return value, []
    rows = [line for line in stripped.splitlines() if line.strip()]
    if len(rows) > 1 and rows[0].lstrip()[:1] in ("{", "["):
        values = [_loads(row) for row in rows]
        good = [v for v in values if v is not None]
        if len(good) > 1 and len(good) >= len(values) - max(1, len(values) // 10):
            lost = len(values) - len(good)
            return good, [f"{lost} of {len(values)} lines are not JSON and were left out"] if lost else []
    if (closed := _closed(stripped)) and (value := _loads(closed)) is not None:
        return value, ["the JSON ends early; what is there was read"]
    return None, ["this is not valid JSON; it is shown as text"]


def _loads(text: str) -> Any:
    try:
        value = json.loads(text, parse_int=_Number, parse_float=_Number)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def _unwrapped(text: str) -> str:
    """Without the prefix against script inclusion, or the call around JSONP."""
    match = _WRAPPED.match(text)
    if match is None:
        return ""
    inner = text[match.end() :]
    return inner.rstrip().rstrip(";").rstrip().removesuffix(")") if "(" in match[0] and "(;;" not in match[0] else inner


def _closed(text: str) -> str:
    """`text` closed where it was cut off, after its last complete value if need be; empty when that cannot be done."""
    if text[:1] not in ("{", "["):
        return ""
    stack: list[str] = []
    cut, open_then = 0, ""
    for match in _JSON_TOKEN.finditer(text):
        mark = match[0]
        if mark[0] == '"' and match.end() == len(text) and text[: match.start()].rstrip()[-1:] in (":", "[", ","):
            # Cut inside a string: what there is of it may be the best part of the answer.
            whole = re.sub(r"\\(?:u[0-9a-fA-F]{0,3})?\Z", "", text) + '"' + "".join(reversed(stack))
            if mark[-1:] != '"' and _loads(whole) is not None:
                return whole
        if mark in ("{", "["):
            stack.append("}" if mark == "{" else "]")
            if len(stack) > MAX_NESTING:
                return ""
        elif mark in ("}", "]"):
            if not stack or stack.pop() != mark:
                return ""
            cut, open_then = match.end(), "".join(stack)
        elif mark == ",":
            cut, open_then = match.start(), "".join(stack)
    return text[:cut] + open_then[::-1] if cut else ""


class _JsonPage:
    """Writes a JSON value as a small HTML page."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.parts: list[str] = []
        self.warnings: list[str] = []
        self._size = 0
        self._records = 0

    def write(self, value: Any) -> str:
        """Write the whole value; returns the document's title."""
        title = ""
        if isinstance(value, dict):
            title, key = _title_of(value)
            if title:
                self._add(f"<h1>{composed.text(title)}</h1>")
            self._object(value, level=2, depth=0, without=key)
        else:
            self._array("", value, level=2, depth=0)
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

    def _object(self, value: dict[str, Any], *, level: int, depth: int, without: str = "") -> None:
        lines: list[str] = []
        for key, member in value.items():
            if self._is_full():
                return
            if key == without or member in ("", [], {}):
                continue
            line = _line(key, member)
            if line is not None:
                lines.append(line)
                continue
            self._lines(lines)
            lines = []
            self._member(key, member, level=level, depth=depth)
        self._lines(lines)

    def _lines(self, lines: list[str]) -> None:
        if lines:
            self._add(f"<p>{'<br>'.join(composed.text(line) for line in lines)}</p>")

    def _member(self, key: str, member: Any, *, level: int, depth: int) -> None:
        if isinstance(member, str):
            if key.lower() not in _BODY_KEYS:
                self._add(f"<p>{composed.text(key)}:</p>")
            member = composed.unescaped(member)
            if composed.has_markup(member):
                self._add(f"<div>{composed.fragment(member, self.url, heading_floor=level)}</div>")
            else:
                self._add(composed.lines(member))
        elif depth >= MAX_DEPTH:
            self._add(f"<p>{composed.text(_compact(member))}</p>")
        elif isinstance(member, dict):
            title, title_key = _title_of(member)
            label = f"{key}: {title}" if title else key
            self._add(f"<h{min(level, 6)}>{composed.text(label)}</h{min(level, 6)}>")
            self._object(member, level=level + 1, depth=depth + 1, without=title_key)
        else:
            self._array(key, member, level=level, depth=depth)

    def _array(self, key: str, members: list[Any], *, level: int, depth: int) -> None:
        if key:
            self._add(f"<h{min(level, 6)}>{composed.text(key)}</h{min(level, 6)}>")
            level += 1
        are_records = _widest(members, MAX_DEPTH) <= len(members)
        for member in members:
            if self._is_full():
                return
            self._records += 1
            mark = f' {composed.RECORD}="item-{self._records}"' if are_records else ""
            self._add(f"<section{mark}>")
            if isinstance(member, dict):
                title, title_key = _title_of(member)
                if title:
                    self._add(f"<h{min(level, 6)}>{composed.text(title)}</h{min(level, 6)}>")
                self._object(member, level=level + 1, depth=depth + 1, without=title_key)
            elif isinstance(member, list):
                if (line := _line("", member)) is not None:
                    self._lines([line])
                elif depth >= MAX_DEPTH:
                    self._add(f"<p>{composed.text(_compact(member))}</p>")
                else:
                    self._array("", member, level=level, depth=depth + 1)
            elif isinstance(member, str) and not isinstance(member, _Number):
                self._member("text", member, level=level, depth=depth)
            else:
                self._lines([_scalar(member) or ""])
            self._add("</section>")


def _title_of(value: dict[str, Any]) -> tuple[str, str]:
    """(title, its key) of an object that has one."""
    for key in _TITLE_KEYS:
        for name in (key, key.capitalize()):
            found = value.get(name)
            if isinstance(found, dict):
                # WordPress: {"title": {"rendered": "…"}}.
                found = found.get("rendered") if set(found) <= {"rendered", "raw", "protected"} else None
            if isinstance(found, str) and not isinstance(found, _Number) and 0 < len(found) <= 300:
                return composed.plain(found), name
    return "", ""


def _line(key: str, member: Any) -> str | None:
    """`key: value` when the value is short enough for one line."""
    prefix = f"{key}: " if key else ""
    scalar = _scalar(member)
    if scalar is not None:
        return prefix + scalar
    if isinstance(member, list):
        items = [_scalar(item) for item in member]
        joined = ", ".join(item for item in items if item is not None)
        return prefix + joined if None not in items and len(joined) <= LONG_LINE else None
    if isinstance(member, dict) and len(member) <= 4:
        inner = {name: _scalar(value) for name, value in member.items()}
        if all(value is not None for value in inner.values()) and sum(map(len, filter(None, inner.values()))) <= SHORT:
            return prefix + ", ".join(f"{name} {value}" for name, value in inner.items())
    return None


def _scalar(value: Any) -> str | None:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str) and composed.unescaped(value) != value:
        return None
    if isinstance(value, str) and len(value) <= SHORT and "\n" not in value.strip() and not composed.has_markup(value):
        return value.strip()
    # Addresses and tokens are long, but a line all the same.
    if isinstance(value, str) and len(value) <= 2_000 and not any(c.isspace() for c in value) and "<" not in value:
        return value
    return None


def _widest(members: list[Any], depth: int) -> int:
    """The longest array of objects inside `members`: the outer array of a wrapped list is not the list."""
    widest = 0
    for member in members if depth else ():
        inner = member.values() if isinstance(member, dict) else member if isinstance(member, list) else ()
        for value in inner:
            if isinstance(value, list):
                if any(isinstance(v, dict) for v in value):
                    widest = max(widest, len(value))
                widest = max(widest, _widest(value, depth - 1))
            elif isinstance(value, dict):
                widest = max(widest, _widest([value], depth - 1))
    return widest


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "…"
