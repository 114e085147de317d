"""httpx clients that find recorded hosts on the replay web: the same seam, `connect_to`, that the dialer has."""

from __future__ import annotations

import ssl
from typing import Any

import httpcore
import httpx

from tests.replay.web import ConnectTo, ReplayWeb


class _Backend(httpcore.SyncBackend):
    def __init__(self, connect_to: ConnectTo) -> None:
        self._connect_to = connect_to

    def connect_tcp(self, host: str, port: int, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return super().connect_tcp(*(self._connect_to(host, port) or (host, port)), *args, **kwargs)


class _AsyncBackend(httpcore.AnyIOBackend):
    def __init__(self, connect_to: ConnectTo) -> None:
        self._connect_to = connect_to

    async def connect_tcp(self, host: str, port: int, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return await super().connect_tcp(*(self._connect_to(host, port) or (host, port)), *args, **kwargs)


def replay_client(web: ReplayWeb, **options: Any) -> httpx.Client:
    """A client for which the recorded hosts are where `web` serves them; `options` go to `httpx.Client`."""
    transport = httpx.HTTPTransport(trust_env=False)
    # httpx has no argument for the network backend; its transport does everything else we want.
    transport._pool = httpcore.ConnectionPool(ssl_context=_trust(web), network_backend=_Backend(web.connect_to))
    return httpx.Client(transport=transport, trust_env=False, **options)


def async_replay_client(web: ReplayWeb, **options: Any) -> httpx.AsyncClient:
    """The same for asyncio."""
    transport = httpx.AsyncHTTPTransport(trust_env=False)
    backend = _AsyncBackend(web.connect_to)
    transport._pool = httpcore.AsyncConnectionPool(ssl_context=_trust(web), network_backend=backend)
    return httpx.AsyncClient(transport=transport, trust_env=False, **options)


def _trust(web: ReplayWeb) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(web.ca_file))
