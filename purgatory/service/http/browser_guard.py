"""Detects requests from web pages of other sites.

On loopback no credential is needed, and a browser runs programs of other sites on this machine. Browsers state the
origin of such requests, except with DNS rebinding: a name of the other site then temporarily resolves to this machine,
so the page and the daemon have the same origin. Such requests are detected by the name in the Host header.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

from purgatory.service.http.http_context import header_of, headers_of

FOREIGN_SITES: Final = frozenset(("cross-site", "same-site"))
FOREIGN_PAGE: Final = "requests from pages of other sites are refused; names of this daemon: see http.allowed_hosts\n"
WRONG_HOST: Final = "the Host header must be localhost, an IP address, or one of http.allowed_hosts\n"


def is_foreign_page(scope: Scope, allowed_hosts: Sequence[str]) -> bool:
    """Return whether a page of another origin sent the request. Only browsers send these headers."""
    # "same-site" is foreign too: another port or subdomain is another program.
    if any(site.lower() in FOREIGN_SITES for site in headers_of(scope, b"sec-fetch-site")):
        return True
    # "Origin: null", as sandboxed frames send it, is a host of that name here and therefore foreign.
    hosts = {origin.rpartition("//")[2].lower() for origin in headers_of(scope, b"origin")}
    # A proxy may send its own name as Host, so that the two differ although the page belongs to the daemon.
    own = (header_of(scope, b"host") or "").lower()
    return any(host != own and not _is_allowed(host, allowed_hosts) for host in hosts)


def is_dns_rebinding(scope: Scope, allowed_hosts: Sequence[str]) -> bool:
    """Return whether the Host header has a name that a foreign name server could resolve to this machine."""
    return not is_own_host(header_of(scope, b"host"), allowed_hosts)


def is_own_host(host: str | None, allowed_hosts: Sequence[str] = ()) -> bool:
    """Return whether a Host header is localhost, an address, or one of `allowed_hosts` (in lower case)."""
    if host is None:
        return True  # HTTP/1.0: no browser
    name = _name_of(host.lower())
    if name == "localhost" or name.endswith(".localhost") or _is_allowed(host.lower(), allowed_hosts):
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port."""
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host


def _is_allowed(host: str, allowed_hosts: Sequence[str]) -> bool:
    name = _name_of(host)
    return any(one in (host, name) or (one[:2] == "*." and name.endswith(one[1:])) for one in allowed_hosts)
