"""What a page says about itself: title, author, dates, site, description, language, canonical address."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from trawl.extraction.blocks import absolute
from trawl.extraction.dom import Element, Tree

_MAX = {"title": 500, "author": 300, "description": 2_000, "url": 2_048}
_ARTICLE_TYPES = re.compile(
    r"(?:Article|NewsArticle|BlogPosting|Posting|Report|TechArticle|ScholarlyArticle|Review|Recipe|Product|Event|"
    r"VideoObject|HowTo|QAPage|Course|JobPosting|Book|Movie|SoftwareApplication|LiveBlogPosting|OpinionNewsArticle|"
    r"ReportageNewsArticle|AnalysisNewsArticle|WebPage|ItemPage|CollectionPage)$"
)
_SITE_SEPARATOR = re.compile(r"\s+[|–—·•»«›:/-]+\s+|\s*[|｜]\s*")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ][\d:.]+(?:Z|[+-]\d{2}:?\d{2})?)?|\d{4}/\d{2}/\d{2}")
_MAIL_DATE = re.compile(r"(?:[A-Z][a-z]{2},\s*)?\d{1,2}\s+[A-Z][a-z]{2}\s+\d{4}\s")
_SIMPLE_SELECTOR = re.compile(r"[.#][\w-]{1,80}")
_SPACE = re.compile(r"\s+")


def base_url(tree: Tree, url: str) -> str:
    """The address links of the page are relative to."""
    for element in tree.indexed.get("base", ()):
        href = element.get("href").strip()
        if href:
            return absolute(url, href) or url
    return url


def read(tree: Tree, url: str) -> dict[str, str]:
    """The facts found, each a string of bounded length: `title`, `author`, `date`, `modified`, `site_name`,
    `description`, `language`, `canonical`. Facts that are not there are left out."""
    metas = _metas(tree)
    nodes = list(_json_ld(tree))
    article = _article(nodes)
    by_id = {n["@id"]: n for n in nodes if isinstance(n.get("@id"), str) and len(n) > 1}
    site = _first(
        metas.get("og:site_name"),
        metas.get("application-name"),
        _name(article.get("publisher"), by_id),
        *(_text(n.get("name")) for n in nodes if _has_type(n, "WebSite")),
    )
    facts = {
        "title": _title(tree, metas, article, site),
        "author": _first(
            _name(article.get("author"), by_id),
            metas.get("author"),
            metas.get("article:author") if "://" not in metas.get("article:author", "") else None,
            metas.get("dc.creator"),
            metas.get("parsely-author"),
            metas.get("sailthru.author"),
            metas.get("citation_author"),
        )
        or _visible_author(tree),
        "date": _first(
            *map(
                _date,
                (
                    article.get("datePublished"),
                    metas.get("article:published_time"),
                    metas.get("datepublished"),
                    metas.get("date"),
                    metas.get("dc.date"),
                    metas.get("dc.date.issued"),
                    metas.get("dcterms.date"),
                    metas.get("dcterms.issued"),
                    metas.get("dcterms.created"),
                    metas.get("pubdate"),
                    metas.get("publishdate"),
                    metas.get("parsely-pub-date"),
                    metas.get("citation_publication_date"),
                    metas.get("og:published_time"),
                    article.get("uploadDate"),
                    article.get("dateCreated"),
                    _visible_date(tree),
                ),
            )
        ),
        "modified": _first(
            *map(
                _date,
                (
                    article.get("dateModified"),
                    metas.get("article:modified_time"),
                    metas.get("og:updated_time"),
                    metas.get("datemodified"),
                    metas.get("last-modified"),
                ),
            )
        ),
        "site_name": site,
        "description": _first(
            metas.get("og:description"),
            metas.get("description"),
            metas.get("twitter:description"),
            _text(article.get("description")),
        ),
        "language": _first(
            tree.root.get("lang"), tree.root.get("xml:lang"), metas.get("content-language"), metas.get("og:locale")
        ),
        "canonical": _canonical(tree, metas, url),
    }
    return {k: v[: _MAX.get(k, 300)] for k, v in facts.items() if v}


def _metas(tree: Tree) -> dict[str, str]:
    metas: dict[str, str] = {}
    for element in tree.indexed.get("meta", ()):
        name = element.get("property") or element.get("name") or element.get("itemprop") or element.get("http-equiv")
        content = _squeeze(element.get("content")[:4_000])
        if name and content:
            metas.setdefault(name.strip().lower(), content)
    return metas


def _json_ld(tree: Tree) -> Iterator[dict[str, Any]]:
    """All nodes of all JSON-LD blocks, those in lists and graphs too; broken blocks are passed over."""
    left = 2_000
    for script in tree.json_ld[:50]:
        try:
            data = json.loads(script.strip().removeprefix("<!--").removesuffix("-->"), strict=False)
        except (ValueError, RecursionError):
            continue
        stack: list[Any] = [data]
        while stack and left > 0:
            node = stack.pop()
            left -= 1
            if isinstance(node, list):
                stack.extend(reversed(node[:500]))
            elif isinstance(node, dict):
                yield node
                stack.extend(
                    node[k]
                    for k in ("mainEntity", "mainEntityOfPage", "@graph")
                    if isinstance(node.get(k), dict | list)
                )


def _has_type(node: dict[str, Any], name: str) -> bool:
    kinds = node.get("@type")
    return name in (kinds if isinstance(kinds, list) else [kinds])


def _article(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """The node that stands for the page's main thing; a bare WebPage only when there is no better one."""
    best: dict[str, Any] = {}
    best_rank = 0
    for node in nodes:
        kinds = node.get("@type")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if isinstance(kind, str) and _ARTICLE_TYPES.search(kind):
                rank = 1 if kind.endswith("Page") else 2
                if "headline" in node or "articleBody" in node:
                    rank = 3
                if rank > best_rank:
                    best, best_rank = node, rank
    return best


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = value[0] if value else ""
    return _squeeze(value[:4_000]) if isinstance(value, str) else ""


def _name(value: Any, by_id: dict[str, dict[str, Any]]) -> str:
    """Names of persons or organisations, given as text, as nodes, or by reference."""
    names = []
    for one in value[:20] if isinstance(value, list) else [value]:
        node = by_id.get(one["@id"], one) if isinstance(one, dict) and isinstance(one.get("@id"), str) else one
        name = _text(node.get("name")) if isinstance(node, dict) else _text(node)
        if name and "://" not in name and name not in names:
            names.append(name)
    return "; ".join(names)


def _title(tree: Tree, metas: dict[str, str], article: dict[str, Any], site: str) -> str:
    """The page's own title, without the site's name.

    Of several candidates the one that is also the page's first heading wins: it is what a reader sees.
    """
    in_head = next((_squeeze(e.text()) for e in tree.indexed.get("title", ()) if not _in_svg(e)), "")
    heading = _main_heading(tree, in_head, site)
    candidates = [
        _text(article.get("headline")),
        metas.get("og:title", ""),
        metas.get("twitter:title", ""),
        _without_site(in_head, site, heading),
        heading,
        metas.get("dc.title", ""),
        _text(article.get("name")),
    ]
    candidates = [_without_site(c, site, heading) for c in candidates]
    useful = [c for c in candidates if c and _key(c) != _key(site)]
    if heading and any(_key(c) == _key(heading) for c in useful):
        return heading
    return _first(*useful, in_head, heading, site)


def _main_heading(tree: Tree, in_head: str, site: str) -> str:
    """The first H1, but for one that names the site: a logo beside another that the page's title begins with."""
    headings = [t for e in tree.indexed.get("h1", ()) if (t := _squeeze(e.text()).rstrip(" ¶#🔗\ufe0f"))]
    if len(headings) > 1 and in_head:
        told = _SITE_SEPARATOR.split(in_head)
        named = [h for h in headings if any(_key(h) == _key(part) for part in told) and _key(h) != _key(site)]
        if named:
            return max(named, key=len)
    return headings[0] if headings else ""


def _in_svg(element: Element) -> bool:
    return any(a.tag == "svg" for a in element.ancestors())


def _key(text: str) -> str:
    return re.sub(r"\W+", "", text).casefold()


def _without_site(title: str, site: str, heading: str) -> str:
    """`title` without the part that names the site."""
    if heading and len(heading) > 3 and _key(title) != _key(heading) and _SITE_SEPARATOR.search(title):
        parts = _SITE_SEPARATOR.split(title)
        if any(_key(p) == _key(heading) for p in parts):
            return heading
    if not site:
        return title
    marks = list(_SITE_SEPARATOR.finditer(title))
    if marks:
        if _key(title[marks[-1].end() :]) == _key(site):
            return title[: marks[-1].start()]
        if _key(title[: marks[0].start()]) == _key(site):
            return title[marks[0].end() :]
    return title


def _date(value: Any) -> str:
    """The date in `value` in ISO form, with its time if given; empty when there is none."""
    text = _text(value)
    match = _DATE.search(text)
    if match:
        return match[0].replace("/", "-")
    if not _MAIL_DATE.match(text):
        return ""
    try:
        return parsedate_to_datetime(text).isoformat()
    except ValueError:
        return ""


def paid_part(tree: Tree) -> frozenset[str]:
    """Classes (`.name`) and ids (`#name`) of what the page's own data says is not free to read."""
    found: set[str] = set()
    for node in _json_ld(tree):
        parts = node.get("hasPart")
        for part in parts[:50] if isinstance(parts, list) else [parts]:
            if isinstance(part, dict) and str(part.get("isAccessibleForFree")).lower() == "false":
                selectors = part.get("cssSelector")
                for selector in selectors[:20] if isinstance(selectors, list) else [selectors]:
                    found.update(s for s in str(selector).split(",") if _SIMPLE_SELECTOR.fullmatch(s.strip()))
    return frozenset(s.strip() for s in found)


def _visible_date(tree: Tree) -> str:
    for element in tree.indexed.get("time", ()):
        if not any(a.tag in ("aside", "footer", "nav") for a in element.ancestors()):
            found = _date(element.get("datetime"))
            if found:
                return found
    return ""


def _visible_author(tree: Tree) -> str:
    for element in tree.body.elements("a", "span", "address", "p", "div"):
        if not element.attrs:
            continue
        named = (
            element.get("rel") == "author"
            or "author" in element.get("itemprop").split()
            or any(c.lower() in ("byline", "author", "author-name", "byline-name", "p-author") for c in element.classes)
        )
        if named:
            name = re.sub(r"^(?:by|von|par|por|di|door|av)\s+", "", _squeeze(element.text()[:500]), flags=re.I)
            if 2 < len(name) < 80:
                return name
    return ""


def _canonical(tree: Tree, metas: dict[str, str], url: str) -> str:
    for element in tree.indexed.get("link", ()):
        if element.get("rel").lower() == "canonical":
            found = absolute(url, element.get("href"))
            if found:
                return found
    return absolute(url, metas.get("og:url", "")) or ""


def _first(*values: str | None) -> str:
    return next((v for v in values if v), "")


def _squeeze(text: str) -> str:
    return _SPACE.sub(" ", text).strip()
