"""The client of one model server: one method per endpoint, each one HTTP exchange between a body and a parser of
`trawl.llama.protocol`. Its addresses come from settings only: page data never reaches it, which is why the page guard
(which would refuse loopback) is not asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import httpx

from trawl.deadline import Deadline
from trawl.errors import ModelError, ModelReplyInvalid, ModelUnavailable, without_secrets
from trawl.llama.protocol.chat import ChatReply, ChatRequest, Delta, ReplyReader, chat_body
from trawl.llama.protocol.embeddings import embeddings_body, embeddings_reply_limit, parse_embeddings
from trawl.llama.protocol.replies import REPLY_BASE_BYTES, InputTooLarge, KeyRefused, reply_object
from trawl.llama.protocol.rerank import parse_rerank, rerank_body, rerank_reply_limit
from trawl.llama.protocol.server import (
    Props,
    ServedModel,
    Slot,
    parse_models,
    parse_props,
    parse_slots,
    parse_tokens,
    tokenize_body,
)
from trawl.llama.transport import Answer, Transport

T = TypeVar("T")

REQUEST_SECONDS = 60.0
"""One request may take no longer, whatever the call's own deadline (contract of the older system). A chat streams, and
may take what its deadline gives."""
RERANK_SECONDS = 30.0
"""The same for one list of documents (contract of the older system)."""
SHORTEST_SECRET = 4
"""Characters of what is hidden of a server's address."""
STALL_SECONDS = 30.0
"""A stream that says nothing for so long in its middle has died. A server on a busy machine pauses for seconds when it
reads somebody else's long prompt; while it reads ours, before the first piece, only the deadline counts."""


class LlamaClient:
    """Talks to the server at `base_url`, e.g. `http://localhost:8081/v1` (`/v1` is added where there is no path).

    It belongs to the event loop that first uses it. Every call is given a `Deadline` and raises `ModelUnavailable` or
    `ModelReplyInvalid`, nothing else; time that runs out is `ModelUnavailable` too. What only llama-server has is asked
    for once: a server that does not have it is remembered as lacking it.

    Args:
        base_url: where the API begins.
        api_key: sent as a bearer token.
        ca_file: PEM file of authorities trusted besides the usual ones.
        setting: what the settings of this server begin with, for hints: `TRAWL_EMBED` of `TRAWL_EMBED_URL`.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        ca_file: Path | None = None,
        setting: str = "TRAWL_EMBED",
    ) -> None:
        self._setting = setting
        try:
            parts = urlsplit(base_url)
            httpx.URL(base_url)
        except (ValueError, httpx.InvalidURL):
            # What the parsers say quotes the address, and so a password in it.
            raise ModelUnavailable("the server's address is not a URL", hint=f"Check {setting}_URL.") from None
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise ModelUnavailable("the API key is not plain ASCII", hint=f"Check {setting}_API_KEY.")
        self._secrets = _secrets_in(parts, api_key)
        path = parts.path.rstrip("/") or "/v1"
        self._base = parts._replace(path=path, fragment="")
        self._root = parts._replace(path=path.removesuffix("/v1"), fragment="")
        self.label = without_secrets(self._base.geturl())
        """The address, fit for messages."""
        self._lacking: set[str] = set()
        """Endpoints it does not have."""
        self._plain_chat = False
        """It refuses chats with the fields of llama-server."""
        headers = {"Accept": "application/json, text/event-stream"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        try:
            self._transport = Transport(headers, tls=parts.scheme == "https", ca_file=ca_file)
        except OSError as error:
            raise ModelUnavailable(
                f"the authorities in {ca_file} cannot be read: {error}", hint="Check TRAWL_CA_FILE."
            ) from error

    async def aclose(self) -> None:
        """Closes all connections; calls after that raise `ModelUnavailable`. May be called again."""
        await self._transport.aclose()

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | list[int]],
        deadline: Deadline,
        *,
        dimension: int | None = None,
    ) -> list[list[float]]:
        """One vector for each input (a text or its tokens), in their order; see `parse_embeddings`."""
        url = _at(self._base, "/embeddings")
        body = embeddings_body(model, inputs)
        limit = embeddings_reply_limit(len(inputs))
        status, reply = await self._ask("POST", url, deadline, limit, body)
        with self._reported():
            return parse_embeddings(status, reply, count=len(inputs), dimension=dimension, url=url)

    async def rerank(self, model: str, query: str, documents: Sequence[str], deadline: Deadline) -> list[float]:
        """How relevant each document is to the query, in their order; see `parse_rerank`."""
        if not documents:
            return []
        url = _at(self._base, "/rerank")
        body = rerank_body(model, query, documents)
        limit = rerank_reply_limit(body, len(documents))
        status, reply = await self._ask("POST", url, deadline.sooner(RERANK_SECONDS), limit, body)
        with self._reported():
            return parse_rerank(status, reply, count=len(documents), url=url)

    @asynccontextmanager
    async def chat(self, request: ChatRequest, deadline: Deadline) -> AsyncGenerator[ChatStream, None]:
        """The answer as it is written, from its first byte on:

            async with client.chat(request, deadline) as stream:
                async for delta in stream:
                    ...

        However the block is left, the connection is closed, and with it ends the work of the server. `deadline` holds
        for the whole answer.
        """
        url = _at(self._base, "/chat/completions")
        if request.extras and not self._plain_chat:
            async with self._transport.open("POST", url, deadline, chat_body(request)) as answer:
                if not await self._refuses_extras(answer, url):
                    yield ChatStream(answer, ReplyReader(url), self._reported)
                    return
        async with self._transport.open("POST", url, deadline, chat_body(request, extras=False)) as answer:
            await self._accepted(answer, url)
            if request.extras:
                self._plain_chat = True
            yield ChatStream(answer, ReplyReader(url), self._reported)

    async def chat_text(self, request: ChatRequest, deadline: Deadline) -> ChatReply:
        """The whole answer. One cut at `max_tokens` is an answer too, with `finish_reason` `length`."""
        async with self.chat(request, deadline) as stream:
            async for _ in stream:
                pass
            return stream.reply

    async def models(self, deadline: Deadline) -> list[ServedModel]:
        """The models it serves, at least one."""
        url = _at(self._base, "/models")
        status, reply = await self._ask("GET", url, deadline, REPLY_BASE_BYTES)
        with self._reported():
            return parse_models(status, reply, url)

    async def tokenize(self, text: str, deadline: Deadline) -> list[int]:
        """The tokens of `text` with the special tokens around it.

        Raises:
            ModelReplyInvalid: also when the server has no `/tokenize`, and then without asking it again.
        """
        # A token has at least one byte of text, and its id and comma up to 8 characters.
        limit = REPLY_BASE_BYTES + 32 * len(text)
        tokens = await self._extra("/tokenize", parse_tokens, deadline, limit, tokenize_body(text))
        if tokens is None:
            raise ModelReplyInvalid("it counts no tokens", url=_at(self._root, "/tokenize"))
        return tokens

    async def props(self, deadline: Deadline) -> Props | None:
        """What llama-server says of its model and slots; None from another server."""
        return await self._extra("/props", parse_props, deadline)

    async def slots(self, deadline: Deadline) -> list[Slot] | None:
        """llama-server's slots and whether they work; None from another server, or where that is switched off."""
        return await self._extra("/slots", parse_slots, deadline)

    async def healthy(self, deadline: Deadline) -> bool:
        """Whether a model is loaded and ready: by `/health`, by the list of models where there is no such page."""
        if "/health" not in self._lacking:
            status, _ = await self._ask("GET", _at(self._root, "/health"), deadline, REPLY_BASE_BYTES)
            if not _lacks(status):
                return status == 200
            self._lacking.add("/health")
        status, _ = await self._ask("GET", _at(self._base, "/models"), deadline, REPLY_BASE_BYTES)
        return status == 200

    async def _extra(
        self,
        path: str,
        parse: Callable[[int, bytes, str], T],
        deadline: Deadline,
        limit: int = REPLY_BASE_BYTES,
        body: bytes | None = None,
    ) -> T | None:
        """What an endpoint says that only llama-server has; None, from then on without asking, where it is lacking."""
        if path in self._lacking:
            return None
        url = _at(self._root, path)
        method = "GET" if body is None else "POST"
        status = 200
        try:
            status, reply = await self._ask(method, url, deadline, limit, body)
            with self._reported():
                return parse(status, reply, url)
        except (ModelReplyInvalid, KeyRefused):
            # A gateway may refuse the paths it does not know; a key that is wrong shows where the work is done.
            if status < 300 or _lacks(status):
                self._lacking.add(path)
            return None

    async def _refuses_extras(self, answer: Answer, url: str) -> bool:
        """Whether a chat was refused in the way servers refuse fields that they do not know."""
        try:
            await self._accepted(answer, url)
        except InputTooLarge:
            raise
        except ModelReplyInvalid:
            if answer.status not in (400, 422):
                raise
            return True
        return False

    async def _accepted(self, answer: Answer, url: str) -> None:
        """Makes sure that a chat was accepted; else raises what the server says, as `reply_object` does."""
        if answer.status != 200:
            with self._reported():
                reply_object(answer.status, await answer.body(REPLY_BASE_BYTES), url)

    async def _ask(
        self, method: str, url: str, deadline: Deadline, limit: int, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Status and body of one exchange.

        Raises:
            ModelUnavailable: no connection, it broke, or time is up.
            ModelReplyInvalid: the body is larger than `limit` or encoded.
        """
        async with self._transport.open(method, url, deadline.sooner(REQUEST_SECONDS), body) as answer:
            return answer.status, await answer.body(limit)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Errors say which setting can mend them, and never a secret, which a server may repeat."""
        try:
            yield
        except ModelError as error:
            if isinstance(error, KeyRefused):
                error.hint = f"Set {self._setting}_API_KEY to a key it accepts."
            error.message = _hidden(error.message, self._secrets)
            error.args = (error.message,)
            raise


class ChatStream:
    """The pieces of one answer. Iterate once."""

    def __init__(
        self, answer: Answer, reader: ReplyReader, reported: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._answer = answer
        self._reader = reader
        self._reported = reported

    async def __aiter__(self) -> AsyncGenerator[Delta, None]:
        stall = None
        while not self._reader.done:
            piece = await self._answer.piece(stall=stall)
            stall = STALL_SECONDS
            with self._reported():
                deltas = self._reader.end() if piece is None else self._reader.feed(piece)
            for delta in deltas:
                yield delta

    @property
    def reply(self) -> ChatReply:
        """The answer as far as it has come."""
        return self._reader.reply


def _secrets_in(base: SplitResult, api_key: str | None) -> list[str]:
    """What a server may know of us and nobody else: the key, the user and password of its address, the values of its
    query, each as it stands there and decoded."""
    user = base.netloc.rpartition("@")[0].split(":", 1)
    found = [*user, *map(unquote, user)]
    found += [pair.partition("=")[2] for pair in base.query.split("&")] + [value for _, value in parse_qsl(base.query)]
    # Shorter ones are versions and flags, and may be anywhere in a message.
    found = [value for value in found if len(value) >= SHORTEST_SECRET]
    return sorted({*found, *([api_key] if api_key else [])}, key=len, reverse=True)


def _hidden(message: str, secrets: Sequence[str]) -> str:
    """`message` without `secrets`; one that a length limit has cut off in the middle stands at its end."""
    for secret in secrets:
        message = message.replace(secret, "…")
        for length in range(len(secret) - 1, SHORTEST_SECRET - 1, -1):
            if message.endswith(secret[:length]):
                message = message[:-length] + "…"
                break
    return message


def _lacks(status: int) -> bool:
    """Whether `status` says that there is no such endpoint."""
    return 300 <= status < 400 or status in (401, 403, 404, 405, 501)


def _at(base: SplitResult, path: str) -> str:
    """`base` with `path` appended; a query (some gateways want their key there) stays behind it."""
    return base._replace(path=base.path + path).geturl()
