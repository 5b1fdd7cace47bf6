"""Ports for servers that are started a moment later, by demonstrations, tests and benchmarks."""

import random
import socket
from typing import Final

CHOICE: Final = range(10_000, 32_000)
"""Below the ports that Linux gives to connections and to servers without a port of their own: in between, another
program could get one of those.
"""

_RANDOM: Final = random.SystemRandom()


def free_port() -> int:
    """A port that is free on the loopback interface."""
    return free_row(1)


def free_row(count: int) -> int:
    """The first of some consecutive ports that are free on the loopback interface."""
    while True:
        first = _RANDOM.choice(CHOICE)
        if all(map(_is_free, range(first, first + count))):
            return first


def free_ports(count: int) -> list[int]:
    """Different ports that are free on the loopback interface."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


def _is_free(port: int) -> bool:
    with socket.socket() as bound:
        try:
            bound.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
