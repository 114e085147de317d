"""One HTTP client for one model server. It follows no redirect, asks no environment for a proxy, reads no more than a
reply may have, and its addresses come from settings only: page data never reaches it, which is why the page guard
(which would refuse loopback) is not asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from ssl import SSLContext
from urllib.parse import SplitResult, urlsplit

import httpx

from trawl.deadline import Deadline
from trawl.errors import ModelError, ModelReplyInvalid, ModelUnavailable, without_secrets
from trawl.llama.protocol import embeddings, server
from trawl.llama.protocol.replies import REPLY_BASE_BYTES
from trawl.llama.protocol.server import ServedModel

REQUEST_SECONDS = 60.0
"""One request may take no longer, whatever the call's own deadline (contract of the older system)."""
KEEPALIVE_SECONDS = 2.0
"""llama-server closes idle connections after 5 s; one must not be reused while it does."""


class LlamaClient:
    """Talks to the server at `base_url`, e.g. `http://localhost:8081/v1` (`/v1` is added where there is no path).

    It belongs to the event loop that first uses it. Every call is given a `Deadline` and raises `ModelUnavailable` or
    `ModelReplyInvalid`, nothing else; time that runs out is `ModelUnavailable` too.

    Args:
        base_url: where the API begins.
        api_key: sent as a bearer token.
        ca_file: PEM file of authorities trusted besides the usual ones.
    """

    def __init__(self, base_url: str, api_key: str | None = None, *, ca_file: Path | None = None) -> None:
        try:
            parts = urlsplit(base_url)
            httpx.URL(base_url)
        except (ValueError, httpx.InvalidURL) as error:
            raise ModelUnavailable(
                f"the server's address is not a URL: {error}", hint="Check TRAWL_EMBED_URL."
            ) from None
        path = parts.path.rstrip("/") or "/v1"
        self._base = parts._replace(path=path, fragment="")
        self._root = parts._replace(path=path.removesuffix("/v1"), fragment="")
        self.label = without_secrets(self._base.geturl())
        """The address, fit for messages."""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        try:
            self._http = httpx.AsyncClient(
                # Loading the certificate store takes 20 ms and more: only where it is needed.
                verify=_tls(ca_file) if parts.scheme == "https" else False,
                headers=headers,
                trust_env=False,
                follow_redirects=False,
                timeout=None,  # noqa: S113 (every request runs inside asyncio.timeout)
                limits=httpx.Limits(max_connections=8, keepalive_expiry=KEEPALIVE_SECONDS),
            )
        except OSError as error:
            raise ModelUnavailable(f"the authorities in {ca_file} cannot be read: {error}") from error
        except UnicodeEncodeError:
            raise ModelUnavailable("the API key is not plain ASCII", hint="Check TRAWL_EMBED_API_KEY.") from None

    async def aclose(self) -> None:
        await self._http.aclose()

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | list[int]],
        deadline: Deadline,
        *,
        dimension: int | None = None,
    ) -> list[list[float]]:
        """One vector for each input (a text or its tokens), in their order; see `embeddings.parse_embeddings`."""
        url = _at(self._base, "/embeddings")
        body = embeddings.embeddings_body(model, inputs)
        status, reply = await self._ask("POST", url, deadline, embeddings.embeddings_reply_limit(len(inputs)), body)
        return embeddings.parse_embeddings(status, reply, count=len(inputs), dimension=dimension, url=url)

    async def models(self, deadline: Deadline) -> list[ServedModel]:
        """The models it serves, at least one."""
        url = _at(self._base, "/models")
        status, reply = await self._ask("GET", url, deadline, REPLY_BASE_BYTES)
        return server.parse_models(status, reply, url)

    async def tokenize(self, text: str, deadline: Deadline) -> list[int]:
        """The tokens of `text` with the special tokens around it (llama-server only)."""
        url = _at(self._root, "/tokenize")
        # A token has at least one byte of text, and its id and comma up to 8 characters.
        limit = REPLY_BASE_BYTES + 32 * len(text)
        status, reply = await self._ask("POST", url, deadline, limit, server.tokenize_body(text))
        return server.parse_tokens(status, reply, url)

    async def healthy(self, deadline: Deadline) -> bool:
        """Whether `/health` says that a model is loaded and ready."""
        status, _ = await self._ask("GET", _at(self._root, "/health"), deadline, REPLY_BASE_BYTES)
        return status == 200

    async def _ask(
        self, method: str, url: str, deadline: Deadline, limit: int, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Status and body of one exchange.

        Raises:
            ModelUnavailable: no connection, it broke, or time is up.
            ModelReplyInvalid: the body is larger than `limit` or encoded.
        """
        seconds = min(deadline.remaining(), REQUEST_SECONDS)
        if seconds <= 0:
            raise ModelUnavailable("no time is left to ask the model server", url=url, hint="Give a longer timeout.")
        if self._http.is_closed:
            raise ModelUnavailable("its client is closed", url=url)
        headers = {"Content-Type": "application/json"} if body is not None else None
        try:
            async with asyncio.timeout(seconds), self._http.stream(method, url, content=body, headers=headers) as reply:
                return reply.status_code, await _read(reply, limit, url)
        except TimeoutError:
            raise ModelUnavailable(f"no answer within {seconds:.1f} s", url=url) from None
        except ModelError:
            raise
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            what = "nobody answers" if isinstance(error, httpx.ConnectError) else "the connection broke"
            raise ModelUnavailable(f"{what} ({type(error).__name__})", url=url) from error


def _at(base: SplitResult, path: str) -> str:
    """`base` with `path` appended; a query (some gateways want their key there) stays behind it."""
    return base._replace(path=base.path + path).geturl()


async def _read(reply: httpx.Response, limit: int, url: str) -> bytes:
    # Undoing a Content-Encoding that was not asked for would let a small reply become a huge one.
    if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ModelReplyInvalid("its reply is compressed although that was not asked for", url=url)
    body = bytearray()
    async for piece in reply.aiter_raw():
        body += piece
        if len(body) > limit:
            raise ModelReplyInvalid(f"its reply is larger than {limit} bytes", url=url)
    return bytes(body)


def _tls(ca_file: Path | None) -> SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    if ca_file:
        context.load_verify_locations(ca_file)
    return context
