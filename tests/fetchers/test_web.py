"""From a URL to a Page: one GET, the browser when the page needs it, and an honest word when it is not to be had."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.replay import ReplayWeb
from trawl.deadline import Deadline
from trawl.errors import BrowserError, DeadlineExceeded, GuardRefused, NetworkError, TrawlError
from trawl.fetchers import FetchRequest, FetchTools, fetch_page
from trawl.fetchers.local import local_page
from trawl.net.dialer import Dialer
from trawl.net.guard import Policy
from trawl.net.http import HttpClient
from trawl.settings import Settings
from trawl.types import Page, Render

ARTICLE = (
    "<title>Mill</title><h1>Mill</h1>"
    + "<p>The mill grinds rye in winter. Its wheel is of oak. Nobody lives in it.</p>" * 8
)
SHELL = "<title>App</title><div id='root'></div><script src='/app.js'></script>"
URL = "https://pages.example/page"


@dataclass
class FakeRendered:
    html: str
    final_url: str = URL
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/html"
    settled: bool = True
    refused: tuple[str, ...] = ()
    truncated: bool = False


class FakeBrowser:
    """Plays what a browser may answer, faults included."""

    def __init__(self, answer: FakeRendered | Exception) -> None:
        self.answer = answer
        self.calls: list[tuple[str, Deadline]] = []

    async def render(self, url: str, *, deadline: Deadline, max_bytes: int) -> FakeRendered:
        self.calls.append((url, deadline))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
async def http(web: ReplayWeb) -> AsyncIterator[HttpClient]:
    async with HttpClient(
        Dialer(Policy(), connect_to=web.connect_to), settings=Settings(ca_file=web.ca_file)
    ) as client:
        yield client


async def fetch(
    http: HttpClient, url: str = URL, *, render: Render = "auto", browser: FakeBrowser | None = None, **settings: object
) -> Page:
    tools = FetchTools(http, browser, Settings.model_validate(settings))
    return await fetch_page(FetchRequest(url, Deadline.after(20), render), tools)


async def test_an_ordinary_page_comes_as_it_is(web: ReplayWeb, http: HttpClient) -> None:
    web.add(URL, ARTICLE, encoding="gzip")
    browser = FakeBrowser(FakeRendered(ARTICLE))
    page = await fetch(http, browser=browser)
    assert (page.outcome, page.via, page.status, page.content_type) == ("ok", "http", 200, "text/html")
    assert page.body == ARTICLE.encode()
    assert page.fetched_at > 0
    assert browser.calls == []


async def test_one_request_decides_the_type(web: ReplayWeb, http: HttpClient) -> None:
    """No HEAD probe, no second GET."""
    seen = []

    def answer(request):  # type: ignore[no-untyped-def]
        from tests.replay import Answer

        seen.append(request.method)
        return Answer(b'{"a": 1}', 200, [("Content-Type", "application/json")], None)

    web.handle(URL, answer)
    page = await fetch(http)
    assert page.via == "passthrough"
    assert seen == ["GET"]


@pytest.mark.parametrize(
    ("body", "told", "via", "media_type", "outcome"),
    [
        (b'{"a": 1}', "application/json", "passthrough", "application/json", "ok"),
        (b"<rss version='2.0'><channel/></rss>", "text/html", "passthrough", "application/rss+xml", "ok"),
        (b"%PDF-1.4 ...", "application/octet-stream", "pdf", "application/pdf", "ok"),
        (b"a,b\n1,2", "text/csv", "passthrough", "text/csv", "ok"),
        (b"words", None, "passthrough", "text/plain", "ok"),
        (b"\x89PNG\r\n\x1a\n1234", "image/png", "http", "image/png", "unsupported"),
        (gzip.compress(b"x" * 99), "application/gzip", "http", "application/gzip", "unsupported"),
        (b"", "application/json", "passthrough", "application/json", "empty"),
    ],
)
async def test_what_is_not_html_goes_its_own_way(
    web: ReplayWeb, http: HttpClient, body: bytes, told: str | None, via: str, media_type: str, outcome: str
) -> None:
    web.add(URL, body, content_type=told)
    page = await fetch(http)
    assert (page.via, page.content_type, page.outcome) == (via, media_type, outcome)
    assert bool(page.evidence) == (outcome != "ok")


async def test_json_beyond_the_cap_is_cut_and_told(web: ReplayWeb, http: HttpClient) -> None:
    web.add(URL, json.dumps([{"n": n} for n in range(1_000)]), content_type="application/json")
    page = await fetch(http, passthrough_max_bytes=1_000)
    assert (page.truncated, page.outcome, len(page.body)) == (True, "truncated", 1_000)


@pytest.mark.parametrize(
    ("status", "outcome"), [(404, "http_error"), (500, "http_error"), (401, "login"), (429, "blocked")]
)
async def test_an_error_status_is_told(web: ReplayWeb, http: HttpClient, status: int, outcome: str) -> None:
    web.add(URL, "<title>Sorry</title><p>No.</p>", status=status)
    page = await fetch(http, browser=FakeBrowser(BrowserError("none")))
    assert (page.status, page.outcome) == (status, outcome)
    assert str(status) in page.evidence


async def test_a_shell_is_rendered(web: ReplayWeb, http: HttpClient) -> None:
    web.add(URL, SHELL)
    browser = FakeBrowser(
        FakeRendered(ARTICLE, final_url=URL + "#done", settled=False, refused=("http://10.0.0.1/: private",))
    )
    page = await fetch(http, browser=browser)
    assert (page.outcome, page.via, page.charset) == ("ok", "browser", "utf-8")
    assert page.final_url == URL + "#done"
    assert page.body == ARTICLE.encode()
    assert any("still changing" in w for w in page.warnings)
    assert any("refused" in w for w in page.warnings)


async def test_the_browser_leaves_time_for_what_comes_after(web: ReplayWeb, http: HttpClient) -> None:
    web.add(URL, SHELL)
    browser = FakeBrowser(FakeRendered(ARTICLE))
    deadline = Deadline.after(10)
    await fetch_page(FetchRequest(URL, deadline), FetchTools(http, browser, Settings()))
    assert 1 < deadline.at - browser.calls[0][1].at <= 3


async def test_never_means_never(web: ReplayWeb, http: HttpClient) -> None:
    web.add(URL, SHELL)
    browser = FakeBrowser(FakeRendered(ARTICLE))
    page = await fetch(http, render="never", browser=browser)
    assert (page.outcome, page.via) == ("js_shell", "http")
    assert "#root" in page.evidence
    assert browser.calls == []


async def test_always_means_at_once(web: ReplayWeb, http: HttpClient) -> None:
    browser = FakeBrowser(FakeRendered(ARTICLE))
    page = await fetch(http, render="always", browser=browser)
    assert (page.outcome, page.via) == ("ok", "browser")


async def test_always_still_reads_what_a_browser_has_no_page_for(web: ReplayWeb, http: HttpClient) -> None:
    web.add(URL, b'{"a": 1}', content_type="application/json")
    for answer in (FakeRendered("<pre>{}</pre>", content_type="application/json"), BrowserError("a download")):
        page = await fetch(http, render="always", browser=FakeBrowser(answer))
        assert (page.via, page.outcome) == ("passthrough", "ok")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (None, "playwright install chromium"),
        (BrowserError("no browser was found", hint="Install one."), "no browser was found. Install one."),
        (DeadlineExceeded("late"), "longer timeout"),
        (NetworkError("reset"), "reset"),
        (GuardRefused("a private address", reason="private"), "a private address"),
    ],
)
async def test_without_a_browser_the_plain_page_is_kept_with_a_word_on_what_to_do(
    web: ReplayWeb, http: HttpClient, fault: TrawlError | None, said: str
) -> None:
    web.add(URL, SHELL)
    page = await fetch(http, browser=FakeBrowser(fault) if fault else None)
    assert (page.outcome, page.via, page.body) == ("js_shell", "http", SHELL.encode())
    assert any(said in warning for warning in page.warnings), page.warnings


async def test_a_challenge_is_tried_in_the_browser_and_told_when_it_stays(web: ReplayWeb, http: HttpClient) -> None:
    wall = "<title>Just a moment...</title><script>window._cf_chl_opt={}</script>"
    web.add(URL, wall, status=403)
    passed = await fetch(http, browser=FakeBrowser(FakeRendered(ARTICLE)))
    assert (passed.outcome, passed.via) == ("ok", "browser")
    stayed = await fetch(http, browser=FakeBrowser(FakeRendered(wall, status=403)))
    assert (stayed.outcome, stayed.via) == ("blocked", "browser")


async def test_what_scripts_leave_empty_is_still_a_shell(web: ReplayWeb, http: HttpClient) -> None:
    web.add(URL, SHELL)
    page = await fetch(http, browser=FakeBrowser(FakeRendered(SHELL)))
    assert (page.outcome, page.via) == ("js_shell", "browser")


async def test_refusals_and_network_errors_are_raised(web: ReplayWeb, http: HttpClient) -> None:
    web.redirect(URL, "http://127.0.0.1/secret")
    with pytest.raises(GuardRefused):
        await fetch(http)


async def test_cancelling_leaves_nothing_behind(web: ReplayWeb, http: HttpClient) -> None:
    from tests.replay import SlowFirstByte

    web.add(URL, ARTICLE, fault=SlowFirstByte(30))
    task = asyncio.create_task(fetch(http))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_local_content_is_judged_like_a_fetched_page() -> None:
    settings = Settings(max_bytes=5_000)
    page = local_page(ARTICLE.encode(), url=URL, content_type="text/html; charset=utf-8", status=200, settings=settings)
    assert (page.outcome, page.via, page.charset) == ("ok", "local", "utf-8")
    gone = local_page("<h1>x</h1>", url="", content_type="text/html", status=404, settings=settings)
    assert gone.outcome == "http_error"
    shell = local_page(SHELL, url=URL, content_type="text/html", status=200, settings=settings)
    assert shell.outcome == "js_shell"
    pdf = local_page(b"%PDF-1.4 x", url="", content_type="text/html", status=200, settings=settings)
    assert pdf.content_type == "application/pdf"
    cut = local_page("word " * 2_000, url="", content_type="text/plain", status=200, settings=settings)
    assert (cut.outcome, len(cut.body)) == ("truncated", 5_000)


def test_the_label_in_a_decoded_text_is_not_believed() -> None:
    page = local_page(
        "<meta charset='iso-8859-1'><p>Müller</p>", url="", content_type="text/html", status=200, settings=Settings()
    )
    assert page.charset == "utf-8"
    assert "Müller".encode() in page.body
