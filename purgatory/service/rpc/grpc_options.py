"""The options of the gRPC server: its address, and limits on connections, streams and messages, as gRPC's core enforces
them.
"""

import logging
import resource
import socket
from typing import Final

from purgatory.service.budget.shares import budget_bytes, message_bytes_max
from purgatory.service.settings import LimitsSettings, Settings, split_address

LOGGER: Final = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 4_096
"""Concurrent connections; further ones are closed unread."""
CALLS_PER_CONNECTION_MAX: Final = 1_000
"""Calls in flight on one connection; fewer if the memory budget is small."""
CALLS_UNREAD_MAX: Final = 20_000
"""Calls that gRPC's core holds before they are started; it resets further ones, of whatever connection."""
CONNECTIONS_UNREAD: Final = 16
"""So many connections can have all their calls waiting to be started before calls are reset."""
CALL_UNREAD_BYTES: Final = 24_000
"""Measured resident memory of such a call with a message of a kilobyte, bytes."""
UNREAD_SHARE: Final = 4
"""Such calls may take a quarter of the memory budget."""
STREAMS_MIN: Final = 100
"""Streams on one connection, where fewer calls are allowed: those above that limit need one each to be refused on."""
FILES_SHARE: Final = 2
"""gRPC connections may use half of the process's files. HTTP, probes, sources and the journal use the other half."""
PING_INTERVAL_MIN_MS: Final = 500
"""Clients may send keepalive pings this often; those that ping faster are disconnected."""
KEEPALIVE_INTERVAL_MS: Final = 60_000
"""A silent connection is pinged this often, to notice that its peer is gone."""
KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""A connection that leaves a ping unanswered for this long is closed."""
HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""For TLS and HTTP/2's preface. gRPC's own limit of two minutes lets silent connections take up all places."""


def server_options(settings: Settings, *, ages: bool = True) -> list[tuple[str, int]]:
    """Channel arguments of the server. `ages`: connections end after `grpc.connection_age_max_ms`.

    - so_reuseport: otherwise a second daemon would silently share the port.
    - max_pending_requests: the default of 1,000 resets part of a burst of unary waits. It bounds the memory of calls
      that are reset at once, whose number nothing else limits.
    - max_concurrent_streams: the calls that `CallGate` allows on a connection. Some of them are reserved for events, so
      other calls over the limit are refused; a stream over the limit of streams is held back by its client, without
      an answer.
    - overload_protection: see `flood_watch`.
    - min_ping_interval_without_data_ms: what gRPC's core calls its minimum interval between received pings.
    - max_receive_message_length: applies to a message before and after decompression.
    """
    server, unread_max = settings.grpc, _calls_unread_max(settings.limits)
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.server.max_pending_requests", unread_max),
        ("grpc.server.max_pending_requests_hard_limit", unread_max),
        ("grpc.max_allowed_incoming_connections", connections_max()),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_concurrent_streams", max(STREAMS_MIN, calls_per_connection_max(settings.limits))),
        ("grpc.http.overload_protection", 0),
        ("grpc.max_receive_message_length", largest_message_bytes(settings)),
        ("grpc.max_send_message_length", server.message_bytes_max),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
        ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
    # Not for sources that the daemon runs itself: there is no load to spread on their connections.
    if server.connection_age_max_ms and ages:
        options.append(("grpc.max_connection_age_ms", server.connection_age_max_ms))
        options.append(("grpc.max_connection_age_grace_ms", settings.shutdown.grace_ms))
    return options


def _calls_unread_max(limits: LimitsSettings) -> int:
    return min(CALLS_UNREAD_MAX, budget_bytes(limits.memory_bytes_max) // UNREAD_SHARE // CALL_UNREAD_BYTES)


def calls_per_connection_max(limits: LimitsSettings) -> int:
    """The limit on calls of one gRPC connection."""
    return max(1, min(CALLS_PER_CONNECTION_MAX, _calls_unread_max(limits) // CONNECTIONS_UNREAD))


def connections_max() -> int:
    """The limit on gRPC connections, for which the limit on open files must leave room."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(CONNECTIONS_MAX, files_max // FILES_SHARE))


def warn_of_few_files() -> None:
    """Logs when the limit on open files reduces the limit on gRPC connections."""
    allowed = connections_max()
    if allowed < CONNECTIONS_MAX:
        LOGGER.warning(
            "gRPC connections are reduced from %d to %d: the process may open only %d files; raise `ulimit -n`",
            CONNECTIONS_MAX, allowed, resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )  # fmt: skip


def largest_message_bytes(settings: Settings) -> int:
    """The largest message accepted: `grpc.message_bytes_max`, or less if the memory budget is small."""
    return message_bytes_max(settings.grpc.message_bytes_max, budget_bytes(settings.limits.memory_bytes_max))


def why_not_bindable(address: str) -> str | None:
    """Return why an address cannot be bound; None if it can. Tries a plain socket, as gRPC only logs the reason."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC's own socket: otherwise connections of the last daemon that are still closing would look like a
            # listener.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(resolved)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return None
