"""The dialer: the only code that resolves names and opens connections to what a page or a caller names.

    host, port
      │ guard.check_endpoint     port, special names, literal addresses
      │ connect_to               tests only: send it elsewhere, nothing is resolved
      │ resolve                  once per name for a short time; concurrent look-ups share one
      │ guard.check_address      every answer; a forbidden one refuses the name
      ▼
    connect to a checked address, one after the other; the name is never looked up again

All of it runs per connection and, through `Dialer.check`, per request and redirect. The HTTP client uses it as its
network backend, the browser's proxy through `dial`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import Final, TypeVar

import httpcore

from trawl.deadline import Deadline
from trawl.errors import DeadlineExceeded, GuardRefused, NetworkError
from trawl.net import guard
from trawl.net.guard import Policy, Target

T = TypeVar("T")

ConnectTo = Mapping[tuple[str, int], tuple[str, int]] | Callable[[str, int], tuple[str, int] | None]
"""Where a (host, port) is dialled instead; the host is normalised. For tests with a recorded web."""
Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""All addresses of a name, best first; raises OSError when there are none."""
SocketOptions = Iterable[tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]]

RESOLVED_FOR_SECONDS: Final = 30.0
"""How long answers are kept: enough for one page and its parts, short beside the usual time to live of DNS records."""
MAX_RESOLVED_NAMES: Final = 1024
CHECK_SECONDS: Final = 10.0
"""Time for `Dialer.check` when the caller names no deadline."""
CONNECT_SECONDS: Final = 30.0
"""Time for a connection of the network backend when the caller names no timeout."""
ATTEMPT_SECONDS: Final = 3.0
"""Time for one address while others are left: a SYN and its first retransmission (RFC 6298). The last has the rest."""
MAX_ATTEMPTS: Final = 6
RESOLVER_THREADS: Final = 16


@dataclass(slots=True)
class _Lookup:
    task: asyncio.Task[tuple[str, ...]]
    waiting: int = 0


class Dialer:
    """Resolves, checks and connects under one policy, from one event loop.

    Args:
        policy: what may be reached beyond the public web.
        connect_to: tests only. Applied after the guard has judged host and port: where it maps, nothing is resolved and
            the mapped endpoint is dialled as it is.
        resolver: replaces the system's resolver; what it answers is checked all the same.
    """

    def __init__(
        self, policy: Policy, *, connect_to: ConnectTo | None = None, resolver: Resolver | None = None
    ) -> None:
        self.policy = policy
        self.dials_elsewhere = connect_to is not None
        """A recorded web stands in for the real one."""
        self._connect_to = _as_function(connect_to)
        self._resolver = resolver or SystemResolver()
        self._resolved: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        self._lookups: dict[str, _Lookup] = {}

    async def check(self, url: str, *, deadline: Deadline | None = None) -> Target:
        """`url` in normalised form, when it may be asked for: the URL and every address behind its name are allowed.

        Raises:
            GuardRefused: it may not be asked for.
            NetworkError: the name does not resolve.
            DeadlineExceeded: it did not resolve in time.
        """
        target = guard.check_url(url, self.policy)
        try:
            await self._endpoints(target.host, target.port, deadline or Deadline.after(CHECK_SECONDS), target.url)
        except (NetworkError, DeadlineExceeded) as error:
            raise type(error)(error.message, url=target.url, hint=error.hint) from error
        return target

    async def dial(self, host: str, port: int, deadline: Deadline) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection to `host` (a name or an address in any spelling).

        Raises:
            GuardRefused: host, port or an address behind the name is not allowed.
            NetworkError: it does not resolve or nobody answers.
            DeadlineExceeded: not connected in time.
        """
        return await self._connect(host, port, deadline, asyncio.open_connection)

    def network_backend(self) -> httpcore.AsyncNetworkBackend:
        """A backend for httpcore's pools that connects through this dialer; it raises what `dial` raises."""
        return _Backend(self)

    async def _connect(
        self, host: str, port: int, deadline: Deadline, connect: Callable[[str, int], Awaitable[T]]
    ) -> T:
        host = guard.check_endpoint(host, port, self.policy)
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        endpoints = await self._endpoints(host, port, deadline)
        failure: Exception | None = None
        for last, endpoint in zip([*[False] * (len(endpoints) - 1), True], endpoints, strict=True):
            left = deadline.check(f"connecting to {where}")
            try:
                async with asyncio.timeout(left if last else min(left, ATTEMPT_SECONDS)) as attempt:
                    return await connect(*endpoint)
            except (OSError, httpcore.NetworkError) as error:
                failure = error
                if last and attempt.expired():
                    raise _time_is_up(f"connecting to {where}") from error
        raise NetworkError(f"{where} {_why_not_connected(failure)}") from failure

    async def _endpoints(
        self, host: str, port: int, deadline: Deadline, url: str | None = None
    ) -> tuple[tuple[str, int], ...]:
        """What to dial for `host`, which `guard.check_endpoint` has let through; all addresses are checked first."""
        if mapped := self._connect_to(host, port):
            return (mapped,)
        addresses = (host,) if guard.address_of(host) else await self._resolve(host, deadline)
        checked = [guard.check_address(address, host, port, self.policy, url=url) for address in addresses]
        return tuple((address, port) for address in _by_turns(checked))

    async def _resolve(self, host: str, deadline: Deadline) -> tuple[str, ...]:
        expires, addresses = self._resolved.get(host, (0.0, ()))
        if expires > time.monotonic():
            self._resolved.move_to_end(host)
            return addresses
        left = deadline.check(f"resolving {host}")
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = _Lookup(asyncio.create_task(self._look_up(host)))
            lookup.task.add_done_callback(_retrieve)
        lookup.waiting += 1
        try:
            # One caller's cancellation must not take the answer from the others.
            async with asyncio.timeout(left):
                return await asyncio.shield(lookup.task)
        except TimeoutError as error:
            raise _time_is_up(f"resolving {host}") from error
        finally:
            lookup.waiting -= 1
            if not lookup.waiting:
                lookup.task.cancel()
                if self._lookups.get(host) is lookup:
                    del self._lookups[host]

    async def _look_up(self, host: str) -> tuple[str, ...]:
        try:
            addresses = tuple(dict.fromkeys(await self._resolver(host)))
        except (OSError, UnicodeError) as error:
            raise NetworkError(f"the name {host} {_why_not_resolved(error)}", hint="Check its spelling.") from error
        if not addresses:
            raise NetworkError(f"the name {host} has no address")
        self._resolved[host] = (time.monotonic() + RESOLVED_FOR_SECONDS, addresses)
        self._resolved.move_to_end(host)
        if len(self._resolved) > MAX_RESOLVED_NAMES:
            self._resolved.popitem(last=False)
        return addresses


class _Backend(httpcore.AsyncNetworkBackend):
    """httpcore's own backend, given checked addresses only."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: SocketOptions | None = None,
    ) -> httpcore.AsyncNetworkStream:
        async def connect(address: str, dialled_port: int) -> httpcore.AsyncNetworkStream:
            return await self._plain.connect_tcp(
                address, dialled_port, local_address=local_address, socket_options=socket_options
            )

        deadline = Deadline.after(CONNECT_SECONDS if timeout is None else timeout)
        return await self._dialer._connect(host, port, deadline, connect)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: SocketOptions | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise GuardRefused("pages are not fetched over Unix sockets", reason="scheme")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemResolver:
    """Addresses as the operating system resolves and orders them (hosts file, DNS, RFC 6724).

    With threads of its own: a look-up cannot be interrupted, and a page full of names whose servers are silent must not
    hold the loop's few common threads. They end with this object.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="trawl-resolver")

    async def __call__(self, host: str) -> list[str]:
        # Bytes, so that Python does not run its older IDNA codec over a name that is ASCII already.
        look_up = partial(socket.getaddrinfo, host.encode("ascii"), None, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [str(sockaddr[0]) for family, *_, sockaddr in found if family in (socket.AF_INET, socket.AF_INET6)]


def _as_function(connect_to: ConnectTo | None) -> Callable[[str, int], tuple[str, int] | None]:
    if connect_to is None:
        return lambda _host, _port: None
    if callable(connect_to):
        return connect_to
    normalised = {(guard.normalise_host(host), port): endpoint for (host, port), endpoint in connect_to.items()}
    return lambda host, port: normalised.get((host, port))


def _by_turns(addresses: Sequence[str]) -> list[str]:
    """IPv6 and IPv4 in turns, beginning with the first one's family, so that a family without a route costs one attempt
    (RFC 8305, section 4)."""
    first = [a for a in addresses if (":" in a) == (":" in addresses[0])]
    other = [a for a in addresses if (":" in a) != (":" in addresses[0])]
    turns = chain.from_iterable(zip_longest(first, other))
    return [address for address in turns if address is not None][:MAX_ATTEMPTS]


def _time_is_up(doing: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"time is up while {doing}", hint="Give a longer timeout.")


def _retrieve(task: asyncio.Task[tuple[str, ...]]) -> None:
    """Marks a failure as seen: everyone who waited for it may be gone."""
    if not task.cancelled():
        task.exception()


def _why_not_resolved(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == socket.EAI_AGAIN:
        return "could not be resolved just now (no name server answers)"
    return "does not resolve"


def _why_not_connected(error: BaseException | None) -> str:
    # httpcore and anyio wrap the operating system's error, which alone says what happened.
    found: OSError | None = None
    while error is not None:
        if isinstance(error, OSError) and (error.errno or isinstance(error, TimeoutError)):
            found = error
        error = error.__cause__ or error.__context__
    if found is None:
        return "could not be connected to"
    if isinstance(found, TimeoutError):
        return "does not answer"
    if isinstance(found, ConnectionRefusedError):
        return "refused the connection: nothing listens there"
    if found.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL):
        return "cannot be reached from this network"
    return f"could not be connected to: {found.strerror or 'unknown error'}"
