"""Which blocks are main content: a probability for each block.

`features` says what is known of a block: its words, where it stands, what the page around it is like, and whether
Trafilatura kept it. `content_probabilities` weighs that by a logistic rule whose weights are in `WEIGHTS`. A better
model replaces the rule and keeps the features.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trawl.extraction.blocks import Draft
from trawl.extraction.dom import Element, Tree
from trawl.extraction.inline import Mark
from trawl.extraction.metadata import paid_part
from trawl.types import CONTENT_THRESHOLD, Block

log = logging.getLogger(__name__)

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"[.!?。！？؟।…][\"'”’)\]]*(?=\s|$)|[。！？]")
_GRAM = 4
"""Words in a row that must agree with the voter's text for a block to count as kept."""
_SHORT = 6
"""Blocks of fewer words are compared as whole lines."""
_PART_OF_LINE = {1: 0.3, 2: 0.6, 3: 0.8, 4: 0.9, 5: 0.9}
"""How far a short block counts as kept when its words stand inside a longer line: the shorter, the less."""
_NEAR = 12
"""Ancestors a block is seen with; deeper nesting says nothing more and costs time."""
_VOTE_MAX_CHARS = 3_000_000
_VOTE_MAX_ELEMENTS = 40_000
_VOTE_MAX_DEPTH = 300
"""Beyond these the voter is not asked: it takes seconds, or recursion, where the walk here takes neither."""

_TAG_ROLES = {
    "nav": "nav", "header": "header", "footer": "footer", "aside": "aside", "form": "form", "main": "main",
    "article": "article", "dialog": "boilerplate", "select": "form", "button": "button", "search": "form",
    "label": "form", "option": "form", "figure": "figure", "menu": "nav",
}  # fmt: skip
_ARIA_ROLES = {
    "navigation": "nav", "banner": "header", "contentinfo": "footer", "complementary": "aside", "search": "form",
    "main": "main", "article": "article", "dialog": "boilerplate", "alertdialog": "boilerplate", "button": "button",
    "menu": "nav", "menubar": "nav", "toolbar": "nav", "tablist": "nav",
}  # fmt: skip
_NAME_WORDS = {
    "boilerplate": "cookie cookies consent gdpr newsletter subscribe subscription signup popup modal overlay advert"
    " advertisement ads ad sponsor promo promotion banner share sharing social skip login paywall cta disclaimer"
    " copyright popover tooltip toast offcanvas drawer",
    "nav": "nav navbar navigation menu breadcrumb breadcrumbs pagination pager toc tabs submenu megamenu dropdown"
    " topbar toolbar",
    "aside": "sidebar aside related recommended recommendations similar widget widgets rail popular trending more also"
    " upsell carousel latest",
    "footer": "footer foot colophon bottom",
    "header": "header masthead top",
    "comments": "comment comments respond reply replies disqus discussion",
    "meta": "meta byline author date tags tag categories category timestamp info",
    "content": "content article post entry story body text main description prose markdown detail details page",
}  # fmt: skip
_ROLE_OF_WORD = {word: role for role, words in _NAME_WORDS.items() for word in words.split()}
_FIELDS_OF_WRAPPER = 30
_WORDS_PER_FIELD = 100
"""A form with fewer words for each of its fields is there to be filled in."""
_NAME_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


@dataclass(frozen=True, slots=True)
class Vote:
    """What an external extractor kept, as word sequences and lines."""

    grams: frozenset[tuple[str, ...]]
    lines: frozenset[str]
    words: int
    text: str

    def coverage(self, words: list[str]) -> float:
        """0..1: how much of a block's text is in what was kept."""
        if not words or not self.words:
            return 0.0
        if len(words) < _SHORT:
            text = " ".join(words)
            if text in self.lines:
                return 1.0
            # A voter may run several short blocks into one line.
            return _PART_OF_LINE[len(words)] if f" {text} " in self.text else 0.0
        grams = [tuple(words[i : i + _GRAM]) for i in range(len(words) - _GRAM + 1)]
        return sum(g in self.grams for g in grams) / len(grams)


def trafilatura_vote(tree: Tree) -> Vote:
    """Trafilatura's vote; an empty one when it fails or the page is beyond what it handles in time."""
    if len(tree.html) > _VOTE_MAX_CHARS or tree.count > _VOTE_MAX_ELEMENTS or tree.depth > _VOTE_MAX_DEPTH:
        return _vote("")
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    try:
        return _vote(trafilatura.extract(tree.html, include_comments=True) or "")
    except Exception as error:
        # Whatever a page does to it, the page still has our own features.
        log.debug("trafilatura failed: %r", error)
        return _vote("")


def _vote(text: str) -> Vote:
    lines = [[w.lower() for w in _WORD.findall(line)] for line in text.splitlines()]
    words = [w for line in lines for w in line]
    grams = frozenset(tuple(words[i : i + _GRAM]) for i in range(len(words) - _GRAM + 1))
    whole = {" ".join(line) for line in lines if line}
    cells = {
        " ".join(w.lower() for w in _WORD.findall(c))
        for line in text.splitlines()
        if "|" in line
        for c in line.split("|")
    }
    return Vote(grams, frozenset((whole | cells) - {""}), len(words), f" {' '.join(words)} ")


FEATURES = (
    "bias", "kept", "kept_before", "kept_after", "kept_around", "kept_section", "vote_empty", "words", "few_words",
    "link_share", "all_link", "sentences", "punctuated", "heading", "list", "table", "code", "quote", "caption",
    "image_only", "in_main", "in_article", "in_nav", "in_header", "in_footer", "in_aside", "in_form", "in_button",
    "in_boilerplate", "in_comments", "in_meta", "in_content", "in_figure", "near_words", "near_link_share",
    "repeated", "before_first", "after_last", "position", "h1", "kept_share", "kept_x_near", "heading_next_kept",
    "nokept_nav", "list_link", "out_of_main", "out_of_article", "kept_x_share", "around_x_share", "before_x_after",
    "unkept_x_share", "list_short",
)  # fmt: skip


@dataclass(slots=True)
class _Region:
    """What an element and its ancestors say about the blocks in it."""

    roles: frozenset[str]


def _region(element: Element, known: dict[int, _Region]) -> _Region:
    chain = []
    node: Element | None = element
    while node is not None and node.index not in known:
        chain.append(node)
        node = node.parent
    region = known[node.index] if node is not None else _Region(frozenset())
    for node in reversed(chain):
        roles = _own_roles(node)
        if roles and not roles <= region.roles:
            region = _Region(region.roles | roles)
        known[node.index] = region
    return region


def _own_roles(element: Element) -> set[str]:
    roles = set()
    if element.tag in _TAG_ROLES and not (element.tag == "form" and _is_wrapper(element)):
        roles.add(_TAG_ROLES[element.tag])
    if not element.attrs or element.tag in ("html", "body"):
        return roles
    role = element.get("role")
    if role in _ARIA_ROLES:
        roles.add(_ARIA_ROLES[role])
    names = f"{element.get('class')[:300]} {element.get('id')[:100]}"
    if len(names) > 1:
        for token in _NAME_TOKEN.findall(names):
            found = _ROLE_OF_WORD.get(token.lower())
            if found:
                roles.add(found)
    return roles


def _is_wrapper(form: Element) -> bool:
    """Whether a form only stands around text, as around each post of some forums or around whole pages."""
    fields = words = 0
    for node in form.descend():
        if isinstance(node, str):
            words += len(_WORD.findall(node))
        elif node.tag in ("select", "textarea") or (node.tag == "input" and node.get("type").lower() != "hidden"):
            fields += 1
        if fields > _FIELDS_OF_WRAPPER:
            return False
    return not fields or words > _WORDS_PER_FIELD * fields


def _link_words(draft: Draft) -> int:
    inside = count = 0
    for piece in draft.pieces:
        if isinstance(piece, Mark):
            if piece.element is not None and piece.element.tag in ("a", "button"):
                inside += (piece.what == "open") - (piece.what == "close")
        elif inside > 0:
            count += len(_WORD.findall(piece))
    return count


def features(drafts: Sequence[Draft], blocks: Sequence[Block], vote: Vote) -> list[list[float]]:
    """One row of `FEATURES` for each block."""
    known: dict[int, _Region] = {}
    regions = [_region(d.element, known) for d in drafts]
    words = [[w.lower() for w in _WORD.findall(b.text)] for b in blocks]
    counts = [len(w) for w in words]
    links = [min(_link_words(d), n) for d, n in zip(drafts, counts, strict=True)]
    kept = [vote.coverage(w) for w in words]
    seen: dict[str, int] = {}
    keys = [" ".join(w[:30]) for w in words]
    for key in keys:
        seen[key] = seen.get(key, 0) + 1

    totals: dict[int, list[float]] = {}  # element -> words, words kept, words linked, blocks
    chains: list[list[int]] = []
    for draft, n, k, link in zip(drafts, counts, kept, links, strict=True):
        chain = [a.index for _, a in zip(range(_NEAR), draft.element.ancestors(), strict=False)]
        chains.append(chain)
        for index in chain:
            total = totals.setdefault(index, [0.0, 0.0, 0.0, 0.0])
            total[0] += n
            total[1] += n * k
            total[2] += link
            total[3] += 1

    good = [i for i, (k, n) in enumerate(zip(kept, counts, strict=True)) if k > 0.5 and n >= _SHORT]
    first, last = (good[0], good[-1]) if good else (0, len(blocks))
    page_words = sum(counts) or 1
    kept_share = min(1.0, sum(n * k for n, k in zip(counts, kept, strict=True)) / page_words)
    rows = []
    before = _running(kept, counts)
    after = _running(kept[::-1], counts[::-1])[::-1]
    passed = 0
    has_main = any("main" in r.roles for r in regions)
    has_article = any("article" in r.roles for r in regions)
    for i, (draft, block) in enumerate(zip(drafts, blocks, strict=True)):
        n, k = counts[i], kept[i]
        roles = regions[i].roles
        chain = chains[i]
        near = next((totals[c] for c in chain[1:] if totals[c][0] >= n + 10), totals[chain[-1]])
        section = next((totals[c] for c in chain[1:] if totals[c][0] >= n + 80), totals[chain[-1]])
        share = links[i] / n if n else 0.0
        text = block.text
        ends = len(_SENTENCE_END.findall(text))
        next_kept = 0.0
        if block.kind == "heading":
            following = next((j for j in range(i + 1, min(i + 6, len(blocks))) if blocks[j].kind != "heading"), None)
            next_kept = kept[following] if following is not None else 0.0
        around = near[1] / near[0] if near[0] else 0.0
        nav = float("nav" in roles)
        rows.append([
            1.0, k, before[i], after[i], around, section[1] / section[0] if section[0] else 0.0,
            float(not vote.words), min(math.log1p(n), 5.0), float(n < 3), share,
            float(share > 0.9), min(ends, 5) / 5, float(bool(text) and text[-1] in ".!?。:;…\"”"),
            float(block.kind == "heading"), float(block.kind == "list"), float(block.kind == "table"),
            float(block.kind == "code"), float(block.kind == "quote"), float(block.kind == "caption"),
            float(block.text != "" and f"![{block.text}]" in (draft_text(draft),)),
            float("main" in roles), float("article" in roles), nav, float("header" in roles),
            float("footer" in roles), float("aside" in roles), float("form" in roles), float("button" in roles),
            float("boilerplate" in roles), float("comments" in roles), float("meta" in roles),
            float("content" in roles), float("figure" in roles),
            min(math.log1p(near[0] / max(near[3], 1)), 5.0), near[2] / near[0] if near[0] else 0.0,
            float(seen[keys[i]] > 1), float(i < first), float(i > last), passed / page_words,
            float(block.kind == "heading" and block.level == 1), kept_share, k * around, next_kept,
            nav * (1 - k), float(block.kind == "list") * share,
            float(has_main and "main" not in roles), float(has_article and "article" not in roles),
            k * kept_share, around * kept_share, before[i] * after[i], (1 - k) * kept_share,
            float(block.kind == "list" and n < _SHORT),
        ])  # fmt: skip
        passed += n
    return rows


def draft_text(draft: Draft) -> str:
    """`![alt]` when a draft is one picture, else nothing."""
    images = [p for p in draft.pieces if isinstance(p, Mark) and p.what == "image"]
    if len(images) == 1 and not any(isinstance(p, str) and not p.isspace() for p in draft.pieces):
        return f"![{images[0].text}]"
    return ""


def _running(kept: Sequence[float], counts: Sequence[int]) -> list[float]:
    """For each block, how far the blocks before it were kept; the nearer ones and the longer ones count more."""
    out = []
    level = 0.0
    for k, n in zip(kept, counts, strict=True):
        out.append(level)
        weight = min(0.7, n / 25)
        level += weight * (k - level)
    return out


WEIGHTS: dict[str, float] = {
    "bias": 0.20,
    "kept": 1.14,
    "kept_before": 0.63,
    "kept_after": 0.57,
    "kept_around": -0.45,
    "kept_section": -0.19,
    "vote_empty": -0.08,
    "words": 0.04,
    "few_words": 0.41,
    "link_share": -0.57,
    "all_link": 0.22,
    "sentences": -0.08,
    "punctuated": 0.82,
    "heading": 0.64,
    "list": -0.01,
    "table": -0.34,
    "code": -0.78,
    "quote": 1.07,
    "caption": -1.57,
    "image_only": -1.17,
    "in_main": -0.05,
    "in_article": 0.39,
    "in_nav": 0.19,
    "in_header": -0.23,
    "in_footer": -0.79,
    "in_aside": -0.18,
    "in_form": -0.62,
    "in_button": -0.40,
    "in_boilerplate": -0.82,
    "in_comments": -1.25,
    "in_meta": 0.01,
    "in_content": 0.17,
    "in_figure": -0.46,
    "near_words": 0.22,
    "near_link_share": -0.42,
    "repeated": 0.03,
    "before_first": -0.27,
    "after_last": -0.44,
    "position": -0.94,
    "h1": -1.22,
    "kept_share": -0.21,
    "kept_x_near": -0.90,
    "heading_next_kept": 0.24,
    "nokept_nav": -1.26,
    "list_link": 0.38,
    "out_of_main": -1.18,
    "out_of_article": -0.34,
    "kept_x_share": 1.07,
    "around_x_share": -0.48,
    "before_x_after": 0.70,
    "unkept_x_share": -1.55,
    "list_short": 0.26,
}
"""Fitted by logistic regression on WCXB dev, each page weighing the same and each block in it by its words; the bias
is 0.3 higher than fitted, which gave the best word-F1 of 0, 0.3, 0.5 in cross-validation by domain (0.838, 0.841, 0.841
on pages with ground truth; Trafilatura 0.827). See notes/0001-extraction-baseline.md."""


_SMALL_ARTICLE = 300
_SMALL_PAGE = 150
"""Words up to which an article, or a page, is kept whole, apart from navigation and the like: there is little to
choose from, and what a rule drops there is missed. Costs 0.0016 of word-F1 on WCXB dev."""
_BELONGS = 0.55
"""The probability of blocks that are kept because of where they stand."""
_APART = tuple(map(FEATURES.index, ("in_nav", "in_footer", "in_aside", "in_form", "in_boilerplate", "in_button")))
_SCRAP = 0.4
_OFFER_WORDS = 80
_ALL_LINK = FEATURES.index("all_link")
_MAIN, _ARTICLE, _HEADER, _COMMENTS = map(FEATURES.index, ("in_main", "in_article", "in_header", "in_comments"))


def content_probabilities(tree: Tree, drafts: Sequence[Draft], blocks: Sequence[Block]) -> tuple[list[float], float]:
    """The probability of each block, and the confidence of the whole choice (how decided the blocks are, by words)."""
    rows = features(drafts, blocks, trafilatura_vote(tree))
    weights = [WEIGHTS[name] for name in FEATURES]
    scores = [sum(w * x for w, x in zip(weights, row, strict=True)) for row in rows]
    probabilities = [round(1 / (1 + math.exp(-s)), 4) for s in scores]
    decided = sum(abs(2 * p - 1) * len(b.text) for p, b in zip(probabilities, blocks, strict=True))
    confidence = round(decided / (sum(len(b.text) for b in blocks) or 1), 4)
    _keep_small_pages_whole(rows, blocks, probabilities)
    _drop_scraps_of_menus(rows, drafts, probabilities)
    _drop_offers(tree, drafts, blocks, probabilities)
    _keep_headings_of_kept(rows, blocks, probabilities)
    return probabilities, confidence


def _is_apart(row: Sequence[float]) -> bool:
    return any(row[i] for i in _APART)


def _keep_small_pages_whole(rows: Sequence[Sequence[float]], blocks: Sequence[Block], p: list[float]) -> None:
    own = [i for i, (r, b) in enumerate(zip(rows, blocks, strict=True)) if not b.hidden and not _is_apart(r)]
    in_article = [i for i in own if rows[i][_MAIN] or rows[i][_ARTICLE]]
    in_page = [i for i in own if not rows[i][_HEADER]]
    beside = [i for i in in_page if not rows[i][_COMMENTS]]
    if sum(len(_WORD.findall(blocks[i].text)) for i in beside) * 2 > sum(
        len(_WORD.findall(blocks[i].text)) for i in in_page
    ):
        # There is more to the page than what its readers wrote.
        in_page = beside
    for chosen, most in ((in_article, _SMALL_ARTICLE), (in_page, _SMALL_PAGE)):
        if sum(len(_WORD.findall(blocks[i].text)) for i in chosen) <= most:
            for i in chosen:
                p[i] = max(p[i], _BELONGS)


def _drop_scraps_of_menus(rows: Sequence[Sequence[float]], drafts: Sequence[Draft], p: list[float]) -> None:
    """Of a list of links that is dropped for the most part, the items go too whose words happen to be in the text."""
    lists: dict[int, list[int]] = {}
    for i, draft in enumerate(drafts):
        if draft.list_id >= 0:
            lists.setdefault(draft.list_id, []).append(i)
    for items in lists.values():
        links = [i for i in items if rows[i][_ALL_LINK]]
        kept = [i for i in links if p[i] >= CONTENT_THRESHOLD]
        if len(links) * 4 >= len(items) * 3 and len(kept) * 2 < len(links):
            for i in kept:
                p[i] = _SCRAP


def _drop_offers(tree: Tree, drafts: Sequence[Draft], blocks: Sequence[Block], p: list[float]) -> None:
    """Where the part of an article that is not free to read has only a few words, they are the offer to buy it."""
    paid = paid_part(tree)
    if not paid:
        return
    inside: set[int] = set()
    for element in tree.body.elements():
        own = {f"#{element.get('id')}", *(f".{c}" for c in element.classes)}
        if (element.parent is not None and element.parent.index in inside) or not paid.isdisjoint(own):
            inside.add(element.index)
    within = [i for i, draft in enumerate(drafts) if draft.element.index in inside]
    if sum(len(_WORD.findall(blocks[i].text)) for i in within) <= _OFFER_WORDS:
        for i in within:
            p[i] = min(p[i], _SCRAP)


def _keep_headings_of_kept(rows: Sequence[Sequence[float]], blocks: Sequence[Block], p: list[float]) -> None:
    for i in range(len(blocks) - 2, -1, -1):
        # Names such as toolbar or section-header are common around real headings of an article.
        apart = _is_apart(rows[i]) and not (rows[i][_MAIN] or rows[i][_ARTICLE])
        if blocks[i].kind == "heading" and p[i + 1] >= CONTENT_THRESHOLD and not apart:
            p[i] = max(p[i], _BELONGS)
