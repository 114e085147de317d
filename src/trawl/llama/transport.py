"""HTTP with one model server, as `LlamaClient` needs it: no redirect is followed, no proxy of the environment asked, no
Content-Encoding undone, nothing read beyond a limit or a deadline, and nothing logged (httpx writes whole URLs, with
the key some gateways want there, at INFO)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from ssl import SSLCertVerificationError, SSLContext
from typing import Any, TypeVar

import httpx

from trawl.deadline import Deadline
from trawl.errors import ModelReplyInvalid, ModelUnavailable

T = TypeVar("T")

MAX_CONNECTIONS = 128
"""More than any queue before a server lets through (`Settings.max_inflight` ends at 64), what is asked beside it
included: a call must wait in the queue, where it is seen, and not here."""
KEEPALIVE_SECONDS = 2.0
"""llama-server closes idle connections after 5 s; one must not be reused while it does."""

_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11")
_OURS_NOW: ContextVar[bool] = ContextVar("trawl_model_request", default=False)
_FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError)
"""What a server, the network or an impossible address can do to a request."""


class Transport:
    """Connections to one server. Belongs to the event loop that first uses it.

    Raises:
        OSError: `ca_file` cannot be read.
    """

    def __init__(self, headers: dict[str, str], *, tls: bool, ca_file: Path | None) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_not_ours)
        self._http = httpx.AsyncClient(
            # Loading the certificate store takes 20 ms and more: only where it is needed.
            verify=_authorities(ca_file) if tls else False,
            headers={"Accept-Encoding": "identity", **headers},
            trust_env=False,
            follow_redirects=False,
            timeout=None,  # noqa: S113 (every wait has a timeout of its own)
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_SECONDS),
        )
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(
        self, method: str, url: str, deadline: Deadline, body: bytes | None = None
    ) -> AsyncGenerator[Answer, None]:
        """The answer to one request, when its head has come. The connection is closed at the end unless the answer was
        read to its own.

        Raises:
            ModelUnavailable: no connection, it broke, or time is up.
            ModelReplyInvalid: the body is encoded.
        """
        if deadline.remaining() <= 0:
            raise ModelUnavailable("no time is left to ask the model server", url=url, hint="Give a longer timeout.")
        if self._http.is_closed:
            raise ModelUnavailable("its client is closed", url=url)
        answer = Answer(self._http, url, deadline)
        try:
            await answer.begin(method, body)
            yield answer
        finally:
            with _unlogged():
                closing = asyncio.create_task(answer.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            # Goes on to its end however often the caller is cancelled meanwhile.
            await asyncio.wait([closing])
            closing.result()

    async def aclose(self) -> None:
        with _unlogged():
            await asyncio.gather(*self._closing)
            await self._http.aclose()


class Answer:
    """One answer, read piece by piece.

    Every wait for the network is a task that the caller's cancellation does not reach: httpcore cleans up once, and a
    second cancellation would leave its connection open and a place of its pool taken. `aclose` ends the task instead.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, deadline: Deadline) -> None:
        self._http = http
        self._url = url
        self._deadline = deadline
        self._waiting: asyncio.Task[Any] | None = None
        self._response: httpx.Response | None = None
        # Known when it has begun.
        self.status: int
        self._pieces: AsyncIterator[bytes]

    async def begin(self, method: str, body: bytes | None) -> None:
        """Sends the request and waits for the head of the answer."""
        seconds = self._deadline.remaining()
        await self._wait(self._send(method, body), seconds, f"no answer within {seconds:.1f} s")

    async def piece(self, *, stall: float | None = None) -> bytes | None:
        """The next bytes of the body; None at its end.

        Args:
            stall: seconds to wait for them at most, when the deadline is further away.

        Raises:
            ModelUnavailable: the connection broke, the server fell silent, or time is up.
        """
        seconds = self._deadline.remaining()
        if stall is None or seconds <= stall:
            return await self._wait(self._next(), seconds, "no answer within the time given: it was still sending")
        return await self._wait(self._next(), stall, f"it fell silent for {stall:.0f} s in the middle of its answer")

    async def body(self, limit: int) -> bytes:
        """The whole body; errors as for `piece`, and `ModelReplyInvalid` when it is larger than `limit` bytes."""
        body = bytearray()
        while (piece := await self.piece()) is not None:
            body += piece
            if len(body) > limit:
                raise ModelReplyInvalid(f"its reply is larger than {limit} bytes", url=self._url)
        return bytes(body)

    async def aclose(self) -> None:
        """Give the connection back, or close it when the body was not read to its end."""
        if self._waiting:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)
        if self._response:
            with contextlib.suppress(*_FAILURES):
                await self._response.aclose()

    async def _send(self, method: str, body: bytes | None) -> None:
        headers = {"Content-Type": "application/json"} if body is not None else None
        request = self._http.build_request(method, self._url, content=body, headers=headers)
        self._response = response = await self._http.send(request, stream=True)
        # Undoing a Content-Encoding that was not asked for would let a small reply become a huge one.
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ModelReplyInvalid("its reply is compressed although that was not asked for", url=self._url)
        self.status = response.status_code
        self._pieces = response.aiter_raw()

    async def _next(self) -> bytes | None:
        return await anext(self._pieces, None)

    async def _wait(self, work: Coroutine[Any, Any, T], seconds: float, late: str) -> T:
        """What `work` gives, or the typed error it ends with; `late` says what it means when time is up first."""
        with _unlogged():
            self._waiting = task = asyncio.create_task(work)
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise ModelUnavailable(late, url=self._url)
        try:
            return task.result()
        except _FAILURES as error:
            raise _unavailable(error, self._url) from error


def _unavailable(error: Exception, url: str) -> ModelUnavailable:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SSLCertVerificationError):
            hint = "Set TRAWL_CA_FILE to the PEM file of its authority, or correct the name in the address."
            return ModelUnavailable(f"its certificate is not accepted: {cause.verify_message}", url=url, hint=hint)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError):
        return ModelUnavailable("nobody answers there", url=url)
    return ModelUnavailable(f"the connection broke ({type(error).__name__})", url=url)


def _not_ours(_: logging.LogRecord) -> bool:
    return not _OURS_NOW.get()


@contextmanager
def _unlogged() -> Iterator[None]:
    """Inside, httpx and httpcore log nothing."""
    token = _OURS_NOW.set(True)
    try:
        yield
    finally:
        _OURS_NOW.reset(token)


def _authorities(ca_file: Path | None) -> SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    if ca_file:
        context.load_verify_locations(ca_file)
    return context
