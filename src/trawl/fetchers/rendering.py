"""Does a page need a browser? Pure functions over what came back from a plain GET."""

from __future__ import annotations

from trawl.fetchers import phrases
from trawl.fetchers.facts import PageFacts
from trawl.types import Outcome

# The limits below were chosen on shared recordings: 9 script shells and the WCXB dev pages (1,497 ordinary ones).
NOTICE_TEXT = 600
"""A notice asking for JavaScript counts on pages with less visible text than this."""
SHORT_PAGE = 80
"""Two sentences of this length together are a page, if a short one."""
ROOT_TEXT = 1_500
"""An empty application root counts up to this much text around it."""
STATE_TEXT = 700
STATE_CHARS = 20_000
STATE_RATIO = 20
"""State JSON counts from STATE_CHARS and STATE_RATIO times the text, up to STATE_TEXT of text."""
THIN_HTML = 20_000
THIN_TEXT = 400
THIN_SHARE = 0.01
"""Thin: at least THIN_HTML of markup, less than THIN_TEXT of text, and less than this share of text."""
SUSPECT_HTML = 100_000
SUSPECT_PROSE = 800
SUSPECT_TEXT = 3_000
"""A page of at least SUSPECT_HTML with no more text than this and a share below THIN_SHARE has frames of text (menus,
a banner, a teaser) and may get the rest by script. Of the 1,497 WCXB pages 1 in 80 is suspected."""


def needs_browser(outcome: Outcome, facts: PageFacts, status: int = 200) -> str | None:
    """Why this page must be rendered to be read, or None.

    A wall is tried in a browser once: many check for nothing but a script that runs. Who says that it was asked too
    often is not asked again at once, unless the answer is a script.
    """
    if outcome == "blocked":
        return None if status == 429 and not facts.scripts else "challenge page"
    if outcome in ("js_shell", "ok", "empty", "soft_404"):
        return script_shell(facts) or suspect(facts)
    return None


def script_shell(facts: PageFacts) -> str | None:
    """What shows that the page's text only comes with its scripts, or None when its text is there."""
    seen = len(facts.text)
    if facts.has_article or not (facts.scripts or facts.noscript):
        return None
    where = facts.noscript[:2_000] or facts.text[:NOTICE_TEXT]
    says_something = facts.sentences >= 2 and facts.weight >= SHORT_PAGE
    if seen < NOTICE_TEXT and not says_something and (notice := phrases.JAVASCRIPT_NOTICE.search(where)):
        return f'the page asks for JavaScript: "{notice[0][:80]}"'
    if facts.empty_root and seen < ROOT_TEXT:
        return f"the application root {facts.empty_root} is empty"
    if seen < STATE_TEXT and facts.state_chars > max(STATE_CHARS, STATE_RATIO * seen):
        return f"{facts.state_chars} characters of state JSON beside {seen} characters of text"
    if seen < 20:
        return f"{facts.scripts} scripts and no visible text"
    if seen < 200 and phrases.LOADING.search(facts.text[-40:]):
        return "nothing but a loading notice"
    if not says_something and len(facts.html) >= THIN_HTML and seen < min(THIN_TEXT, THIN_SHARE * len(facts.html)):
        return f"{seen} characters of text in {len(facts.html)} characters of page"
    return None


def suspect(facts: PageFacts) -> str | None:
    """What suggests that a page with some text of its own shows more in a browser, or None.

    Enough to render it when a browser is at hand, not enough to call what is there a shell.
    """
    seen = len(facts.text)
    if not facts.scripts or seen > SUSPECT_TEXT:
        return None
    if not facts.has_article and facts.state_chars > max(STATE_CHARS, STATE_RATIO * seen):
        return f"{facts.state_chars} characters of state JSON beside {seen} characters of text"
    own = sum(len(r) for r in facts.prose.split("\n") if not phrases.CONSENT_WORD.search(r))
    if len(facts.html) >= SUSPECT_HTML and seen < THIN_SHARE * len(facts.html) and own < SUSPECT_PROSE:
        return f"{seen} characters of text in {len(facts.html)} characters of page"
    return None
