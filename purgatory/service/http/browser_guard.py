"""Whether a browser asks on behalf of somebody else's page.

On loopback nobody need show a credential, and whoever browses the web runs other people's programs on that machine.
Browsers say where such a request comes from; one that is led astray by DNS (a name that resolves to this machine only
for the attack) is known by the name that it asks for.
"""

import ipaddress
from typing import Final

from starlette.types import Scope

from purgatory.service.http.http_peer import header_of

FOREIGN_SITES: Final = frozenset(("cross-site", "same-site"))
FOREIGN_PAGE: Final = "a page of another site may not ask this daemon\n"
FOREIGN_NAME: Final = "ask for localhost or an address, or show a token\n"


def is_foreign_page(scope: Scope) -> bool:
    """Whether a page of another origin asks. Other programs than browsers send none of these headers."""
    if header_of(scope, b"sec-fetch-site") in FOREIGN_SITES:
        return True
    origin = header_of(scope, b"origin")
    return origin is not None and origin.rpartition("//")[2] != header_of(scope, b"host")


def is_led_astray(scope: Scope) -> bool:
    """Whether somebody without a token asks for a name that is not this machine's own."""
    return header_of(scope, b"authorization") is None and not is_local_name(header_of(scope, b"host"))


def is_local_name(host: str | None) -> bool:
    """Whether a Host header names this machine in a way that no other name server can."""
    if host is None:
        return True  # HTTP/1.0: no browser
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
