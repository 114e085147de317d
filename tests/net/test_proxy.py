"""The browser's proxy, spoken to over sockets: who may use it, for what, how long and for how much."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.net.loopback import LOOPBACK_HOSTS, Listeners, listening, resolver
from tests.replay import ReplayWeb
from tests.replay.web import Answer, Request
from trawl.deadline import Deadline
from trawl.errors import GuardRefused, NetworkError
from trawl.net import proxy as proxy_module
from trawl.net.dialer import Dialer
from trawl.net.guard import Policy
from trawl.net.proxy import MARKER_HEADER, BrowserProxy, Lease

SITE = "http://site.example.com"


@pytest.fixture
async def proxy(web: ReplayWeb) -> AsyncIterator[BrowserProxy]:
    web.add(f"{SITE}/", "hello")
    serving = BrowserProxy(Dialer(Policy.of([]), connect_to=web.connect_to, resolver=resolver))
    await serving.start()
    yield serving
    await serving.aclose()


@pytest.fixture
async def lease(proxy: BrowserProxy) -> AsyncIterator[Lease]:
    with proxy.lease(Deadline.after(20), 10_000_000) as given:
        yield given


@pytest.fixture
async def loopback() -> AsyncIterator[Listeners]:
    async with listening() as listeners:
        yield listeners


def port_of(server: str) -> int:
    return int(server.rpartition(":")[2])


def credentials(username: str, password: str) -> str:
    return "Proxy-Authorization: Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def head(line: str, *headers: str, lease: Lease | None = None) -> bytes:
    lines = [f"{line} HTTP/1.1", *headers]
    if not any(h.lower().startswith("host:") for h in headers):
        lines.append("Host: whatever.example.org")
    if lease is not None:
        lines.append(credentials(lease.username, lease.password))
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def ask(server: str, sent: bytes, seconds: float = 5) -> bytes:
    """Everything the proxy answers until it closes or says no more for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    writer.write(sent)
    got = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(seconds):
            got += await reader.read(65536)
        while True:
            async with asyncio.timeout(0.1):
                data = await reader.read(65536)
            if not data:
                break
            got += data
    writer.close()
    return got


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def closed_within(reader: asyncio.StreamReader, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@contextlib.asynccontextmanager
async def serving(handle: Callable[[Any, Any], Any]) -> AsyncIterator[int]:
    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handle(reader, writer)
        writer.close()

    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def proxy_to(handle: Callable[[Any, Any], Any]) -> AsyncIterator[BrowserProxy]:
    """A proxy for which every name leads to `handle`."""
    async with serving(handle) as port:
        made = BrowserProxy(Dialer(Policy.of([]), connect_to=lambda host, _: ("127.0.0.1", port)))
        await made.start()
        try:
            yield made
        finally:
            await made.aclose()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65536)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def tunnel(proxy: BrowserProxy, lease: Lease) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy.server))
    writer.write(head("CONNECT site.example.com:443", lease=lease))
    assert status(await reader.readuntil(b"\r\n\r\n")) == 200
    return reader, writer


# -- what it does for its browser ------------------------------------------------------------------------------------


async def test_a_plain_request_reaches_the_site_without_what_concerns_the_proxy(
    proxy: BrowserProxy, lease: Lease, web: ReplayWeb
) -> None:
    answer = await ask(
        proxy.server,
        head(
            f"GET {SITE}/",
            "Host: elsewhere.example.org",
            "Proxy-Connection: keep-alive",
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "Keep-Alive: timeout=5",
            "TE: trailers",
            "Upgrade: websocket",
            "X-End: 2",
            lease=lease,
        ),
    )
    assert status(answer) == 200
    assert answer.endswith(b"hello")
    [request] = web.requests
    assert request.url == f"{SITE}/"
    assert request.headers["host"] == "site.example.com"
    assert request.headers["x-end"] == "2"
    assert request.headers.keys().isdisjoint(
        {"proxy-authorization", "proxy-connection", "x-hop", "keep-alive", "te", "upgrade"}
    )


async def test_request_bodies_arrive_with_either_framing(proxy: BrowserProxy, lease: Lease, web: ReplayWeb) -> None:
    def back(request: Request) -> Answer:
        return Answer(request.method.encode() + b":" + request.body)

    web.handle(f"{SITE}/form", back)
    plain = head(f"POST {SITE}/form", "Content-Length: 3", lease=lease) + b"abc"
    chunked = head(f"PUT {SITE}/form", "Transfer-Encoding: chunked", lease=lease) + b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"
    assert (await ask(proxy.server, plain)).endswith(b"POST:abc")
    assert (await ask(proxy.server, chunked)).endswith(b"PUT:abcd")
    assert status(await ask(proxy.server, head(f"HEAD {SITE}/", lease=lease))) == 200


async def test_an_answer_without_length_is_passed_on_and_the_connection_stays_usable() -> None:
    async def old_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
        await writer.drain()

    async with proxy_to(old_server) as proxy:
        with proxy.lease(Deadline.after(10), 10**6) as lease:
            answer = await ask(proxy.server, head(f"GET {SITE}/", lease=lease) * 2)
    assert answer.count(b"until the end") == 2


async def test_a_tunnel_carries_bytes_both_ways_and_ends_when_the_site_ends() -> None:
    async with proxy_to(echo) as proxy:
        with proxy.lease(Deadline.after(10), 10**6) as lease:
            reader, writer = await tunnel(proxy, lease)
            writer.write(b"\x16\x03\x01 not HTTP at all")
            assert await reader.readexactly(19) == b"\x16\x03\x01 not HTTP at all"
            assert lease.used_bytes >= 38
            writer.close()

    async def last_words(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"z" * 300_000)
        await writer.drain()

    async with proxy_to(last_words) as proxy:
        with proxy.lease(Deadline.after(10), 10**6) as lease:
            reader, writer = await tunnel(proxy, lease)
            async with asyncio.timeout(5):
                assert len(await reader.read(-1)) == 300_000
            writer.close()


# -- who may use it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [f"GET {SITE}/", "CONNECT site.example.com:443", "GET /", f"POST {SITE}/"])
async def test_without_its_own_valid_credentials_nobody_gets_anything(
    proxy: BrowserProxy, lease: Lease, web: ReplayWeb, line: str
) -> None:
    other = BrowserProxy(Dialer(Policy.of(["127.0.0.1"])))
    await other.start()
    foreign = other.lease(Deadline.after(20), 10**6)
    ended = proxy.lease(Deadline.after(20), 10**6)
    ended.close()
    token = base64.b64encode(f"{lease.username}:{lease.password}".encode()).decode()
    wrong = [
        "X-Nothing: 1",
        credentials(lease.username, ""),
        credentials(lease.username, lease.password[:-1]),
        credentials(lease.username, lease.password + "x"),
        credentials(lease.username, ended.password),
        credentials("", lease.password),
        credentials("", ""),
        credentials(foreign.username, foreign.password),
        credentials(ended.username, ended.password),
        "Proxy-Authorization: Basic",
        "Proxy-Authorization: Basic ===",
        "Proxy-Authorization: Basic \xff".encode().decode("latin-1"),
        f"Proxy-Authorization: Bearer {lease.password}",
        f"Proxy-Authorization: Basic {token}!",
        f"Authorization: Basic {token}",
    ]
    for header in wrong:
        answer = await ask(proxy.server, head(line, header))
        assert status(answer) in (400, 407), header
        assert b"hello" not in answer
    assert b"proxy-authenticate: basic" in (await ask(proxy.server, head(line))).lower()
    assert web.requests == []
    assert lease.used_bytes == 0
    await other.aclose()


@pytest.mark.parametrize(
    "line",
    [
        "GET /",
        "GET /secret?x=1",
        "OPTIONS *",
        "GET site.example.com",
        "GET https://site.example.com/",
        "GET ftp://site.example.com/",
        "GET ws://site.example.com/",
        "GET file:///etc/passwd",
        "GET http:///",
        "GET http://[::1/",
        "CONNECT site.example.com",
        "CONNECT /",
        "CONNECT site.example.com:443/path",
        "CONNECT user@site.example.com:443",
        "CONNECT site.example.com:99999",
        "CONNECT http://site.example.com:80",
    ],
)
async def test_only_connect_and_absolute_http_are_understood(
    proxy: BrowserProxy, lease: Lease, web: ReplayWeb, line: str
) -> None:
    assert status(await ask(proxy.server, head(line, "Host: site.example.com", lease=lease))) in (400, 403)
    assert web.requests == []


async def test_every_request_of_a_connection_is_judged(proxy: BrowserProxy, lease: Lease, loopback: Listeners) -> None:
    allowed = head(f"GET {SITE}/", lease=lease)
    refused = head(f"GET http://127.0.0.1:{loopback.port}/", lease=lease)
    answer = await ask(proxy.server, allowed + refused + allowed)
    assert answer.count(b"hello") == 1
    assert b"HTTP/1.1 403" in answer
    assert lease.refused.keys() == {f"http://127.0.0.1:{loopback.port}/"}

    other = proxy.lease(Deadline.after(20), 10**6)
    for second in (head(f"GET {SITE}/"), head(f"GET {SITE}/", lease=other)):
        answer = await ask(proxy.server, allowed + second)
        assert answer.count(b"hello") == 1
        assert b"HTTP/1.1 407" in answer
    assert loopback.heard == []


@pytest.mark.parametrize("host", LOOPBACK_HOSTS)
async def test_no_spelling_of_loopback_is_reached(
    proxy: BrowserProxy, lease: Lease, loopback: Listeners, host: str
) -> None:
    authority = f"{host}:{loopback.port}".encode()
    for line in (b"GET http://%s/x" % authority, b"POST http://%s/x" % authority, b"CONNECT %s" % authority):
        sent = line + b" HTTP/1.1\r\n" + head("", lease=lease).partition(b"\r\n")[2]
        assert status(await ask(proxy.server, sent)) in (400, 403), line
    assert loopback.heard == []


async def test_with_permission_loopback_is_reached(loopback: Listeners) -> None:
    proxy = BrowserProxy(Dialer(Policy.of([f"127.0.0.1:{loopback.port}"])))
    await proxy.start()
    with proxy.lease(Deadline.after(10), 10**6) as lease:
        answer = await ask(proxy.server, head(f"GET http://127.0.0.1:{loopback.port}/fetch", lease=lease))
        assert answer.endswith(b"secret")
    assert loopback.heard == ["GET /fetch HTTP/1.1"]
    await proxy.aclose()


async def test_the_deny_server_refuses_even_valid_credentials(
    proxy: BrowserProxy, lease: Lease, web: ReplayWeb
) -> None:
    for line in (f"GET {SITE}/", "CONNECT site.example.com:443", "GET /"):
        assert status(await ask(proxy.deny_server, head(line, lease=lease))) == 403
    assert web.requests == []
    assert lease.refused == {}
    assert lease.used_bytes == 0


# -- how long and how much -------------------------------------------------------------------------------------------


async def test_a_closed_lease_cuts_its_tunnels_and_leaves_those_of_others() -> None:
    async with proxy_to(echo) as proxy:
        first, second = proxy.lease(Deadline.after(10), 10**6), proxy.lease(Deadline.after(10), 10**6)
        cut, _ = await tunnel(proxy, first)
        kept, writer = await tunnel(proxy, second)
        first.close()
        assert await closed_within(cut, 1)
        writer.write(b"still here")
        assert await kept.readexactly(10) == b"still here"
        assert status(await ask(proxy.server, head("CONNECT site.example.com:443", lease=first))) == 407


async def test_an_idle_tunnel_ends_with_the_deadline() -> None:
    async with proxy_to(echo) as proxy:
        lease = proxy.lease(Deadline.after(0.4), 10**6)
        reader, _ = await tunnel(proxy, lease)
        assert not await closed_within(reader, 0.2)
        assert await closed_within(reader, 1)
        assert lease.expired
        assert lease.closed


@pytest.mark.parametrize("line", [f"GET {SITE}/", "CONNECT site.example.com:443"])
async def test_the_byte_budget_ends_the_lease(line: str) -> None:
    async with proxy_to(flood) as proxy:
        lease = proxy.lease(Deadline.after(10), 500_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy.server))
        writer.write(head(line, lease=lease) + b"go")
        received = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(5):
                while data := await reader.read(65536):
                    received += len(data)
        assert 0 < received <= 510_000
        assert lease.over_budget
        assert lease.closed
        writer.close()


async def test_uploads_count_too() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass

    async with proxy_to(swallow) as proxy:
        lease = proxy.lease(Deadline.after(10), 200_000)
        reader, writer = await tunnel(proxy, lease)
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                writer.write(b"x" * 65536)
                await writer.drain()
        assert await closed_within(reader, 2)
        assert lease.over_budget


async def test_heads_strangers_and_connections_are_bounded(
    proxy: BrowserProxy, lease: Lease, web: ReplayWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = head(f"GET {SITE}/", "X-Pad: " + "a" * 300_000, lease=lease)
    assert status(await ask(proxy.server, huge)) in (0, 400, 431)
    assert web.requests == []

    monkeypatch.setattr(proxy_module, "STRANGER_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy.server))
    writer.write(b"GET http://")
    assert await closed_within(reader, 2)
    writer.close()

    monkeypatch.setattr(proxy_module, "STRANGER_SECONDS", 10)
    monkeypatch.setattr(proxy_module, "MAX_CONNECTIONS", 3)
    held = [await asyncio.open_connection("127.0.0.1", port_of(proxy.server)) for _ in range(5)]
    assert [await closed_within(reader, 0.2) for reader, _ in held].count(True) == 2
    for _, writer in held:
        writer.close()


async def test_silent_strangers_keep_nobody_out_and_cut_no_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "MAX_CONNECTIONS", 4)
    async with proxy_to(echo) as proxy:
        with proxy.lease(Deadline.after(10), 10**6) as lease:
            reader, writer = await tunnel(proxy, lease)
            strangers = [await asyncio.open_connection("127.0.0.1", port_of(proxy.server)) for _ in range(20)]
            reader2, writer2 = await tunnel(proxy, lease)
            for r, w in ((reader, writer), (reader2, writer2)):
                w.write(b"hello")
                assert await asyncio.wait_for(r.readexactly(5), 2) == b"hello"
            for _, w in strangers:
                w.close()


async def test_a_message_with_two_lengths_goes_on_with_one() -> None:
    """Content-Length beside chunks is how requests are smuggled past the next reader (RFC 9112, section 6.3)."""
    arrived = b""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        while not arrived.endswith(b"0\r\n\r\n"):
            arrived += await reader.read(65536)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        )

    async with proxy_to(handle) as proxy:
        with proxy.lease(Deadline.after(10), 10**6) as lease:
            sent = head(f"POST {SITE}/", "Content-Length: 4", "Transfer-Encoding: chunked", lease=lease)
            answer = await ask(proxy.server, sent + b"5\r\nwords\r\n0\r\n\r\n")
    assert b"content-length" not in arrived.lower()
    assert b"words" in arrived
    assert b"hello" in answer
    assert b"content-length" not in answer.lower()


async def test_a_lease_has_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "MAX_CONNECTIONS_OF_LEASE", 2)
    async with proxy_to(echo) as proxy:
        with proxy.lease(Deadline.after(10), 10**6) as lease:
            open_tunnels = [await tunnel(proxy, lease) for _ in range(2)]
            assert status(await ask(proxy.server, head("CONNECT site.example.com:443", lease=lease))) == 503
            open_tunnels[0][1].close()
            await asyncio.sleep(0.1)
            await tunnel(proxy, lease)


async def test_memory_for_refusals_is_bounded(proxy: BrowserProxy, lease: Lease) -> None:
    for n in range(proxy_module.MAX_PROBLEMS + 20):
        await ask(proxy.server, head(f"CONNECT 10.0.0.{n}:443", lease=lease))
    assert len(lease.refused) == proxy_module.MAX_PROBLEMS


# -- what it tells ---------------------------------------------------------------------------------------------------


async def test_the_lease_knows_why_something_was_not_reached(proxy: BrowserProxy, lease: Lease) -> None:
    answer = await ask(proxy.server, head("GET http://10.1.2.3/a?token=1", lease=lease))
    assert f"{MARKER_HEADER}: {lease.marker}".encode() in answer
    problem = lease.problem("http://10.1.2.3/a?token=1#part")
    assert isinstance(problem, GuardRefused)
    assert problem.reason == "private"
    assert "token" not in str(lease.refused)

    await ask(proxy.server, head("CONNECT [fd00::1]:443", lease=lease))
    assert isinstance(lease.problem("https://[fd00::1]/any/path"), GuardRefused)

    assert status(await ask(proxy.server, head("GET http://nobody.example.net/", lease=lease))) == 502
    assert isinstance(lease.problem("http://nobody.example.net/"), NetworkError)
    assert lease.problem(f"{SITE}/") is None


@pytest.mark.parametrize(
    "said", [b"", b"not HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 9999 OK\r\n\r\n"]
)
async def test_a_site_that_does_not_speak_http_is_a_bad_gateway(said: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()

    async with proxy_to(talk) as proxy:
        with proxy.lease(Deadline.after(5), 10**6) as lease:
            assert status(await ask(proxy.server, head(f"GET {SITE}/", lease=lease))) == 502
            assert isinstance(lease.problem(f"{SITE}/"), NetworkError)


async def test_a_site_cannot_pretend_to_be_the_proxy(proxy: BrowserProxy, lease: Lease, web: ReplayWeb) -> None:
    web.add(f"{SITE}/fake", "x", headers={MARKER_HEADER: "guess", "Proxy-Authenticate": "Basic", "X-Own": "1"})
    answer = (await ask(proxy.server, head(f"GET {SITE}/fake", lease=lease))).lower()
    assert b"x-own" in answer
    assert MARKER_HEADER.encode() not in answer
    assert b"proxy-authenticate" not in answer


async def test_closing_leaves_no_listener_connection_or_task() -> None:
    before = asyncio.all_tasks()
    async with serving(echo) as port:
        proxy = BrowserProxy(Dialer(Policy.of([]), connect_to=lambda host, _: ("127.0.0.1", port)))
        await proxy.start()
        servers = proxy.server, proxy.deny_server
        lease = proxy.lease(Deadline.after(30), 10**6)
        reader, writer = await tunnel(proxy, lease)
        await asyncio.open_connection("127.0.0.1", port_of(servers[0]))
        await proxy.aclose()
        await proxy.aclose()
        assert await closed_within(reader, 1)
        writer.close()
    for server in servers:
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection("127.0.0.1", port_of(server))
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() <= before


async def test_connections_made_at_the_last_moment_are_cut_too() -> None:
    for ticks in range(6):
        proxy = BrowserProxy(Dialer(Policy.of([])))
        await proxy.start()
        connections = [
            await asyncio.open_connection("127.0.0.1", port_of(server)) for server in (proxy.server, proxy.deny_server)
        ]
        for _ in range(ticks):
            await asyncio.sleep(0)
        await proxy.aclose()
        for reader, writer in connections:
            assert await closed_within(reader, 1)
            writer.close()
