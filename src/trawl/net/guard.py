"""The guard: which URLs and which addresses a page, a redirect or a browser may reach. Pure, no I/O.

A URL is read the way a browser reads it, only stricter: where browsers repair (backslashes, missing slashes, tabs in
the middle), it is refused, so that no two readers can disagree about the host. A host is decoded to what would be
dialled (percent signs, full-width digits, integer and octal IPv4, internationalised names) before it is judged:

    check_url(url)              may this be asked for?      scheme, user information, characters, then the endpoint
    check_endpoint(host, port)  may this be connected to?   port, special names, literal addresses
    check_address(address)      may this name lead here?    every address of a name, before one is dialled

Every refusal is a `GuardRefused` whose `reason` is one of `REASONS`. Nothing here reads the environment: what is
allowed beyond the public web is a `Policy`, a constructor argument of whoever asks.

An operator's own NAT64 prefix (RFC 6052, any public /32 to /96) cannot be told from ordinary IPv6 by looking at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import idna

from trawl.errors import GuardRefused, UsageError

Address = IPv4Address | IPv6Address

WEB_SCHEMES: Final = frozenset({"http", "https"})
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

MAX_URL_CHARS: Final = 32_768
"""Longest URL accepted, as given and as encoded; servers rarely take more than 8,192."""

MAX_HOST_CHARS: Final = 253
"""Longest name DNS can carry (RFC 1035), without the trailing dot."""

REASONS: Final = {
    "scheme": "not an http or https URL",
    "syntax": "the URL does not parse",
    "characters": "control characters or backslashes in the URL",
    "credentials": "user name or password in the URL",
    "host": "the host name or address does not parse",
    "port": "a port of a service that is not the web",
    "local_name": "a name of this machine",
    "single_label": "a name without a dot, known only to the local network",
    "internal_name": "a name reserved for local networks",
    "metadata": "a cloud metadata service",
    "loopback": "a loopback address: this machine itself",
    "private": "a private network address",
    "link_local": "a link-local address",
    "shared": "a carrier-grade NAT address (RFC 6598)",
    "multicast": "a multicast address",
    "broadcast": "the broadcast address",
    "unspecified": "an unspecified address, which means this machine",
    "reserved": "a reserved address",
    "benchmark": "an address for benchmark networks",
    "documentation": "an address for documentation",
    "discard": "a discard-only address",
}
"""The stable words of `GuardRefused.reason` and what each means."""

# Fetch standard, "port blocking" (https://fetch.spec.whatwg.org/#port-blocking).
BAD_PORTS: Final = frozenset(
    {0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109}
    | {110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530}
    | {531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190}
    | {5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080}
)

# Services that answer without, or before, authentication; numbers from IANA's service name and port number registry
# and, where a project never registered one, from its documentation. Ports on which public web pages are common too, and
# those of the ephemeral range (32768 and above), are left out: the addresses behind them are judged in any case.
SERVICE_PORTS: Final = {
    445: "SMB",
    873: "rsync",
    1099: "Java RMI",
    1433: "SQL Server",
    1434: "SQL Server browser",
    1521: "Oracle",
    1883: "MQTT",
    2181: "ZooKeeper",
    2375: "Docker",
    2376: "Docker over TLS",
    2377: "Docker Swarm",
    2379: "etcd",
    2380: "etcd peers",
    3306: "MySQL",
    3389: "Remote Desktop",
    4369: "Erlang port mapper",
    5432: "PostgreSQL",
    5433: "PostgreSQL, Vertica",
    5671: "AMQP over TLS",
    5672: "AMQP",
    5900: "VNC",
    5984: "CouchDB",
    5985: "WinRM",
    5986: "WinRM over TLS",
    6379: "Redis",
    6380: "Redis over TLS",
    6432: "PgBouncer",
    7199: "Cassandra JMX",
    7474: "Neo4j",
    7687: "Neo4j Bolt",
    8086: "InfluxDB",
    8123: "ClickHouse",
    8125: "StatsD",
    8500: "Consul",
    8529: "ArangoDB",
    9042: "Cassandra",
    9092: "Kafka",
    9160: "Cassandra Thrift",
    9200: "Elasticsearch",
    9300: "Elasticsearch between nodes",
    10250: "Kubernetes kubelet",
    10255: "Kubernetes kubelet, read-only",
    11211: "memcached",
    16379: "Redis cluster bus",
    26257: "CockroachDB",
    26379: "Redis Sentinel",
    27017: "MongoDB",
    27018: "MongoDB shard",
    27019: "MongoDB config server",
    28015: "RethinkDB",
}

# Names under which clouds serve credentials to their machines: Google Compute Engine (metadata.google.internal,
# metadata.goog, metadata), EC2 (instance-data and its .ec2.internal form), Tencent, Equinix Metal, IBM Cloud, Rancher.
METADATA_NAMES: Final = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.tencentyun.com",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "api.metadata.cloud.ibm.com",
        "rancher-metadata",
    }
)

# EC2, GCE, Azure, OpenStack and most others; ECS tasks; EKS pods; Tencent; Scaleway; Alibaba; Oracle; Azure's wire
# server (a public address that answers only inside Azure); EC2, EKS, GCE and Scaleway over IPv6.
METADATA_ADDRESSES: Final = frozenset(
    {
        IPv4Address("169.254.169.254"),
        IPv4Address("169.254.170.2"),
        IPv4Address("169.254.170.23"),
        IPv4Address("169.254.0.23"),
        IPv4Address("169.254.42.42"),
        IPv4Address("100.100.100.200"),
        IPv4Address("192.0.0.192"),
        IPv4Address("168.63.129.16"),
        IPv6Address("fd00:ec2::254"),
        IPv6Address("fd00:ec2::23"),
        IPv6Address("fd20:ce::254"),
        IPv6Address("fd00:42::42"),
    }
)

# `localhost` and what stands beside it in the hosts files of Debian, Red Hat and macOS.
_LOCAL_NAMES: Final = frozenset(
    {
        "localhost",
        "localhost4",
        "localhost6",
        "ip6-localhost",
        "ip6-loopback",
        "ip6-localnet",
        "ip6-mcastprefix",
        "ip6-allnodes",
        "ip6-allrouters",
        "ip6-allhosts",
        "broadcasthost",
    }
)
_LOCAL_SUFFIXES: Final = ("localhost", "localdomain", "localdomain4", "localdomain6")

# RFC 6762 (local, and the suffixes of its appendix G), ICANN's resolution of 2024 (internal), RFC 8375 (home.arpa),
# RFC 9665 (service.arpa), RFC 9462 (resolver.arpa), RFC 7050 (ipv4only.arpa), RFC 7686 (onion), RFC 9476 (alt).
_INTERNAL_SUFFIXES: Final = (
    "local",
    "internal",
    "intranet",
    "private",
    "corp",
    "home",
    "lan",
    "home.arpa",
    "service.arpa",
    "resolver.arpa",
    "ipv4only.arpa",
    "onion",
    "alt",
)

# IANA special-purpose address registries (RFC 6890), first match wins. The `is_*` flags of `ipaddress` are not used:
# they changed between the Python versions trawl runs on.
_V4_NETWORKS: Final = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link_local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmark"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_V6_NETWORKS: Final = tuple(
    (IPv6Network(network), reason)
    for network, reason in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("64:ff9b:1::/48", "private"),
        ("100::/64", "discard"),
        ("100:0:0:1::/64", "discard"),
        ("2001:2::/48", "benchmark"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link_local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
_V6_GLOBAL: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
# Prefixes whose last 32 bits are an IPv4 address: RFC 4291 (mapped, compatible), RFC 2765 (translated), RFC 6052.
_V4_AT_THE_END: Final = (
    (IPv6Network("::ffff:0:0/96"), "IPv4-mapped"),
    (IPv6Network("::ffff:0:0:0/96"), "IPv4-translated"),
    (_NAT64, "NAT64"),
    (IPv6Network("::/96"), "IPv4-compatible"),
)
_V4_MAPPED: Final = _V4_AT_THE_END[0][0]
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
# RFC 5214: the interface identifier of ISATAP, with the universal bit set or not.
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_PORT = re.compile(r"[0-9]{1,5}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_EDGE_WHITESPACE = " \t\r\n\f"

# URL standard, percent-encode sets of path, special-query and fragment: the printable ASCII that stays as it is.
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_PATH_SAFE = "".join(c for c in _PRINTABLE if c not in '"#<>?^`{}')
_QUERY_SAFE = "".join(c for c in _PRINTABLE if c not in "\"#<>'\\")
_FRAGMENT_SAFE = "".join(c for c in _PRINTABLE if c not in '"<>`\\')


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that passed the guard, in the one spelling everything after it uses."""

    scheme: str
    host: str
    """A lower-case ASCII name without a trailing dot, or an address; IPv6 without brackets."""
    port: int
    url: str
    """Host, path, query and fragment normalised and percent-encoded; a default port is left out."""

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: what secrets may be sent back to."""
        return self.scheme, self.host, self.port


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be reached beyond the public web: (host, port) pairs with normalised hosts; port None means any.

    An entry speaks for the host as it is named, not for the addresses behind it: allowing `127.0.0.1` does not let
    another name resolve to it. A port that is refused elsewhere (`BAD_PORTS`, `SERVICE_PORTS`) needs an entry with that
    port. A cloud metadata address is reached only as a literal with an entry of its own, never through a name.
    """

    allow_private: frozenset[tuple[str, int | None]] = frozenset()

    @classmethod
    def of(cls, entries: Iterable[str] = ()) -> Policy:
        """A policy from `host`, `host:port`, `[ipv6]` and `[ipv6]:port`.

        Raises:
            UsageError: an entry is none of these.
        """
        if isinstance(entries, str | bytes) or not isinstance(entries, Iterable):
            raise UsageError("allow_private is a list of hosts", hint="Write allow_private=['localhost:8000'].")
        return cls(frozenset(map(_policy_entry, entries)))

    def allows(self, host: str, port: int) -> bool:
        """Whether `host` (normalised) may be private when reached on `port`."""
        return (host, None) in self.allow_private or (host, port) in self.allow_private

    def allows_port(self, host: str, port: int) -> bool:
        """Whether exactly this port of `host` was asked for."""
        return (host, port) in self.allow_private


PUBLIC_ONLY: Final = Policy()
"""The default: nothing but the public web."""


def check_url(url: str, policy: Policy = PUBLIC_ONLY) -> Target:
    """The normalised form of `url`, if it may be asked for. A name still has to be resolved and its addresses checked.

    White space around the URL is dropped; a fragment is kept.

    Raises:
        GuardRefused: it may not, or it does not parse.
    """
    text = url.strip(_EDGE_WHITESPACE)
    if len(text) > MAX_URL_CHARS:
        raise _refused("syntax", f"the URL is longer than {MAX_URL_CHARS} characters")
    if _CONTROL.search(text):
        raise _refused("characters", "the URL contains control characters", hint="Remove line breaks and tabs from it.")
    before_query = re.split(r"[?#]", text, maxsplit=1)[0]
    if "\\" in before_query:
        raise _refused("characters", "the URL contains a backslash", hint="Write / instead, or %5C inside the path.")

    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    if not match:
        raise _refused("syntax", "the URL has no scheme", hint="Begin it with https:// or http://.")
    if scheme not in WEB_SCHEMES:
        allowed = " and ".join(sorted(WEB_SCHEMES))
        raise _refused("scheme", f"{scheme}: URLs are not fetched, only {allowed}")
    rest = text[match.end() :]
    if not rest.startswith("//"):
        raise _refused("syntax", f"{scheme}: must be followed by //")
    authority, path, query, fragment = _split(rest[2:])
    host_text, port_text = _split_authority(authority)
    port = _parse_port(port_text, DEFAULT_PORTS[scheme])
    host = normalise_host(host_text)

    authority = f"[{host}]" if ":" in host else host
    if port != DEFAULT_PORTS[scheme]:
        authority += f":{port}"
    normalised = f"{scheme}://{authority}{quote(path, _PATH_SAFE) or '/'}"
    if query is not None:
        normalised += "?" + quote(query, _QUERY_SAFE)
    if fragment is not None:
        normalised += "#" + quote(fragment, _FRAGMENT_SAFE)
    if len(normalised) > MAX_URL_CHARS:
        raise _refused("syntax", f"the URL is longer than {MAX_URL_CHARS} characters when percent-encoded")
    _judge_endpoint(host, port, policy, normalised)
    return Target(scheme, host, port, normalised)


def check_endpoint(host: str, port: int, policy: Policy = PUBLIC_ONLY) -> str:
    """The normalised form of `host` (a name, an IPv4 address in any spelling, IPv6 with or without brackets), if it may
    be connected to on `port`. A name still has to be resolved and its addresses checked.

    Raises:
        GuardRefused: it may not, or it does not parse.
    """
    if not 0 <= port <= 65535:
        raise _refused("syntax", "the port is not a number from 1 to 65535")
    host = normalise_host(host)
    _judge_endpoint(host, port, policy, None)
    return host


def check_address(address: str, host: str, port: int, policy: Policy = PUBLIC_ONLY, *, url: str | None = None) -> str:
    """`address` in canonical spelling, if `host` (normalised) may lead to it; that, and not the name, is then dialled.

    Raises:
        GuardRefused: it may not, or it is not an address.
    """
    try:
        parsed = _parse_v6(address.partition("%")[0]) if ":" in address else IPv4Address(address)
    except ValueError:
        raise _refused("host", f"{host} resolves to something that is not an address", url=url) from None
    _judge_address(parsed, host, port, policy, url)
    return _address_text(parsed)


def address_of(host: str) -> Address | None:
    """The address a normalised host is; None for a name."""
    try:
        return _parse_v6(host) if ":" in host else IPv4Address(host)
    except ValueError:
        return None


def normalise_host(text: str) -> str:
    """What a browser would connect to when it reads `text` as the host of a URL (URL standard, "host parser"); IPv6 is
    taken with and without brackets.

    Raises:
        GuardRefused: it is not a host; IPv6 zone identifiers and characters outside names are refused too.
    """
    if text.startswith("[") or ":" in text:
        return _normalise_v6(text)
    try:
        name = unquote_to_bytes(text).decode("utf-8")
        if len(name) > MAX_HOST_CHARS + 1:
            raise _refused("host", "the host name is too long")
        # Names in ASCII skip the table: it is the same mapping, lower case, and much faster.
        name = name.lower() if name.isascii() else idna.uts46_remap(name, std3_rules=False)
        name = ".".join(map(_label_to_ascii, name.split(".")))
    except (UnicodeError, idna.IDNAError):
        raise _refused("host", "the host name contains characters that names cannot have") from None
    if _NUMBER.fullmatch(name.removesuffix(".").rpartition(".")[2]):
        return str(_parse_v4(name))
    name = name.removesuffix(".")
    if not name:
        raise _refused("host", "the URL has no host")
    if len(name) > MAX_HOST_CHARS or not _NAME.fullmatch(name):
        raise _refused("host", "the host name contains characters that names cannot have, or is too long")
    return name


def forbidden(address: Address) -> tuple[str, str] | None:
    """Why no public page lives at `address`: a word of `REASONS` and an explanation; None when one may."""
    if address in METADATA_ADDRESSES:
        return "metadata", f"{_address_text(address)} is {REASONS['metadata']}"
    if isinstance(address, IPv4Address):
        for network, reason in _V4_NETWORKS:
            if address in network:
                return reason, f"{address} is {REASONS[reason]}"
        return None
    for v6_network, reason in _V6_NETWORKS[:2]:
        if address in v6_network:
            return reason, f"{_address_text(address)} is {REASONS[reason]}"
    for embedded, form in _embedded(address):
        if inner := forbidden(embedded):
            return inner[0], f"{_address_text(address)} carries an address inside ({form}): {inner[1]}"
    for v6_network, reason in _V6_NETWORKS:
        if address in v6_network:
            return reason, f"{_address_text(address)} is {REASONS[reason]}"
    if address in _V6_GLOBAL or address in _NAT64 or address in _V4_MAPPED:
        return None
    return "reserved", f"{_address_text(address)} is {REASONS['reserved']}"


def _split(text: str) -> tuple[str, str, str | None, str | None]:
    """Authority, path, query and fragment of what follows `scheme://`."""
    text, hash_mark, fragment = text.partition("#")
    text, question_mark, query = text.partition("?")
    authority, slash, path = text.partition("/")
    return authority, slash + path, query if question_mark else None, fragment if hash_mark else None


def _split_authority(authority: str) -> tuple[str, str]:
    """Host and port as written; the port may be empty."""
    if "@" in authority:
        raise _refused("credentials", REASONS["credentials"], hint="Remove the part before the @ sign.")
    if authority.startswith("["):
        host, bracket, port = authority.partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _refused("host", "the IPv6 address is not closed by ]")
        return host + bracket, port[1:]
    host, _, port = authority.partition(":")
    return host, port


def _parse_port(text: str, default: int) -> int:
    if not text:
        return default
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise _refused("syntax", "the port of the URL is not a number from 1 to 65535")
    return int(text)


def _normalise_v6(text: str) -> str:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in inner:
        raise _refused("host", "the IPv6 address has a zone identifier, which means a link of this machine")
    try:
        return _address_text(_parse_v6(inner))
    except ValueError:
        raise _refused("host", "the IPv6 address does not parse") from None


def _parse_v6(text: str) -> IPv6Address:
    if "%" in text:
        raise ValueError("zone identifier")
    return IPv6Address(text)


def _parse_v4(name: str) -> IPv4Address:
    """URL standard, "IPv4 parser": one to four numbers, each decimal, octal (0…) or hexadecimal (0x…); the last fills
    the bytes that are left."""
    parts = name.removesuffix(".").split(".")
    try:
        numbers = [_parse_number(part) for part in parts]
    except ValueError:
        numbers = []
    *leading, last = numbers or [-1]
    if not 1 <= len(numbers) <= 4 or any(n > 255 for n in leading) or last >= 256 ** (4 - len(leading)):
        raise _refused("host", "the host ends in a number but is not an IPv4 address")
    value = last
    for position, number in enumerate(leading):
        value += number << (8 * (3 - position))
    return IPv4Address(value)


def _parse_number(text: str) -> int:
    if not _NUMBER.fullmatch(text) or len(text) > 64:
        raise ValueError(text)
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if text.startswith("0") else 10)


def _label_to_ascii(label: str) -> str:
    if not label.isascii():
        return "xn--" + label.encode("punycode").decode("ascii")
    if label.startswith("xn--"):
        # A Punycode label must stand for what it would be written as, else two readers see two names.
        decoded = label[4:].encode("ascii").decode("punycode")
        if decoded.isascii() or idna.uts46_remap(decoded, std3_rules=False) != decoded:
            raise UnicodeError(label)
    return label


def _address_text(address: Address) -> str:
    """Python 3.13 began to write mapped addresses with dots; one spelling is needed for comparing hosts."""
    if isinstance(address, IPv6Address) and address in _V4_MAPPED:
        low = int(address) & 0xFFFFFFFF
        return f"::ffff:{low >> 16:x}:{low & 0xFFFF:x}"
    return address.compressed


def _judge_endpoint(host: str, port: int, policy: Policy, url: str | None) -> None:
    if (port in BAD_PORTS or port in SERVICE_PORTS) and not policy.allows_port(host, port):
        service = f" ({SERVICE_PORTS[port]})" if port in SERVICE_PORTS else ""
        raise _refused(
            "port", f"port {port}{service} is {REASONS['port']}", url=url, hint=_how_to_allow(_with_port(host, port))
        )
    if address := address_of(host):
        _judge_address(address, host, port, policy, url)
    elif not policy.allows(host, port) and (reason := _special_name(host)):
        hint = "" if reason == "metadata" else _how_to_allow(host)
        raise _refused(reason, f"{host} is {REASONS[reason]}", url=url, hint=hint)


def _judge_address(address: Address, host: str, port: int, policy: Policy, url: str | None) -> None:
    found = forbidden(address)
    if not found:
        return
    reason, explanation = found
    literal = _address_text(address)
    if reason == "metadata":
        if not (host == literal and policy.allows(literal, port)):
            raise _refused(reason, _leads_to(host, literal, explanation), url=url)
    elif not policy.allows(host, port):
        raise _refused(reason, _leads_to(host, literal, explanation), url=url, hint=_how_to_allow(host))


def _special_name(host: str) -> str | None:
    if host in METADATA_NAMES:
        return "metadata"
    if host in _LOCAL_NAMES or _has_suffix(host, _LOCAL_SUFFIXES):
        return "local_name"
    if "." not in host:
        return "single_label"
    if _has_suffix(host, _INTERNAL_SUFFIXES):
        return "internal_name"
    return None


def _has_suffix(host: str, suffixes: Iterable[str]) -> bool:
    return any(host == suffix or host.endswith("." + suffix) for suffix in suffixes)


def _embedded(address: IPv6Address) -> list[tuple[IPv4Address, str]]:
    """The IPv4 addresses that packets to `address` would, or could, end up at."""
    bits = int(address)
    found = [(IPv4Address(bits & 0xFFFFFFFF), form) for network, form in _V4_AT_THE_END if address in network]
    if address in _SIX_TO_FOUR:
        found.append((IPv4Address(bits >> 80 & 0xFFFFFFFF), "6to4"))
    if address in _TEREDO:
        # RFC 4380: the server in clear, the client's address with every bit flipped.
        found.append((IPv4Address(bits >> 64 & 0xFFFFFFFF), "Teredo server"))
        found.append((IPv4Address(bits & 0xFFFFFFFF ^ 0xFFFFFFFF), "Teredo client"))
    if bits >> 32 & 0xFFFFFFFF in _ISATAP:
        found.append((IPv4Address(bits & 0xFFFFFFFF), "ISATAP"))
    return found


def _policy_entry(entry: object) -> tuple[str, int | None]:
    usage = "Write a host, host:port or [ipv6]:port, without scheme or path."
    if not isinstance(entry, str) or not entry:
        raise UsageError("an entry of allow_private is not a host", hint=usage)
    try:
        if address := address_of(entry):
            return _address_text(address), None
        host_text, port_text = _split_authority(entry)
        port = _parse_port(port_text, -1)
        if entry.endswith(":"):
            raise _refused("syntax", "the port is missing")
        return normalise_host(host_text), None if port < 0 else port
    except GuardRefused as error:
        raise UsageError(f"{entry!r} in allow_private is not a host: {error.message}", hint=usage) from error


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _leads_to(host: str, literal: str, explanation: str) -> str:
    return explanation if host == literal else f"{host} resolves to a forbidden address: {explanation}"


def _how_to_allow(entry: str) -> str:
    return f"If you trust it, allow it with allow_private=['{entry}'] or --allow-private {entry}."


def _refused(reason: str, message: str, *, url: str | None = None, hint: str = "") -> GuardRefused:
    """`url` only once its authority has been parsed: before that, a secret in it cannot be told from its host."""
    return GuardRefused(message, reason=reason, url=url, hint=hint)
