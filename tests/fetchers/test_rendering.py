"""Which pages need a browser."""

from __future__ import annotations

import pytest

from trawl.fetchers.facts import look
from trawl.fetchers.rendering import needs_browser, script_shell, suspect

SCRIPT = "<script src='/app.js'></script>"
ARTICLE = (
    "<p>The mill stands at the river. It grinds rye in winter. Nobody lives in it. The wheel is made of oak.</p>" * 4
)

SHELLS = {
    "empty root": f"<title>App</title><div id='root'></div>{SCRIPT}",
    "root with a spinner": f"<title>App</title><div id='app'><div class='spinner'></div></div>{SCRIPT}",
    "next": f"<title>App</title><nav>Home About</nav><div id='__next'></div>{SCRIPT}",
    "custom element": f"<title>App</title><app-root></app-root>{SCRIPT}",
    "notice": f"<noscript>You need to enable JavaScript to run this app.</noscript><div>App</div>{SCRIPT}",
    "notice in german": f"<noscript>Bitte aktivieren Sie JavaScript, um fortzufahren.</noscript>{SCRIPT}",
    "notice in japanese": f"<noscript>JavaScriptを有効にしてください。</noscript>{SCRIPT}",
    "notice in russian": f"<noscript>Включите JavaScript для работы сайта.</noscript>{SCRIPT}",
    "notice in the text": f"<p>Please enable JavaScript to view this page.</p>{SCRIPT}",
    "state json": f"<p>Pin</p><script id='__NEXT_DATA__' type='application/json'>{'[1,2,3],' * 5_000}</script>",
    "state assignment": f"<p>Pin</p><script>window.__INITIAL_STATE__={'[1,2,3],' * 5_000}</script>",
    "no text": SCRIPT * 3,
    "loading": f"<h1>Weather</h1><div>Loading…</div>{SCRIPT}",
    "thin": f"<style>{'a{b:c}' * 6_000}</style><div>Menu Home</div>{SCRIPT}",
}
PAGES = {
    "article": f"<title>Mill</title>{ARTICLE}{SCRIPT}",
    "article in the root": f"<div id='root'>{ARTICLE}</div>{SCRIPT}",
    "article beside an empty root": f"<div id='app'></div>{ARTICLE}{SCRIPT}",
    "article with a notice": f"<noscript>Please enable JavaScript.</noscript>{ARTICLE}{SCRIPT}",
    "article and its state": f"{ARTICLE}<script id='__NEXT_DATA__' type='application/json'>{'[1,2],' * 9_000}</script>",
    "streamed article": f"<div id='root'></div><div hidden id='S:0'>{ARTICLE}</div>{SCRIPT}",
    "page for robots in noscript": f"<div id='main'></div><noscript>{ARTICLE}</noscript>{SCRIPT}",
    "short and without scripts": "<p>Closed on Monday.</p>",
    "list of links": "<ul>" + "<li><a>A link to something</a>" * 60 + f"</ul>{SCRIPT}",
    "structured data is no state": f"<p>{'Rye. ' * 60}</p><script type='application/ld+json'>{'[1],' * 9_000}</script>",
}


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_needs_a_browser_and_the_reason_is_named(name: str) -> None:
    facts = look(SHELLS[name])
    assert script_shell(facts)
    assert needs_browser("js_shell", facts)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_with_its_text_does_not(name: str) -> None:
    facts = look(PAGES[name])
    assert script_shell(facts) is None
    assert needs_browser("ok", facts) is None


def test_a_frame_of_text_around_a_script_page_is_suspected_but_no_shell() -> None:
    banner = "<p>We use cookies. By accepting all cookies you agree to our use of cookies. Our partners do, too.</p>"
    facts = look(f"<style>{'a{b:c}' * 40_000}</style>{banner}<h1>Topic</h1><ul>{'<li>Menu entry' * 20}</ul>{SCRIPT}")
    assert script_shell(facts) is None
    assert suspect(facts)
    assert needs_browser("ok", facts)


@pytest.mark.parametrize("outcome", ["login", "consent", "paywall", "http_error", "unsupported"])
def test_no_browser_for_what_a_browser_would_not_change(outcome: str) -> None:
    assert needs_browser(outcome, look(SHELLS["empty root"])) is None  # type: ignore[arg-type]


def test_a_wall_is_tried_in_a_browser_but_not_by_asking_again_too_soon() -> None:
    wall = look("<title>Just a moment...</title>")
    assert needs_browser("blocked", wall, 403) == "challenge page"
    assert needs_browser("blocked", wall, 429) is None
    assert needs_browser("blocked", look(f"<title>Checking</title>{SCRIPT}"), 429) == "challenge page"
