"""Listeners on loopback that must hear nothing, and the many ways to write their address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

# Hosts that mean this machine; {} is nothing, they go into a URL as they are. Names are resolved by `resolver`.
LOOPBACK_HOSTS = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "127.1.",
    "127.0.0.2",
    "127.255.255.254",
    "127.127.127.127",
    "2130706433",
    "2130706433.",
    "0x7f000001",
    "0X7F000001",
    "0x7f.1",
    "0x7f.0.0.1",
    "0x7F.0x0.0x0.0x1",
    "0x7f.0x1",
    "017700000001",
    "0177.1",
    "0177.0.0.1",
    "0177.0.0.01",
    "00177.00.00.01",
    "127.0x0.0.1",
    "127.00000000000000001",
    "0",
    "0.0.0.0",
    "0.0",
    "0x0",
    "00",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::0001]",
    "[::0.0.0.1]",
    "[::127.0.0.1]",
    "[::7f00:1]",
    "[::ffff:127.0.0.1]",
    "[::FFFF:7F00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::ffff:0.0.0.0]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[2002:7f00:0001::1]",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "LocalHost",
    "a.localhost",
    "deep.er.localhost.",
    "localhost.localdomain",
    "ip6-localhost",
    "ip6-loopback",
    "%6c%6f%63%61%6c%68%6f%73%74",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "１２７.０.０.１",
    "127。0。0。1",
    "127．0．0．1",
    "①②⑦.0.0.①",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "ｌｏｃａｌｈｏｓｔ",
    "loopback.example.com",
    "LoopBack.example.com.",
    "loopback6.example.com",
    "mapped.example.com",
    "unspecified.example.com",
    "mixed.example.com",
]

NAMES = {
    "loopback.example.com": ["127.0.0.1"],
    "loopback6.example.com": ["::1"],
    "mapped.example.com": ["::ffff:127.0.0.1"],
    "unspecified.example.com": ["0.0.0.0"],
    "mixed.example.com": ["93.184.215.14", "127.0.0.1"],
}


async def resolver(name: str) -> Sequence[str]:
    """Answers for `NAMES`; whatever else is asked for does not exist."""
    try:
        return NAMES[name]
    except KeyError:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None


@dataclass
class Listeners:
    """TCP on 127.0.0.1, ::1 and 0.0.0.0's other addresses, and UDP, all on one port."""

    port: int
    heard: list[str] = field(default_factory=list)
    """First line of every TCP connection (empty if nothing was said), `UDP` for every datagram."""

    def paths(self) -> set[str]:
        """First segments of the paths asked for over TCP."""
        return {line.split()[1].strip("/").partition("/")[0] for line in self.heard if line.count(" ") == 2}


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.heard.append("UDP")


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Listeners]:
    """Listeners that note whatever reaches them and answer any request with a page that any origin may read."""
    heard: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            index = len(heard)
            heard.append("")
            heard[index] = (await reader.readline()).decode("latin-1").strip()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nAccess-Control-Allow-Origin: *\r\n"
                b"Content-Length: 6\r\nConnection: close\r\n\r\nsecret"
            )
            await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    # All of 127.0.0.0/8, and [::1] where the machine has IPv6.
    v4 = await asyncio.start_server(note, "0.0.0.0", 0, family=socket.AF_INET)
    port = v4.sockets[0].getsockname()[1]
    servers = [v4]
    with contextlib.suppress(OSError):
        servers.append(await asyncio.start_server(note, "::1", port, family=socket.AF_INET6))
    udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(heard), local_addr=("0.0.0.0", port))
    try:
        yield Listeners(port, heard)
    finally:
        udp.close()
        for server in servers:
            server.close()
