"""Where webhooks may go: which URLs a caller may name, and which addresses are connected to.

Names are checked when a callback is named and at each attempt, addresses at each connection: between two of these a
name may come to mean another address, and the settings may have changed.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

URL_LENGTH_MAX: Final = 2_048
ANY_PORT: Final = "*"
PORTS: Final = {"https": 443, "http": 80}
NAT64: Final = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that stand for IPv4 ones: a gateway on the way connects to these."""
GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""All IPv6 addresses that have been allocated for the internet; the rest is reserved, local, or multicast."""
SPECIAL: Final = tuple(
    ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20")
)
"""Special-purpose blocks (IANA's registries) that are not for servers, and that `is_global` of some Python versions
takes for public: protocol assignments (with Teredo), the 6to4 relay, documentation.
"""


class CallbackNotAllowed(Exception):
    """A URL that no webhook may be sent to, or a host with no address that may be connected to. `is_malformed`: it is
    no URL that could ever be.
    """

    def __init__(self, message: str, *, is_malformed: bool = False) -> None:
        super().__init__(message)
        self.is_malformed: Final = is_malformed


class CallbackTarget(NamedTuple):
    """What a URL names; `target` is its path with its query."""

    scheme: str
    host: str
    port: int
    target: str


class CallbackRules:
    """What the settings allow."""

    def __init__(self, allowed_hosts: Sequence[str], *, allow_http: bool, allow_private: bool) -> None:
        """`allowed_hosts`: names, each with an optional port ("*": any; without: 443, or 80 by http); "*.example.org"
        stands for all names below example.org.
        """
        self._allowed: Final = [_split(entry) for entry in allowed_hosts]
        self._allow_http: Final = allow_http
        self._allow_private: Final = allow_private

    def check_url(self, url: str) -> CallbackTarget:
        """What the URL names. Raises `CallbackNotAllowed`."""
        target = _parse(url)
        if target.scheme == "http" and not self._allow_http:
            raise CallbackNotAllowed("http is not allowed here, only https (webhooks.allow_http)")
        for name, port in self._allowed:
            if _is_host(target.host, name) and port in (ANY_PORT, str(target.port)):
                return target
            if _is_host(target.host, name) and not port and target.port == PORTS[target.scheme]:
                return target
        raise CallbackNotAllowed(f"{target.host}:{target.port} is not among webhooks.allowed_hosts")

    def allowed_addresses(self, host: str, addresses: Sequence[str]) -> list[str]:
        """Those addresses of a host that may be connected to. Raises `CallbackNotAllowed` if there are none."""
        allowed = [address for address in addresses if self._allow_private or _is_public(address)]
        if not allowed:
            seen = ", ".join(addresses) or "no address"
            raise CallbackNotAllowed(f"{host} is {seen}, which is not public (webhooks.allow_private)")
        return allowed


def _split(entry: str) -> tuple[str, str]:
    """Host and port of an entry of the settings; either may be a pattern, and the port may be absent."""
    if entry.endswith("]") or ":" not in entry:
        return entry.strip("[]").lower(), ""
    host, _, port = entry.rpartition(":")
    return host.strip("[]").lower(), port


def _is_host(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _parse(url: str) -> CallbackTarget:
    if len(url) > URL_LENGTH_MAX:
        raise CallbackNotAllowed(f"has {len(url)} characters, more than {URL_LENGTH_MAX}", is_malformed=True)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise CallbackNotAllowed("has characters that must be escaped in a URL", is_malformed=True)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise CallbackNotAllowed(f"is no URL: {error}", is_malformed=True) from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise CallbackNotAllowed("should begin with https:// and a host", is_malformed=True)
    if "@" in parts.netloc or parts.fragment or "#" in url:
        raise CallbackNotAllowed("should have neither a user nor a fragment", is_malformed=True)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return CallbackTarget(parts.scheme, parts.hostname.rstrip("."), port or PORTS[parts.scheme], target)


def _is_public(text: str) -> bool:
    """Whether an address belongs to the public internet, by itself or by the IPv4 address that it stands for."""
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
