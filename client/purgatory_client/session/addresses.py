"""The address of a client: of one daemon, or of several daemons of which one serves at a time.

Several addresses become one gRPC target. Its channel connects to all of them, watches the health of each, and sends
calls only to one that serves. So does a channel to "dns:///NAME:PORT", for all addresses of that name.
"""

import contextlib
import functools
import json
import math
import re
import socket
import threading
import time
from ipaddress import ip_address
from typing import Final

from purgatory_client.argument_checks import checked_type
from purgatory_client.errors import InvalidRequest

ADDRESS: Final = re.compile(r"(\[[^\]\s]+\]|[^:/\[\]\s]+):([0-9]{1,5})")
DNS: Final = "dns:///"
OTHER_TARGETS: Final = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
PORT_MAX: Final = 65_535

SERVICE_CONFIG: Final = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "purgatory.v1.PurgatoryService"},
    }
)
PING_MS: Final = 1_000
"""Interval of pings, and how long one may stay unanswered: a stopped process keeps its connections open."""
LOOK_UP_INTERVAL: Final = 1.0
"""Minimum number of seconds between two look-ups of a name."""
PAUSE_MAX: Final = 5.0
PAUSE_MAX_OF_SEVERAL: Final = 0.5
"""Seconds between attempts, at most: another daemon may begin to serve at any moment."""

CHOOSING: Final[dict[str, int | str]] = {
    "grpc.service_config": SERVICE_CONFIG,
    "grpc.max_reconnect_backoff_ms": round(PAUSE_MAX_OF_SEVERAL * 1_000),
    "grpc.dns_min_time_between_resolutions_ms": round(LOOK_UP_INTERVAL * 1_000),
    "grpc.keepalive_time_ms": PING_MS,
    "grpc.keepalive_timeout_ms": PING_MS,
    "grpc.keepalive_permit_without_calls": 1,
    # Without these two, gRPC stops pinging on a silent connection, and waits a minute for the answer.
    "grpc.http2.max_pings_without_data": 0,
    "grpc.http2.ping_timeout_ms": PING_MS,
}
"""Channel options for several addresses."""


def check_address(address: str) -> None:
    """Raises InvalidRequest for an address that can never be connected to. gRPC would keep trying it."""
    checked_type(address, str, "address", "give host:port, like 127.0.0.1:7440")
    if address.startswith(OTHER_TARGETS) or all(map(_is_host_and_port, address.split(","))):
        return
    expected = "expected the daemon's gRPC address as host:port, like 127.0.0.1:7440"
    if "://" in address:
        expected += ", not a URL; port 7441 is for HTTP"
    elif "," in address:
        expected += ", or several separated by commas, without spaces"
    raise InvalidRequest("address", f"cannot connect to {address!r}; {expected}")


def _is_host_and_port(address: str) -> bool:
    match = ADDRESS.fullmatch(address)
    return match is not None and 0 < int(match[2]) <= PORT_MAX


def pause_max(address: str) -> float:
    """Maximum number of seconds between attempts to connect."""
    return PAUSE_MAX_OF_SEVERAL if _is_list(address) or address.startswith(DNS) else PAUSE_MAX


def options_of(address: str) -> dict[str, int | str]:
    """The channel options that an address needs in addition to those of all channels."""
    if _is_list(address):
        # TLS checks all certificates for the first address, and every call names it.
        return {**CHOOSING, "grpc.default_authority": address.partition(",")[0]}
    return CHOOSING if address.startswith(DNS) else {}


def target_of(address: str) -> str:
    """The gRPC target of an address. The first look-up of a name in a list blocks; later ones run in a thread, and the
    next target contains what they find.
    """
    if not _is_list(address):
        return address
    parts = address.split(",")
    found = dict.fromkeys(one for part in parts for one in _place(part).addresses())
    if not found:
        return f"{DNS}{parts[0]}"  # gRPC reports why the name cannot be resolved
    # A target has one family: where the families are mixed, IPv4 is written in IPv6.
    if not any(host.startswith("[") for host, _ in found):
        return "ipv4:" + ",".join(f"{host}:{port}" for host, port in found)
    return "ipv6:" + ",".join(f"{host if '[' in host else f'[::ffff:{host}]'}:{port}" for host, port in found)


def is_loopback(address: str) -> bool:
    """Whether an address can only be that of this machine."""
    if address.startswith("unix:"):
        return True
    if _is_list(address):
        return all(map(is_loopback, address.split(",")))
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_list(address: str) -> bool:
    return "," in address and not address.startswith(OTHER_TARGETS)


class _Place:
    """One part of a list of addresses: a host and port, and the addresses at which the host was found."""

    def __init__(self, part: str) -> None:
        host, _, self._port = part.rpartition(":")
        self._host: Final = host.removeprefix("[").removesuffix("]")
        self._found: list[tuple[str, str]] = []
        self._due = time.monotonic() + LOOK_UP_INTERVAL
        with contextlib.suppress(ValueError):
            ip_address(self._host)
            self._due = math.inf
        self._look_up()

    def addresses(self) -> list[tuple[str, str]]:
        """The addresses that were found last, in brackets if they are of IPv6, each with the port."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + LOOK_UP_INTERVAL
            threading.Thread(target=self._look_up, daemon=True).start()
        return self._found

    def _look_up(self) -> None:
        # Without an answer, the name may still be where it was.
        with contextlib.suppress(OSError, UnicodeError):
            answers = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            hosts = [str(address[0]) for *_, address in answers]
            self._found = [(f"[{host}]" if ":" in host else host, self._port) for host in hosts]


_place: Final = functools.cache(_Place)
