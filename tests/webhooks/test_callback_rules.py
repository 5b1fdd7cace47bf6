"""Which URLs are allowed as callbacks, and which addresses may be connected to."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.extensions.webhooks.callback_rules import CallbackNotAllowed, CallbackRules, CallbackTarget


def rules(*hosts: str, allow_http: bool = True, allow_private: bool = False) -> CallbackRules:
    return CallbackRules(hosts, allow_http=allow_http, allow_private=allow_private)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("hooks.example.org", "https://hooks.example.org/a?b=c"),
        ("hooks.example.org", "https://HOOKS.example.org:443/"),
        ("Hooks.Example.org", "https://hooks.example.org"),
        ("hooks.example.org", "http://hooks.example.org/"),
        ("hooks.example.org:8443", "https://hooks.example.org:8443/"),
        ("hooks.example.org:*", "https://hooks.example.org:1234/"),
        ("*.example.org", "https://a.b.example.org/"),
        ("[2606:4700::1111]:*", "https://[2606:4700::1111]:8443/"),
        ("hooks.example.org", "https://hooks.example.org./"),
    ],
)
def test_entry_allows_its_host_with_its_ports(entry: str, url: str) -> None:
    rules(entry).check_url(url)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("hooks.example.org", "https://hooks.example.org:8443/"),
        ("hooks.example.org", "http://hooks.example.org:443/"),
        ("hooks.example.org", "https://evil-hooks.example.org/"),
        ("hooks.example.org", "https://hooks.example.org.evil.example/"),
        ("hooks.example.org", "https://hooks.example.org@evil.example/"),
        ("hooks.example.org", "https://evil.example/?hooks.example.org"),
        ("hooks.example.org", "https://evil.example\\@hooks.example.org/"),
        ("hooks.example.org", "https://evil.example#@hooks.example.org/"),
        ("*.example.org", "https://example.org/"),
        ("*.example.org", "https://evilexample.org/"),
        ("127.0.0.1:*", "https://2130706433/"),
        ("hooks.example.org", "https://hooks.example.org/\r\nx-injected: 1"),
        ("hooks.example.org", "https://hooks.example.org/\u202egro"),
        ("hooks.example.org", "file:///etc/passwd"),
        ("hooks.example.org", "//hooks.example.org/"),
        ("hooks.example.org", ""),
    ],
)
def test_other_ports_similar_names_and_ambiguous_urls_are_refused(entry: str, url: str) -> None:
    with pytest.raises(CallbackNotAllowed):
        rules(entry).check_url(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://elsewhere.example/hook", "not among webhooks.allowed_hosts"),
        ("ftp://hooks.example.org/hook", "must begin with https"),
        ("http://user@hooks.example.org/hook", "neither a user nor a fragment"),
        ("http://hooks.example.org:99999/hook", "not a URL"),
        ("http://hooks.example.org/ho ok", "must be escaped"),
        ("http://hooks.example.org/" + "x" * 2_048, "more than 2048"),
    ],
)
def test_refusal_of_a_url_says_why(url: str, why: str) -> None:
    with pytest.raises(CallbackNotAllowed, match=why):
        rules("hooks.example.org").check_url(url)


def test_http_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(CallbackNotAllowed, match="allow_http"):
        rules("a.example", allow_http=False).check_url("http://a.example/")
    assert rules("a.example").check_url("http://a.example/x?y") == CallbackTarget("http", "a.example", 80, "/x?y")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "240.0.0.1", "::", "::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
        "fec0::1", "feff:ffff::1", "3fff::1", "3fff:fff:ffff::1", "192.88.99.1", "192.88.99.255", "2002:c058:6301::1",
        "64:ff9b:1::1", "100::1", "5f00::1", "2001::1", "2001:20::1", "2001:db8::1", "192.0.0.9", "192.0.2.1",
        "198.18.0.1", "198.51.100.1", "203.0.113.1", "4000::1", "::127.0.0.1", "0.1.2.3",
    ],
)  # fmt: skip
def test_address_that_is_not_public_is_refused_unless_private_ones_are_allowed(address: str) -> None:
    with pytest.raises(CallbackNotAllowed, match="not public"):
        rules().allowed_addresses("a.example", [address])
    assert rules().allowed_addresses("a.example", [address, "1.1.1.1"]) == ["1.1.1.1"]
    assert rules(allow_private=True).allowed_addresses("a.example", [address]) == [address]


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "192.88.98.1", "2606:4700::1111", "2001:4860::1", "3ffe::1", "::ffff:1.1.1.1", "64:ff9b::101:101"],
)
def test_address_of_the_public_internet_is_allowed(address: str) -> None:
    assert rules().allowed_addresses("a.example", [address]) == [address]


@given(st.ip_addresses(v=4))
def test_no_disguise_makes_an_address_public(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    disguises = [
        str(address),
        f"::ffff:{address}",
        str(ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number)),
        str(ipaddress.IPv6Address(int(ipaddress.IPv6Address("2002::")) | number << 80)),
    ]
    assert len({_is_allowed(one) for one in disguises}) == 1


def _is_allowed(address: str) -> bool:
    try:
        return bool(rules().allowed_addresses("a.example", [address]))
    except CallbackNotAllowed:
        return False
