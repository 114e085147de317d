"""The HTTP client: every hop guarded, every byte counted, every failure one of our errors."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import socket
import ssl
import struct
import time
from pathlib import Path

import brotli
import httpcore
import psutil
import pytest
import trustme
import zstandard

from tests.net.hostile_urls import ELSEWHERE, LOCAL
from tests.net.wire import Answer, Request, Server, always, deaf_listeners, names, reply, sent_to, serve
from trawl.deadline import Deadline
from trawl.errors import (
    DeadlineExceeded,
    DecodeError,
    EngineError,
    GuardRefused,
    NetworkError,
    TooManyRedirects,
    UsageError,
)
from trawl.net.dialer import Dialer
from trawl.net.guard import Policy
from trawl.net.http import HttpClient, HttpResponse, client_hints, join, user_agent
from trawl.settings import Settings

PAGE = b"<!doctype html><title>Fish</title><p>The net is full.</p>"
SITE = "http://site.example/"


async def fetch(server: Server, url: str = SITE, *hosts: str, timeout: float = 5, **kwargs: object) -> HttpResponse:
    """One call to `server`, which stands for `site.example` and `hosts`; asserts that no socket is left open."""
    before = set(asyncio.all_tasks())
    async with HttpClient(sent_to(server.port, "site.example", *hosts), settings=Settings()) as client:
        try:
            return await client.get(url, deadline=Deadline.after(timeout), **kwargs)  # type: ignore[arg-type]
        finally:
            await client.aclose()
            assert await server.idle(), "a connection was left open"
            assert asyncio.all_tasks() - before <= set(server.tasks), "a task was left running"


def by_path(**pages: bytes) -> Answer:
    """Answers by first path segment; `/` is `root`."""

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        name = request.target.partition("?")[0].strip("/") or "root"
        writer.write(pages[name])

    return answer


def redirect(location: str, status: str = "302 Found", **headers: str) -> bytes:
    return reply(status, b"moved", Location=location, **headers)


# ---------------------------------------------------------------- an ordinary page


async def test_a_page_comes_back_with_what_is_known_of_it() -> None:
    async with serve(
        always(reply("200 OK", PAGE, Content_Type="Text/HTML; charset=UTF-8", ETag='"x"', X_A="1"))
    ) as server:
        response = await fetch(server, "http://SITE.example/a b?q=ü#part")
    assert response.url == "http://SITE.example/a b?q=ü#part"
    assert response.final_url == "http://site.example/a%20b?q=%C3%BC#part"
    assert (response.status, response.body, response.truncated) == (200, PAGE, False)
    assert (response.content_type, response.charset) == ("text/html", "UTF-8")
    assert response.headers["etag"] == '"x"'
    assert response.headers["x-a"] == "1"
    assert server.requests[0].target == "/a%20b?q=%C3%BC", "the fragment stays here"


@pytest.mark.parametrize("status", [404, 410, 429, 500, 503, 999, 304, 204])
async def test_any_status_is_an_answer_not_an_error(status: int) -> None:
    body = b"" if status in (204, 304) else b"sorry"
    async with serve(always(reply(f"{status} X", body))) as server:
        response = await fetch(server)
    assert (response.status, response.body) == (status, body)


@pytest.mark.parametrize(
    ("header", "media_type", "charset"),
    [
        (b"text/html", "text/html", None),
        (b'TEXT/html;CHARSET="Windows-1252"', "text/html", "Windows-1252"),
        (b"text/html; charset='utf-8'", "text/html", "utf-8"),
        (b"text/html; a=b; charset = gbk ; x", "text/html", "gbk"),
        (b"application/ld+json", "application/ld+json", None),
        (b"text/html; charset=", "text/html", None),
        (b"text/html; charset=\x80\xff", "text/html", None),
        (b"html", "", None),
        (b"", "", None),
        (b"text/html/x", "", None),
        (b"text/html\r\nContent-Type: text/plain; charset=ascii", "text/plain", "ascii"),
        (b"text/html\r\nContent-Type: nonsense", "text/html", None),
    ],
)
async def test_content_type_is_read_whatever_its_spelling(header: bytes, media_type: str, charset: str | None) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: " + header + b"\r\n\r\n"
    async with serve(always(raw)) as server:
        response = await fetch(server)
    assert (response.content_type, response.charset) == (media_type, charset)


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("br", brotli.compress),
        ("zstd", zstandard.compress),
        ("identity", bytes),
        ("GZIP", gzip.compress),
    ],
)
async def test_every_advertised_coding_is_decoded(coding: str, encode: object) -> None:
    body = encode(PAGE * 500)  # type: ignore[operator]
    async with serve(always(reply("200 OK", body, Content_Encoding=coding))) as server:
        response = await fetch(server)
        assert server.requests[0].header("accept-encoding") == "gzip, deflate, br, zstd"
    assert (response.body, response.truncated) == (PAGE * 500, False)


@pytest.mark.parametrize("coding", ["gzip, gzip", "compress", "gzip\r\nContent-Encoding: br"])
async def test_codings_that_were_not_asked_for_are_an_error(coding: str) -> None:
    async with serve(always(reply("200 OK", gzip.compress(PAGE), Content_Encoding=coding))) as server:
        with pytest.raises(DecodeError) as caught:
            await fetch(server)
    assert caught.value.url == SITE


async def test_connections_are_kept_for_the_next_call() -> None:
    async with serve(always(reply("200 OK", PAGE))) as server:
        async with HttpClient(sent_to(server.port, "site.example"), settings=Settings()) as client:
            for _ in range(5):
                await client.get(SITE, deadline=Deadline.after(5))
        assert server.connections == 1


async def test_a_kept_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    async with serve(always(reply("200 OK", PAGE))) as server:
        async with HttpClient(sent_to(server.port, "site.example"), settings=Settings()) as client:
            await client.get(SITE, deadline=Deadline.after(5))
            # The close is sent as soon as the next request is seen: too late for the pool to notice.
            server.answer = close_once(server, always(reply("200 OK", b"again")))
            assert (await client.get(SITE, deadline=Deadline.after(5))).body == b"again"
        assert server.connections == 2


def close_once(server: Server, then: Answer) -> Answer:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        server.answer = then
        writer.close()

    return answer


# ---------------------------------------------------------------- the guard, at every hop


async def test_hostile_urls_are_refused_directly_and_nothing_hears_of_them() -> None:
    async with deaf_listeners() as (port, _), HttpClient(Dialer(Policy()), settings=Settings()) as client:
        for template, reason in [*LOCAL, *ELSEWHERE]:
            with pytest.raises(GuardRefused) as caught:
                await client.get(template.replace("{port}", str(port)), deadline=Deadline.after(5))
            assert caught.value.reason == reason, template


async def test_hostile_urls_are_refused_as_redirect_targets_and_nothing_hears_of_them() -> None:
    targets: list[str] = []

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        location = targets[0].encode()
        writer.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n")

    refused = 0
    not_refused: list[str] = []
    async with (
        deaf_listeners() as (port, _),
        serve(answer) as server,
        HttpClient(sent_to(server.port, "site.example"), settings=Settings()) as client,
    ):
        for template, _reason in [*LOCAL, *ELSEWHERE]:
            targets[:] = [template.replace("{port}", str(port))]
            try:
                await client.get(SITE, deadline=Deadline.after(5))
            except GuardRefused as error:
                refused += "after a redirect" in error.message or error.reason in ("characters", "syntax")
            except (NetworkError, TooManyRedirects):
                not_refused.append(targets[0])
    # A line break or NUL ends the header before the host, or makes it none.
    assert [url for url in not_refused if not set("\n\r\0\x7f") & set(url.strip())] == []
    assert refused >= 150


@pytest.mark.parametrize(
    "location",
    [
        "//127.0.0.1:{port}/",
        "/\\127.0.0.1:{port}/",
        "\\\\127.0.0.1:{port}/",
        "///127.0.0.1:{port}/",
        "/\t/127.0.0.1:{port}/",
        "http:\\127.0.0.1:{port}",
        "http:127.0.0.1:{port}",
        "http:/127.0.0.1:{port}",
        "//0x7f.1:{port}",
        "//localhost:{port}",
        "//[::1]:{port}/",
        "//site.example@127.0.0.1:{port}/",
        "https:127.0.0.1:{port}",
        "https:///127.0.0.1:{port}/",
        "//[::1",
        "//１２７.0.0.1:{port}/",
    ],
)
async def test_relative_redirects_cannot_name_another_host_past_the_guard(location: str) -> None:
    async with (
        deaf_listeners() as (port, _),
        serve(always(redirect(location.replace("{port}", str(port))))) as server,
    ):
        with pytest.raises(GuardRefused):
            await fetch(server)
        assert len(server.requests) == 1


async def test_names_that_lead_to_forbidden_addresses_are_refused_directly_and_as_redirects() -> None:
    resolver = names(rebind__example=["93.184.215.14", "127.0.0.1"], nat__example=["64:ff9b::7f00:1"])
    async with deaf_listeners() as (port, _), serve(always(redirect(f"http://nat.example:{port}/x"))) as server:
        dialer = Dialer(Policy(), connect_to={("site.example", 80): ("127.0.0.1", server.port)}, resolver=resolver)
        async with HttpClient(dialer, settings=Settings()) as client:
            for url in (f"http://rebind.example:{port}/", SITE):
                with pytest.raises(GuardRefused) as caught:
                    await client.get(url, deadline=Deadline.after(5))
                assert caught.value.reason == "loopback"


async def test_a_name_that_rebinds_between_check_and_connection_reaches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trawl.net.dialer.RESOLVED_FOR_SECONDS", 0.0)
    answers = [["93.184.215.14"], ["127.0.0.1"]]

    async def resolve(_: str) -> list[str]:
        return answers.pop(0)

    async with (
        deaf_listeners() as (port, _),
        HttpClient(Dialer(Policy(), resolver=resolve), settings=Settings()) as client,
    ):
        with pytest.raises(GuardRefused) as caught:
            await client.get(f"http://rebind.example:{port}/p?q", deadline=Deadline.after(5))
    assert caught.value.url == f"http://rebind.example:{port}/p?…"
    assert answers == []


async def test_permission_for_one_client_serves_no_other_even_while_its_connection_is_open() -> None:
    async with serve(always(reply("200 OK", PAGE))) as server:
        url = f"http://127.0.0.1:{server.port}/"
        allowed = HttpClient(Dialer(Policy.of([f"127.0.0.1:{server.port}"])), settings=Settings())
        public = HttpClient(Dialer(Policy()), settings=Settings())
        async with allowed, public:
            assert (await allowed.get(url, deadline=Deadline.after(5))).body == PAGE
            with pytest.raises(GuardRefused):
                await public.get(url, deadline=Deadline.after(5))
            assert (await allowed.get(url, deadline=Deadline.after(5))).body == PAGE
        assert (server.connections, len(server.requests)) == (1, 2)


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with deaf_listeners() as (port, _), serve(always(reply("200 OK", PAGE))) as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        assert (await fetch(server)).body == PAGE


# ---------------------------------------------------------------- redirects


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
async def test_redirects_are_followed_with_get(status: str) -> None:
    async with serve(by_path(root=redirect("/next", status), next=reply("200 OK", PAGE))) as server:
        response = await fetch(server)
    assert (response.final_url, response.body) == ("http://site.example/next", PAGE)


@pytest.mark.parametrize(("hops", "arrives"), [(0, True), (9, True), (10, True), (11, False), (1000, False)])
async def test_ten_redirects_are_followed_and_not_eleven(hops: int, arrives: bool) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        number = int(request.target.strip("/") or 0)
        writer.write(redirect(f"/{number + 1}") if number < hops else reply("200 OK", PAGE))

    async with serve(answer) as server:
        if arrives:
            assert (await fetch(server)).body == PAGE
            assert len(server.requests) == hops + 1
        else:
            with pytest.raises(TooManyRedirects, match="10"):
                await fetch(server)
            assert len(server.requests) == 11


@pytest.mark.parametrize(
    "pages",
    [
        {"root": redirect("/")},
        {"root": redirect("http://site.example/#x")},
        {"root": redirect("/a"), "a": redirect("/b"), "b": redirect("/a")},
        {"root": redirect("", "302 F", Set_Cookie="a=1") + b"", "x": b""},
    ],
)
async def test_a_circle_is_told_as_one(pages: dict[str, bytes]) -> None:
    async with serve(by_path(**pages)) as server:
        if b"Location: \r\n" in pages["root"]:
            assert (await fetch(server)).status == 302, "an empty Location leads nowhere"
            return
        with pytest.raises(TooManyRedirects, match="circle"):
            await fetch(server)
    assert len(server.requests) <= 3


async def test_a_page_that_sends_itself_a_cookie_and_comes_back_is_no_circle() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        cookie = request.header("cookie")
        writer.write(reply("200 OK", PAGE) if cookie == "seen=1" else redirect("/", Set_Cookie="seen=1; Path=/"))

    async with serve(answer) as server:
        async with HttpClient(sent_to(server.port, "site.example"), settings=Settings()) as client:
            for _ in range(2):
                response = await client.get(SITE, deadline=Deadline.after(5))
                assert response.body == PAGE
                assert "set-cookie" not in response.headers
        assert [r.header("cookie") for r in server.requests] == [None, "seen=1"] * 2, "nothing is kept between calls"


async def test_cookies_go_back_to_their_own_site_only() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.header("host") == "site.example":
            first = redirect("http://other.example/", Set_Cookie="id=7\r\nSet-Cookie: x=1; Domain=other.example")
            writer.write(first if request.target == "/" else reply("200 OK", PAGE))
        else:
            writer.write(redirect("http://site.example/back"))

    async with serve(answer) as server:
        await fetch(server, SITE, "other.example")
    assert [r.header("cookie") for r in server.requests] == [None, None, "id=7"]


async def test_a_callers_cookie_and_the_sites_own_travel_together() -> None:
    async with serve(by_path(root=redirect("/b", Set_Cookie="s=1"), b=reply("200 OK"))) as server:
        await fetch(server, headers={"Cookie": "login=abc"})
    assert [r.header("cookie") for r in server.requests] == ["login=abc", "login=abc; s=1"]


@pytest.mark.parametrize("away", ["http://other.example/", "http://site.example:8080/", "http://www.site.example/"])
async def test_a_callers_headers_do_not_leave_their_origin_and_do_not_come_back(away: str) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.target == "/":
            here = request.header("host") == "site.example"
            writer.write(redirect(away if here else "http://site.example/back"))
        else:
            writer.write(reply("200 OK", PAGE))

    secrets = {
        "Authorization": "Bearer abc",
        "X-Api-Key": "k",
        "Cookie": "c=1",
        "accept": "application/json",
        "User-Agent": "me/1",
    }
    async with serve(answer) as server:
        table = {
            (h, p): ("127.0.0.1", server.port)
            for h in ("site.example", "other.example", "www.site.example")
            for p in (80, 8080)
        }
        async with HttpClient(Dialer(Policy(), connect_to=table), settings=Settings()) as client:
            await client.get(SITE, deadline=Deadline.after(5), headers=secrets)
    first, *later = server.requests
    assert len(later) == 2
    for name, value in secrets.items():
        assert first.header(name) == value
    for request in later:
        assert not {"authorization", "x-api-key", "cookie"} & {name.lower() for name, _ in request.headers}
        assert (request.header("accept"), request.header("user-agent")) == ("application/json", "me/1")


@pytest.mark.parametrize(
    ("base", "location", "joined"),
    [
        ("http://a.example/x/y?q#f", "z", "http://a.example/x/z#f"),
        ("http://a.example/x/y#f", "z#g", "http://a.example/x/z#g"),
        ("http://a.example/x/y", "?p=1", "http://a.example/x/y?p=1"),
        ("http://a.example/x/y", "../../z", "http://a.example/z"),
        ("http://a.example/x", "//b.example/y", "http://b.example/y"),
        ("http://a.example/x#f", "https://b.example/y", "https://b.example/y#f"),
        ("http://a.example/x", "/ä b", "http://a.example/ä b"),
        ("http://a.example/x", "ftp://b/", "ftp://b/"),
    ],
)
def test_redirects_are_joined_and_carry_the_fragment(base: str, location: str, joined: str) -> None:
    assert join(base, location) == joined


@pytest.mark.parametrize(
    ("raw", "final_path"),
    [("/é".encode(), "/%C3%A9"), ("/é".encode("latin-1"), "/%C3%A9"), (b"  /c  ", "/c"), (b"/d e", "/d%20e")],
)
async def test_a_location_is_read_in_the_encodings_servers_use(raw: bytes, final_path: str) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        first = b"HTTP/1.1 302 F\r\nContent-Length: 0\r\nLocation: " + raw + b"\r\n\r\n"
        writer.write(first if request.target == "/" else reply("200 OK"))

    async with serve(answer) as server:
        assert (await fetch(server)).final_url == f"http://site.example{final_path}"


async def test_two_locations_that_differ_are_an_error_and_a_redirect_without_one_is_an_answer() -> None:
    async with serve(always(redirect("/a\r\nLocation: /b"))) as server:
        with pytest.raises(NetworkError, match="several"):
            await fetch(server)
    async with serve(always(reply("302 Found", PAGE))) as server:
        assert (await fetch(server)).body == PAGE


# ---------------------------------------------------------------- request headers


async def test_request_headers_are_those_of_one_browser() -> None:
    async with serve(always(reply("200 OK"))) as server:
        settings = Settings(accept_language="de-DE,de;q=0.9")
        async with HttpClient(sent_to(server.port, "site.example"), settings=settings) as client:
            await client.get(SITE, deadline=Deadline.after(5), headers={"ACCEPT": "text/csv", "X-Extra": "1"})
    sent = {name.lower(): value for name, value in server.requests[0].headers}
    assert len(sent) == len(server.requests[0].headers), "no header twice"
    assert sent["accept-language"] == "de-DE,de;q=0.9"
    assert (sent["accept"], sent["x-extra"], sent["host"]) == ("text/csv", "1", "site.example")
    assert "Chrome/" in sent["user-agent"]
    assert "HTTPX" not in str(sent).upper()
    assert not [name for name in sent if name.startswith("sec-")], "hints are for secure origins only"


def test_the_user_agent_follows_platform_and_settings_and_the_hints_follow_the_user_agent() -> None:
    for platform, words in (("linux", "X11; Linux x86_64"), ("darwin", "Macintosh"), ("win32", "Windows NT 10.0")):
        assert words in user_agent(Settings(), platform)
    assert user_agent(Settings(user_agent="me/1")) == "me/1"
    # As sent by Chrome 131 on Linux.
    assert client_hints("Mozilla/5.0 (X11; Linux x86_64) … Chrome/131.0.0.0 Safari/537.36") == {
        "sec-ch-ua": '"Google Chrome";v="131", "Chromium";v="131", "Not_A Brand";v="24"',
        "sec-ch-ua-mobile": "?0",
        "sec-ch-ua-platform": '"Linux"',
    }
    assert client_hints(user_agent(Settings(), "darwin"))["sec-ch-ua-platform"] == '"macOS"'
    for other in ("me/1", "Mozilla/5.0 … Firefox/140.0", "… Chrome/131.0.0.0 Safari/537.36 Edg/131.0.0.0"):
        assert client_hints(other) == {}


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "1\r\nX-B: 2"},
        {"X A": "1"},
        {"": "1"},
        {"X-A": "é"},
        {"X-A": "\x00"},
        {"X-A:": "1"},
        {"Host": "other.example"},
        {"accept-encoding": "identity"},
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "close"},
    ],
)
async def test_headers_that_would_change_the_message_are_the_callers_mistake(headers: dict[str, str]) -> None:
    async with serve(always(reply("200 OK"))) as server:
        with pytest.raises(UsageError):
            await fetch(server, headers=headers)
        assert server.connections == 0


def test_settings_that_cannot_be_sent_are_the_users_mistake() -> None:
    with pytest.raises(UsageError):
        HttpClient(Dialer(Policy()), settings=Settings(user_agent="a\r\nX: 1"))


async def test_urls_headers_and_cookies_are_not_logged_even_at_the_lowest_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        away = {} if "two" in request.target else {"location": "/two?token=s3cret"}
        writer.write(reply("302 Found" if away else "200 OK", set_cookie="id=s3cret", **away))

    async with serve(answer) as server:
        await fetch(server, SITE + "?token=s3cret", headers={"Authorization": "s3cret"})
        assert len(server.requests) == 2
    assert "s3cret" not in caplog.text


async def test_what_others_do_with_httpcore_is_still_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve(always(reply("200 OK"))) as server, httpcore.AsyncConnectionPool() as pool:
        await fetch(server, SITE)
        assert "httpcore" not in caplog.text
        await pool.request("GET", f"http://127.0.0.1:{server.port}/")
    assert "receive_response_headers" in caplog.text


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_a_body_beyond_the_cap_is_cut_and_told(coding: str) -> None:
    body = os.urandom(300_000)
    encoded = gzip.compress(body) if coding == "gzip" else body
    async with serve(always(reply("200 OK", encoded, Content_Encoding=coding))) as server:
        for cap, truncated in ((300_000, False), (299_999, True), (1, True), (0, True)):
            response = await fetch(server, max_bytes=cap)
            assert (response.body, response.truncated) == (body[:cap], truncated)


async def test_an_endless_body_ends_at_the_cap_of_the_settings() -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async with (
        serve(answer) as server,
        HttpClient(sent_to(server.port, "site.example"), settings=Settings(max_bytes=1_000_000)) as client,
    ):
        response = await client.get(SITE, deadline=Deadline.after(10))
        assert (len(response.body), response.truncated) == (1_000_000, True)
        assert await server.idle(), "the connection of an unread body is closed, not kept"


async def test_an_endless_stream_of_bytes_that_decode_to_nothing_ends_too() -> None:
    empty_block = b"\x00\x00\x00\xff\xff" * 13_000

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"start")[:10])
        while True:
            writer.write(empty_block)
            await writer.drain()

    async with serve(answer) as server:
        response = await fetch(server, max_bytes=1000, timeout=10)
    assert response.truncated


async def test_a_bomb_over_the_wire_stays_small() -> None:
    compressor = brotli.Compressor(quality=5)
    mega = bytes(2**20)
    bomb = b"".join(compressor.process(mega) for _ in range(1024)) + compressor.finish()
    assert len(bomb) < 10_000
    async with serve(always(reply("200 OK", bomb, Content_Encoding="br"))) as server:
        before = psutil.Process().memory_info().rss
        response = await fetch(server)
        grown = psutil.Process().memory_info().rss - before
    assert (len(response.body), response.truncated) == (10 * 2**20, True)
    assert grown < 100 * 2**20


@pytest.mark.parametrize("head", [b"X-A: " + b"a" * 300_000, b"".join(b"X-%d: a\r\n" % n for n in range(30_000))])
async def test_endless_headers_are_a_network_error(head: bytes) -> None:
    async with serve(always(b"HTTP/1.1 200 OK\r\n" + head)) as server:
        with pytest.raises(NetworkError):
            await fetch(server)


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"HTTP/1.1 xyz\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"<html>no protocol at all</html>\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_a_network_error(raw: bytes) -> None:
    async with serve(always(raw, close=True)) as server:
        with pytest.raises(NetworkError) as caught:
            await fetch(server, SITE + "?secret=1")
        # Only a connection that died without an answer is tried again.
        assert server.connections == (2 if raw in (b"", b"HTTP/1.1 200") else 1)
    assert caught.value.url == SITE + "?…"
    assert "SSH" not in str(caught.value)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize("how", ["close", "reset", "bad chunk"])
async def test_a_body_that_breaks_off_is_returned_as_far_as_it_came(coding: str, how: str) -> None:
    whole = os.urandom(100_000).hex().encode()
    encoded = gzip.compress(whole) if coding == "gzip" else whole

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        half = encoded[: len(encoded) // 2]
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n".encode())
        if how == "bad chunk":
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\nnonsense\r\n" % (len(half), half))
        else:
            writer.write(b"Content-Length: %d\r\n\r\n" % len(encoded) + half)
        await writer.drain()
        if how == "reset":
            await asyncio.sleep(0.05)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    async with serve(answer) as server:
        response = await fetch(server)
    assert response.truncated
    assert whole.startswith(response.body)
    assert len(response.body) > 50_000


async def test_a_reset_before_the_answer_is_tried_once_more_and_then_an_error() -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with serve(answer) as server:
        with pytest.raises(NetworkError, match=r"closed the connection|proper HTTP"):
            await fetch(server)
        assert len(server.requests) == 2


async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_a_drip_of_headers_ends_at_the_deadline() -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        await drip(writer, b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 100)

    async with serve(answer) as server:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            await fetch(server, timeout=0.3)
    assert time.monotonic() - began < 1.5
    assert caught.value.url == SITE


async def test_a_drip_of_body_ends_at_the_deadline_with_what_came() -> None:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        await drip(writer, b"y" * 1000)

    async with serve(answer) as server:
        began = time.monotonic()
        response = await fetch(server, timeout=0.4)
    assert time.monotonic() - began < 1.5
    assert response.truncated
    assert 1 <= len(response.body) < 100


async def test_silence_ends_at_the_deadline_whether_before_or_after_the_headers() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.target == "/body":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
            await writer.drain()
        await asyncio.sleep(2)

    async with serve(answer) as server:
        for url in (SITE, SITE + "body"):
            async with HttpClient(sent_to(server.port, "site.example"), settings=Settings()) as client:
                with pytest.raises(DeadlineExceeded):
                    await client.get(url, deadline=Deadline.after(0.2))


async def test_one_deadline_for_all_redirects_together() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.15)
        writer.write(redirect(f"/{len(server.requests)}"))

    async with serve(answer) as server:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await fetch(server, timeout=0.5)
    assert time.monotonic() - began < 1.2


@pytest.mark.parametrize("when", ["head", "body"])
async def test_a_cancelled_call_leaves_no_connection_open(when: str) -> None:
    reached = asyncio.Event()

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        if when == "body":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
            await writer.drain()
        reached.set()

    async with (
        serve(answer) as server,
        HttpClient(sent_to(server.port, "site.example"), settings=Settings()) as client,
    ):
        call = asyncio.create_task(client.get(SITE, deadline=Deadline.after(30)))
        await reached.wait()
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await server.idle()


async def test_names_and_ports_that_lead_nowhere_are_said_in_words() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dialer = sent_to(unused.getsockname()[1], "site.example")
        async with HttpClient(dialer, settings=Settings()) as client:
            with pytest.raises(NetworkError, match="refused the connection") as caught:
                await client.get(SITE, deadline=Deadline.after(5))
            assert caught.value.url == SITE
            with pytest.raises(NetworkError, match=r"missing\.example does not resolve"):
                await client.get("http://missing.example/", deadline=Deadline.after(5))


async def test_a_closed_client_takes_no_calls() -> None:
    client = HttpClient(Dialer(Policy()), settings=Settings())
    await client.aclose()
    await client.aclose()
    with pytest.raises(EngineError):
        await client.get(SITE, deadline=Deadline.after(1))


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path / "ca.pem"


def server_context(authority: trustme.CA, *hosts: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*hosts).configure_cert(context)
    return context


async def secure_get(server: Server, url: str, settings: Settings) -> HttpResponse:
    dialer = sent_to(server.port, "site.example", "other.example", scheme_port=443)
    async with HttpClient(dialer, settings=settings) as client:
        return await client.get(url, deadline=Deadline.after(5))


async def test_https_checks_the_name_asked_for_and_sends_what_browsers_send(
    authority: trustme.CA, ca_file: Path
) -> None:
    context = server_context(authority, "site.example")
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with serve(always(reply("200 OK", PAGE)), tls=context) as server:
        response = await secure_get(server, "https://site.example/", Settings(ca_file=ca_file))
    assert response.body == PAGE
    assert asked == ["site.example"], "SNI is the name, not the address dialled"
    request = server.requests[0]
    assert request.header("host") == "site.example"
    assert request.header("sec-fetch-mode") == "navigate"
    assert '"Google Chrome"' in (request.header("sec-ch-ua") or "")


async def test_certificates_that_do_not_fit_are_said_in_words(authority: trustme.CA, ca_file: Path) -> None:
    async with serve(always(reply("200 OK", PAGE)), tls=server_context(authority, "site.example")) as server:
        with pytest.raises(NetworkError, match=r"certificate of other\.example is not valid"):
            await secure_get(server, "https://other.example/", Settings(ca_file=ca_file))
        with pytest.raises(NetworkError, match=r"certificate of site\.example") as caught:
            await secure_get(server, "https://site.example/?k=1", Settings())
        assert "TRAWL_CA_FILE" in str(caught.value)
        assert caught.value.url == "https://site.example/?…"
        assert server.requests == []


async def test_plain_http_behind_https_is_a_tls_error() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(reply("400 Bad Request"))
        writer.close()

    listener = await asyncio.start_server(shout, "127.0.0.1", 0)
    server = Server(always(), port=listener.sockets[0].getsockname()[1])
    with pytest.raises(NetworkError, match=r"no TLS connection with site\.example"):
        await secure_get(server, "https://site.example/", Settings())
    listener.close()


async def test_a_downgrade_to_http_drops_the_callers_headers(authority: trustme.CA, ca_file: Path) -> None:
    secure = server_context(authority, "site.example")
    async with (
        serve(always(redirect("http://site.example/")), tls=secure) as first,
        serve(always(reply("200 OK"))) as then,
    ):
        table = {("site.example", 443): ("127.0.0.1", first.port), ("site.example", 80): ("127.0.0.1", then.port)}
        async with HttpClient(Dialer(Policy(), connect_to=table), settings=Settings(ca_file=ca_file)) as client:
            await client.get("https://site.example/", deadline=Deadline.after(5), headers={"Authorization": "x"})
    assert first.requests[0].header("authorization") == "x"
    assert then.requests[0].header("authorization") is None


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_a_ca_file_that_cannot_be_used_is_the_users_mistake(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "bad.pem"
    if content:
        path.write_text(content)
    with pytest.raises(UsageError, match="certificate file"):
        HttpClient(Dialer(Policy()), settings=Settings(ca_file=path))
