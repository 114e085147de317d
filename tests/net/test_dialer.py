"""The dialer resolves once, checks every answer and connects to nothing else."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

import httpcore
import pytest

from tests.net.hostile_urls import ELSEWHERE, LOCAL
from tests.net.wire import always, deaf_listeners, names, sent_to, serve
from trawl.deadline import Deadline
from trawl.errors import DeadlineExceeded, GuardRefused, NetworkError
from trawl.net import dialer as dialer_module
from trawl.net.dialer import Dialer
from trawl.net.guard import Policy

PUBLIC = "93.184.215.14"

# What a name may answer with, all of it forbidden: each is also mixed with a public address below.
FORBIDDEN_ANSWERS = [
    ("127.0.0.1", "loopback"),
    ("127.9.9.9", "loopback"),
    ("0.0.0.0", "unspecified"),
    ("10.0.0.5", "private"),
    ("172.20.1.1", "private"),
    ("192.168.0.1", "private"),
    ("100.64.0.1", "shared"),
    ("169.254.169.254", "metadata"),
    ("168.63.129.16", "metadata"),
    ("224.0.0.1", "multicast"),
    ("255.255.255.255", "broadcast"),
    ("240.1.1.1", "reserved"),
    ("::1", "loopback"),
    ("::", "unspecified"),
    ("fe80::1", "link_local"),
    ("fe80::1%eth0", "link_local"),
    ("fd00::1", "private"),
    ("fec0::1", "private"),
    ("ff02::1", "multicast"),
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:10.0.0.1", "private"),
    ("::127.0.0.1", "loopback"),
    ("64:ff9b::7f00:1", "loopback"),
    ("64:ff9b::192.168.1.1", "private"),
    ("64:ff9b:1::10.0.0.1", "private"),
    ("2002:7f00:1::", "loopback"),
    ("2002:a9fe:a9fe::", "metadata"),
    ("2001:0:a00:1::", "private"),
    ("2001:0:808:808::f5ff:fffe", "private"),
    ("2606:4700::5efe:192.168.1.1", "private"),
]


async def read_all(dialer: Dialer, host: str, port: int) -> bytes:
    reader, writer = await dialer.dial(host, port, Deadline.after(5))
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


@pytest.fixture
async def greeter() -> object:
    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize(("answer", "reason"), FORBIDDEN_ANSWERS)
async def test_a_name_with_a_forbidden_address_is_refused_wherever_it_stands_among_public_ones(
    answer: str, reason: str
) -> None:
    for answers in ([answer], [PUBLIC, answer], [answer, PUBLIC], [PUBLIC, "2606:4700::1111", answer]):
        dialer = Dialer(Policy(), resolver=names(site__example=answers))
        with pytest.raises(GuardRefused) as caught:
            await dialer.check("https://site.example/path?token=1")
        assert caught.value.reason == reason
        assert caught.value.url == "https://site.example/path?…"
        with pytest.raises(GuardRefused):
            await dialer.dial("site.example", 443, Deadline.after(1))
        with pytest.raises(GuardRefused):
            await dialer.network_backend().connect_tcp("site.example", 443, timeout=1)


async def test_a_name_with_public_addresses_passes() -> None:
    answers = [PUBLIC, "2606:4700::1111", "64:ff9b::8.8.8.8", "2002:808:808::1"]
    target = await Dialer(Policy(), resolver=names(site__example=answers)).check("https://SITE.example./x")
    assert target.url == "https://site.example/x"


async def test_no_hostile_spelling_reaches_a_listener_through_any_door() -> None:
    """check, dial and the network backend: the last two are given the host as a browser's proxy or a client would."""
    async with deaf_listeners() as (port, _):
        dialer = Dialer(Policy())
        hosts = 0
        for template, _reason in [*LOCAL, *ELSEWHERE]:
            url = template.replace("{port}", str(port))
            with pytest.raises(GuardRefused):
                await dialer.check(url)
            host = url.partition("://")[2].partition("/")[0].rpartition(f":{port}")[0]
            if host and "://" in url and "example" not in host:
                hosts += 1
                with pytest.raises(GuardRefused):
                    await dialer.dial(host, port, Deadline.after(1))
                with pytest.raises(GuardRefused):
                    await dialer.network_backend().connect_tcp(host, port, timeout=1)
        assert hosts >= 80


async def test_a_name_that_rebinds_is_refused_at_the_connection_after_it_passed_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer_module, "RESOLVED_FOR_SECONDS", 0.0)
    async with deaf_listeners() as (port, _):
        answers = [[PUBLIC], ["127.0.0.1"], ["127.0.0.1"], ["::1"]]

        async def resolve(_: str) -> Sequence[str]:
            return answers.pop(0)

        dialer = Dialer(Policy(), resolver=resolve)
        assert await dialer.check(f"http://rebind.example:{port}/")
        with pytest.raises(GuardRefused):
            await dialer.network_backend().connect_tcp("rebind.example", port, timeout=1)
        with pytest.raises(GuardRefused):
            await dialer.check(f"http://rebind.example:{port}/")
        with pytest.raises(GuardRefused):
            await dialer.dial("rebind.example", port, Deadline.after(1))


async def test_within_its_short_life_an_answer_is_reused_so_that_check_and_connection_see_the_same(
    greeter: int,
) -> None:
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    dialer = Dialer(Policy.of(["site.example"]), resolver=resolve)
    await dialer.check(f"http://site.example:{greeter}/")
    assert await read_all(dialer, "SITE.example.", greeter) == b"hello"
    assert asked == ["site.example"]


async def test_what_one_policy_allows_another_dialer_refuses(greeter: int) -> None:
    resolver = names(site__example=["127.0.0.1"])
    allowed = Dialer(Policy.of([f"site.example:{greeter}"]), resolver=resolver)
    assert await read_all(allowed, "site.example", greeter) == b"hello"
    with pytest.raises(GuardRefused):
        await Dialer(Policy(), resolver=resolver).dial("site.example", greeter, Deadline.after(1))
    with pytest.raises(GuardRefused):
        await allowed.dial("site.example", greeter + 1, Deadline.after(1))


async def test_connect_to_sends_a_public_name_to_the_recorded_web_without_resolving(greeter: int) -> None:
    dialer = sent_to(greeter, "Site.Example", "2606:4700::1111")
    assert (await dialer.check("http://site.example/")).host == "site.example"
    assert await read_all(dialer, "SITE.example.", 80) == b"hello"
    assert await read_all(dialer, "[2606:4700::1111]", 80) == b"hello"
    stream = await dialer.network_backend().connect_tcp("site.example", 80)
    assert await stream.read(100) == b"hello"
    await stream.aclose()
    with pytest.raises(NetworkError):
        await dialer.check("http://other.example/")


async def test_connect_to_does_not_open_what_the_guard_refuses(greeter: int) -> None:
    asked: list[tuple[str, int]] = []

    def everything(host: str, port: int) -> tuple[str, int] | None:
        asked.append((host, port))
        return ("127.0.0.1", greeter) if host != "unmapped.example" else None

    dialer = Dialer(Policy(), connect_to=everything, resolver=names())
    for url in ("http://localhost/", "http://127.0.0.1/", "http://[::1]/", "http://10.0.0.1/", "http://a.example:22/"):
        with pytest.raises(GuardRefused):
            await dialer.check(url)
    assert asked == []
    with pytest.raises(NetworkError):
        await dialer.check("http://unmapped.example/")
    assert await read_all(dialer, "a.example", 8080) == b"hello"
    assert asked == [("unmapped.example", 80), ("a.example", 8080)]


async def test_concurrent_look_ups_of_one_name_share_one_and_one_callers_cancel_takes_nothing_from_the_others() -> None:
    asked = 0
    gate = asyncio.Event()

    async def resolve(_: str) -> Sequence[str]:
        nonlocal asked
        asked += 1
        await gate.wait()
        return [PUBLIC]

    dialer = Dialer(Policy(), resolver=resolve)
    calls = [asyncio.create_task(dialer.check("http://site.example/")) for _ in range(20)]
    await asyncio.sleep(0.01)
    calls[0].cancel()
    await asyncio.sleep(0.01)
    gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(getattr(result, "host", None) == "site.example" for result in results[1:])
    assert asked == 1


async def test_a_look_up_nobody_waits_for_any_more_is_cancelled_and_not_remembered() -> None:
    cancelled = asyncio.Event()

    async def resolve(_: str) -> Sequence[str]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return [PUBLIC]

    dialer = Dialer(Policy(), resolver=resolve)
    before = asyncio.all_tasks()
    with pytest.raises(DeadlineExceeded, match="resolving"):
        await dialer.dial("site.example", 80, Deadline.after(0.05))
    call = asyncio.create_task(dialer.check("http://site.example/"))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(cancelled.wait(), 1)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_failed_look_up_is_a_network_error_that_is_not_kept() -> None:
    table: dict[str, list[str]] = {}

    async def resolve(host: str) -> Sequence[str]:
        if host not in table:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return table[host]

    dialer = Dialer(Policy(), resolver=resolve)
    with pytest.raises(NetworkError, match="name server") as caught:
        await dialer.check("http://site.example/?secret")
    assert caught.value.url == "http://site.example/?…"
    table["site.example"] = []
    with pytest.raises(NetworkError, match="no address"):
        await dialer.check("http://site.example/")
    table["site.example"] = [PUBLIC]
    assert await dialer.check("http://site.example/")


async def test_what_is_remembered_of_names_is_bounded() -> None:
    async def resolve(_: str) -> Sequence[str]:
        return [PUBLIC]

    dialer = Dialer(Policy(), resolver=resolve)
    for number in range(dialer_module.MAX_RESOLVED_NAMES + 50):
        await dialer.check(f"http://n{number}.example/")
    assert len(dialer._resolved) == dialer_module.MAX_RESOLVED_NAMES
    assert not dialer._lookups


async def test_addresses_are_tried_in_turn_until_one_answers(greeter: int) -> None:
    # 127.0.0.2 refuses at once: the greeter listens on 127.0.0.1 only.
    answers = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
    dialer = Dialer(Policy.of(["site.example"]), resolver=names(site__example=answers))
    assert await read_all(dialer, "site.example", greeter) == b"hello"
    stream = await dialer.network_backend().connect_tcp("site.example", greeter, timeout=5)
    assert await stream.read(10) == b"hello"
    await stream.aclose()


async def test_an_address_that_stays_silent_costs_one_attempt_not_the_call(
    greeter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer_module, "ATTEMPT_SECONDS", 0.1)
    dialed: list[str] = []

    async def connect(address: str, port: int) -> str:
        dialed.append(address)
        if address != "127.0.0.1":
            await asyncio.sleep(60)
        return "connected"

    dialer = Dialer(Policy.of(["site.example"]), resolver=names(site__example=["::1", "::2", "127.0.0.1"]))
    assert await dialer._connect("site.example", 80, Deadline.after(5), connect) == "connected"
    assert dialed == ["::1", "127.0.0.1"], "the other family comes second (RFC 8305)"


async def test_nobody_listening_is_said_in_words() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        dialer = Dialer(Policy.of(["127.0.0.1"]))
        for attempt in (
            dialer.dial("127.0.0.1", port, Deadline.after(5)),
            dialer.network_backend().connect_tcp("127.0.0.1", port, timeout=5),
        ):
            with pytest.raises(NetworkError, match="refused the connection"):
                await attempt


async def test_a_silent_network_ends_at_the_deadline_with_nothing_left_running() -> None:
    async def connect(_address: str, _port: int) -> None:
        await asyncio.sleep(60)

    before = asyncio.all_tasks()
    dialer = Dialer(Policy(), resolver=names(site__example=[PUBLIC, "2606:4700::1111"]))
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"site\.example:80"):
        await dialer._connect("site.example", 80, Deadline.after(0.2), connect)
    assert time.monotonic() - began < 1
    with pytest.raises(DeadlineExceeded):
        await dialer.dial("site.example", 80, Deadline.after(0))
    assert asyncio.all_tasks() == before


async def test_unix_sockets_are_not_a_way_out(tmp_path: object) -> None:
    with pytest.raises(GuardRefused):
        await Dialer(Policy()).network_backend().connect_unix_socket("/var/run/docker.sock")


async def test_a_pool_over_the_backend_keeps_name_and_host_header() -> None:
    async with (
        serve(always(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) as server,
        httpcore.AsyncConnectionPool(network_backend=sent_to(server.port, "site.example").network_backend()) as pool,
    ):
        response = await pool.request("GET", "http://site.example/x")
        assert response.content == b"ok"
        assert server.requests[0].header("host") == "site.example"
        for url in ("http://127.0.0.1/", "http://[::1]/", "http://localhost./", "http://0x7f.1/"):
            with pytest.raises(GuardRefused):
                await pool.request("GET", url)


async def test_names_are_resolved_by_the_system_when_nothing_else_is_given(greeter: int) -> None:
    dialer = Dialer(Policy.of(["localhost"]))
    assert await read_all(dialer, "LOCALHOST.", greeter) == b"hello"
    with pytest.raises(NetworkError, match="resolve"):
        await dialer.check("http://no-such-name.invalid/")


async def test_names_that_hang_hold_neither_the_loops_threads_nor_other_names(
    greeter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo
    released = threading.Event()

    def hanging(host: bytes, *args: object, **kwargs: object) -> object:
        if host.startswith(b"slow"):
            released.wait(5)
        return real(host, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    dialer = Dialer(Policy.of(["localhost"]))
    try:
        calls = [dialer.dial(f"slow{n}.example.invalid", 80, Deadline.after(0.3)) for n in range(12)]
        slow = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0.05)
        async with asyncio.timeout(0.2):
            await asyncio.to_thread(int)
            assert await read_all(dialer, "localhost", greeter) == b"hello"
        assert {type(result) for result in await slow} == {DeadlineExceeded}
    finally:
        released.set()


@pytest.mark.parametrize(
    "make", [lambda d: d.dial("127.0.0.1", 80, Deadline.after(1)), lambda d: d.check("http://[::1]/")]
)
async def test_a_refusal_leaves_no_coroutine_behind(make: Callable[[Dialer], Awaitable[object]]) -> None:
    with pytest.raises(GuardRefused):
        await make(Dialer(Policy()))
    gc.collect()
