"""The client keeps its limits in time and size, and says what went wrong in one of two errors."""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.llama.conftest import NOBODY, reply, vectors
from trawl.deadline import Deadline
from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama import client as client_module
from trawl.llama.client import LlamaClient
from trawl.llama.protocol import embeddings
from trawl.llama.protocol.chat import ChatRequest, Message
from trawl.llama.protocol.replies import REPLY_BASE_BYTES

Serving = Callable[..., Any]
EMBED = "/v1/embeddings"


async def embed(url: str, seconds: float = 5, texts: tuple[str, ...] = ("a", "b")) -> list[list[float]]:
    client = LlamaClient(url)
    try:
        return await client.embed("m", texts, Deadline.after(seconds))
    finally:
        await client.aclose()


async def test_texts_become_vectors_and_the_key_travels_as_a_bearer_token(fake_server: Serving) -> None:
    async with fake_server({EMBED: lambda body: reply(vectors(body))}) as fake:
        client = LlamaClient(fake.url, "secret-key")
        found = await client.embed("m", ["a", "b"], Deadline.after(5))
        await client.aclose()
    assert len(found) == 2
    (path, headers, body) = fake.seen[0]
    assert path == EMBED
    assert headers["authorization"] == "Bearer secret-key"
    assert body["model"] == "m"
    assert body["input"] == ["a", "b"]


async def test_a_certificate_that_is_not_trusted_is_told_as_that_with_the_setting_for_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply({"data": [{"id": "m"}]}))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        stranger, friend = LlamaClient(url), LlamaClient(url, ca_file=tmp_path / "ca.pem")
        with pytest.raises(ModelUnavailable, match=r"certificate.*TRAWL_CA_FILE"):
            await stranger.models(Deadline.after(5))
        assert [model.id for model in await friend.models(Deadline.after(5))] == ["m"]
        await stranger.aclose()
        await friend.aclose()


async def test_an_address_without_a_path_means_v1(fake_server: Serving) -> None:
    async with fake_server({EMBED: lambda body: reply(vectors(body))}) as fake:
        assert len(await embed(fake.url.removesuffix("/v1"))) == 2


async def test_nobody_there_is_unavailable_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(ModelUnavailable, match="nobody answers"):
        await embed(NOBODY)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://a:99999/v1", "http://\0/v1", "http://exa mple/v1"])
async def test_an_impossible_address_is_unavailable(url: str) -> None:
    with pytest.raises(ModelUnavailable):
        await embed(url)


async def test_a_file_of_authorities_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "not.pem").write_text("not a certificate")
    for name in ("not.pem", "missing.pem"):
        with pytest.raises(ModelUnavailable, match="cannot be read"):
            LlamaClient("https://127.0.0.1:9/v1", ca_file=tmp_path / name)


async def test_no_time_left_is_unavailable_without_asking(fake_server: Serving) -> None:
    async with fake_server({EMBED: lambda body: reply(vectors(body))}) as fake:
        with pytest.raises(ModelUnavailable):
            await embed(fake.url, seconds=0)
    assert fake.seen == []


async def test_silence_ends_with_the_deadline(fake_server: Serving) -> None:
    async def silent(_: Any) -> bytes:
        await asyncio.sleep(30)
        return b""

    async with fake_server({EMBED: silent}) as fake:
        began = time.monotonic()
        with pytest.raises(ModelUnavailable, match="no answer within"):
            await embed(fake.url, seconds=0.3)
        assert time.monotonic() - began < 2


async def test_a_reply_that_drips_ends_with_the_deadline() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        try:
            while True:
                writer.write(b"{")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    began = time.monotonic()
    with pytest.raises(ModelUnavailable):
        await embed(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", seconds=0.4)
    assert time.monotonic() - began < 2
    server.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"HTTP/1.1 2"],
    ids=["nothing", "not HTTP", "cut body", "cut head"],
)
async def test_a_broken_connection_is_unavailable(fake_server: Serving, answer: bytes) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(broken, "127.0.0.1", 0)
    with pytest.raises(ModelUnavailable):
        await embed(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    server.close()


async def test_a_reply_without_end_is_cut_off(fake_server: Serving) -> None:
    limit = embeddings.embeddings_reply_limit(2)
    async with fake_server({EMBED: lambda _: reply(b" " * (limit + 1))}) as fake:
        with pytest.raises(ModelReplyInvalid, match="larger"):
            await embed(fake.url)


async def test_a_compressed_reply_is_refused_without_decoding(fake_server: Serving) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    async with fake_server({EMBED: lambda _: reply(bomb, headers="Content-Encoding: gzip\r\n")}) as fake:
        with pytest.raises(ModelReplyInvalid, match="compressed"):
            await embed(fake.url)


async def test_a_redirect_is_not_followed(fake_server: Serving) -> None:
    async with (
        fake_server({EMBED: lambda body: reply(vectors(body))}) as target,
        fake_server({EMBED: lambda _: reply(b"", 307, f"Location: {target.url}/embeddings\r\n")}) as fake,
    ):
        with pytest.raises(ModelReplyInvalid, match="redirect"):
            await embed(fake.url)
        assert target.seen == []


async def test_proxies_of_the_environment_are_not_asked(fake_server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, NOBODY.removesuffix("/v1"))
    async with fake_server({EMBED: lambda body: reply(vectors(body))}) as fake:
        assert len(await embed(fake.url)) == 2


@pytest.mark.parametrize("before", [0, 150, 185])
async def test_secrets_that_a_server_repeats_stay_out_of_messages_whole_or_cut(
    fake_server: Serving, before: int
) -> None:
    key = "sk-" + "A1b2C3d4" * 40
    said = f"{'x' * before} no route /v1/embeddings?token=t%2Fk3n for t/k3n of hans:hunter2 with {key}"
    async with fake_server({EMBED + "?token=t%2Fk3n": lambda _: reply({"error": said}, 401)}) as fake:
        address = fake.url.replace("//", "//hans:hunter2@") + "?token=t%2Fk3n"
        client = LlamaClient(address, key)
        with pytest.raises(ModelUnavailable) as caught:
            await client.embed("m", ["a"], Deadline.after(5))
        await client.aclose()
    for secret in ("t%2Fk", "t/k3", "hunt", "sk-A"):
        assert secret not in str(caught.value)
        assert secret not in repr(caught.value)
    assert "it answered 401" in str(caught.value)


async def test_secrets_of_the_address_and_the_key_stay_out_of_messages() -> None:
    client = LlamaClient("http://user:hunter2@127.0.0.1:9/v1?token=tok3n", "k3y")
    with pytest.raises(ModelUnavailable) as caught:
        await client.embed("m", ["a"], Deadline.after(2))
    await client.aclose()
    for secret in ("hunter2", "tok3n", "k3y"):
        assert secret not in str(caught.value) + client.label + repr(client)


async def test_a_cancelled_call_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        closed.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    client = LlamaClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    call = asyncio.create_task(client.embed("m", ["a"], Deadline.after(30)))
    await asyncio.sleep(0.2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(closed.wait(), 2)
    await client.aclose()
    server.close()


async def test_a_closed_client_is_unavailable(fake_server: Serving) -> None:
    async with fake_server({EMBED: lambda body: reply(vectors(body))}) as fake:
        client = LlamaClient(fake.url)
        await client.aclose()
        with pytest.raises(ModelUnavailable):
            await client.embed("m", ["a"], Deadline.after(2))


async def test_scores_come_in_the_order_of_the_documents(fake_server: Serving) -> None:
    results = [{"index": 1, "relevance_score": 2.5}, {"index": 0, "relevance_score": -1}]
    async with fake_server({"/v1/rerank": lambda _: reply({"results": results})}) as fake:
        client = LlamaClient(fake.url, "secret-key")
        assert await client.rerank("m", "why", ["a", "b"], Deadline.after(5)) == [-1.0, 2.5]
        assert await client.rerank("m", "why", [], Deadline.after(5)) == []
        await client.aclose()
    (_, headers, body) = fake.seen[0]
    assert headers["authorization"] == "Bearer secret-key"
    assert body == {"model": "m", "query": "why", "documents": ["a", "b"]}
    assert len(fake.seen) == 1


async def test_a_reranker_that_takes_too_long_is_unavailable(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: Any) -> bytes:
        await asyncio.sleep(30)
        return b""

    monkeypatch.setattr(client_module, "RERANK_SECONDS", 0.2)
    async with fake_server({"/v1/rerank": silent}) as fake:
        client = LlamaClient(fake.url)
        began = time.monotonic()
        with pytest.raises(ModelUnavailable, match="no answer within"):
            await client.rerank("m", "why", ["a"], Deadline.after(60))
        assert time.monotonic() - began < 3
        await client.aclose()


async def ask_extra(client: LlamaClient, path: str) -> Any:
    within = Deadline.after(5)
    if path == "/tokenize":
        try:
            return await client.tokenize("a", within)
        except ModelReplyInvalid:
            return None
    return await (client.props(within) if path == "/props" else client.slots(within))


LACKING = {
    "404": reply({"detail": "Not Found"}, 404),
    "404 page": reply(b"<html>Not Found</html>", 404),
    "405": reply(b"", 405),
    "501": reply({"error": {"message": "not supported", "code": 501}}, 501),
    "401": reply(b"", 401),
    "403": reply(b"<html>Forbidden</html>", 403),
    "redirect": reply(b"", 302, "Location: /login\r\n"),
    "page": reply(b"<!DOCTYPE html><html>It works!</html>"),
    "other JSON": reply({"hello": "world"}),
    "nothing": reply(b"", 204),
    "huge": reply(b" " * (REPLY_BASE_BYTES + 1000)),
}


@pytest.mark.parametrize("path", ["/props", "/slots", "/tokenize"])
@pytest.mark.parametrize("answer", LACKING.values(), ids=LACKING.keys())
async def test_what_a_server_lacks_is_asked_for_once(fake_server: Serving, path: str, answer: bytes) -> None:
    async with fake_server({path: lambda _: answer}) as fake:
        client = LlamaClient(fake.url)
        for _ in range(3):
            assert await ask_extra(client, path) is None
        await client.aclose()
        assert fake.paths() == [path]


@pytest.mark.parametrize("path", ["/props", "/slots", "/tokenize"])
async def test_what_a_server_only_cannot_give_now_is_asked_for_again(fake_server: Serving, path: str) -> None:
    good = {"/props": {"total_slots": 2}, "/slots": [{"id": 0}], "/tokenize": {"tokens": [1]}}[path]
    answers = iter([reply({"error": "loading"}, 503), reply({"error": "unlucky"}, 500), reply(good)])
    async with fake_server({path: lambda _: next(answers)}) as fake:
        client = LlamaClient(fake.url)
        with pytest.raises(ModelUnavailable):
            await ask_extra(client, path)
        assert await ask_extra(client, path) is None
        assert await ask_extra(client, path)
        await client.aclose()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (500, False)])
async def test_health_is_what_its_page_says(fake_server: Serving, status: int, healthy: bool) -> None:
    async with fake_server({"/health": lambda _: reply({}, status)}) as fake:
        client = LlamaClient(fake.url)
        assert await client.healthy(Deadline.after(5)) is healthy
        await client.aclose()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
async def test_without_such_a_page_health_is_what_the_list_of_models_says(
    fake_server: Serving, status: int, healthy: bool
) -> None:
    async with fake_server({"/v1/models": lambda _: reply({"data": [{"id": "m"}]}, status)}) as fake:
        client = LlamaClient(fake.url)
        assert await client.healthy(Deadline.after(5)) is healthy
        assert await client.healthy(Deadline.after(5)) is healthy
        await client.aclose()
        assert fake.paths() == ["/health", "/v1/models", "/v1/models"]


async def test_hints_name_the_settings_of_this_server(fake_server: Serving) -> None:
    for arguments in (("http://[::1",), ("http://a/v1", "schlüssel"), ("http://a/v1", "key\nInjected: 1")):
        with pytest.raises(ModelUnavailable) as caught:
            LlamaClient(*arguments, setting="TRAWL_VLM")
        assert "TRAWL_VLM_" in caught.value.hint
    async with fake_server({"/v1/models": lambda _: reply({}, 401)}) as fake:
        client = LlamaClient(fake.url, setting="TRAWL_VLM")
        with pytest.raises(ModelUnavailable, match="TRAWL_VLM_API_KEY"):
            await client.models(Deadline.after(5))
        await client.aclose()


@pytest.mark.parametrize("url", ["http://user:hunter2@[::1/v1", "http://user:hunter2@a:b/v1", "http://hunter2℀/v1"])
async def test_an_impossible_address_is_not_repeated(url: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        LlamaClient(url)
    assert "hunter2" not in str(caught.value)


async def test_no_log_line_tells_of_our_requests_and_other_clients_keep_theirs(
    fake_server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with fake_server({EMBED + "?key=tok3n": lambda body: reply(vectors(body))}) as fake:
        client = LlamaClient(fake.url + "?key=tok3n", "s3cret")
        await client.embed("m", ["a"], Deadline.after(5))
        with pytest.raises(ModelReplyInvalid):
            await client.chat_text(ChatRequest("m", [Message("user", "a")]), Deadline.after(5))
        await client.aclose()
        assert [record for record in caplog.records if record.name.startswith("http")] == []
        assert "tok3n" not in caplog.text
        async with httpx.AsyncClient(trust_env=False) as other:
            await other.get(fake.url)
        assert "HTTP Request: GET" in caplog.text
