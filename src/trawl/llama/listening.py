"""Whether a server could listen at an address now: llama.cpp itself says that only in its log."""

from __future__ import annotations

import socket


def try_to_listen(host: str, port: int) -> None:
    """Take the address and let go of it.

    Raises:
        OSError: it is not possible; `errno` is EADDRINUSE where somebody listens already.
        ValueError: `host` cannot be the name of a host.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
