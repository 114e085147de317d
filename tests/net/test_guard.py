"""The guard decides about URLs, endpoints and addresses without touching the network."""

from __future__ import annotations

import ipaddress
import pickle
import socket

import pytest

from tests.net.hostile_urls import ELSEWHERE, LOCAL
from trawl.errors import GuardRefused, UsageError
from trawl.net import guard
from trawl.net.guard import Policy, Target, check_address, check_endpoint, check_url


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object, **__: object) -> None:
        raise AssertionError("the guard must not touch the network")

    monkeypatch.setattr(socket, "getaddrinfo", touched)
    monkeypatch.setattr(socket, "socket", touched)


def refusal(url: str, policy: Policy = guard.PUBLIC_ONLY) -> GuardRefused:
    with pytest.raises(GuardRefused) as caught:
        check_url(url, policy)
    return caught.value


@pytest.mark.parametrize(("url", "reason"), [(url.replace("{port}", "8080"), reason) for url, reason in LOCAL])
def test_this_machine_is_refused_in_every_spelling(url: str, reason: str) -> None:
    assert refusal(url).reason == reason


@pytest.mark.parametrize(("url", "reason"), ELSEWHERE)
def test_networks_names_and_ports_that_are_not_the_public_web_are_refused(url: str, reason: str) -> None:
    assert refusal(url).reason == reason


@pytest.mark.parametrize(("url", "reason"), LOCAL + ELSEWHERE)
def test_a_refusal_has_a_known_reason_and_a_printable_message_without_secrets(url: str, reason: str) -> None:
    error = refusal(url.replace("{port}", "8080"))
    assert error.reason in guard.REASONS
    assert len(error.message) > 10
    assert str(error).isprintable()
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("url", "normalised", "host", "port"),
    [
        ("http://example.com", "http://example.com/", "example.com", 80),
        ("https://example.com", "https://example.com/", "example.com", 443),
        ("HTTPS://EXAMPLE.Com:443/A%20b", "https://example.com/A%20b", "example.com", 443),
        ("http://example.com:/", "http://example.com/", "example.com", 80),
        ("http://example.com:443/", "http://example.com:443/", "example.com", 443),
        ("http://example.com:0080/", "http://example.com/", "example.com", 80),
        ("https://example.com.:8443/x", "https://example.com:8443/x", "example.com", 8443),
        ("https://bücher.example/ä?ö=ü#ß", "https://xn--bcher-kva.example/%C3%A4?%C3%B6=%C3%BC#%C3%9F", None, 443),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443),
        ("https://BÜCHER.example/", "https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443),
        ("https://faß.de/", "https://xn--fa-hia.de/", "xn--fa-hia.de", 443),
        ("https://例え。テスト/", "https://xn--r8jz45g.xn--zckzah/", "xn--r8jz45g.xn--zckzah", 443),
        ("https://i❤.ws/", "https://xn--i-7iq.ws/", "xn--i-7iq.ws", 443),
        ("https://my_site-.example.com/", "https://my_site-.example.com/", "my_site-.example.com", 443),
        ("https://ex%61mple.com/", "https://example.com/", "example.com", 443),
        ("http://8.8.8.8/", "http://8.8.8.8/", "8.8.8.8", 80),
        ("http://134744072/", "http://8.8.8.8/", "8.8.8.8", 80),
        ("http://0x08.8.8.010/", "http://8.8.8.8/", "8.8.8.8", 80),
        ("http://[2606:4700:0:0::1111]:8080/", "http://[2606:4700::1111]:8080/", "2606:4700::1111", 8080),
        ("http://[64:ff9b::8.8.8.8]/", "http://[64:ff9b::808:808]/", "64:ff9b::808:808", 80),
        ("http://[::ffff:8.8.8.8]/", "http://[::ffff:808:808]/", "::ffff:808:808", 80),
        ("http://[2002:808:808::1]/", "http://[2002:808:808::1]/", "2002:808:808::1", 80),
        ("https://example.com?q=a b", "https://example.com/?q=a%20b", "example.com", 443),
        ("https://example.com/a b{c}|d", "https://example.com/a%20b%7Bc%7D|d", "example.com", 443),
        ("https://example.com/?tex=\\frac", "https://example.com/?tex=%5Cfrac", "example.com", 443),
        ("https://example.com/?", "https://example.com/?", "example.com", 443),
        ("https://example.com/x#", "https://example.com/x#", "example.com", 443),
        ("https://example.com/a%zz%", "https://example.com/a%zz%", "example.com", 443),
        ("https://example.com/user@host:22/http://127.0.0.1/", None, "example.com", 443),
        ("https://example.com?u=http://a@127.0.0.1/#@[::1]", None, "example.com", 443),
        ("  https://example.com/ \n", "https://example.com/", "example.com", 443),
        ("https://localhost.example.com/", "https://localhost.example.com/", "localhost.example.com", 443),
        ("https://internal.example.com/", "https://internal.example.com/", "internal.example.com", 443),
        ("https://100.63.255.255/", "https://100.63.255.255/", "100.63.255.255", 443),
        ("https://100.128.0.1/", "https://100.128.0.1/", "100.128.0.1", 443),
        ("https://172.32.0.1/", "https://172.32.0.1/", "172.32.0.1", 443),
    ],
)
def test_the_public_web_is_let_through_in_one_spelling(
    url: str, normalised: str | None, host: str | None, port: int
) -> None:
    target = check_url(url)
    assert (target.host, target.port) == (host or target.host, port)
    assert target.url == (normalised or url.strip().replace("com?", "com/?"))
    assert check_url(target.url) == target, "the normal form must be stable"


def test_a_target_is_a_value() -> None:
    target = check_url("https://Example.com/x")
    assert target == Target("https", "example.com", 443, "https://example.com/x")
    assert target.origin == ("https", "example.com", 443)
    assert pickle.loads(pickle.dumps(target)) == target  # noqa: S301 - our own bytes


def test_web_sockets_are_no_pages() -> None:
    assert refusal("wss://example.com/s").reason == "scheme"


@pytest.mark.parametrize("port", sorted(guard.BAD_PORTS | set(guard.SERVICE_PORTS)))
def test_every_listed_port_is_refused_for_every_host_unless_exactly_that_is_allowed(port: int) -> None:
    assert refusal(f"http://example.com:{port}/").reason == "port"
    assert refusal(f"http://example.com:{port}/", Policy.of(["example.com"])).reason == "port"
    assert refusal(f"http://example.com:{port}/", Policy.of([f"other.com:{port}"])).reason == "port"
    if port:
        assert check_url(f"http://example.com:{port}/", Policy.of([f"example.com:{port}"])).port == port


@pytest.mark.parametrize("port", [80, 443, 8000, 8080, 8443, 3000, 5000, 9000, 49152, 65535])
def test_ports_of_the_web_are_open(port: int) -> None:
    assert check_url(f"https://example.com:{port}/").port == port


def test_a_url_has_a_bounded_length_as_given_and_as_encoded() -> None:
    assert check_url("https://example.com/" + "a" * 32_000)
    assert refusal("https://example.com/" + "a" * 33_000).reason == "syntax"
    assert refusal("https://example.com/" + "語" * 11_000).reason == "syntax"
    assert refusal("https://" + "a" * 30_000 + ".com/").reason == "host"
    assert refusal("https://" + "語" * 30_000 + ".com/").reason == "host"
    assert refusal("https://" + "a." * 127 + "com/").reason == "host"
    assert refusal("https://" + "a" * 64 + ".com/").reason == "host"


@pytest.mark.parametrize(
    "url", ["", " ", "http", "http:", "http://", "https://?", "https://#", "example.com", "/x", "a\ud800b"]
)
def test_what_is_not_a_url_is_refused(url: str) -> None:
    assert refusal(url).reason in ("syntax", "host", "characters")


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        ("localhost", "http://localhost:8000/"),
        ("LOCALHOST.", "http://localhost/"),
        ("localhost:8000", "http://LocalHost.:8000/"),
        ("127.0.0.1", "http://2130706433:9999/"),
        ("0x7f.1", "http://127.0.0.1/"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
        ("[::1]:8080", "http://[0:0::1]:8080/"),
        ("[::1]", "http://[::1]/"),
        ("::1", "http://[::1]/"),
        ("::ffff:127.0.0.1", "http://[::ffff:7f00:1]/"),
        ("intranet", "https://intranet/wiki"),
        ("wiki.corp", "https://wiki.corp/"),
        ("bücher.local", "http://xn--bcher-kva.local/"),
        ("10.1.2.3:5432", "http://10.1.2.3:5432/"),
        ("169.254.169.254", "http://169.254.169.254/"),
    ],
)
def test_what_a_policy_names_is_allowed_in_every_spelling_and_nothing_else_is(allowed: str, url: str) -> None:
    policy = Policy.of([allowed])
    assert check_url(url, policy)
    for other in (
        "http://127.0.0.3/",
        "http://localhost4/",
        "http://x.localhost/",
        "http://[::2]/",
        "http://10.9.9.9/",
    ):
        assert refusal(other, policy)


def test_a_port_in_a_policy_is_that_port_only() -> None:
    assert refusal("http://localhost:8001/", Policy.of(["localhost:8000"])).reason == "local_name"
    assert refusal("http://127.0.0.1/", Policy.of(["127.0.0.1:8000"])).reason == "loopback"


def test_allowing_an_address_does_not_allow_names_for_it_nor_other_forms_of_it() -> None:
    policy = Policy.of(["127.0.0.1"])
    assert refusal("http://localhost/", policy).reason == "local_name"
    assert refusal("http://[::ffff:127.0.0.1]/", policy).reason == "loopback"
    with pytest.raises(GuardRefused, match=r"rebind\.example\.com resolves"):
        check_address("127.0.0.1", "rebind.example.com", 80, policy)


def test_metadata_is_reached_through_its_literal_address_only() -> None:
    policy = Policy.of(["metadata.google.internal", "intranet.example.com", "[fd00:ec2::254]"])
    for host in ("metadata.google.internal", "intranet.example.com"):
        with pytest.raises(GuardRefused) as caught:
            check_address("169.254.169.254", host, 80, policy)
        assert caught.value.reason == "metadata"
    assert check_address("fd00:ec2::254", "fd00:ec2::254", 80, policy) == "fd00:ec2::254"


@pytest.mark.parametrize(
    "entry",
    [
        "",
        " ",
        "http://localhost",
        "localhost/",
        "localhost:",
        "localhost:x",
        "localhost:70000",
        "a b",
        "*.local",
        "10.0.0.0/8",
        "user@host",
        "[::1",
        "[fe80::1%25eth0]",
        "127.0.0.256",
        "a:b:c",
        None,
        80,
        b"localhost",
    ],
)
def test_nonsense_in_a_policy_is_the_callers_mistake(entry: str) -> None:
    with pytest.raises(UsageError, match="allow_private"):
        Policy.of([entry])


@pytest.mark.parametrize("entries", ["localhost", b"localhost", None, 5])
def test_a_policy_takes_a_list_not_a_string(entries: list[str]) -> None:
    with pytest.raises(UsageError, match="list"):
        Policy.of(entries)


def test_policies_are_values_and_equal_when_they_allow_the_same() -> None:
    assert Policy.of(["LOCALHOST", "0x7f.1:80"]) == Policy.of(["127.0.0.1:80", "localhost."])
    assert len({Policy.of(["a.com"]), Policy.of(["a.com."]), Policy.of()}) == 2
    assert Policy.of() == guard.PUBLIC_ONLY


def test_a_refusal_says_how_to_allow_it() -> None:
    assert "--allow-private localhost" in str(refusal("http://localhost:8000/"))
    assert "allow_private=['example.com:6379']" in str(refusal("http://example.com:6379/"))
    assert "[2606:4700::1]:22" in str(refusal("http://[2606:4700::1]:22/"))
    assert "--allow-private" not in str(refusal("http://metadata.google.internal/"))


@pytest.mark.parametrize(
    ("host", "normalised"),
    [
        ("Example.COM.", "example.com"),
        ("[2606:4700::0]", "2606:4700::"),
        ("2606:4700::0", "2606:4700::"),
        ("8.8.2056", "8.8.8.8"),
    ],
)
def test_endpoints_come_in_many_spellings(host: str, normalised: str) -> None:
    assert check_endpoint(host, 80) == normalised


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("localhost", 80),
        ("127.1", 80),
        ("::1", 80),
        ("[::1]", 80),
        ("::1%lo", 80),
        ("", 80),
        ("a b", 80),
        ("a@b.com", 80),
        ("example.com", 22),
        ("example.com", -1),
        ("example.com", 65536),
        ("example.com:80", 80),
        ("a/b.com", 80),
    ],
)
def test_endpoints_are_judged_like_urls(host: str, port: int) -> None:
    with pytest.raises(GuardRefused):
        check_endpoint(host, port)


@pytest.mark.parametrize(
    ("address", "canonical"),
    [
        ("8.8.8.8", "8.8.8.8"),
        ("2606:4700:0::1", "2606:4700::1"),
        ("64:ff9b::808:808", "64:ff9b::808:808"),
        ("2002:808:808::1", "2002:808:808::1"),
        ("::ffff:8.8.8.8", "::ffff:808:808"),
    ],
)
def test_public_addresses_behind_a_name_are_allowed(address: str, canonical: str) -> None:
    assert check_address(address, "example.com", 443) == canonical


@pytest.mark.parametrize(
    "address", ["", "example.com", "1.2.3", "0x7f.1", "::g", "8.8.8.8 ", "fe80::1%eth0", "１.1.1.1"]
)
def test_a_resolver_that_answers_with_nonsense_or_zones_is_refused(address: str) -> None:
    with pytest.raises(GuardRefused):
        check_address(address, "example.com", 443)


def test_no_special_purpose_network_of_the_standard_library_is_missed() -> None:
    """An independent list: whatever this Python calls non-global must be refused, at both ends of each network."""
    networks = [
        network
        for constants in (ipaddress._IPv4Constants, ipaddress._IPv6Constants)
        for network in [*constants._private_networks, constants._linklocal_network, constants._multicast_network]
    ]
    assert len(networks) > 20
    for network in networks:
        for address in (network[0], network[-1]):
            if address in ipaddress.ip_network("::ffff:0:0/96"):
                continue
            assert guard.forbidden(address), f"{address} of {network}"


def test_reasons_are_words_with_explanations() -> None:
    used = {reason for _, reason in [*LOCAL, *ELSEWHERE]}
    assert used == set(guard.REASONS), "every reason is reached by some URL of the table"
    assert all(word.replace("_", "").isalpha() and text for word, text in guard.REASONS.items())
