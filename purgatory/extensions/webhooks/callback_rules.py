"""Rules for webhook destinations: the URLs that callers may use, and the IP addresses that may be connected to.

Host names are checked when a callback is set and at each attempt; addresses are checked at each connection. In between,
a name may resolve to another address, and the settings may have changed.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

URL_LENGTH_MAX: Final = 2_048
ANY_PORT: Final = "*"
PORTS: Final = {"https": 443, "http": 80}
NAT64: Final = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that embed an IPv4 address: a NAT64 gateway connects to that IPv4 address."""
GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""All IPv6 addresses allocated for the public internet; the rest are reserved, local, or multicast."""
SPECIAL: Final = tuple(
    ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20")
)
"""Special-purpose blocks (IANA's registries) that are not for servers but count as public for `is_global` in some
Python versions: protocol assignments (with Teredo), the 6to4 relay, documentation.
"""


class CallbackNotAllowed(Exception):
    """A URL that may not receive webhooks, or a host without an allowed address."""


class CallbackTarget(NamedTuple):
    """The parts of a URL; `target` is its path with its query."""

    scheme: str
    host: str
    port: int
    target: str


class CallbackRules:
    """The hosts, ports and addresses that the settings allow."""

    def __init__(self, allowed_hosts: Sequence[str], *, allow_http: bool, allow_private: bool) -> None:
        """`allowed_hosts`: names, each with an optional port ("*": any; none: 443, or 80 for http). "*.example.org"
        matches all names below example.org. `allow_private`: whether addresses outside the public internet are allowed.
        """
        self._allowed: Final = [_split(entry) for entry in allowed_hosts]
        self._allow_http: Final = allow_http
        self._allow_private: Final = allow_private

    def check_url(self, url: str) -> CallbackTarget:
        """Parse and check a URL.

        Raises:
            CallbackNotAllowed: The URL is malformed, or the settings do not allow it.
        """
        target = _parse(url)
        if target.scheme == "http" and not self._allow_http:
            raise CallbackNotAllowed("http is not allowed here, only https (webhooks.allow_http)")
        for name, port in self._allowed:
            ports = (ANY_PORT, str(target.port))
            if _is_host(target.host, name) and (port or str(PORTS[target.scheme])) in ports:
                return target
        raise CallbackNotAllowed(f"{target.host}:{target.port} is not among webhooks.allowed_hosts")

    def allowed_addresses(self, host: str, addresses: Sequence[str]) -> list[str]:
        """The addresses of a host that may be connected to.

        Raises:
            CallbackNotAllowed: There are none.
        """
        allowed = [address for address in addresses if self._allow_private or _is_public(address)]
        if not allowed:
            seen = ", ".join(addresses) or "no address"
            raise CallbackNotAllowed(f"{host} is {seen}, which is not public (webhooks.allow_private)")
        return allowed


def _split(entry: str) -> tuple[str, str]:
    """Host and port of an entry in the settings. Either may be a pattern, and the port may be missing."""
    if entry.endswith("]") or ":" not in entry:
        return entry.strip("[]").lower(), ""
    host, _, port = entry.rpartition(":")
    return host.strip("[]").lower(), port


def _is_host(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _parse(url: str) -> CallbackTarget:
    if len(url) > URL_LENGTH_MAX:
        raise CallbackNotAllowed(f"has {len(url)} characters, more than {URL_LENGTH_MAX}")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise CallbackNotAllowed("has characters that must be escaped in a URL")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise CallbackNotAllowed(f"not a URL: {error}") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise CallbackNotAllowed("must begin with https:// and a host")
    if "@" in parts.netloc or parts.fragment or "#" in url:
        raise CallbackNotAllowed("must have neither a user nor a fragment")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return CallbackTarget(parts.scheme, parts.hostname.rstrip("."), port or PORTS[parts.scheme], target)


def _is_public(text: str) -> bool:
    """Whether an address, or the IPv4 address embedded in it, belongs to the public internet."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = _meant_by(address)
    if isinstance(address, IPv6Address) and address not in GLOBAL_UNICAST:
        return False
    is_special = any(address in network for network in SPECIAL)
    return address.is_global and not (is_special or address.is_multicast or address.is_reserved)


def _meant_by(address: IPv6Address) -> IPv4Address | IPv6Address:
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
