"""Makes gRPC channels to the daemon, with the options that matter here.

A session uses a new channel for each connection. A TCP connection whose peer fell silent must not be used again, so
channels do not share a pool of connections either.
"""

from typing import Final

import grpc
import grpc.aio

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024

OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to "host:port" (or any gRPC target). Needs a running event loop; connects on first use."""
    return grpc.aio.insecure_channel(address, options=OPTIONS)
