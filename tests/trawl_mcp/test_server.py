"""trawl-mcp as a client meets it: over a real child process, with the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from trawl.retrieval.tokens import estimate_tokens

PAGE = (
    "<title>Hut book</title><main><h1>Hut</h1>"
    + "".join(
        f"<h2>Day {i}</h2><p>On day {i} the wind was {i} knots and the stove burnt {i + 3} logs of birch.</p>"
        for i in range(60)
    )
    + "</main>"
)


@asynccontextmanager
async def serving(*args: str, mode: str = "auto") -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "trawl_mcp", *args],
        env={**os.environ, "TRAWL_EMBEDDED": "0", "TRAWL_RENDER": "never"},
    )
    async with asyncio.timeout(60), Client(stdio_client(server), mode=mode) as client:
        yield client


@pytest.fixture
def hut(web):
    web.add(f"http://127.0.0.1:{web.http_port}/book", PAGE)
    return f"http://127.0.0.1:{web.http_port}"


async def test_the_tool_says_what_it_is(hut):
    async with serving() as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "fetch_page"
        assert tool.title
        assert tool.annotations.read_only_hint
        assert tool.annotations.open_world_hint
        assert tool.input_schema["required"] == ["url"]
        assert {"query", "k", "max_tokens", "use_hyde", "use_rerank", "max_cache_age_s"} <= set(
            tool.input_schema["properties"]
        )
        assert tool.output_schema["properties"]["chunks"]
        assert "fetch_page" in client.instructions
        cost = estimate_tokens(tool.model_dump_json(by_alias=True, exclude_none=True) + client.instructions)
        assert cost < 2500, "every session of every user pays for this"


async def test_pieces_more_and_refusals(hut):
    async with serving("--allow-private", hut.removeprefix("http://")) as client:
        first = await client.call_tool(
            "fetch_page", {"url": f"{hut}/book", "query": "wind on day 7", "max_tokens": 300}
        )
        reply = first.structured_content
        assert reply["ok"]
        assert "7 knots" in reply["chunks"][0]["text"]
        assert reply["chunks"][0]["link"].startswith("#:~:text=")
        assert reply["content_boundary"]["type"] == "untrusted_webpage_text"
        assert estimate_tokens(first.model_dump_json(by_alias=True, exclude_none=True)) <= 300 + 300
        assert "knots" not in json.dumps([c.model_dump() for c in first.content]), "the pieces travel once"

        after = await client.call_tool("fetch_page", {"url": f"{hut}/book", "more": reply["more"]})
        assert {c["text"] for c in after.structured_content["chunks"]}.isdisjoint(c["text"] for c in reply["chunks"])

        for arguments, outcome, words in (
            ({"url": "http://localhost/"}, "refused", "localhost"),
            ({"url": "http://127.0.0.1:8000/"}, "refused", "loopback"),
            ({"url": f"{hut}/book", "more": "unknown"}, "", "expired"),
            ({"url": f"{hut}/book", "render": "perhaps"}, "", "render"),
            ({"url": ""}, "", "empty"),
        ):
            wire = (await client.call_tool("fetch_page", arguments)).structured_content
            assert wire["ok"] is False
            assert wire.get("outcome", "") == outcome
            assert words in wire["error"]


async def test_a_wrong_argument_is_an_error_the_model_can_read(hut):
    async with serving() as client:
        url = "https://x.example.org/"
        for arguments, named in (
            ({}, "url"),
            ({"url": url, "max_tokens": 0}, "max_tokens"),
            ({"url": url, "k": "x"}, "k"),
        ):
            result = await client.call_tool("fetch_page", arguments)
            assert result.is_error
            assert named in result.content[0].text


async def test_many_calls_at_once(hut):
    async with serving("--allow-private", hut.removeprefix("http://")) as client:
        results = await asyncio.gather(
            *(client.call_tool("fetch_page", {"url": f"{hut}/book", "query": f"wind on day {i}"}) for i in range(12))
        )
        for i, result in enumerate(results):
            assert any(f"day {i} the wind" in c["text"] for c in result.structured_content["chunks"])


async def test_the_server_ends_with_its_input(hut):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trawl_mcp", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 20) == 0
    assert await process.stdout.read() == b"", "standard output belongs to the protocol"


async def test_modules_lying_in_the_working_directory_are_not_imported(tmp_path):
    """An MCP server starts inside other people's repositories."""
    for name in ("mcp", "httpx", "httpcore", "pydantic", "typer", "trawl", "idna", "dotenv"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken over')\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trawl_mcp", "--version",
        cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0, err
    assert out.startswith(b"trawl ")


async def test_a_bad_option_is_told_on_standard_error(hut):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trawl_mcp", "--allow-private", "http://x/", stderr=asyncio.subprocess.PIPE
    )
    _, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert b"allow_private" in err


async def test_a_client_of_an_older_protocol_gets_the_reply_as_text_and_the_pieces_once(hut):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trawl_mcp", "--allow-private", hut.removeprefix("http://")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TRAWL_EMBEDDED": "0", "TRAWL_RENDER": "never"},
    )
    client = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    call = {"name": "fetch_page", "arguments": {"url": f"{hut}/book", "query": "wind on day 7", "max_tokens": 300}}
    for message in (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        await process.stdin.drain()
    async with asyncio.timeout(30):
        await process.stdout.readline()
        line = await process.stdout.readline()
    process.stdin.close()
    await process.wait()
    (content,) = json.loads(line)["result"]["content"]
    reply = json.loads(content["text"])
    assert "7 knots" in reply["chunks"][0]["text"]
    assert line.count(b"On day 7 the wind") == 1
