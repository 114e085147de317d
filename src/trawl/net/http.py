"""The HTTP client: one GET, with its redirects, through the dialer; bytes and facts out, typed errors otherwise.

    url
      │ dialer.check       the guard, for this URL and again for every redirect
      │ request            headers of a browser; the caller's own only to the origin they were meant for
      │ head               under the deadline; a redirect goes back to the top, ten times at most
      │ body               raw bytes into a bounded decoder, under the deadline and the caps
      ▼
    HttpResponse

Of httpx the message models and the transport interface are used, not `AsyncClient`: it follows redirects, keeps cookies
and logs whole URLs at INFO, and here each of these must not happen or happens by our rules. httpcore's own log lines,
which hold response headers (cookies, redirects with their secrets), are dropped for our requests and for no others.

`HttpClient.stream` is the same way for a body that is too large to be held; its reader bounds it.

A body that breaks off (deadline, reset, fewer bytes than announced) is returned as far as it came and told as
truncated, because the beginning of a page mostly holds what is asked for; when nothing of it came, that is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urldefrag, urljoin

import certifi
import httpcore
import httpx

from trawl.deadline import Deadline
from trawl.errors import (
    DeadlineExceeded,
    EngineError,
    FetchError,
    GuardRefused,
    NetworkError,
    TooManyRedirects,
    TrawlError,
    UsageError,
    without_secrets,
)
from trawl.net.decoding import ACCEPT_ENCODING, BodyDecoder
from trawl.net.dialer import Dialer
from trawl.net.guard import Target
from trawl.settings import Settings

MAX_REDIRECTS: Final = 10
CHROME_MAJOR: Final = 156
"""The stable Chrome at the time of release; an outdated one is what bot filters look at first."""
ACCEPT: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,application/json;q=0.9,*/*;q=0.8"
WIRE_ALLOWANCE_BYTES: Final = 2**20
"""What the bytes on the wire may exceed the decoded cap by: no honest coding makes a body larger than that."""
MAX_CONNECTIONS: Final = 100
MAX_IDLE_CONNECTIONS: Final = 20
IDLE_SECONDS: Final = 5.0
"""How long an unused connection is kept: below what servers keep, so that they rarely close one as it is reused."""

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# Describe the client and the wish, not the caller: these follow a redirect to another origin, all else is dropped.
_NOT_SECRET: Final = frozenset({"accept", "accept-language", "if-range", "range", "user-agent"})
# The framing of the message is ours, and so is what we can decode.
_OURS: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "proxy-authorization", "proxy-connection"}
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_MEDIA_TYPE = re.compile(r"\s*([a-z0-9!#$&^_.+-]{1,127}/[a-z0-9!#$&^_.+-]{1,127})\s*(?:;|$)", re.IGNORECASE)
_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?\s*([a-z0-9][a-z0-9_.:-]{0,39})", re.IGNORECASE)
_CHROME = re.compile(r"Chrome/(\d{2,4})\.")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OURS_NOW: ContextVar[bool] = ContextVar("trawl_request", default=False)
_FAILURES: Final = (
    OSError,
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
)
"""What a server or the network can do to us; anything else is a mistake of ours and stays what it is."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What came back, after redirects; only Content-Encoding is undone."""

    url: str
    """As asked for."""
    final_url: str
    """After redirects, normalised, with the fragment asked for unless a redirect brought its own."""
    status: int
    headers: Mapping[str, str]
    """Names in lower case, repeated ones joined by `, `; cookies are left out, they belong to nobody but this call."""
    body: bytes = field(repr=False)
    truncated: bool
    """The end of the body is missing: the cap was reached or the body broke off."""
    content_type: str
    """Media type in lower case without parameters; empty when the server gave none that can be read."""
    charset: str | None


@dataclass(frozen=True, slots=True)
class HttpStream:
    """The head of an answer, after redirects, and its body while it comes."""

    final_url: str
    status: int
    headers: Mapping[str, str]
    """As in `HttpResponse`."""
    content_type: str
    pieces: AsyncIterator[bytes] = field(repr=False)
    """The bytes as sent, to be read once. A body that breaks off or falls silent raises NetworkError or
    DeadlineExceeded after its last piece."""


class HttpClient:
    """GETs through one dialer, and so under one policy; its connections serve nobody else. Used from one event loop.

    Raises:
        UsageError: `settings.ca_file` cannot be read, or a header in `settings` cannot be sent.
    """

    def __init__(self, dialer: Dialer, *, settings: Settings) -> None:
        self._dialer = dialer
        self._settings = settings
        _checked_headers({"user-agent": settings.user_agent, "accept-language": settings.accept_language})
        self._transport = _Transport(dialer, _ssl_context(settings.ca_file))
        for name in ("connection", "http11"):
            logging.getLogger(f"httpcore.{name}").addFilter(_not_ours)
        self._closed = False

    async def get(
        self, url: str, *, deadline: Deadline, headers: Mapping[str, str] | None = None, max_bytes: int | None = None
    ) -> HttpResponse:
        """The resource at `url`.

        Args:
            url: http or https.
            deadline: for everything together: names, connections, TLS, redirects, body.
            headers: added to ours or in their place; dropped when a redirect leaves the origin of `url`.
            max_bytes: decoded bytes read of the body; None: `settings.max_bytes`.

        Raises:
            GuardRefused: `url` or a redirect leads where the policy does not allow.
            NetworkError, DeadlineExceeded, TooManyRedirects, DecodeError: it could not be fetched; `error.url` is the
                hop that failed.
            UsageError: a header cannot be sent.
        """
        if self._closed:
            raise EngineError("this HTTP client is closed")
        own = _checked_headers(headers or {})
        with _unlogged():
            target, response = await self._open(url, deadline, own)
            try:
                body, truncated = await self._body(response, target, deadline, max_bytes)
            finally:
                await response.aclose()
        return _result(url, target, response, body, truncated)

    @contextlib.asynccontextmanager
    async def stream(
        self, url: str, *, deadline: Deadline, silence: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[HttpStream]:
        """The resource at `url` without a Content-Encoding, for bodies that are too large to be held.

        Args:
            url: http or https.
            deadline: until the head is there; the body is bounded by the reader.
            silence: seconds without a byte after which the body counts as broken off.
            headers: as for `get`.

        Raises:
            As `get`; EngineError when the client is closed.
        """
        if self._closed:
            raise EngineError("this HTTP client is closed")
        own = _checked_headers(headers or {}) | {"accept-encoding": "identity"}
        with _unlogged():
            target, response = await self._open(url, deadline, own, silence)
        try:
            names = _headers(response)
            media_type, _ = _media_type(response.headers.get_list("content-type"))
            yield HttpStream(target.url, response.status_code, names, media_type, _pieces(response, target))
        finally:
            with _unlogged():
                await response.aclose()

    async def _open(
        self, url: str, deadline: Deadline, own: dict[str, str], silence: float | None = None
    ) -> tuple[Target, httpx.Response]:
        """The head of the answer at the end of all redirects; its body is still to be read, and it to be closed."""
        cookies = httpx.Cookies()
        target = await self._dialer.check(url, deadline=deadline)
        origin = target.origin
        seen: set[tuple[str, str]] = set()

        for hop in range(MAX_REDIRECTS + 1):
            request = self._request(target, own, cookies)
            state = (urldefrag(target.url).url, request.headers.get("cookie", ""))
            if state in seen:
                raise TooManyRedirects("the page redirects in a circle", url=target.url)
            seen.add(state)
            response = await self._head(request, target, deadline, silence)
            async with contextlib.AsyncExitStack() as unless_kept:
                unless_kept.push_async_callback(response.aclose)
                cookies.extract_cookies(response)
                location = _location(response, target)
                if location is None:
                    unless_kept.pop_all()
                    return target, response
            if hop == MAX_REDIRECTS:
                break
            target = await self._redirected(target, location, deadline)
            if target.origin != origin:
                own = {name: value for name, value in own.items() if name in _NOT_SECRET}
        raise TooManyRedirects(f"more than {MAX_REDIRECTS} redirects", url=target.url)

    async def aclose(self) -> None:
        """Closes all connections; calls after that raise EngineError."""
        self._closed = True
        with _unlogged():
            await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _request(self, target: Target, own: dict[str, str], cookies: httpx.Cookies) -> httpx.Request:
        agent = own.get("user-agent") or user_agent(self._settings)
        headers = browser_headers(agent, self._settings.accept_language, secure=target.scheme == "https") | own
        named = {name if name.startswith("sec-ch-") else name.title(): value for name, value in headers.items()}
        request = httpx.Request("GET", urldefrag(target.url).url, headers=named)
        given = request.headers.pop("cookie", "")
        cookies.set_cookie_header(request)
        if both := "; ".join(filter(None, (given, request.headers.get("cookie", "")))):
            request.headers["cookie"] = both
        return request

    async def _head(
        self, request: httpx.Request, target: Target, deadline: Deadline, silence: float | None
    ) -> httpx.Response:
        """Status and headers. A connection that dies before a byte of them is tried once more: a kept one may have been
        closed by the server in the moment it was reused (RFC 9110, section 9.2.2)."""
        tried = False
        while True:
            left = deadline.check("connecting", target.url)
            timeouts = dict.fromkeys(("connect", "read", "write", "pool"), left)
            # For the head the deadline holds all the same, by the timeout below.
            request.extensions["timeout"] = timeouts | ({"read": silence} if silence else {})
            try:
                async with asyncio.timeout(left):
                    response = await self._transport.handle_async_request(request)
            except TrawlError as error:
                error.url = error.url or without_secrets(target.url)
                raise
            except _FAILURES as error:
                if tried or not _died_before_answering(error):
                    raise _typed(error, target, "waiting for an answer") from error
                tried = True
            else:
                response.request = request
                return response

    async def _redirected(self, origin: Target, location: str, deadline: Deadline) -> Target:
        try:
            target = await self._dialer.check(join(origin.url, location), deadline=deadline)
        except GuardRefused as error:
            raise GuardRefused(
                f"after a redirect: {error.message}", reason=error.reason, url=error.url or origin.url, hint=error.hint
            ) from error
        return target

    async def _body(
        self, response: httpx.Response, target: Target, deadline: Deadline, max_bytes: int | None
    ) -> tuple[bytes, bool]:
        cap = self._settings.max_bytes if max_bytes is None else max_bytes
        decoder = BodyDecoder(response.headers.get("content-encoding"), cap, target.url)
        wire = 0
        failure: Exception | None = None
        try:
            async with asyncio.timeout(deadline.remaining()):
                async for piece in response.aiter_raw():
                    wire += len(piece)
                    decoder.feed(piece)
                    if decoder.full or wire > cap + WIRE_ALLOWANCE_BYTES:
                        break
        except _FAILURES as error:
            failure = error
        body, truncated = decoder.finish()
        if failure and not body:
            raise _typed(failure, target, "reading the page") from failure
        return body, truncated or failure is not None or wire > cap + WIRE_ALLOWANCE_BYTES


class _Transport(httpx.AsyncBaseTransport):
    """httpx's interface over a pool of httpcore whose only way out is the dialer. Errors are not translated to httpx's:
    they become ours anyway."""

    def __init__(self, dialer: Dialer, context: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=dialer.network_backend(),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        response = await self._pool.handle_async_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            response.status, headers=response.headers, stream=_Stream(response), extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._response.aiter_stream():
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()


def _not_ours(_: logging.LogRecord) -> bool:
    return not _OURS_NOW.get()


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Inside, httpcore logs nothing."""
    token = _OURS_NOW.set(True)
    try:
        yield
    finally:
        _OURS_NOW.reset(token)


def user_agent(settings: Settings, platform: str = sys.platform) -> str:
    """The user agent of requests and of the browser: the one set, or that of a current Chrome, which says no more of
    the platform than this (Chromium's user agent reduction)."""
    if settings.user_agent:
        return settings.user_agent
    system = {"darwin": "Macintosh; Intel Mac OS X 10_15_7", "win32": "Windows NT 10.0; Win64; x64"}
    where = system.get(platform, "X11; Linux x86_64")
    version = f"Chrome/{CHROME_MAJOR}.0.0.0"
    return f"Mozilla/5.0 ({where}) AppleWebKit/537.36 (KHTML, like Gecko) {version} Safari/537.36"


def browser_headers(agent: str, accept_language: str, *, secure: bool) -> dict[str, str]:
    """What the browser named by `agent` sends when a person opens a page, in its order; names in lower case.

    Client hints and fetch metadata go to secure origins only, as browsers do it.
    """
    hints = client_hints(agent) if secure else {}
    metadata = {"site": "none", "mode": "navigate", "user": "?1", "dest": "document"} if secure else {}
    return {
        "connection": "keep-alive",
        **hints,
        "upgrade-insecure-requests": "1",
        "user-agent": agent,
        "accept": ACCEPT,
        **{f"sec-fetch-{name}": value for name, value in metadata.items()},
        "accept-encoding": ACCEPT_ENCODING,
        "accept-language": accept_language,
    }


def client_hints(agent: str) -> dict[str, str]:
    """The `sec-ch-ua` headers that belong to `agent`; none unless it is Chrome's.

    The made-up brand and the order of the three follow from the major version as in Chromium's
    `components/embedder_support/user_agent_utils.cc`; checked against what Chrome 131 sends.
    """
    match = _CHROME.search(agent)
    if not match or any(other in agent for other in ("Edg", "OPR/", "Headless")):
        return {}
    major = int(match[1])
    signs = " (:-./);=?_"
    invented = f"Not{signs[major % 11]}A{signs[(major + 1) % 11]}Brand"
    versions = {invented: ("8", "99", "24")[major % 3], "Chromium": str(major), "Google Chrome": str(major)}
    places = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))[major % 6]
    ordered = sorted(zip(places, versions.items(), strict=True))
    platforms = {"Android": "Android", "Windows NT": "Windows", "Macintosh": "macOS"}
    platform = next((name for sign, name in platforms.items() if sign in agent), "Linux")
    return {
        "sec-ch-ua": ", ".join(f'"{brand}";v="{version}"' for _, (brand, version) in ordered),
        "sec-ch-ua-mobile": "?1" if "Mobile" in agent else "?0",
        "sec-ch-ua-platform": f'"{platform}"',
    }


def join(base: str, location: str) -> str:
    """Where a redirect from `base` leads: `base`'s fragment goes along unless `location` has one (RFC 9110, 10.2.2).

    Raises:
        GuardRefused: `location` is written so that readers differ about the host; the rest is for the guard to judge.
    """
    if _CONTROL.search(location):
        raise GuardRefused("the redirect contains control characters", reason="characters", url=base)
    if location.startswith("///"):
        raise GuardRefused("the redirect does not parse", reason="syntax", url=base)
    try:
        url = location if _SCHEME.match(location) else urljoin(base, location)
    except ValueError as error:
        raise GuardRefused("the redirect does not parse", reason="syntax", url=base) from error
    fragment = urldefrag(base).fragment
    return f"{url}#{fragment}" if fragment and "#" not in url else url


def _location(response: httpx.Response, target: Target) -> str | None:
    """The Location of a redirect; None when `response` is the end of the way."""
    if response.status_code not in _REDIRECTS:
        return None
    given = {value.strip() for name, value in response.headers.raw if name.lower() == b"location"} - {b""}
    if len(given) > 1:
        raise NetworkError("the server redirects to several URLs at once", url=target.url)
    return next((_text(value) for value in given), None)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def _pieces(response: httpx.Response, target: Target) -> AsyncIterator[bytes]:
    pieces = response.aiter_raw()
    while True:
        try:
            with _unlogged():
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except _FAILURES as error:
            raise _typed(error, target, "reading the body") from error
        yield piece


def _headers(response: httpx.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers.raw:
        name, value = raw_name.decode("ascii").lower(), _text(raw_value)
        if name not in ("set-cookie", "set-cookie2"):
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _result(url: str, target: Target, response: httpx.Response, body: bytes, truncated: bool) -> HttpResponse:
    content_type, charset = _media_type(response.headers.get_list("content-type"))
    return HttpResponse(
        url=url,
        final_url=target.url,
        status=response.status_code,
        headers=_headers(response),
        body=body,
        truncated=truncated,
        content_type=content_type,
        charset=charset,
    )


def _media_type(values: list[str]) -> tuple[str, str | None]:
    """Media type and charset of the last Content-Type that can be read, as the Fetch standard chooses it."""
    for value in reversed(values):
        if match := _MEDIA_TYPE.match(value):
            charset = _CHARSET.search(value)
            return match[1].lower(), charset[1] if charset else None
    return "", None


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked = {}
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise UsageError("a request header cannot be sent", hint="Names are tokens, values printable ASCII.")
        if name.lower() in _OURS:
            raise UsageError(f"the request header {name} is set by the client itself", hint="Leave it out.")
        checked[name.lower()] = value
    return checked


def _died_before_answering(error: BaseException) -> bool:
    if isinstance(error, httpcore.RemoteProtocolError):
        # The one protocol error that carries no byte of an answer; httpcore gives it no class of its own.
        return "disconnected" in str(error)
    return isinstance(error, httpcore.ReadError | httpcore.WriteError)


def _typed(error: Exception, target: Target, doing: str) -> FetchError:
    """`error` as one of ours, with the URL. Words of the server stay out of messages; the cause is chained."""
    if isinstance(error, httpcore.PoolTimeout):
        doing = "waiting for a free connection"
    if isinstance(error, TimeoutError | httpcore.TimeoutException):
        return DeadlineExceeded(f"time is up while {doing}", url=target.url, hint="Give a longer timeout.")
    if (tls := _tls_failure(error)) is not None:
        return _tls_error(tls, target)
    if isinstance(error, httpcore.ProtocolError):
        return NetworkError(f"{target.host} did not answer in proper HTTP, or broke off in the middle", url=target.url)
    return NetworkError(f"{target.host} closed the connection while {doing}", url=target.url)


def _tls_failure(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _tls_error(error: ssl.SSLError, target: Target) -> NetworkError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return NetworkError(
            f"the certificate of {target.host} is not valid: {error.verify_message}",
            url=target.url,
            hint="If your network signs it itself, name its authority's PEM file in TRAWL_CA_FILE.",
        )
    reason = (error.reason or "unknown reason").replace("_", " ").lower()
    return NetworkError(f"no TLS connection with {target.host}: {reason}", url=target.url)


@lru_cache(maxsize=8)
def _ssl_context(ca_file: Path | None) -> ssl.SSLContext:
    """The system's authorities, those of Mozilla (slim containers have none of their own) and the user's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the certificate file {ca_file} cannot be used", hint="TRAWL_CA_FILE names a PEM file."
            ) from error
    return context
