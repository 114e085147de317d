"""The browser's only way out: a proxy on loopback, inside our own process.

    Chromium --(HTTP proxy, credentials of one context)--> BrowserProxy --(guard, checked address)--> Dialer --> site

It exists because nothing inside a browser can be trusted to keep a page from private addresses: request interception
misses redirects, workers, WebSockets and preloads. Here every connection (CONNECT) and every plain request passes one
place, which asks the dialer and thereby the guard.

Each page gets a `Lease`: random credentials, a deadline and a byte budget. When it ends, its credentials are dead and
its connections are cut. Another listener, `deny_server`, refuses everything: what Chromium asks for outside of a
page's context (updates, metrics) goes there and is nobody's refusal.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import h11

from trawl.deadline import Deadline
from trawl.errors import DeadlineExceeded, GuardRefused, NetworkError, TrawlError, without_secrets

if TYPE_CHECKING:
    from trawl.net.dialer import Dialer

__all__ = ["MARKER_HEADER", "BrowserProxy", "Lease"]

log = logging.getLogger(__name__)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Headers = list[tuple[bytes, bytes]]

MARKER_HEADER = "trawl-refusal"
"""Carried, with the lease's secret marker as its value, by answers that come from the proxy instead of the site."""

MAX_HEAD = 64 * 1024
"""Bytes of a request or response head. Chromium itself accepts 256 KB; servers commonly stop at 8 to 64 KB."""
MAX_CONNECTIONS = 512
MAX_CONNECTIONS_OF_LEASE = 64
"""Chromium opens 32 connections to one proxy per context; twice that leaves room for those being closed."""
MAX_DRAINED = 1 << 20
"""Bytes of a refused request's body that are read so that the refusal arrives; closing at once would reset it away."""
MAX_PROBLEMS = 100
"""Refusals and failures a lease remembers; a page that tries a million addresses must not fill our memory."""
STRANGER_SECONDS = 10.0
"""Time in which a connection must show valid credentials."""
READ_SIZE = 64 * 1024

# RFC 9110 section 7.6.1, and the proxy fields that concern this hop alone.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


class Lease:
    """The permission of one browser context to use the proxy. A context manager; closing it twice is harmless."""

    def __init__(self, deadline: Deadline, max_bytes: int, forget: Callable[[Lease], None]) -> None:
        self.username = secrets.token_urlsafe(16)
        self.password = secrets.token_urlsafe(32)
        self.marker = secrets.token_urlsafe(16)
        self.deadline = deadline
        self.max_bytes = max_bytes
        self.used_bytes = 0
        """Bytes that passed, in both directions, heads included."""
        self.over_budget = False
        self.expired = False
        self.closed = False
        self.refused: dict[str, GuardRefused] = {}
        """What the guard refused, by URL without secrets; a tunnel's URL has no path."""
        self._forget = forget
        self._problems: dict[str, TrawlError] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._timer = asyncio.get_running_loop().call_later(deadline.remaining(), self._expire)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it now: the credentials are dead, open connections are reset."""
        if self.closed:
            return
        self.closed = True
        self._timer.cancel()
        self._forget(self)
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    def problem(self, url: str) -> TrawlError | None:
        """Why the last try to reach `url` (for https: its host and port) failed here; None if it did not."""
        return self._problems.get(_key(url))

    def accepts(self, password: bytes) -> bool:
        return not self.closed and hmac.compare_digest(password, self.password.encode())

    def spend(self, size: int) -> None:
        self.used_bytes += size
        if self.used_bytes > self.max_bytes:
            self.exhaust()
            raise NetworkError(f"the page loaded more than {self.max_bytes} bytes")

    def exhaust(self) -> None:
        """The page has had all that it may have."""
        self.over_budget = True
        self.close()

    def reached(self, url: str) -> None:
        self._problems.pop(_key(url), None)

    def failed(self, url: str, error: TrawlError) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems[_key(url)] = error
        if isinstance(error, GuardRefused) and len(self.refused) < MAX_PROBLEMS:
            self.refused.setdefault(without_secrets(url), error)

    def adopt(self, writer: asyncio.StreamWriter) -> bool:
        """Put the running task and its connection under this lease; False when it has too many or has ended."""
        task = asyncio.current_task()
        if self.closed or task is None or len(self._tasks | {task}) > MAX_CONNECTIONS_OF_LEASE:
            return False
        self._tasks.add(task)
        self._writers.add(writer)
        return True

    def release(self, writer: asyncio.StreamWriter, task: asyncio.Task[None] | None = None) -> None:
        """What `adopt` took up is done: the connection alone, or with it the task."""
        self._writers.discard(writer)
        if task is not None:
            self._tasks.discard(task)

    def _expire(self) -> None:
        self.expired = True
        self.close()


class BrowserProxy:
    """See the module. `start` before use; everything runs on the event loop that called it."""

    def __init__(self, dialer: Dialer) -> None:
        self.dialer = dialer
        self._leases: dict[bytes, Lease] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Connections that have shown no credentials yet, the oldest first."""
        self._server: asyncio.Server | None = None
        self._deny_server: asyncio.Server | None = None

    @property
    def server(self) -> str:
        """URL for a context's proxy option."""
        return _url_of(self._server)

    @property
    def deny_server(self) -> str:
        """URL of the listener that refuses everything, for the browser's own proxy option."""
        return _url_of(self._deny_server)

    async def start(self) -> None:
        """Raises: NetworkError when loopback cannot be listened on."""
        try:
            self._server = await asyncio.start_server(self._accept(self._serve), "127.0.0.1", 0, limit=READ_SIZE)
            self._deny_server = await asyncio.start_server(self._accept(self._deny), "127.0.0.1", 0, limit=READ_SIZE)
        except OSError as error:
            await self.aclose()
            raise NetworkError(f"the browser's proxy cannot listen on 127.0.0.1: {error}") from error

    async def aclose(self) -> None:
        """End all leases, cut all connections and stop listening."""
        for server in (self._server, self._deny_server):
            if server is not None:
                server.close()
        for lease in list(self._leases.values()):
            lease.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._server = self._deny_server = None

    def lease(self, deadline: Deadline, max_bytes: int) -> Lease:
        """Credentials for one browser context, good until `deadline` or until `max_bytes` have passed either way."""
        lease = Lease(deadline, max_bytes, self._forget)
        self._leases[lease.username.encode()] = lease
        return lease

    def authorised(self, headers: Iterable[tuple[bytes, bytes]]) -> Lease | None:
        """The lease whose credentials a request carries."""
        for name, value in headers:
            if name == b"proxy-authorization":
                username, password = _basic_credentials(value)
                lease = self._leases.get(username)
                return lease if lease is not None and lease.accepts(password) else None
        return None

    def welcome(self) -> None:
        """The running task's connection has shown valid credentials: it makes room for nobody any more."""
        if task := asyncio.current_task():
            self._strangers.pop(task, None)

    def _forget(self, lease: Lease) -> None:
        self._leases.pop(lease.username.encode(), None)

    def _accept(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]) -> Any:
        async def contained(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except (OSError, TimeoutError, h11.ProtocolError, TrawlError) as error:
                log.debug("a browser connection ended: %s", type(error).__name__)

        # asyncio would make a task itself, but before Python 3.12.2 it reports each one that we cancel as an error.
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            def finished(task: asyncio.Task[None]) -> None:
                self._tasks.discard(task)
                self._strangers.pop(task, None)
                writer.transport.abort()

            if len(self._tasks) >= MAX_CONNECTIONS:
                if not self._strangers:
                    writer.transport.abort()
                    return
                # Whoever opens connections and says nothing must not keep the browser out.
                self._strangers.pop(next(iter(self._strangers))).transport.abort()
            task = asyncio.create_task(contained(reader, writer))
            self._tasks.add(task)
            self._strangers[task] = writer
            # Not in a `finally`: a task that is cancelled before it ran has none.
            task.add_done_callback(finished)

        return accepted

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _Client(self, reader, writer).serve()

    async def _deny(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(STRANGER_SECONDS):
            await reader.read(READ_SIZE)
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await _close(writer)


class _Client:
    """One connection from the browser (or from a stranger), request by request."""

    def __init__(self, proxy: BrowserProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._lease: Lease | None = None

    async def serve(self) -> None:
        try:
            # A stranger gets little time; a lease has its own deadline, which cancels this task.
            async with asyncio.timeout(STRANGER_SECONDS) as patience:
                while (request := await self._request()) is not None:
                    if not await self._authorised(request):
                        break
                    patience.reschedule(None)
                    await self._answer(request)
                    if h11.MUST_CLOSE in (self._http.our_state, self._http.their_state):
                        break
                    if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                        break
                    self._http.start_next_cycle()
            await _close(self._writer)
        finally:
            if self._lease is not None:
                self._lease.release(self._writer, asyncio.current_task())

    async def _request(self) -> h11.Request | None:
        try:
            event = await self._event()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint or 400, "not a request this proxy understands")
            return None
        return event if isinstance(event, h11.Request) else None

    async def _authorised(self, request: h11.Request) -> bool:
        lease = self._proxy.authorised(request.headers)
        if lease is None or self._lease not in (None, lease):
            await self._drain()
            await self._refuse(
                407,
                "credentials are needed",
                [(b"Proxy-Authenticate", b'Basic realm="trawl", charset="UTF-8"')],
            )
            return False
        if self._lease is None:
            if not lease.adopt(self._writer):
                await self._refuse(503, "too many connections")
                return False
            self._lease = lease
            self._proxy.welcome()
        return True

    async def _answer(self, request: h11.Request) -> None:
        lease = self._lease
        assert lease is not None  # noqa: S101
        target = request.target.decode("ascii")
        url = _connect_url(target) if request.method == b"CONNECT" else _absolute_url(target)
        if url is None:
            # Origin-form would make this a web server for whoever can talk to it, a page included.
            await self._drain()
            await self._refuse(400, "only CONNECT and absolute http:// addresses")
            return
        try:
            upstream, host = await self._dial(lease, url)
        except TrawlError as error:
            lease.failed(url, error)
            await self._drain()
            await self._refuse(_status_for(error), error.message)
            return
        lease.reached(url)
        try:
            if request.method == b"CONNECT":
                await self._drain()
                await self._tunnel(lease, upstream)
            else:
                await self._forward(lease, url, host, request, upstream)
        finally:
            lease.release(upstream[1])
            upstream[1].transport.abort()

    async def _dial(self, lease: Lease, url: str) -> tuple[Streams, bytes]:
        dialer = self._proxy.dialer
        target = await dialer.check(url, deadline=lease.deadline)
        try:
            upstream = await dialer.dial(target.host, target.port, lease.deadline)
        except OSError as error:
            raise NetworkError(f"no connection to {target.host}:{target.port}: {error}", url=url) from error
        if not lease.adopt(upstream[1]):
            upstream[1].transport.abort()
            raise DeadlineExceeded("the page's time or bytes are used up", url=url)
        return upstream, _authority(target.host, target.port, 443 if target.scheme == "https" else 80)

    async def _tunnel(self, lease: Lease, upstream: Streams) -> None:
        up_reader, up_writer = upstream
        await self._send(h11.Response(status_code=200, reason=b"Connection established", headers=[]))
        early, _ = self._http.trailing_data
        if early:
            lease.spend(len(early))
            up_writer.write(early)
        pumps = {
            asyncio.create_task(_pump(lease, self._reader, up_writer)),
            asyncio.create_task(_pump(lease, up_reader, self._writer)),
        }
        try:
            # A browser never half-closes: when one side is done, so is the other.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _forward(self, lease: Lease, url: str, host: bytes, request: h11.Request, upstream: Streams) -> None:
        up_reader, up_writer = upstream
        # One upstream connection per request: each is dialled, hence checked, anew.
        site = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
        head = h11.Request(
            method=request.method,
            target=_origin_form(url),
            headers=[
                (b"Host", host),
                *_end_to_end(request.headers, without=(b"host", b"expect")),
                (b"Connection", b"close"),
                *([(b"Transfer-Encoding", b"chunked")] if chunked else []),
            ],
        )
        started = False
        try:
            await _write(up_writer, site.send(head))
            while True:
                event = await self._event()
                if isinstance(event, h11.EndOfMessage):
                    await _write(up_writer, site.send(h11.EndOfMessage()))
                    break
                if not isinstance(event, h11.Data):
                    return
                await _write(up_writer, site.send(event))
            while True:
                answer = site.next_event()
                if answer is h11.NEED_DATA:
                    data = await up_reader.read(READ_SIZE)
                    lease.spend(len(data))
                    site.receive_data(data)
                elif isinstance(answer, h11.Response):
                    started = True
                    await self._send(
                        h11.Response(
                            status_code=answer.status_code,
                            reason=answer.reason,
                            headers=_end_to_end(answer.headers, without=(MARKER_HEADER.encode(),)),
                        )
                    )
                elif isinstance(answer, h11.Data):
                    await self._send(h11.Data(data=answer.data))
                elif isinstance(answer, h11.EndOfMessage):
                    await self._send(h11.EndOfMessage())
                    return
                elif not isinstance(answer, h11.InformationalResponse):
                    return
        except (h11.RemoteProtocolError, OSError) as error:
            if started or self._http.our_state is not h11.SEND_RESPONSE:
                raise
            failure = NetworkError(f"the site broke off or does not speak HTTP: {error}", url=url)
            lease.failed(url, failure)
            await self._refuse(502, failure.message)

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            data = await self._reader.read(READ_SIZE)
            if self._lease is not None:
                self._lease.spend(len(data))
            self._http.receive_data(data)

    async def _send(self, event: h11.Event) -> None:
        await _write(self._writer, self._http.send(event))

    async def _drain(self) -> None:
        """Read what is left of a request that is about to be refused, within bounds."""
        drained = 0
        with contextlib.suppress(h11.ProtocolError):
            while self._http.their_state is h11.SEND_BODY and drained < MAX_DRAINED:
                event = await self._event()
                if not isinstance(event, h11.Data):
                    return
                drained += len(event.data)

    async def _refuse(self, status: int, message: str, headers: Headers | None = None) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = message.encode("utf-8", "replace")
        marker = [(MARKER_HEADER.encode(), self._lease.marker.encode())] if self._lease else []
        response = h11.Response(
            status_code=status,
            reason=b"Refused by the proxy",
            headers=[
                (b"Content-Type", b"text/plain; charset=utf-8"),
                (b"Content-Length", str(len(body)).encode()),
                (b"Cache-Control", b"no-store"),
                # In place of a page this has the page's origin: it must not be able to do anything with it.
                (b"Content-Security-Policy", b"default-src 'none'; sandbox"),
                (b"Connection", b"close"),
                *(headers or []),
                *marker,
            ],
        )
        await self._send(response)
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())


async def _pump(lease: Lease, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(READ_SIZE):
        lease.spend(len(data))
        await _write(writer, data)
    # What is still in the writer's buffer has to arrive before the tunnel is taken down.
    await _close(writer)


async def _write(writer: asyncio.StreamWriter, data: bytes | None) -> None:
    if data:
        writer.write(data)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _url_of(server: asyncio.Server | None) -> str:
    if server is None:
        raise NetworkError("the browser's proxy is not running")
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _basic_credentials(value: bytes) -> tuple[bytes, bytes]:
    scheme, _, encoded = value.partition(b" ")
    if scheme.lower() != b"basic":
        return b"", b""
    try:
        username, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return b"", b""
    return username, password


def _connect_url(target: str) -> str | None:
    """The URL a CONNECT target stands for. Port 80 is a WebSocket of a plain page."""
    try:
        parts = urlsplit(f"//{target}")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or port is None or parts.netloc != target or "@" in target:
        return None
    return f"http://{target.removesuffix(':80')}/" if port == 80 else f"https://{target.removesuffix(':443')}/"


def _absolute_url(target: str) -> str | None:
    try:
        parts = urlsplit(target.partition("#")[0])
        return parts.geturl() if parts.scheme == "http" and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _origin_form(url: str) -> str:
    parts = urlsplit(url)
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


def _authority(host: str, port: int, default: int) -> bytes:
    name = f"[{host}]" if ":" in host else host
    return (name if port == default else f"{name}:{port}").encode("idna" if not name.isascii() else "ascii")


def _end_to_end(headers: Iterable[tuple[bytes, bytes]], *, without: tuple[bytes, ...]) -> Headers:
    """`headers` without those that concern one hop, the ones that Connection names included."""
    pairs = list(headers)
    named = {
        token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",") if token
    }
    # Content-Length frames the message for h11 and is end-to-end: Connection cannot take it away. Beside chunks it
    # means nothing to h11, but perhaps something to whoever reads the message next (RFC 9112, section 6.3).
    chunked = any(name == b"transfer-encoding" for name, _ in pairs)
    dropped = (HOP_BY_HOP | named) - {b"content-length"} | set(without) | ({b"content-length"} if chunked else set())
    return [(name, value) for name, value in pairs if name not in dropped]


def _key(url: str) -> str:
    """What identifies a destination here: of a tunnel only host and port are known."""
    parts = urlsplit(url)
    if parts.scheme == "http":
        return url.partition("#")[0]
    return f"{parts.hostname}:{parts.port or 443}"


def _status_for(error: TrawlError) -> int:
    if isinstance(error, GuardRefused):
        return 403
    return 504 if isinstance(error, DeadlineExceeded) else 502
