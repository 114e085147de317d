"""Rendering in a real Chromium: what is waited for, what is told, and that nothing is left running."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.replay import ReplayWeb
from tests.replay.faults import Drip, Endless, SlowFirstByte
from tests.replay.web import Answer, Request
from trawl.deadline import Deadline
from trawl.errors import BrowserError, DeadlineExceeded, EngineError, GuardRefused, NetworkError, TooManyRedirects
from trawl.net import browser as browser_module
from trawl.net import visit as visit_module
from trawl.net.browser import Browser, Rendered, find_browser
from trawl.net.chromium import PLAYWRIGHT_LAYOUTS, platform_of, spki_hashes
from trawl.net.dialer import Dialer
from trawl.net.guard import Policy
from trawl.net.visit import Measure, Settling
from trawl.settings import Settings

SITE = "http://site.example.com"
PROSE = "<p>Some words that make up a sentence of the page.</p>" * 5

needs_chromium = pytest.mark.skipif(find_browser(Settings()) is None, reason="no Chromium is installed")
with_chromium = [pytest.mark.browser, needs_chromium, pytest.mark.asyncio(loop_scope="module")]


def browser_test(test: object) -> object:
    """A test that drives the module's one Chromium, on the module's one event loop."""
    for mark in with_chromium:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def site() -> Iterator[ReplayWeb]:
    with ReplayWeb() as serving:
        serving.add(f"{SITE}/", f"<title>T</title>{PROSE}")
        yield serving


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser(site: ReplayWeb) -> AsyncIterator[Browser]:
    made = make_browser(site)
    yield made
    await made.aclose()


def make_browser(site: ReplayWeb, settings: Settings | None = None, policy: Policy | None = None) -> Browser:
    return Browser(Dialer(policy or Policy.of([]), connect_to=site.connect_to), settings or Settings())


async def render(browser: Browser, path: str, seconds: float = 20, max_bytes: int = 1_000_000) -> Rendered:
    url = path if "://" in path else SITE + path
    return await browser.render(url, deadline=Deadline.after(seconds), max_bytes=max_bytes)


def chromiums(of: int | None = None) -> list[psutil.Process]:
    """Browser processes below process `of` (ours by default), the main one first."""
    found = []
    for process in psutil.Process(of or os.getpid()).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "chrom" in process.name().lower():
                found.append(process)
    return found


async def gone(processes: list[psutil.Process], seconds: float = 10) -> bool:
    def waited() -> bool:
        _, alive = psutil.wait_procs(processes, timeout=seconds)
        return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    return await asyncio.to_thread(waited)


def emptied(directory: Path, pattern: str, seconds: float = 10) -> bool:
    deadline = Deadline.after(seconds)
    while (left := list(directory.glob(pattern))) and deadline.remaining() > 0:
        time.sleep(0.02)
    return not left


# -- the page --------------------------------------------------------------------------------------------------------


@browser_test
async def test_text_that_a_script_writes_is_there(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/api", '{"text": "From the server, after a while."}', content_type="application/json")
    site.add(
        f"{SITE}/app",
        "<!DOCTYPE html><div id=app></div><script>setTimeout(async () => {"
        "const reply = await (await fetch('/api')).json();"
        "document.getElementById('app').innerHTML = `<h1>Ready</h1><p>${(reply.text + ' ').repeat(9)}</p>`}, 700)"
        "</script>",
        headers={"X-Own": "1", "Set-Cookie": "a=b"},
    )
    page = await render(browser, "/app")
    assert page.html.startswith("<!DOCTYPE html>\n<html>")
    assert "From the server, after a while." in page.html
    assert page.settled
    assert not page.truncated
    assert (page.status, page.content_type, page.url) == (200, "text/html", f"{SITE}/app")
    assert page.headers["x-own"] == "1"
    assert page.refused == ()
    assert 700 <= page.ready_ms < 4000


@browser_test
async def test_a_static_page_costs_little_more_than_the_polls_it_must_stand_still(browser: Browser) -> None:
    await render(browser, "/")
    page = await render(browser, "/")
    assert page.settled
    assert page.ready_ms < 2000


@browser_test
async def test_short_pages_do_not_wait_out_the_ceiling(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/short", "<p>Gone.</p>")
    site.add(f"{SITE}/short-script", "<p>Gone.</p><script>window.x = 1</script>")
    site.add(
        f"{SITE}/loading", f"<p>Loading</p><script>setTimeout(() => document.body.innerHTML = '{PROSE}', 1700)</script>"
    )
    assert (await render(browser, "/short")).ready_ms < 2500
    scripted = await render(browser, "/short-script")
    assert scripted.settled
    assert scripted.ready_ms < 4500
    assert "<body><p>Some words" in (await render(browser, "/loading")).html


@pytest.mark.slow
@browser_test
async def test_a_page_that_never_stands_still_is_taken_as_it_is(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/ticker", f"{PROSE}<p id=t></p><script>setInterval(() => t.textContent += ' tick', 60)</script>")
    page = await render(browser, "/ticker")
    assert not page.settled
    assert "tick tick" in page.html
    assert 4500 <= page.ready_ms < 8000


@pytest.mark.slow
@browser_test
async def test_running_requests_are_not_waited_for_for_long(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/hang", "never", fault=SlowFirstByte(30))
    site.add(f"{SITE}/poller", f"{PROSE}<script>fetch('/hang')</script>")
    page = await render(browser, "/poller")
    assert page.settled
    assert page.ready_ms < 5000


@browser_test
async def test_near_the_deadline_what_is_there_is_taken(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/slow.js", "", content_type="text/javascript", fault=SlowFirstByte(30))
    site.add(f"{SITE}/blocked", f"{PROSE}<script src=/slow.js></script><p>Behind the script.</p>")
    started = time.monotonic()
    page = await render(browser, "/blocked", seconds=4)
    assert time.monotonic() - started < 5
    assert not page.settled
    assert "Some words" in page.html


@pytest.mark.slow
@browser_test
async def test_an_endless_script_is_stopped_and_the_page_read(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/endless", f"{PROSE}<script>setTimeout(() => {{ for (;;); }}, 30)</script>")
    page = await render(browser, "/endless", seconds=12)
    assert "Some words" in page.html
    assert "Some words" in (await render(browser, "/")).html


@browser_test
async def test_the_page_cannot_change_how_it_is_read(browser: Browser, site: ReplayWeb) -> None:
    site.add(
        f"{SITE}/forged",
        f"{PROSE}<form name=body><input name=innerText></form><img name=documentElement><img name=scripts>"
        "<script>String.prototype.slice = () => 'x'.repeat(5e7); String.prototype.trim = () => { throw 1 };"
        "Object.defineProperty(Element.prototype, 'outerHTML', { get: () => 'forged' });"
        "Document.prototype.getElementsByTagName = null</script>",
    )
    page = await render(browser, "/forged")
    assert page.settled
    assert "Some words" in page.html
    assert len(page.html) < 10_000


@browser_test
async def test_the_html_is_cut_at_the_limit(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/long", "<p>" + "ä€😀 " * 20_000)
    site.add(f"{SITE}/grows", f"{PROSE}<script>document.body.append('y '.repeat(3e6))</script>")
    for path in ("/long", "/grows"):
        page = await render(browser, path, max_bytes=50_000)
        assert page.truncated
        assert 49_990 <= len(page.html.encode()) <= 50_000


@browser_test
async def test_a_page_that_loads_without_end_meets_its_budget(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/flood", b"z", content_type="text/plain", fault=Endless(b"z" * 65536, 0.0))
    site.add(f"{SITE}/hungry", f"{PROSE}<script>fetch('/flood').then(r => r.text())</script>")
    page = await render(browser, "/hungry", max_bytes=300_000)
    assert page.truncated
    assert not page.settled
    assert "Some words" in page.html
    site.add(f"{SITE}/download", fault=Endless(b"z" * 65536, 0.0))
    page = await render(browser, "/download", max_bytes=300_000)
    assert page.truncated
    assert len(page.html) <= 300_000


@browser_test
async def test_images_fonts_and_media_are_not_loaded(browser: Browser, site: ReplayWeb) -> None:
    site.add(
        f"{SITE}/heavy",
        f"{PROSE}<link rel=stylesheet href=/s.css><img src=/i.png><video src=/v.mp4 autoplay></video>"
        "<audio src=/a.mp3 autoplay></audio><p style='font-family: F'>x</p>",
    )
    site.add(f"{SITE}/s.css", "@font-face{font-family:F;src:url(/f.woff2)} body{background:url(/b.png)}")
    page = await render(browser, "/heavy")
    asked = {request.url.removeprefix(SITE) for request in site.requests}
    assert page.settled
    assert "/s.css" in asked
    assert asked.isdisjoint({"/i.png", "/v.mp4", "/a.mp3", "/f.woff2", "/b.png"})


@browser_test
async def test_dialogs_popups_and_permission_prompts_hold_nothing_up(browser: Browser, site: ReplayWeb) -> None:
    site.add(f"{SITE}/popup", "<p>popup</p>")
    site.add(
        f"{SITE}/nag",
        f"<p id=out></p><script>alert('a'); const yes = confirm('c'), name = prompt('p');"
        f"onbeforeunload = () => 'stay'; window.open('/popup');"
        f"navigator.geolocation.getCurrentPosition(() => out.dataset.geo = 'yes', () => out.dataset.geo = 'no');"
        f"out.innerHTML = `${{yes}} ${{name}} {PROSE}`</script>",
    )
    page = await render(browser, "/nag", seconds=15)
    assert page.settled
    assert "false null" in page.html
    assert 'data-geo="yes"' not in page.html
    assert page.final_url == f"{SITE}/nag"


@browser_test
async def test_the_browser_looks_like_the_settings_say(browser: Browser, site: ReplayWeb) -> None:
    site.add(
        f"{SITE}/who",
        "<script>document.write(['', navigator.userAgent, navigator.platform, navigator.language, navigator.webdriver,"
        f"innerWidth + 'x' + innerHeight, ''].join(String.fromCharCode(124)))</script>{PROSE}",
    )
    page = await render(browser, "/who")
    _, agent, platform, language, webdriver, size, _ = page.html.split("|")
    assert "Chrome/" in agent
    assert "Headless" not in agent
    assert platform == platform_of(agent)
    assert language == "en-US"
    assert webdriver in ("false", "undefined", "")
    assert size == "1280x900"
    assert site.requests[-1].headers["user-agent"] == agent

    given = make_browser(site, Settings(user_agent="Mine/1.0 (Windows NT 10.0)", accept_language="de-CH,de;q=0.8"))
    try:
        _, agent, platform, language, *_ = (await render(given, "/who")).html.split("|")
    finally:
        await given.aclose()
    assert (agent, platform, language) == ("Mine/1.0 (Windows NT 10.0)", "Win32", "de-CH")


@browser_test
async def test_pages_share_nothing(browser: Browser, site: ReplayWeb) -> None:
    site.add(
        f"{SITE}/visits",
        f"<script>localStorage.n = +(localStorage.n || 0) + 1; document.cookie = 'c=' + localStorage.n;"
        f"document.write('visit ' + localStorage.n)</script>{PROSE}",
        headers={"Cache-Control": "max-age=3600"},
    )
    for _ in range(2):
        assert "visit 1" in (await render(browser, "/visits")).html
    assert "cookie" not in site.requests[-1].headers


@browser_test
async def test_redirects_and_navigation_by_script_are_followed_to_the_last_document(
    browser: Browser, site: ReplayWeb
) -> None:
    site.redirect_chain(f"{SITE}/r", 3, to="http://other.example.org/end")
    site.add("http://other.example.org/end", PROSE + "<p>The end.</p>", status=418)
    site.add(f"{SITE}/moves", "<script>setTimeout(() => location = 'http://other.example.org/end', 100)</script>")
    for path in ("/r", "/moves"):
        page = await render(browser, path)
        assert (page.final_url, page.status) == ("http://other.example.org/end", 418)
        assert "The end." in page.html
        assert page.url == SITE + path


# -- what it says when there is no page ------------------------------------------------------------------------------


@browser_test
async def test_failures_are_told_apart(browser: Browser, site: ReplayWeb) -> None:
    async def error_of(url: str, seconds: float = 20) -> Exception:
        with pytest.raises(Exception) as caught:
            await render(browser, url, seconds)
        return caught.value

    site.redirect_chain(f"{SITE}/loop", 2)
    site.redirect(f"{SITE}/to-nobody", "http://nobody.invalid/")
    site.redirect(f"{SITE}/to-private", "http://10.0.0.8/admin?token=s3cret")
    site.redirect(f"{SITE}/to-private-tls", "https://192.168.1.1/")
    site.redirect(f"{SITE}/to-file", "file:///etc/passwd")
    site.redirect(f"{SITE}/to-smtp", "http://other.example.org:25/")
    site.add(f"{SITE}/never", "x", fault=SlowFirstByte(30))
    site.add(f"{SITE}/file.zip", b"PK\x03\x04" * 99, content_type="application/zip")
    site.add("https://untrusted.example.org/", PROSE)

    assert isinstance(await error_of(f"{SITE}/loop"), TooManyRedirects)
    assert isinstance(await error_of(f"{SITE}/to-nobody"), NetworkError)
    assert "nobody.invalid" in str(await error_of(f"{SITE}/to-nobody"))
    for path, reason in {
        "/to-private": "private",
        "/to-private-tls": "private",
        "/to-file": "scheme",
        "/to-smtp": "port",
    }.items():
        error = await error_of(SITE + path)
        assert isinstance(error, GuardRefused), path
        assert error.reason == reason
        assert "s3cret" not in str(error)
    started = time.monotonic()
    assert isinstance(await error_of(f"{SITE}/never", 1.5), DeadlineExceeded)
    assert time.monotonic() - started < 3
    site.add(f"{SITE}/407", PROSE, status=407, headers={"Proxy-Authenticate": 'Basic realm="x"'})
    assert (await render(browser, "/407")).status == 407
    error = await error_of(f"{SITE}/file.zip")
    assert isinstance(error, BrowserError)
    assert "download" in str(error)
    assert "CERT" in str(await error_of("https://untrusted.example.org/"))


@browser_test
async def test_the_guard_is_asked_before_chromium(site: ReplayWeb) -> None:
    fresh = make_browser(site)
    for url in ("http://127.0.0.1/", "file:///etc/passwd", "http://user:pw@site.example.com/", "chrome://version"):
        with pytest.raises(GuardRefused):
            await render(fresh, url)
    assert fresh._start is None
    await fresh.aclose()


async def test_without_a_browser_the_error_says_what_to_do(tmp_path: Path) -> None:
    browser = Browser(Dialer(Policy.of([]), connect_to=lambda *_: ("127.0.0.1", 9)), Settings(browser=tmp_path / "no"))
    with pytest.raises(BrowserError, match="TRAWL_BROWSER"):
        await render(browser, "/")
    await browser.aclose()


async def test_a_browser_that_does_not_start_says_so_every_time(tmp_path: Path) -> None:
    fake = tmp_path / "chromium"
    fake.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    fake.chmod(0o755)
    browser = Browser(Dialer(Policy.of([]), connect_to=lambda *_: ("127.0.0.1", 9)), Settings(browser=fake))
    for _ in range(2):
        with pytest.raises(BrowserError, match="did not start"):
            await render(browser, "/")
    await browser.aclose()


# -- certificates ----------------------------------------------------------------------------------------------------


def test_the_hash_of_a_certificates_key_is_computed_as_by_cryptography() -> None:
    authorities = [trustme.CA(), trustme.CA(key_type=trustme.KeyType.RSA)]
    pems = [ca.cert_pem.bytes() for ca in authorities] + [authorities[0].issue_cert("a.b").cert_chain_pems[0].bytes()]
    expected = []
    for pem in pems:
        key = x509.load_pem_x509_certificate(pem).public_key()
        spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        expected.append(base64.b64encode(hashlib.sha256(spki).digest()).decode())
    assert spki_hashes(b"\n".join(pems).decode()) == expected


@pytest.mark.parametrize("pem", ["", "text", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"])
def test_what_is_no_certificate_is_an_error(pem: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        spki_hashes(pem)


@contextlib.asynccontextmanager
async def tls_site(ca: trustme.CA, folder: Path) -> AsyncIterator[int]:
    """A site with a certificate for site.example.com that sends its authority's certificate along."""
    leaf = ca.issue_cert("site.example.com")
    chain = folder / "chain.pem"
    chain.write_bytes(leaf.private_key_and_cert_chain_pem.bytes() + ca.cert_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            body = PROSE.encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@browser_test
async def test_the_given_authority_is_trusted_and_no_other(tmp_path: Path) -> None:
    ours, other = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(tmp_path / "ca.pem")
    for ca, trusted in ((ours, True), (other, False)):
        async with tls_site(ca, tmp_path) as port:
            browser = Browser(
                Dialer(Policy.of([]), connect_to=lambda *_, port=port: ("127.0.0.1", port)),
                Settings(ca_file=tmp_path / "ca.pem"),
            )
            try:
                if trusted:
                    assert "Some words" in (await render(browser, "https://site.example.com/")).html
                else:
                    with pytest.raises(NetworkError, match="CERT_AUTHORITY_INVALID"):
                        await render(browser, "https://site.example.com/")
            finally:
                await browser.aclose()


@browser_test
async def test_the_users_authority_does_not_open_the_browser(tmp_path: Path) -> None:
    """Chromium would take any chain that holds its certificate, signed or not: only recorded webs may have that."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with tls_site(ca, tmp_path) as port:
        browser = Browser(Dialer(Policy.of([f"127.0.0.1:{port}"])), Settings(ca_file=tmp_path / "ca.pem"))
        try:
            with pytest.raises(NetworkError, match="CERT_"):
                await render(browser, f"https://127.0.0.1:{port}/")
        finally:
            await browser.aclose()


# -- what runs, and that it ends -------------------------------------------------------------------------------------


@browser_test
async def test_a_killed_chromium_is_replaced(browser: Browser, site: ReplayWeb) -> None:
    await render(browser, "/")
    victims = chromiums()
    victims[0].kill()
    assert "Some words" in (await render(browser, "/")).html
    assert await gone(victims)

    kills = 0

    def kill_once(_: Request) -> Answer:
        nonlocal kills
        kills += 1
        if kills == 1:
            chromiums()[0].kill()
            time.sleep(0.3)
        return Answer(PROSE.encode(), headers=[("Content-Type", "text/html")])

    site.handle(f"{SITE}/killer", kill_once)
    assert "Some words" in (await render(browser, "/killer")).html
    assert kills == 2


@pytest.mark.slow
@browser_test
async def test_a_page_that_kills_the_browser_every_time_is_given_up(browser: Browser, site: ReplayWeb) -> None:
    def kill(_: Request) -> Answer:
        chromiums()[0].kill()
        time.sleep(0.3)
        return Answer(b"x")

    site.handle(f"{SITE}/killer2", kill)
    with pytest.raises(BrowserError, match="twice"):
        await render(browser, "/killer2")
    assert "Some words" in (await render(browser, "/")).html


@pytest.mark.slow
@browser_test
async def test_a_killed_driver_is_replaced_and_its_chromium_ends(browser: Browser) -> None:
    await render(browser, "/")
    before = chromiums()
    driver = next(p for p in psutil.Process().children() if "node" in p.name() or "run-driver" in p.cmdline())
    driver.kill()
    await asyncio.sleep(0.2)
    assert "Some words" in (await render(browser, "/")).html
    assert await gone(before)


@browser_test
async def test_a_hanging_chromium_is_replaced(site: ReplayWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_module, "CONTEXT_SECONDS", 1.0)
    monkeypatch.setattr(browser_module, "CLOSE_SECONDS", 1.0)
    before = {p.pid for p in chromiums()}
    own = make_browser(site)
    await render(own, "/")
    hanging = [p for p in chromiums() if p.pid not in before]
    hanging[0].suspend()
    assert "Some words" in (await render(own, "/")).html
    assert await gone(hanging)
    await own.aclose()


@browser_test
async def test_a_crashed_page_is_tried_again_in_the_same_browser(browser: Browser, site: ReplayWeb) -> None:
    asked = 0

    def crash_once(_: Request) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 1:
            for process in chromiums():
                with contextlib.suppress(psutil.Error):
                    if "--type=renderer" in process.cmdline():
                        process.kill()
        return Answer(b"/* script */", headers=[("Content-Type", "text/javascript")])

    site.handle(f"{SITE}/crash.js", crash_once)
    site.add(f"{SITE}/crashing", f"{PROSE}<script src=/crash.js></script>")
    await render(browser, "/")
    main = chromiums()[0]
    assert "Some words" in (await render(browser, "/crashing")).html
    assert asked == 2
    assert chromiums()[0] == main


@browser_test
async def test_nothing_but_the_page_and_what_it_names_is_asked_for(site: ReplayWeb) -> None:
    """Chromium's own background requests do not come through a page's lease."""
    asked: set[tuple[str, int]] = set()

    def watched(host: str, port: int) -> tuple[str, int] | None:
        asked.add((host, port))
        return site.connect_to(host, port)

    own = Browser(Dialer(Policy.of([]), connect_to=watched), Settings())
    await render(own, "/")
    await own.aclose()
    assert asked == {("site.example.com", 80)}


@pytest.mark.slow
@browser_test
async def test_more_pages_than_slots_all_get_their_turn(browser: Browser, site: ReplayWeb) -> None:
    for n in range(9):
        site.add(f"{SITE}/n{n}", f"{PROSE}<p>number {n}</p>")
    pages = await asyncio.gather(*(render(browser, f"/n{n}", seconds=40) for n in range(9)))
    assert all(f"number {n}" in page.html for n, page in enumerate(pages))


@browser_test
async def test_cancelled_calls_leave_no_page_behind(browser: Browser, site: ReplayWeb) -> None:
    await render(browser, "/")
    chromium = await browser._chromium(Deadline.after(5), await browser._dialer.check(SITE))
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 0.8):
        task = asyncio.create_task(render(browser, "/"))
        await asyncio.sleep(delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    while closing := browser._background - {browser._start}:
        await asyncio.wait(closing, timeout=5)
    assert chromium.browser.contexts == []
    assert chromium.proxy._leases == {}
    assert "Some words" in (await render(browser, "/")).html


@browser_test
async def test_closing_stops_everything_and_fails_what_is_running(site: ReplayWeb) -> None:
    site.add(f"{SITE}/drip", "<p>x</p>" * 2000, fault=Drip(10, 0.1))
    before, tasks = {p.pid for p in chromiums()}, asyncio.all_tasks()
    own = make_browser(site)
    running = asyncio.create_task(render(own, "/drip"))
    for _ in range(200):
        if any(request.url.endswith("/drip") for request in site.requests):
            break
        await asyncio.sleep(0.05)
    started = [p for p in chromiums() if p.pid not in before]
    assert started
    await own.aclose()
    assert await gone(started, 3)
    with pytest.raises(EngineError, match="closed"):
        await running
    with pytest.raises(EngineError, match="closed"):
        await render(own, "/")
    await own.aclose()
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() <= tasks


@pytest.mark.slow
@browser_test
async def test_closing_while_chromium_starts_stops_it(site: ReplayWeb) -> None:
    before = {p.pid for p in chromiums()}
    own = make_browser(site)
    running = asyncio.create_task(render(own, "/"))
    await asyncio.sleep(0.15)
    running.cancel()
    await own.aclose()
    assert [p for p in chromiums() if p.pid not in before and p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
@browser_test
async def test_an_idle_chromium_stops_and_starts_again(site: ReplayWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_module, "IDLE_SECONDS", 0.3)
    before = {p.pid for p in chromiums()}
    own = make_browser(site)
    await render(own, "/")
    started = [p for p in chromiums() if p.pid not in before]
    assert started
    assert await gone(started, 5)
    assert "Some words" in (await render(own, "/")).html
    await own.aclose()


@browser_test
async def test_what_a_page_said_is_not_told_as_another_sites_words(
    browser: Browser, site: ReplayWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that leaves in the moment it is read must not lend its words to where it went."""
    site.add(f"{SITE}/bank", f"<title>Bank</title>{PROSE}")
    site.add(
        f"{SITE}/forger", f"{PROSE}<p>send your savings to me</p><script>onmessage = () => location = '/bank'</script>"
    )
    read_headers = visit_module.Visit._headers

    async def after_it_left(visit: visit_module.Visit) -> dict[str, str]:
        page = visit.context.pages[0]
        await page.evaluate("postMessage('go')")
        await page.wait_for_url(f"{SITE}/bank")
        return await read_headers(visit)

    monkeypatch.setattr(visit_module.Visit, "_headers", after_it_left)
    page = await render(browser, "/forger")
    assert "savings" in page.html
    assert page.final_url == f"{SITE}/forger"


@browser_test
@pytest.mark.parametrize("path", ["/closed", "/crashed", "/Timeout"])
async def test_words_in_a_url_are_not_taken_for_the_browsers_own(browser: Browser, site: ReplayWeb, path: str) -> None:
    """Playwright's messages carry the URL: one that says `closed` must not cost every other page its browser."""
    await render(browser, "/")
    start = browser._start
    # Behind a certificate that Chromium does not know, so that the failure is its own and not the proxy's.
    url = f"https://site.example.com{path}?token=s3cret"
    with pytest.raises(NetworkError, match="CERT") as caught:
        await browser.render(url, deadline=Deadline.after(20), max_bytes=1_000_000)
    assert "s3cret" not in str(caught.value)
    assert browser._start is start


@browser_test
async def test_a_site_that_asks_for_a_password_gets_none(browser: Browser, site: ReplayWeb) -> None:
    """Least of all the proxy's."""

    def ask(_: Request) -> Answer:
        return Answer(
            b"who are you?", 401, [("WWW-Authenticate", 'Basic realm="trawl"'), ("Content-Type", "text/html")]
        )

    site.handle(f"{SITE}/private", ask)
    site.add(f"{SITE}/asking", f"{PROSE}<iframe src=/private></iframe><script>fetch('/private')</script>")
    site.requests.clear()
    await render(browser, "/asking")
    asked = [request for request in site.requests if request.url.endswith("/private")]
    assert asked
    assert not any("authorization" in name for request in asked for name in request.headers)


@browser_test
async def test_chromium_gets_only_the_environment_it_needs(site: ReplayWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out may be a secret, switches that launchers add to ours, or a file to write TLS keys to."""
    outside = {
        "TRAWL_EMBED_URL",
        "DATABASE_URL",
        "CHROMIUM_FLAGS",
        "SSLKEYLOGFILE",
        "CHROME_DEVEL_SANDBOX",
        "http_proxy",
    }
    for name in outside:
        monkeypatch.setenv(name, "/nowhere")
    own = make_browser(site)
    before = {p.pid for p in chromiums()}
    try:
        await render(own, "/")
        started = [p for p in chromiums() if p.pid not in before]
        assert started
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                assert "/nowhere" not in process.environ().values()
    finally:
        await own.aclose()


@browser_test
async def test_a_page_of_frames_from_everywhere_starts_a_bounded_number_of_processes(browser: Browser) -> None:
    frames = "".join(f"<iframe src='http://s{n}.test{n}.org/'></iframe>" for n in range(200))
    with ReplayWeb() as web:
        own = Browser(Dialer(Policy.of([]), connect_to=lambda *_: ("127.0.0.1", web.http_port)), Settings())
        web.add(f"{SITE}/frames", f"{PROSE}{frames}")
        try:
            page = await render(own, "/frames", seconds=40)
            assert "Some words" in page.html
            assert len(web.requests) <= visit_module.MAX_FRAMES + 5
            assert len([p for p in chromiums() if "--type=renderer" in " ".join(p.cmdline())]) < 12
        finally:
            await own.aclose()


@browser_test
async def test_a_flood_of_requests_ends_the_loading_not_the_call(
    browser: Browser, site: ReplayWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit_module, "MAX_REQUESTS", 50)
    site.add(f"{SITE}/flood", f"{PROSE}<script>for (let n = 0; n < 500; n++) fetch('/f?' + n).catch(() => 0)</script>")
    site.requests.clear()
    page = await render(browser, "/flood")
    assert "Some words" in page.html
    assert page.truncated
    assert len(site.requests) <= 51


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets limits of other processes")
@browser_test
async def test_a_page_cannot_take_all_the_memory_there_is(browser: Browser, site: ReplayWeb) -> None:
    """Neither alone nor with a frame from elsewhere; its process starts after the limit was set."""
    greedy = "<script>const held = []; setInterval(() => held.push(new Uint8Array(3e8).fill(1)), 30)</script>"
    site.add("http://other.example.net/", greedy)
    site.add(f"{SITE}/greedy", f"{PROSE}{greedy}<iframe src='http://other.example.net/'></iframe>")
    visit = asyncio.create_task(render(browser, "/greedy"))
    most = 0
    while not visit.done():
        for process in chromiums():
            with contextlib.suppress(psutil.Error):
                # Locked or not, private pages: what counts against the limit and against the machine.
                most = max(most, process.memory_info().rss - process.memory_info().shared)
        await asyncio.sleep(0.1)
    assert "Some words" in (await visit).html
    assert 5e8 < most < 2.3e9


@browser_test
async def test_another_event_loop_is_told_so(browser: Browser) -> None:
    await render(browser, "/")

    def elsewhere() -> None:
        asyncio.run(render(browser, "/"))

    with pytest.raises(EngineError, match="event loop"):
        await asyncio.to_thread(elsewhere)


CHILD = """
    import asyncio, sys
    from trawl.deadline import Deadline
    from trawl.net.browser import Browser
    from trawl.net.dialer import Dialer
    from trawl.net.guard import Policy
    from trawl.settings import Settings

    async def main():
        browser = Browser(Dialer(Policy.of([]), connect_to=lambda *_: ("127.0.0.1", int(sys.argv[1]))), Settings())
        page = await browser.render("http://site.example.com/", deadline=Deadline.after(20), max_bytes=10**6)
        print(len(page.html), flush=True)
        if sys.argv[2] == "hang":
            await browser.render("http://site.example.com/never", deadline=Deadline.after(60), max_bytes=10**6)

    asyncio.run(main())
"""


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize(
    "end",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(None, marks=pytest.mark.slow),
    ],
)
async def test_nothing_outlives_our_process(site: ReplayWeb, tmp_path: Path, end: signal.Signals | None) -> None:
    site.add(f"{SITE}/never", "x", fault=SlowFirstByte(60))
    child = subprocess.Popen(  # noqa: ASYNC220 - its output is read, and it is waited for, in a thread
        [sys.executable, "-c", textwrap.dedent(CHILD), str(site.http_port), "hang" if end else "return"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert child.stdout is not None
    assert int(await asyncio.to_thread(child.stdout.readline)) > 100
    if end is not None:
        below = psutil.Process(child.pid).children(recursive=True)
        assert chromiums(child.pid)
        child.send_signal(end)
        assert await gone(below)
    await asyncio.to_thread(child.wait, 10)
    child.stdout.close()
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert await gone(left, 5)
    # Chromium's profile is removed by Playwright's own process, which is the last to go.
    assert await asyncio.to_thread(emptied, tmp_path, "playwright*")


# -- finding it, deciding --------------------------------------------------------------------------------------------


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_browser_is_looked_for_in_the_promised_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, downloads = tmp_path / "bin", tmp_path / "ms"
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(downloads))
    assert find_browser(Settings()) is None
    for name in ("google-chrome-stable", "google-chrome", "chromium-browser", "chromium"):
        made = executable(folder / name)
        assert find_browser(Settings()) == made
    for place in (
        "chromium_headless_shell-1208/chrome-headless-shell-linux64/chrome-headless-shell",
        "chromium-999/chrome-linux/chrome",
        "chromium-1255/chrome-linux64/chrome",
    ):
        made = executable(downloads / place)
        assert find_browser(Settings()) == made
    made.chmod(0o644)
    assert find_browser(Settings()) == downloads / "chromium-999/chrome-linux/chrome"
    named = tmp_path / "mine"
    assert find_browser(Settings(browser=named)) is None
    assert find_browser(Settings(browser=executable(named))) == named
    assert find_browser(Settings(browser=tmp_path)) is None


def test_playwrights_own_layout_is_the_one_looked_for() -> None:
    """Playwright's driver names the folders of its downloads: those for this platform must match a pattern."""
    import playwright

    bundle = Path(playwright.__file__).parent / "driver/package/lib/coreBundle.js"
    if not bundle.exists():
        pytest.skip("this Playwright keeps its registry elsewhere")
    text = bundle.read_text()
    for folder in ("chrome-linux64", "chrome-headless-shell-linux64"):
        assert folder in text
        assert any(
            Path(f"x/{folder}").match(
                layout.rpartition("/")[0].replace("chromium-*", "x").replace("chromium_headless_shell-*", "x")
            )
            for layout in PLAYWRIGHT_LAYOUTS
        )


def polls(measures: list[Measure], *, quiet: bool = True, idle_budget: float = 3.0) -> int | None:
    """At which poll the content counts as ready."""
    settling = Settling(idle_budget=idle_budget)
    for index, measure in enumerate(measures):
        if settling.ready(measure, quiet=quiet, elapsed=index * 0.15):
            return index
    return None


def test_content_is_ready_when_enough_text_has_stood_still() -> None:
    def page(text: int, elements: int = 10, scripts: int = 1) -> Measure:
        return Measure(True, text, elements, scripts)

    assert polls([page(101)] * 30) == 4
    assert polls([page(n) for n in range(101, 110)] + [page(110)] * 30) == 13
    assert polls([page(500, elements=n) for n in range(30)]) == 4
    assert polls([page(101)] * 60, quiet=False) == 20
    assert polls([page(101)] * 60, quiet=False, idle_budget=1.0) == 7
    assert polls([page(100)] * 60) == 14
    assert polls([page(100)] * 60, quiet=False) is None
    assert polls([page(100, scripts=0)] * 60) == 4
    assert polls([page(100, elements=n) for n in range(60)]) is None
    assert polls([page(0)] * 60) is None
    assert polls([page(0, scripts=0)] * 60) == 4


def test_loopback_is_where_the_proxy_listens() -> None:
    """The proxy must not be reachable from the network."""

    async def addresses() -> set[str]:
        from trawl.net.proxy import BrowserProxy

        proxy = BrowserProxy(Dialer(Policy.of([])))
        await proxy.start()
        try:
            servers = [s for s in (proxy._server, proxy._deny_server) if s is not None]
            return {sock.getsockname()[0] for server in servers for sock in server.sockets}
        finally:
            await proxy.aclose()

    assert asyncio.run(addresses()) == {socket.inet_ntoa(b"\x7f\0\0\1")}
