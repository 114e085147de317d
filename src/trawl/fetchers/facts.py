"""A quick look at an HTML page: the few facts that tell a page with content from a wall, a shell or an error.

No judgement here (that is `outcome` and `rendering`), and no extraction: one cheap parse, counts and short texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser, LexborNode

from trawl.extraction.dom import bounded

PROSE_NODE = 40
"""Characters from which a run of text between two tags counts as prose rather than a label or a menu entry."""
PROSE_NODE_CJK = 14
"""The same for scripts that write a word in one or two characters."""
# React sends late parts of a page as `<div hidden id="S:1">` and moves them into place: they are content.
_INVISIBLE = (
    "script, style, template, noscript, svg, head, [hidden]:not([id^='S:']), "
    "[style*='display:none'], [style*='display: none']"
)
NOSCRIPT_PAGE = 600
"""Characters from which a `noscript` is no notice but the page itself, written for robots (Discourse)."""
_INLINE = ["b", "i", "em", "strong", "span", "code", "sup", "sub", "mark", "abbr", "font", "wbr", "u"]
_FURNITURE = (
    "nav, footer, button, select, dialog, [role='dialog'], [role='navigation'], "
    "[id*='cookie'], [class*='cookie'], [id*='consent'], [class*='consent']"
)
_ROOTS = (
    "#root, #app, #__next, #__nuxt, #___gatsby, #react-root, #app-root, #main-app, #app-mount, #mount, #reactRoot, "
    "#react-app, #svelte, #ember-app, #q-app, #application, app-root, my-app, [data-reactroot], [ng-app], [ng-view], "
    "[ui-view], [data-server-rendered='false']"
)
_SENTENCE_END = re.compile(r"[.!?…](?=\s|$|[\"”»')])|[。！？｡؟।۔](?=.|$)")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
_STATE_NAME = re.compile(r"__[A-Z0-9_]{4,}__|__NEXT_DATA__|INITIAL_STATE|PRELOADED_STATE|APOLLO_STATE|self\.__next_f")
_FREE = re.compile(r"isAccessibleForFree[\"']?\s*(?::|content=)\s*[\"']?(?:https?://schema\.org/)?(true|false)", re.I)


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What the quick look saw. Lengths are in characters."""

    html: str = ""
    title: str = ""
    headings: tuple[str, ...] = ()
    """The first level 1 and 2 headings."""
    text: str = ""
    """Visible text, white space collapsed; menus and banners included."""
    prose: str = ""
    """The runs of visible text that are long enough to be sentences, outside menus, footers and banners."""
    sentences: int = 0
    """Sentences in `prose`."""
    noscript: str = ""
    """What a browser without JavaScript would show instead."""
    scripts: int = 0
    """Script elements and scripts announced for loading."""
    state_chars: int = 0
    """Size of JSON state in script elements."""
    empty_root: str = ""
    """Where an application would mount and nothing stands yet, e.g. `#root`."""
    password_fields: int = 0
    text_fields: int = 0
    """Fields one writes into: a message, a search, a name."""
    buttons: tuple[str, ...] = ()
    """Labels of buttons and of the first links."""
    not_free: bool = False
    """The page's own metadata says `isAccessibleForFree: false`, and nowhere the opposite."""

    @property
    def weight(self) -> int:
        """Length of the prose, a CJK character counted as two and a half letters."""
        return len(self.prose) + int(1.5 * len(_CJK.findall(self.prose)))

    @property
    def has_article(self) -> bool:
        """Several sentences of running text: a page that says something, whatever words occur in it."""
        return self.sentences >= 4 and self.weight >= 350


def look(html: str) -> PageFacts:
    """The facts of one page."""
    # Flattens what nests beyond reason: the parser's time grows with the square of the depth.
    html, _, _ = bounded(html)
    tree = LexborHTMLParser(html)
    title = _collapse(_text_of(tree.css_first("title")))
    noscript = _noscript(tree)
    scripts = tree.css("script")
    n_scripts = len(scripts) + len(tree.css("link[as='script'], link[rel='modulepreload']"))
    state_chars = sum(len(_text_of(s)) for s in scripts if _is_state(s))
    for node in tree.css(_INVISIBLE):
        node.decompose()
    body = tree.body
    if body is None:
        return PageFacts(html=html, title=title, noscript=noscript, scripts=n_scripts, state_chars=state_chars)
    text = _collapse(body.text(separator=" "))
    facts = {
        "headings": tuple(t for h in body.css("h1, h2")[:8] if (t := _collapse(h.text())[:200])),
        "empty_root": _empty_root(body),
        "password_fields": len(body.css("input[type='password']")),
        "text_fields": len(body.css("textarea")),
        "buttons": tuple(_buttons(body)),
    }
    prose, sentences = _prose(tree, body, len(text))
    return PageFacts(
        html=html,
        title=title,
        text=text,
        prose=prose,
        sentences=sentences,
        noscript=noscript,
        scripts=n_scripts,
        state_chars=state_chars,
        not_free={m[1].lower() for m in _FREE.finditer(html)} == {"false"},
        **facts,  # type: ignore[arg-type]
    )


def _noscript(tree: LexborHTMLParser) -> str:
    """The notices for browsers without JavaScript; a whole page kept in `noscript` is unwrapped instead."""
    notices = []
    for node in tree.css("noscript"):
        text = _collapse(_text_of(node))
        if len(text) >= NOSCRIPT_PAGE or (len(text) >= PROSE_NODE * 6 and len(_SENTENCE_END.findall(text)) >= 4):
            node.unwrap()
        elif text:
            notices.append(text)
    return _collapse(" ".join(notices))


def _prose(tree: LexborHTMLParser, body: LexborNode, text_chars: int) -> tuple[str, int]:
    for node in body.css(_FURNITURE):
        # Some site builders put "cookie" or "navigation" on an element around the whole page.
        if node.tag in ("body", "main", "article") or len(node.text()) > text_chars / 2:
            continue
        node.decompose()
    for form in body.css("form"):
        # Whole pages stand inside a form on older ASP.NET sites.
        if len(form.text()) < text_chars * 0.4:
            form.decompose()
    tree.unwrap_tags(_INLINE)
    body.merge_text_nodes()
    runs = []
    sentences = 0
    for raw in body.text(separator="\x1f").split("\x1f"):
        run = _collapse(raw)
        if len(run) >= PROSE_NODE or (len(run) >= PROSE_NODE_CJK and len(_CJK.findall(run)) > len(run) / 2):
            runs.append(run)
            sentences += len(_SENTENCE_END.findall(run))
    return "\n".join(runs), sentences


def _is_state(script: LexborNode) -> bool:
    kind = script.attributes.get("type") or ""
    if "ld+json" in kind:
        return False
    return "json" in kind or _STATE_NAME.search(_text_of(script)[:400]) is not None


def _empty_root(body: LexborNode) -> str:
    for node in body.css(_ROOTS):
        if len(_collapse(node.text())) < 20 and not node.css("img, iframe, form, canvas, video"):
            name = node.attributes.get("id")
            return f"#{name}" if name else f"<{node.tag}>"
    return ""


def _buttons(body: LexborNode) -> list[str]:
    found = []
    nodes = body.css("button, input[type='submit'], input[type='button'], [role='button']")[:60]
    for node in (*nodes, *body.css("a")[:120]):
        label = _collapse(node.text() or node.attributes.get("value") or node.attributes.get("aria-label") or "")
        if label:
            found.append(label[:80])
    return found


def _text_of(node: LexborNode | None) -> str:
    return node.text() or "" if node is not None else ""


def _collapse(text: str | None) -> str:
    return " ".join(text.split()) if text else ""
