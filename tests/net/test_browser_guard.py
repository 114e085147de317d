"""No page reaches loopback from inside the browser, whatever it tries: TCP and UDP listeners hear nothing.

One page per kind of request tries every spelling. The same pages reach the same listeners when the policy allows it, so
silence is the guard's doing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote, unquote

import pytest
import pytest_asyncio

from tests.net.loopback import LOOPBACK_HOSTS, Listeners, listening, resolver
from tests.replay import ReplayWeb
from tests.replay.web import Answer, Request
from trawl.deadline import Deadline
from trawl.errors import GuardRefused
from trawl.net import visit as visit_module
from trawl.net.browser import Browser, Rendered, find_browser
from trawl.net.chromium import launch_options
from trawl.net.dialer import Dialer
from trawl.net.guard import Policy
from trawl.settings import Settings

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_browser(Settings()) is None, reason="no Chromium is installed"),
    pytest.mark.asyncio(loop_scope="module"),
]

SITE = "http://site.example.com"
PROSE = "<p>Some words that make up a sentence of the page.</p>" * 5

# How a page may try. `at` is http://host:port/NAME, `ws` the same with ws:, `add` puts HTML into the page.
VECTORS = {
    "iframe": "add(`<iframe src='${at}'></iframe>`)",
    "fetch": "fetch(at).catch(() => 0)",
    "nocors": "fetch(at, {mode: 'no-cors', method: 'POST', body: 'x'}).catch(() => 0)",
    "keepalive": "fetch(at, {mode: 'no-cors', keepalive: true}).catch(() => 0)",
    "xhr": "const x = new XMLHttpRequest(); x.open('GET', at); x.send()",
    "image": "new Image().src = at",
    "websocket": "new WebSocket(ws)",
    "beacon": "navigator.sendBeacon(at, 'x')",
    "events": "new EventSource(at)",
    "script": "const s = document.createElement('script'); s.src = at; document.head.append(s)",
    "module": "import(at).catch(() => 0)",
    "style": "add(`<link rel=stylesheet href='${at}'>`)",
    "cssimport": "add(`<style>@import url(${at});</style>`)",
    "background": "add(`<div style='background: url(${at}); height: 9px'>x</div>`)",
    "preload": "add(`<link rel=preload as=script href='${at}'>`)",
    "prefetch": "add(`<link rel=prefetch href='${at}'>`)",
    "modulepreload": "add(`<link rel=modulepreload href='${at}'>`)",
    "object": "add(`<object data='${at}'></object>`)",
    "embed": "add(`<embed src='${at}'>`)",
    "video": "add(`<video autoplay src='${at}'></video>`)",
    "form": "add(`<iframe name=f${n}></iframe>`); const f = document.createElement('form'); f.target = 'f' + n;"
    "f.action = at; f.method = 'POST'; document.body.append(f); f.submit()",
    "frametop": "add(`<iframe srcdoc=\"<meta http-equiv=refresh content='0;url=${at}'>\"></iframe>`)",
    "popup": "open(at)",
    "worker": "new Worker(URL.createObjectURL(new Blob([`fetch('${at}').catch(() => 0)`])))",
    "importscripts": "new Worker(URL.createObjectURL(new Blob([`importScripts('${at}')`])))",
    "shared": "new SharedWorker(URL.createObjectURL(new Blob([`fetch('${at}').catch(() => 0)`])))",
    "ping": "const a = document.createElement('a'); a.href = '#'; a.ping = at; a.click()",
    "redirect": "fetch('/to?' + encodeURIComponent(at), {mode: 'no-cors'}).catch(() => 0)",
    "redirected": "add(`<iframe src='/to?${encodeURIComponent(at)}'></iframe>`)",
}
# These say nothing over HTTP: the listeners would hear a bare connection.
SILENT_VECTORS = {
    "preconnect": "add(`<link rel=preconnect href='${at}'>`)",
    "dnsprefetch": "add(`<link rel=dns-prefetch href='${at}'>`)",
    "prerender": 'add(`<script type=speculationrules>{"prerender": [{"urls": ["${at}"], "eagerness": "eager"}],'
    ' "prefetch": [{"urls": ["${at}"], "eagerness": "eager"}]}<\\/script>`)',
    "webtransport": "new WebTransport(at.replace('http:', 'https:')).ready.catch(() => 0)",
    "tls": "fetch(at.replace('http:', 'https:')).catch(() => 0)",
    "wss": "new WebSocket(ws.replace('ws:', 'wss:'))",
    "serviceworker": "navigator.serviceWorker?.register(at).catch(() => 0)",
    "stun": "const p = new RTCPeerConnection({iceServers: [{urls: [`stun:${host}`, `turn:${host}`,"
    "`turn:${host}?transport=tcp`], username: 'u', credential: 'c'}]});"
    "p.createDataChannel('d'); p.createOffer().then(o => p.setLocalDescription(o))",
}
# The expensive ones (a frame, a window or a thread each) try fewer spellings.
HEAVY = {"popup", "worker", "importscripts", "shared", "stun", "form", "frametop", "object", "embed", "video"}
FEW_HOSTS = ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]", "a.localhost",
             "localhost.", "loopback.example.com", "mixed.example.com"]  # fmt: skip

ALL = [*(VECTORS | SILENT_VECTORS)]
# The kinds of a group share a page.
GROUPS = [ALL[start : start + 6] for start in range(0, len(ALL), 6)]


def attack(hosts: dict[str, list[str]], port: int) -> str:
    """A page that tries each kind of request with each of its hosts, and says so when it has."""
    kinds = [
        f"""for (const name of {json.dumps(names)}) {{
            n++;
            const host = name + ':{port}', at = `http://${{host}}/{kind}/${{n}}`, ws = at.replace('http:', 'ws:');
            try {{ {(VECTORS | SILENT_VECTORS)[kind]} }} catch (error) {{ console.log(error) }}
        }}"""
        for kind, names in hosts.items()
    ]
    return f"""{PROSE}<p id=done></p><script>
    const add = html => document.body.append(document.createRange().createContextualFragment(html));
    let n = 0;
    {"".join(kinds)}
    done.textContent = 'tried ' + n;
    setTimeout(() => done.textContent += ' waited', 900);
    </script>"""


@pytest.fixture(scope="module")
def site() -> Iterator[ReplayWeb]:
    with ReplayWeb() as serving:
        yield serving


@pytest.fixture(autouse=True)
def _everything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not loaded for economy would otherwise never meet the guard."""
    monkeypatch.setattr(visit_module, "BLOCKED_RESOURCES", frozenset())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def loopback() -> AsyncIterator[Listeners]:
    async with listening() as listeners:
        yield listeners


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded(site: ReplayWeb) -> AsyncIterator[Browser]:
    made = Browser(Dialer(Policy.of([]), connect_to=site.connect_to, resolver=resolver), Settings())
    yield made
    await made.aclose()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def allowed(site: ReplayWeb, loopback: Listeners) -> AsyncIterator[Browser]:
    policy = Policy.of([f"127.0.0.1:{loopback.port}"])
    made = Browser(Dialer(policy, connect_to=site.connect_to, resolver=resolver), Settings())
    yield made
    await made.aclose()


async def visit(browser: Browser, url: str) -> Rendered:
    return await browser.render(url, deadline=Deadline.after(30), max_bytes=2_000_000)


def publish(site: ReplayWeb, hosts: dict[str, list[str]], port: int) -> str:
    def to(request: Request) -> Answer:
        return Answer(status=302, headers=[("Location", unquote(request.url.partition("?")[2]))])

    n = 0
    for names in hosts.values():
        for name in names:
            n += 1
            for kind in ("redirect", "redirected"):
                site.handle(f"{SITE}/to?{quote(f'http://{name}:{port}/{kind}/{n}', safe='')}", to)
    return site.add(f"{SITE}/{'-'.join(hosts)}", attack(hosts, port), headers={"Cache-Control": "no-store"})


@pytest.mark.parametrize("kinds", GROUPS, ids="-".join)
async def test_no_page_reaches_loopback(
    guarded: Browser, site: ReplayWeb, loopback: Listeners, kinds: list[str]
) -> None:
    loopback.heard.clear()
    hosts = {kind: FEW_HOSTS if kind in HEAVY else LOOPBACK_HOSTS for kind in kinds}
    page = await visit(guarded, publish(site, hosts, loopback.port))
    assert f"tried {sum(map(len, hosts.values()))}" in page.html
    assert "secret" not in page.html
    assert page.refused, "the attempts did not even reach the proxy"
    assert loopback.heard == []


async def test_the_same_attempts_reach_loopback_when_they_may(
    allowed: Browser, site: ReplayWeb, loopback: Listeners
) -> None:
    """The control: each kind works, the listeners hear it, and only the policy tells the two browsers apart."""
    loopback.heard.clear()
    for kinds in GROUPS:
        page = await visit(allowed, publish(site, {kind: ["127.0.0.1"] for kind in kinds}, loopback.port))
        assert page.refused == ()
    assert loopback.paths() >= set(VECTORS)


async def test_a_permission_is_for_one_policy_only(allowed: Browser, guarded: Browser, loopback: Listeners) -> None:
    url = f"http://127.0.0.1:{loopback.port}/once"
    assert "secret" in (await visit(allowed, url)).html
    loopback.heard.clear()
    with pytest.raises(GuardRefused):
        await visit(guarded, url)
    assert loopback.heard == []


@pytest.mark.parametrize("host", LOOPBACK_HOSTS)
async def test_the_address_itself_is_refused(guarded: Browser, loopback: Listeners, host: str) -> None:
    loopback.heard.clear()
    with pytest.raises(GuardRefused):
        await visit(guarded, f"http://{host}:{loopback.port}/")
    assert loopback.heard == []


@pytest.mark.parametrize("host", FEW_HOSTS)
async def test_redirects_to_loopback_say_what_the_guard_says(
    guarded: Browser, site: ReplayWeb, loopback: Listeners, host: str
) -> None:
    loopback.heard.clear()
    urls = [
        site.redirect(f"{SITE}/go?{scheme}{host}", f"{scheme}://{host}:{loopback.port}/x")
        for scheme in ("http", "https")
    ]
    for outcome in await asyncio.gather(*(visit(guarded, url) for url in urls), return_exceptions=True):
        assert isinstance(outcome, GuardRefused)
        assert outcome.reason in ("loopback", "local_name", "unspecified")
    assert loopback.heard == []


@pytest.mark.parametrize(
    "code",
    [
        "location = at",
        "location.replace(at)",
        "setTimeout(() => location.assign(at), 200)",
        "const f = document.createElement('form'); f.action = at; f.method = 'POST'; add(f); f.submit()",
        "const a = document.createElement('a'); a.href = at; document.body.append(a); a.click()",
        "document.head.innerHTML += `<meta http-equiv=refresh content='0;url=${at}'>`",
    ],
)
async def test_navigation_to_loopback_is_refused(
    guarded: Browser, site: ReplayWeb, loopback: Listeners, code: str
) -> None:
    loopback.heard.clear()
    addresses = f"http://127.0.0.1:{loopback.port}/x", f"https://localhost:{loopback.port}/x"
    urls = [
        site.add(
            f"{SITE}/nav{n}", f"{PROSE}<script>const at = '{at}', add = e => document.body.append(e); {code}</script>"
        )
        for n, at in enumerate(addresses)
    ]
    outcomes = await asyncio.gather(*(visit(guarded, url) for url in urls), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [GuardRefused, GuardRefused]
    assert loopback.heard == []


async def test_the_udp_listener_hears_a_browser_that_is_not_held_back(loopback: Listeners) -> None:
    """The control for WebRTC: without our launch options the same script's STUN packets arrive."""
    from playwright.async_api import async_playwright

    executable = find_browser(Settings())
    assert executable is not None
    options = launch_options(executable, "")
    options.update(args=[], proxy=None)
    loopback.heard.clear()
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(**options)
        page = await browser.new_page()
        await page.set_content(attack({"stun": ["127.0.0.1"]}, loopback.port))
        for _ in range(50):
            if "UDP" in loopback.heard:
                break
            await asyncio.sleep(0.1)
        await browser.close()
    assert "UDP" in loopback.heard
