"""The recorded web: one thread with its own event loop, serving what was added to it over HTTP and HTTPS on loopback.

An answer is found by origin (scheme, host, port) and by decoded path and query, so that spellings of one URL are one
page; the method plays no part. Whatever was not recorded is a 404 that says so. HTTP is spoken by h11; only a `Fault`
writes past it, and its connection is closed afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ipaddress
import itertools
import json
import socket
import ssl
import struct
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote_to_bytes, urlsplit

import h11
import idna
import trustme

from tests.replay.encodings import Coding, encode, header_value
from tests.replay.faults import Drip, Endless, Fault, Raw, Reset, SlowFirstByte, WrongLength

LOOPBACK = "127.0.0.1"
_DEFAULT_PORT = {"http": 80, "https": 443}
_MAX_HEAD = 256 * 1024
# A head of a recorded answer describes the transfer of its day, not ours.
_OF_THE_TRANSFER = {"connection", "content-length", "keep-alive", "transfer-encoding"}

Address = tuple[str, int]
Headers = Mapping[str, str] | Iterable[tuple[str, str]]
ConnectTo = Callable[[str, int], Address | None]
_Key = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived; header names in lower case, the last of equal names wins."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent for a URL. `headers` as they go out, without Content-Length, which is counted here."""

    body: bytes = b""
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    fault: Fault | None = None


Handler = Callable[[Request], Answer]


@dataclass
class ReplayWeb:
    """A context manager; see the module. `add` and its kin may be called before and while it serves."""

    requests: list[Request] = field(default_factory=list)
    """What arrived, in order of arrival."""
    http_port: int = 0
    https_port: int = 0

    def __post_init__(self) -> None:
        self._answers: dict[_Key, Answer | Handler] = {}
        self._origins: set[tuple[str, str, int]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._resources = contextlib.ExitStack()

    # -- what is recorded ----------------------------------------------------------------------------------------

    def add(
        self,
        url: str,
        body: bytes | str = b"",
        *,
        content_type: str | None = "text/html; charset=utf-8",
        status: int = 200,
        headers: Headers = (),
        encoding: Coding | Sequence[Coding] = (),
        fault: Fault | None = None,
    ) -> str:
        """Serve `body` under `url`; a later answer for the same URL replaces the earlier. Returns `url`.

        Args:
            body: text is encoded as `content_type` says, else as UTF-8.
            content_type: None sends no Content-Type.
            headers: sent as they are; a Content-Type among them wins over `content_type`.
            encoding: codings put around the body and named in Content-Encoding, innermost first.
            fault: what goes wrong on the way.

        Raises:
            h11.LocalProtocolError: status or headers that HTTP does not allow (`Raw` sends anything).
        """
        sent = list(headers.items() if isinstance(headers, Mapping) else headers)
        if content_type is not None and not any(name.lower() == "content-type" for name, _ in sent):
            sent.insert(0, ("Content-Type", content_type))
        if isinstance(body, str):
            body = body.encode(_charset(content_type) or "utf-8")
        if encoding:
            codings: tuple[Coding, ...] = (encoding,) if isinstance(encoding, str) else tuple(encoding)
            body = encode(body, *codings)
            sent.append(("Content-Encoding", header_value(*codings)))
        answer = Answer(body, status, sent, fault)
        _head(h11.Connection(h11.SERVER), answer, [])  # raises here, in the test, rather than in the server
        return self._record(url, answer)

    def add_file(self, url: str, path: Path, **more: Any) -> str:
        """`add` with the bytes of a file. A name ending in `.gz` is how it is stored, not how it was served."""
        body = path.read_bytes()
        return self.add(url, gzip.decompress(body) if path.suffix == ".gz" else body, **more)

    def add_payload(
        self, row: Mapping[str, Any], payloads: Path, *, url: str | None = None, fault: Fault | None = None
    ) -> str:
        """Serve a row of a payload index with its recorded status and headers.

        Args:
            payloads: the folder `row["file"]` is in.
            url: where to serve it; the recorded URL when None.

        Raises:
            ValueError: the row has no URL and none is given.
        """
        url = url or row.get("url")
        if not url:
            raise ValueError(f"{row['file']}: its URL is not known, give one")
        # The files are stored decoded, so a recorded Content-Encoding would be a lie.
        dropped = _OF_THE_TRANSFER | {"content-encoding"}
        headers = {k: str(v) for k, v in (row.get("headers") or {}).items() if k.lower() not in dropped}
        return self.add_file(
            url,
            payloads / row["file"],
            content_type=row.get("content_type") or None,
            status=row.get("status") or 200,
            headers=headers,
            fault=fault,
        )

    def redirect(self, url: str, to: str, status: int = 302, headers: Headers = ()) -> str:
        """Answer `url` with a redirect; `to` goes into Location as it is, so it may be relative or wrong."""
        sent = list(headers.items() if isinstance(headers, Mapping) else headers)
        return self.add(url, f"<p>See {to}</p>", status=status, headers=[("Location", to), *sent])

    def redirect_chain(self, url: str, hops: int, to: str | None = None, status: int = 302) -> str:
        """`hops` redirects from `url` on, the last one to `to`; without `to`, back to `url`: a loop."""
        stations = [url, *(f"{url}{'&' if '?' in url else '?'}hop={n}" for n in range(1, hops)), to or url]
        for here, there in itertools.pairwise(stations):
            self.redirect(here, there, status)
        return url

    def handle(self, url: str, handler: Handler) -> str:
        """Answer `url` by calling `handler` (in the server's thread) for each request."""
        return self._record(url, handler)

    def _record(self, url: str, answer: Answer | Handler) -> str:
        key = _key(url)
        self._answers[key] = answer
        self._origins.add(key[:3])
        return url

    # -- how clients get here ------------------------------------------------------------------------------------

    def connect_to(self, host: str, port: int) -> Address | None:
        """Where to connect instead of `(host, port)`; None for a host of which nothing is recorded."""
        return self.connect_to_table().get((_host(host), port))

    def connect_to_table(self) -> dict[Address, Address]:
        """The same as a table: ports 80 and 443 of every recorded host, and each port a recorded URL names."""
        if not self.http_port:
            raise RuntimeError("the replay web does not serve yet: use it in a with statement")
        port_of = {"http": self.http_port, "https": self.https_port}
        hosts = {host for _, host, _ in self._origins}
        origins = [(scheme, host, port) for host in hosts for scheme, port in _DEFAULT_PORT.items()]
        origins += sorted(self._origins)
        return {(host, port): (LOOPBACK, port_of[scheme]) for scheme, host, port in origins}

    def connect_to_json(self) -> str:
        """The table as JSON for a child process; `connect_to_from` reads it there."""
        return json.dumps([[*key, *value] for key, value in self.connect_to_table().items()])

    @property
    def ca_file(self) -> Path:
        """PEM file of the authority that signs every certificate here."""
        return self._ca_file

    # -- serving -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._ca = trustme.CA()
        self._tls_contexts: dict[tuple[str, ...], ssl.SSLContext] = {}
        folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="replay-")))
        self._ca_file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self._ca_file)
        serving: list[Exception] = []
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready, serving), name="replay-web", daemon=True)
        self._thread.start()
        ready.wait()
        if serving:
            self._resources.close()
            raise serving[0]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._resources.close()
        self.http_port = self.https_port = 0

    def _run(self, ready: threading.Event, failures: list[Exception]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except Exception as error:  # handed to the thread that waits in __enter__
            failures.append(error)
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        # A client that hangs up or distrusts our certificate is the test's business, not a message on stderr.
        self._loop.set_exception_handler(lambda loop, context: None)
        plain = await asyncio.start_server(self._accept("http"), LOOPBACK, 0, limit=_MAX_HEAD)
        secure = await asyncio.start_server(
            self._accept("https"), LOOPBACK, 0, limit=_MAX_HEAD, ssl=self._tls_by_name(), ssl_handshake_timeout=10
        )
        self.http_port = plain.sockets[0].getsockname()[1]
        self.https_port = secure.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        plain.close()
        secure.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _tls_by_name(self) -> ssl.SSLContext:
        def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = self._tls_context(name)

        context = self._tls_context(None)
        context.sni_callback = choose
        return context

    def _tls_context(self, name: str | None) -> ssl.SSLContext:
        """The certificate for `name`; without a name (a URL with an IP address) one for every recorded address."""
        names = (name,) if name else (LOOPBACK, *sorted(h for _, h, _ in self._origins if _is_ip(h)))
        if names not in self._tls_contexts:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_alpn_protocols(["http/1.1"])
            leaf = self._ca.issue_cert(*dict.fromkeys(names))
            # The authority goes along: Chromium trusts it by its key, which it looks for in the chain as sent.
            chain = leaf.private_key_and_cert_chain_pem.bytes() + self._ca.cert_pem.bytes()
            with tempfile.NamedTemporaryFile(dir=self._ca_file.parent) as file:
                file.write(chain)
                file.flush()
                context.load_cert_chain(file.name)
            self._tls_contexts[names] = context
        return self._tls_contexts[names]

    def _accept(self, scheme: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await self._converse(scheme, reader, writer)
            except (OSError, asyncio.CancelledError, h11.ProtocolError):
                writer.transport.abort()
            finally:
                self._connections.discard(task)
                writer.close()

        return connected

    async def _converse(self, scheme: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests and answers of one connection, until one side wants it closed."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        while (request := await _read_request(http, scheme, reader)) is not None:
            self.requests.append(request)
            answer = self._answer(request)
            if isinstance(answer.fault, SlowFirstByte):
                await asyncio.sleep(answer.fault.seconds)
            elif answer.fault is not None:
                await _misbehave(http, answer, answer.fault, writer)
                return
            await _send_answer(http, request, answer, writer)
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return
            http.start_next_cycle()

    def _answer(self, request: Request) -> Answer:
        try:
            found = self._answers.get(_key(request.url))
            if found is not None:
                return found(request) if callable(found) else found
        except Exception:  # whatever a test's handler raises: the test must see it, not a closed connection
            return _plain(500, traceback.format_exc())
        return _plain(404, f"Not recorded in this replay web: {request.method} {request.url}\n")


def connect_to_from(text: str) -> ConnectTo:
    """The `connect_to` of a `ReplayWeb` in another process, from its `connect_to_json`."""
    table = {(host, port): (to_host, to_port) for host, port, to_host, to_port in json.loads(text)}
    return lambda host, port: table.get((_host(host), port))


def _plain(status: int, text: str) -> Answer:
    return Answer(text.encode(), status, [("Content-Type", "text/plain; charset=utf-8")])


# -- HTTP ------------------------------------------------------------------------------------------------------------


async def _read_request(http: h11.Connection, scheme: str, reader: asyncio.StreamReader) -> Request | None:
    """The next request with its body; None when the client is done.

    Raises:
        h11.ProtocolError: what arrived is not HTTP.
    """
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65_536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            break
        else:
            return None
    assert head is not None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    target = head.target.decode("latin-1")
    absolute = not target.startswith("/")
    url = target if absolute else f"{scheme}://{headers.get('host', '')}{target}"
    return Request(head.method.decode(), url, headers, bytes(body))


async def _send_answer(http: h11.Connection, request: Request, answer: Answer, writer: asyncio.StreamWriter) -> None:
    """The answer as HTTP wants it."""
    bodiless = answer.status in (204, 304) or 100 <= answer.status < 200
    length = [] if bodiless else [("Content-Length", str(len(answer.body)))]
    writer.write(_head(http, answer, length))
    if not bodiless and request.method != "HEAD":
        writer.write(http.send(h11.Data(answer.body)) or b"")
    writer.write(http.send(h11.EndOfMessage()) or b"")
    await writer.drain()


async def _misbehave(http: h11.Connection, answer: Answer, fault: Fault, writer: asyncio.StreamWriter) -> None:
    closing = ("Connection", "close")
    honest = [("Content-Length", str(len(answer.body))), closing]
    match fault:
        case Drip(size, interval_s):
            writer.write(_head(http, answer, honest))
            for start in range(0, len(answer.body), size):
                await writer.drain()
                await asyncio.sleep(interval_s)
                writer.write(answer.body[start : start + size])
            await writer.drain()
        case Reset(after):
            if after is not None:
                writer.write(_head(http, answer, honest) + answer.body[:after])
                await writer.drain()
                # What was sent must arrive before the reset does, or the client sees a reset before any answer.
                await asyncio.sleep(0.05)
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        case WrongLength(by):
            writer.write(_head(http, answer, [("Content-Length", str(max(0, len(answer.body) + by))), closing]))
            writer.write(answer.body)
            await writer.drain()
        case Endless(filler, interval_s):
            writer.write(_head(http, answer, [closing]))
            writer.write(http.send(h11.Data(answer.body)) or b"")
            while True:
                writer.write(http.send(h11.Data(filler)) or b"")
                await writer.drain()
                await asyncio.sleep(interval_s)
        case Raw(data):
            writer.write(data)
            await writer.drain()


def _head(http: h11.Connection, answer: Answer, framing: Sequence[tuple[str, str]]) -> bytes:
    headers = [(n, v) for n, v in answer.headers if n.lower() not in _OF_THE_TRANSFER]
    try:
        reason = HTTPStatus(answer.status).phrase
    except ValueError:
        reason = ""
    encoded = [(name.encode(), value.encode()) for name, value in [*headers, *framing]]
    return http.send(h11.Response(status_code=answer.status, headers=encoded, reason=reason.encode())) or b""


# -- keys ------------------------------------------------------------------------------------------------------------


def _key(url: str) -> _Key:
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORT or not parts.hostname:
        raise ValueError(f"not an http or https URL: {url!r}")
    path = quote(unquote_to_bytes(parts.path or "/"), safe="/")
    query = quote(unquote_to_bytes(parts.query), safe="&=+")
    target = f"{path}?{query}" if query else path
    return parts.scheme, _host(parts.hostname), parts.port or _DEFAULT_PORT[parts.scheme], target


def _host(host: str) -> str:
    """The one spelling of a host that is compared: A-labels, lower case, no brackets, no trailing dot."""
    host = host.strip("[]").rstrip(".").lower()
    if host.isascii():
        return host
    return idna.encode(host, uts46=True).decode("ascii")


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _charset(content_type: str | None) -> str | None:
    _, _, charset = (content_type or "").lower().partition("charset=")
    return charset.partition(";")[0].strip(" \"'") or None
