"""Servers on loopback for the dialer and the HTTP client: one answers as told, one must hear nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from trawl.net.dialer import Dialer
from trawl.net.guard import Policy

Answer = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Request:
    target: str
    headers: list[tuple[str, str]]

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass
class Server:
    """Answers each request with `answer`; the connection stays open unless the answer closes it."""

    answer: Answer
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
                headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
                self.requests.append(Request(first.split(" ")[1], headers))
                await self.answer(self.requests[-1], writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_connections -= 1
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def idle(self) -> bool:
        """Whether every client is gone, after giving closed sockets a moment to be noticed."""
        for _ in range(100):
            if not self.open_connections:
                return True
            await asyncio.sleep(0.01)
        return False


@contextlib.asynccontextmanager
async def serve(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)


def reply(status: str, body: bytes = b"", **headers: str) -> bytes:
    """A whole response; header `content_type` becomes `content-type`."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def always(*pieces: bytes, close: bool = False) -> Answer:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if close:
            writer.close()

    return answer


@contextlib.asynccontextmanager
async def deaf_listeners() -> AsyncIterator[tuple[int, list[str]]]:
    """One TCP port of every address of this machine, IPv4 and, where there is one, IPv6; and who connected to it."""
    heard: list[str] = []

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(str(writer.get_extra_info("sockname")))
        writer.close()

    servers = [await asyncio.start_server(handle, "0.0.0.0", 0)]
    port: int = servers[0].sockets[0].getsockname()[1]
    if socket.has_ipv6:
        with contextlib.suppress(OSError):
            servers.append(await asyncio.start_server(handle, "::", port, family=socket.AF_INET6))
    try:
        yield port, heard
        # A connection made is accepted a turn of the loop later.
        await asyncio.sleep(0.05)
        assert heard == []
    finally:
        for server in servers:
            server.close()


def names(**table: Sequence[str]) -> Callable[[str], Awaitable[Sequence[str]]]:
    """A resolver that knows these names only; `a__example` stands for `a.example`."""
    known = {name.replace("__", "."): addresses for name, addresses in table.items()}

    async def resolve(host: str) -> Sequence[str]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[host]

    return resolve


def sent_to(port: int, *hosts: str, scheme_port: int = 80, policy: Policy | None = None) -> Dialer:
    """A dialer that finds `hosts` at a server of the test; everything else is judged and dialled as always."""
    table = {(host, scheme_port): ("127.0.0.1", port) for host in hosts}
    return Dialer(policy or Policy(), connect_to=table, resolver=names())
