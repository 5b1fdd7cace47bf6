"""Complete calls without a credential, on a few connections that each have as many in flight as the daemon allows."""

import selectors
import time
from collections import Counter
from typing import Final

from tests.abuse.http2 import Target
from tests.abuse.open_loop import FloodConnection

CONNECTIONS: Final = 8
CALLS: Final = 11_000
"""Calls of each connection, after which it is closed and another one opened."""


class CallingConnection(FloodConnection):
    """A connection, and the number of calls that it has started."""

    started = 0


def complete_calls(target: Target, method: str) -> Counter[str]:
    """Make calls for the target's time, and leave without waiting for those in flight.

    Returns:
        The results of calls by status, the number `started`, and how many connections the daemon has `cut`.
    """
    tally = Counter[str]()
    connections = [CallingConnection(target.grpc, "", tally) for _ in range(CONNECTIONS)]
    ends_s = time.monotonic() + target.seconds
    while time.monotonic() < ends_s:
        with selectors.DefaultSelector() as selector:
            for place, connection in enumerate(connections):
                if connection.started == CALLS and not connection.in_flight:
                    connection.close()
                    connections[place] = CallingConnection(target.grpc, "", tally)
                selector.register(connections[place].socket, selectors.EVENT_READ, place)
            readable = {key.data for key, _ in selector.select(0.001)}
        for place, connection in enumerate(connections):
            try:
                # A few of each at a time: none is idle while another one fills up.
                for _ in range(500):
                    if connection.started < CALLS and connection.start((method, (b"",))):
                        connection.started += 1
                        tally["started"] += 1
                connection.send()
                if place in readable:
                    connection.receive()
            except ConnectionError:
                tally["cut"] += 1
                connection.close()
                connections[place] = CallingConnection(target.grpc, "", tally)
    for connection in connections:
        connection.close()
    return tally
