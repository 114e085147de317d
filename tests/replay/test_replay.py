"""What the replay web promises the other tests."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import zlib
from pathlib import Path

import brotli
import httpx
import pytest
import zstandard
from playwright.async_api import async_playwright

from tests.replay import (
    REPO,
    Answer,
    Drip,
    Endless,
    Raw,
    ReplayWeb,
    Request,
    Reset,
    SlowFirstByte,
    WrongLength,
    async_replay_client,
    bomb,
    connect_to_from,
    data,
    load_payload_index,
    replay_client,
    require_data,
    wcxb_page,
)
from tests.replay import record as recorder
from trawl.net.chromium import find_browser, spki_hashes
from trawl.settings import Settings


def test_a_recorded_page_is_served_under_its_real_url_over_both_schemes(web: ReplayWeb) -> None:
    web.add("https://example.com/a?b=1", "<p>secure</p>")
    web.add("http://example.com/a?b=1", "<p>plain</p>")
    with replay_client(web) as client:
        assert client.get("https://example.com/a?b=1").text == "<p>secure</p>"
        answer = client.get("http://example.com/a?b=1")
    assert (answer.text, answer.headers["content-type"]) == ("<p>plain</p>", "text/html; charset=utf-8")


def test_what_was_not_recorded_is_a_404_that_says_so(web: ReplayWeb) -> None:
    web.add("https://example.com/", "x")
    with replay_client(web) as client:
        for url in ("https://example.com/other", "https://example.com/?q", "http://example.com/"):
            answer = client.get(url)
            assert answer.status_code == 404
            assert "Not recorded" in answer.text
            assert url in answer.text


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [
        ("https://EXAMPLE.com", "https://example.com/"),
        ("https://example.com/#top", "https://example.com/"),
        ("https://example.com/wiki/Käse?q=ä b", "https://example.com/wiki/K%c3%a4se?q=%C3%A4%20b"),
        ("https://example.com/a(b)?c[d]='e'", "https://example.com/a%28b%29?c%5Bd%5D=%27e%27"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://example.com:443/", "https://example.com/"),
        (
            "https://web.example/1997/http://example.com/?a=http://b",
            "https://web.example/1997/http://example.com/?a=http://b",
        ),
        ("http://example.com:8080/x", "http://example.com:8080/x"),
        ("https://example.com:8443/x", "https://example.com:8443/x"),
        ("https://93.184.216.34/x", "https://93.184.216.34/x"),
        ("http://[2001:db8::1]/x", "http://[2001:db8::1]/x"),
    ],
)
def test_spellings_of_one_url_are_one_page(web: ReplayWeb, recorded: str, asked: str) -> None:
    web.add(recorded, "found")
    with replay_client(web) as client:
        assert client.get(asked).text == "found"


def test_the_same_path_on_another_host_or_port_is_another_page(web: ReplayWeb) -> None:
    for url in ("http://a.example/", "http://b.example/", "http://a.example:8080/"):
        web.add(url, url)
    with replay_client(web) as client:
        assert [
            client.get(url).text for url in ("http://a.example:8080/", "http://b.example/", "http://a.example/")
        ] == [
            "http://a.example:8080/",
            "http://b.example/",
            "http://a.example/",
        ]


def test_connect_to_knows_recorded_hosts_only(web: ReplayWeb) -> None:
    web.add("https://example.com/", "x")
    web.add("http://example.org:8080/", "x")
    assert web.connect_to("example.com", 443) == ("127.0.0.1", web.https_port)
    assert web.connect_to("Example.COM.", 80) == ("127.0.0.1", web.http_port)
    assert web.connect_to("example.org", 8080) == ("127.0.0.1", web.http_port)
    for host, port in [("127.0.0.1", 80), ("localhost", 443), ("other.example", 443), ("example.com", 8080)]:
        assert web.connect_to(host, port) is None
    elsewhere = connect_to_from(web.connect_to_json())
    for known, loopback in web.connect_to_table().items():
        assert elsewhere(*known) == loopback == web.connect_to(*known)
    assert elsewhere("other.example", 443) is None


def test_certificates_are_for_the_name_asked_and_for_nobody_who_does_not_know_the_authority(web: ReplayWeb) -> None:
    web.add("https://one.example/", "1")
    address = ("127.0.0.1", web.https_port)
    ours = ssl.create_default_context(cafile=str(web.ca_file))
    for name in ("one.example", "two.example", "deep.sub.two.example"):
        with socket.create_connection(address, 5) as raw, ours.wrap_socket(raw, server_hostname=name) as tls:
            assert ("DNS", name) in tls.getpeercert()["subjectAltName"]  # type: ignore[index]
    with (
        socket.create_connection(address, 5) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
        ssl.create_default_context().wrap_socket(raw, server_hostname="one.example"),
    ):
        pass


@pytest.mark.browser
async def test_chromium_can_trust_the_authority_by_its_key(web: ReplayWeb) -> None:
    """It looks for the key in the chain as sent, so the server has to send its authority along."""
    executable = find_browser(Settings())
    if executable is None:
        pytest.skip("no Chromium is installed")
    web.add("https://secure.example/", "<title>trusted</title>")
    rules = [f"MAP {host}:{port} {to}:{there}" for (host, port), (to, there) in web.connect_to_table().items()]
    keys = ",".join(spki_hashes(web.ca_file.read_text()))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable,
            args=[f"--host-resolver-rules={','.join(rules)}", f"--ignore-certificate-errors-spki-list={keys}"],
        )
        page = await browser.new_page()
        await page.goto("https://secure.example/")
        assert await page.title() == "trusted"
        await browser.close()


async def test_asyncio_clients_can_use_it_many_at_once(web: ReplayWeb) -> None:
    for n in range(20):
        web.add(f"https://host{n}.example/", str(n), fault=SlowFirstByte(0.2))
    began = time.monotonic()
    async with async_replay_client(web) as client:
        answers = await asyncio.gather(*(client.get(f"https://host{n}.example/") for n in range(20)))
    assert [answer.text for answer in answers] == [str(n) for n in range(20)]
    assert time.monotonic() - began < 3


def test_a_child_process_can_use_it(web: ReplayWeb) -> None:
    web.add("http://example.com/", "for the child")
    script = (
        "import http.client, sys; from tests.replay import connect_to_from\n"
        "host, port = connect_to_from(sys.argv[1])('example.com', 80)\n"
        "c = http.client.HTTPConnection(host, port); c.request('GET', '/', headers={'Host': 'example.com'})\n"
        "print(c.getresponse().read().decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, web.connect_to_json()], cwd=REPO, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == "for the child", done.stderr


def test_requests_are_kept_as_they_arrived(web: ReplayWeb) -> None:
    web.add("https://example.com/a", "x")
    with replay_client(web) as client:
        client.post("https://example.com/a", content=b"body", headers={"X-Own": "1"})
        client.get("https://example.com/none?q=%C3%A4")
    first, second = web.requests
    assert (first.method, first.url, first.body) == ("POST", "https://example.com/a", b"body")
    assert first.headers["x-own"] == "1"
    assert first.headers["host"] == "example.com"
    assert second.url == "https://example.com/none?q=%C3%A4"


def test_status_and_headers_are_sent_as_recorded(web: ReplayWeb) -> None:
    headers = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("X-Name", "Käse"), ("Content-Length", "7")]
    web.add("https://example.com/", "too long for 7", status=429, headers=headers, content_type=None)
    web.add("https://example.com/xml", "<a/>", headers={"content-type": "text/xml"})
    web.add("https://example.com/latin", "Käse", content_type="text/plain; charset=iso-8859-1")
    with replay_client(web) as client:
        answer = client.get("https://example.com/")
        assert answer.status_code == 429
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert "content-type" not in answer.headers
        assert answer.text == "too long for 7"
        assert client.get("https://example.com/xml").headers.get_list("content-type") == ["text/xml"]
        assert client.get("https://example.com/latin").content == b"K\xe4se"


def test_head_and_answers_without_a_body_keep_the_connection_usable(web: ReplayWeb) -> None:
    web.add("https://example.com/", "body")
    web.add("https://example.com/304", status=304, headers={"ETag": '"1"'})
    with replay_client(web) as client:
        head = client.head("https://example.com/")
        assert (head.headers["content-length"], head.content) == ("4", b"")
        assert client.get("https://example.com/304").status_code == 304
        assert client.get("https://example.com/").text == "body"


def test_a_handler_answers_each_request_anew(web: ReplayWeb) -> None:
    def fresh_or_not(request: Request) -> Answer:
        if request.headers.get("if-none-match") == '"1"':
            return Answer(status=304)
        return Answer(b"new", headers=[("ETag", '"1"')])

    web.handle("https://example.com/", fresh_or_not)
    with replay_client(web) as client:
        assert client.get("https://example.com/").text == "new"
        assert client.get("https://example.com/", headers={"If-None-Match": '"1"'}).status_code == 304


def test_a_handler_that_fails_says_so(web: ReplayWeb) -> None:
    web.handle("https://example.com/", lambda request: Answer(bytes(request.headers["absent"], "ascii")))
    with replay_client(web) as client:
        answer = client.get("https://example.com/")
    assert answer.status_code == 500
    assert "KeyError: 'absent'" in answer.text


def test_redirects_go_where_they_say_and_loops_do_not_end(web: ReplayWeb) -> None:
    web.redirect("https://example.com/old", "/new", 301)
    web.add("https://example.com/new", "here")
    web.redirect_chain("http://example.org/", 5, "https://example.com/old")
    web.redirect_chain("https://example.com/loop?x=1", 3)
    with replay_client(web, follow_redirects=True) as client:
        answer = client.get("http://example.org/")
        assert (answer.text, len(answer.history)) == ("here", 6)
        with pytest.raises(httpx.TooManyRedirects):
            client.get("https://example.com/loop?x=1")


def test_a_slow_first_byte_is_slow(web: ReplayWeb) -> None:
    web.add("https://example.com/", "late", fault=SlowFirstByte(0.4))
    with replay_client(web) as client:
        began = time.monotonic()
        assert client.get("https://example.com/").text == "late"
        assert time.monotonic() - began >= 0.4
        with pytest.raises(httpx.ReadTimeout):
            client.get("https://example.com/", timeout=0.1)


def test_a_drip_sends_the_head_at_once_and_the_body_piece_by_piece(web: ReplayWeb) -> None:
    web.add("https://example.com/", "0123456789", fault=Drip(size=2, interval_s=0.1))
    with replay_client(web) as client, client.stream("GET", "https://example.com/") as answer:
        began = time.monotonic()
        parts = list(answer.iter_raw())
        assert time.monotonic() - began >= 0.4
    assert b"".join(parts) == b"0123456789"
    assert len(parts) == 5


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_reset_comes_after_the_bytes_before_it(web: ReplayWeb, scheme: str) -> None:
    web.add(f"{scheme}://example.com/", "x" * 1000, fault=Reset(after=100))
    got = bytearray()

    def read_all() -> None:
        with client.stream("GET", f"{scheme}://example.com/") as answer:
            for part in answer.iter_raw():
                got.extend(part)

    # OpenSSL reports a reset as an unexpected end.
    expected = httpx.ReadError if scheme == "http" else (httpx.ReadError, httpx.RemoteProtocolError)
    with replay_client(web) as client, pytest.raises(expected):
        read_all()
    assert len(got) == 100


def test_a_reset_can_come_instead_of_an_answer(web: ReplayWeb) -> None:
    web.add("http://example.com/", "x", fault=Reset(after=None))
    with replay_client(web) as client, pytest.raises(httpx.ReadError):
        client.get("http://example.com/")


def test_a_wrong_length_is_declared_and_the_connection_closed(web: ReplayWeb) -> None:
    web.add("http://example.com/long", "0123456789", fault=WrongLength(+5))
    web.add("http://example.com/short", "0123456789", fault=WrongLength(-4))
    with replay_client(web) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("http://example.com/long")
        assert client.get("http://example.com/short").text == "012345"


def test_an_endless_body_does_not_end(web: ReplayWeb) -> None:
    web.add("https://example.com/", "begin", fault=Endless(b"x" * 65_536))
    size = 0
    with replay_client(web) as client, client.stream("GET", "https://example.com/") as answer:
        assert "content-length" not in answer.headers
        for part in answer.iter_raw():
            size += len(part)
            if size > 5_000_000:
                break
    assert size > 5_000_000


def test_raw_bytes_go_out_untouched(web: ReplayWeb) -> None:
    web.add("http://example.com/", fault=Raw(b"SMTP ready\r\n"))
    with socket.create_connection(("127.0.0.1", web.http_port), 5) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
        assert raw.recv(100) == b"SMTP ready\r\n"
        assert raw.recv(100) == b""


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw-deflate", "br", "zstd"])
def test_every_coding_decodes_to_what_was_added(web: ReplayWeb, coding: str) -> None:
    web.add("https://example.com/", "Grüße " * 100, encoding=coding)  # type: ignore[arg-type]
    with replay_client(web) as client:
        answer = client.get("https://example.com/")
    assert answer.text == "Grüße " * 100
    assert answer.headers["content-encoding"] == coding.removeprefix("raw-")


def test_stacked_codings_are_named_in_the_order_they_were_applied(web: ReplayWeb) -> None:
    web.add("https://example.com/", "twice", encoding=("gzip", "br"))
    with replay_client(web) as client, client.stream("GET", "https://example.com/") as answer:
        body = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip, br"
    assert gzip.decompress(brotli.decompress(body)) == b"twice"


def test_bombs_are_small_and_decode_to_the_size_asked() -> None:
    size = 8 * 2**20 + 5
    assert len(gzip.decompress(bomb(size, "gzip"))) == size
    assert len(zlib.decompress(bomb(size, "deflate"))) == size
    assert len(brotli.decompress(bomb(size, "br"))) == size
    assert len(zstandard.ZstdDecompressor().decompressobj().decompress(bomb(size, "zstd"))) == size
    assert len(gzip.decompress(gzip.decompress(bomb(size, "gzip", "gzip")))) == size
    assert len(bomb(size, "br")) < 200
    assert len(bomb(size, "gzip", "gzip")) < 400


def test_leaving_closes_every_connection_and_thread() -> None:
    with ReplayWeb() as web:
        web.add("http://example.com/", "x", fault=SlowFirstByte(60))
        port = web.http_port
        hanging = socket.create_connection(("127.0.0.1", port), 5)
        hanging.sendall(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
        while not web.requests:
            time.sleep(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    with hanging, contextlib.suppress(ConnectionResetError):
        assert hanging.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_payload_rows_are_served_as_recorded_but_decoded(web: ReplayWeb, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"a": 1}')
    (tmp_path / "b.html.gz").write_bytes(gzip.compress(b"<p>b</p>"))
    rows = [
        {
            "file": "a.json",
            "url": "https://api.example/a",
            "content_type": "application/json",
            "status": 403,
            "headers": {"content-encoding": "gzip", "x-ratelimit-used": 1, "content-type": "application/json"},
        },
        {"file": "b.html.gz", "url": "", "content_type": "text/html", "status": 200},
    ]
    (tmp_path / "index.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    index = load_payload_index(tmp_path)
    web.add_payload(index["a.json"], tmp_path)
    with pytest.raises(ValueError, match=r"b\.html\.gz"):
        web.add_payload(index["b.html.gz"], tmp_path)
    web.add_payload(index["b.html.gz"], tmp_path, url="https://b.example/")
    with replay_client(web) as client:
        answer = client.get("https://api.example/a")
        assert (answer.status_code, answer.json(), answer.headers["x-ratelimit-used"]) == (403, {"a": 1}, "1")
        assert "content-encoding" not in answer.headers
        assert client.get("https://b.example/").text == "<p>b</p>"


def test_wcxb_pages_are_found_by_number(tmp_path: Path) -> None:
    for folder in ("html", "ground-truth"):
        (tmp_path / folder).mkdir()
    (tmp_path / "html/0001.html.gz").write_bytes(gzip.compress(b"<p>1</p>"))
    (tmp_path / "ground-truth/0001.json").write_text('{"url": "https://one.example/"}')
    assert wcxb_page("0001", tmp_path) == ("https://one.example/", b"<p>1</p>")


def test_absent_recorded_inputs_skip_or_fail_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data, "CALLER_ENV", {})
    assert require_data("TRAWL_WCXB_DIR", tmp_path) == tmp_path
    with pytest.raises(pytest.skip.Exception, match="TRAWL_WCXB_DIR"):
        require_data("TRAWL_WCXB_DIR", tmp_path / "absent")
    monkeypatch.setattr(data, "CALLER_ENV", {"TRAWL_REQUIRE_DATA": "1"})
    with pytest.raises(pytest.fail.Exception, match="TRAWL_WCXB_DIR"):
        require_data("TRAWL_WCXB_DIR", tmp_path / "absent")
    monkeypatch.setattr(data, "CALLER_ENV", {"TRAWL_WCXB_DIR": str(tmp_path)})
    assert require_data("TRAWL_WCXB_DIR", tmp_path / "absent") == tmp_path


def test_what_the_recorder_wrote_can_be_served_again(web: ReplayWeb, tmp_path: Path) -> None:
    web.redirect("https://example.com/old", "/new?x=ü", 301)
    headers = [("Set-Cookie", "secret=1"), ("ETag", '"7"')]
    web.add("https://example.com/new?x=ü", "<p>new</p>", status=203, headers=headers, encoding="gzip")
    with replay_client(web) as client:
        rows = recorder.record("https://example.com/old", tmp_path, client)
    assert [row["status"] for row in rows] == [301, 203]
    assert "secret" not in (tmp_path / "index.jsonl").read_text()
    with ReplayWeb() as again:
        for row in load_payload_index(tmp_path).values():
            again.add_payload(row, tmp_path)
        with replay_client(again, follow_redirects=True) as client:
            answer = client.get("https://example.com/old")
    assert (answer.status_code, answer.text, answer.headers["etag"]) == (203, "<p>new</p>", '"7"')


def test_the_recorder_says_what_it_could_not_record(
    web: ReplayWeb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = f"http://127.0.0.1:{web.http_port}"
    web.add(f"{here}/page", "<p>page</p>")
    web.redirect_chain(f"{here}/loop", 2)
    web.add(f"{here}/reset", "x", fault=Reset(after=None))
    urls = [f"{here}/{name}" for name in ("page", "loop", "reset")]
    assert recorder.main([*urls, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert f"200 {here}/page" in said.out
    assert "more than 10 redirects" in said.err
    assert f"{here}/reset" in said.err
    assert recorder.main([urls[0], "--out", str(tmp_path / "again")]) == 0


def test_the_users_environment_is_hidden(tmp_path: Path) -> None:
    assert [name for name in os.environ if name.startswith("TRAWL_")] == ["TRAWL_CACHE_DIR"]
    assert Path.home() != Path(data.CALLER_ENV.get("HOME", "/"))
    assert os.environ["XDG_CONFIG_HOME"].startswith(str(Path.home()))
