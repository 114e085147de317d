"""What happened to a page, in one word and with the evidence for it. Pure.

The order of the questions matters: a status of 404 settles it; then who stopped us (a wall, a log-in, a consent page,
a paywall); then what is missing (an error status, a page that says it is not there, a script shell, no text at all).

Words alone never make a wall: a page with several sentences of running text is judged by its metadata and by titles
that say nothing else, because articles about captchas, log-ins and missing pages use all the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from trawl.fetchers import phrases
from trawl.fetchers.facts import PageFacts, look
from trawl.fetchers.rendering import script_shell
from trawl.types import Outcome

WALL_PROSE = 1_500
"""Prose beyond this is more than any wall's own explanation; below it a service's marker in the code decides."""
TEASER_PROSE = 2_500
"""An article marked as not free and shorter than this is a teaser."""
WALL_PAGE = 50_000
"""Characters of markup up to which a page may be nothing but a wall, when neither status nor title says so."""
OFFER_SENTENCES = 7
"""Sentences of a teaser and its offer together, when no metadata speaks of a paywall."""
LOGIN_TEXT = 1_500
LOGIN_NOTICE = 300
"""A page with no more text than this may be nothing but a request to log in, without a form or a title."""
SOFT_404_PROSE = 1_500
CONSENT_SHARE = 0.4
"""Share of the visible text in sentences about cookies and consent."""

_TITLE_PARTS = re.compile(r"\s+[-–—|·•»«]+\s+|\s*[|»·]\s*|(?<=\w): (?=[A-Z0-9])")
_SENTENCES = re.compile(r"(?<=[.!?。！？])\s*")


class Verdict(NamedTuple):
    outcome: Outcome
    evidence: str = ""
    """The phrase, marker or status that decided; empty for `ok`."""


def classify_html(
    html: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    url: str = "",
    final_url: str = "",
    rendered: bool = False,
) -> Verdict:
    """`classify` for a page given as text, e.g. one read from a file."""
    return classify(
        look(html), status=status, headers=headers or {}, url=url, final_url=final_url or url, rendered=rendered
    )


def classify(
    facts: PageFacts,
    *,
    status: int,
    headers: Mapping[str, str],
    url: str,
    final_url: str,
    rendered: bool = False,
) -> Verdict:
    """The outcome of an HTML page.

    Args:
        facts: what a quick look at the page saw.
        headers: response headers, names in lower case.
        rendered: the page went through a browser, so what is missing now is not waiting for a script.
    """
    if status in (404, 410):
        return Verdict("http_error", _status_evidence(status, facts))
    found = _wall(facts, status, headers)
    if found is None and status != 401:
        found = _consent(facts, final_url)
    found = found or _login(facts, status, url, final_url)
    if found is None and (status == 402 or status < 400):
        found = _paywall(facts, status)
    if found is None and status >= 400:
        found = Verdict("http_error", _status_evidence(status, facts))
    return found or _gone(facts) or _nothing(facts, rendered=rendered) or Verdict("ok")


def classify_status(status: int) -> Verdict:
    """The outcome of anything that is not HTML, by its status alone."""
    if status == 401:
        return Verdict("login", "HTTP 401")
    if status == 402:
        return Verdict("paywall", "HTTP 402")
    if status == 429:
        return Verdict("blocked", "HTTP 429: too many requests")
    if status >= 400:
        return Verdict("http_error", f"HTTP {status}")
    return Verdict("ok")


def _wall(facts: PageFacts, status: int, headers: Mapping[str, str]) -> Verdict | None:
    if headers.get("cf-mitigated", "").lower() == "challenge":
        return Verdict("blocked", "Cloudflare: header cf-mitigated: challenge")
    if headers.get("x-amzn-waf-action", "").lower() in ("challenge", "captcha"):
        return Verdict("blocked", f"AWS WAF: header x-amzn-waf-action: {headers['x-amzn-waf-action']}")
    if facts.weight > WALL_PROSE or (facts.has_article and len(facts.text) > 3 * WALL_PROSE):
        return None
    refused = status in (403, 405, 406, 418, 429, 503)
    alone = _full_match(phrases.WALL_TITLE, facts)
    # A service's script watches every page of its customers: it proves a wall only on a page that is little else.
    asks_for_more = bool(facts.text_fields or facts.password_fields) and not refused
    bare = len(facts.html) < WALL_PAGE and len(facts.text) < WALL_PROSE and not (facts.has_article or asks_for_more)
    if (alone or refused or bare) and (marker := _marker(facts)):
        return Verdict("blocked", marker)
    phrase = phrases.WALL_PHRASE.search(f"{facts.title} {facts.text[:4_000]} {facts.noscript[:1_000]}")
    if alone and (phrase or not facts.has_article):
        return Verdict("blocked", f'title or heading: "{alone}"')
    if facts.has_article or len(facts.text) > 4 * WALL_PROSE:
        return None
    # "I am not a robot" is also what a contact form and a registration ask.
    if phrase and len(facts.text) < WALL_PROSE and not asks_for_more:
        return Verdict("blocked", f'"{phrase[0][:120]}"')
    if refused and phrases.CAPTCHA_WIDGET.search(facts.html):
        return Verdict("blocked", f"captcha on a page with status {status}")
    if status == 429:
        return Verdict("blocked", "HTTP 429: too many requests")
    return None


def _marker(facts: PageFacts) -> str | None:
    html = facts.html.lower()
    for service, pattern in phrases.WALL_MARKERS:
        if match := pattern.search(html):
            return f"{service}: {match[0][:60]}"
    return None


def _login(facts: PageFacts, status: int, url: str, final_url: str) -> Verdict | None:
    title = _full_match(phrases.LOGIN_TITLE, facts)
    phrase = phrases.LOGIN_PHRASE.search(facts.text[:4_000])
    if phrase and phrases.LOGIN_TO_DO.match(facts.text, phrase.end()):
        phrase = None
    if status == 401:
        said = title or (phrase[0] if phrase else "")
        return Verdict("login", f'HTTP 401: "{said[:120]}"' if said else "HTTP 401")
    if facts.weight > LOGIN_TEXT or (facts.has_article and not (title and facts.password_fields)):
        return None
    at_login = bool(phrases.LOGIN_URL.search(final_url)) and (final_url != url or bool(title))
    if facts.password_fields and (title or at_login):
        return Verdict(
            "login", f'password field, "{title}"' if title else f"password field at {urlsplit(final_url).path}"
        )
    if len(facts.text) > LOGIN_TEXT:
        return None
    if facts.password_fields and (phrase or len(facts.text) < 400):
        return Verdict("login", f'password field, "{phrase[0][:80]}"' if phrase else "password field and little else")
    if phrase and (title or at_login or len(facts.text) < LOGIN_NOTICE):
        return Verdict("login", f'"{phrase[0][:120]}"')
    if title and at_login:
        return Verdict("login", f'"{title}" at {urlsplit(final_url).path}')
    return None


def _consent(facts: PageFacts, final_url: str) -> Verdict | None:
    host = urlsplit(final_url).hostname or ""
    if phrases.CONSENT_HOST.match(host) and phrases.CONSENT_WORD.search(facts.text):
        return Verdict("consent", f"consent page at {host}")
    if len(facts.text) > 6_000 or not facts.buttons:
        return None
    button = next((b for b in facts.buttons if phrases.ACCEPT_BUTTON.search(b)), None)
    if button is None:
        return None
    if (marker := phrases.CONSENT_MARKER.search(facts.html)) and facts.weight < 2 * WALL_PROSE:
        return Verdict("consent", f'{marker[0][:60]}, button "{button}"')
    sentences = _SENTENCES.split(facts.text)
    about = sum(len(s) for s in sentences if phrases.CONSENT_WORD.search(s))
    other = [r for r in facts.prose.split("\n") if not phrases.CONSENT_WORD.search(r)]
    if about >= max(150, CONSENT_SHARE * len(facts.text)) and sum(map(len, other)) < 250 and len(facts.text) < 2_500:
        return Verdict("consent", f'{about} of {len(facts.text)} characters are about cookies, button "{button}"')
    return None


def _paywall(facts: PageFacts, status: int) -> Verdict | None:
    if status == 402:
        return Verdict("paywall", "HTTP 402")
    if facts.weight > TEASER_PROSE:
        return None
    text = facts.text[:2_000] + " " + facts.text[2_000:][-10_000:]
    strong = phrases.OFFER_STRONG.search(text)
    if facts.not_free:
        offer = strong or phrases.OFFER_WEAK.search(text)
        detail = f', "{offer[0][:80]}"' if offer else ""
        return Verdict("paywall", f"isAccessibleForFree is false{detail}")
    # Without metadata it takes an offer, something to press, and little else: articles write about paywalls, too.
    if strong and facts.weight > 40 and facts.sentences <= OFFER_SENTENCES and len(facts.text) < TEASER_PROSE:
        labels = (*facts.headings, *facts.buttons)
        if any(phrases.OFFER_WEAK.search(t) or phrases.OFFER_STRONG.search(t) for t in labels):
            return Verdict("paywall", f'"{strong[0][:120]}"')
    return None


def _gone(facts: PageFacts) -> Verdict | None:
    if facts.weight > SOFT_404_PROSE:
        return None
    title = _full_match(phrases.GONE_TITLE, facts)
    phrase = phrases.GONE_PHRASE.search(facts.text[:2_000])
    if title and (phrase or not facts.has_article):
        return Verdict("soft_404", f'title or heading: "{title}"')
    if phrase and not facts.has_article and len(facts.text) < SOFT_404_PROSE:
        return Verdict("soft_404", f'"{phrase[0][:120]}"')
    return None


def _nothing(facts: PageFacts, *, rendered: bool) -> Verdict | None:
    if not rendered and (shell := script_shell(facts)):
        return Verdict("js_shell", shell)
    if len(facts.text) < 3:
        if rendered and facts.scripts:
            return Verdict("js_shell", "no visible text even after its scripts ran")
        return Verdict("empty", "no visible text")
    return None


def _full_match(pattern: phrases.Phrases, facts: PageFacts) -> str | None:
    """The title, a part of it, or one of the first headings that says nothing but what `pattern` says."""
    for candidate in _titles(facts):
        if len(candidate) <= 120 and pattern.fullmatch(candidate):
            return candidate
    return None


def _titles(facts: PageFacts) -> Iterator[str]:
    for text in (facts.title, *facts.headings[:3]):
        whole = text.strip()
        if whole:
            yield whole
            yield from (p.strip() for p in _TITLE_PARTS.split(whole) if p.strip() and p.strip() != whole)


def _status_evidence(status: int, facts: PageFacts) -> str:
    said = facts.title or (facts.headings[0] if facts.headings else "") or facts.text[:80]
    return f'HTTP {status}: "{said[:120]}"' if said else f"HTTP {status}"
