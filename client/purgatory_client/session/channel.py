"""Makes gRPC channels to the daemon, with the required channel options, and with TLS and a token if configured.

A session uses a new channel for each connection. Channels do not share a pool of connections, because a TCP connection
whose peer has become silent must not be used again.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast

import grpc
import grpc.aio
from grpc_status import rpc_status

from purgatory_client.argument_checks import checked_type
from purgatory_client.errors import ClientClosed, InvalidRequest
from purgatory_client.session.addresses import is_loopback, options_of, target_of
from purgatory_client.session.backoff import Retry
from purgatory_client.wire import sizes

OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", sizes.RECEIVED_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)

REFUSED_STREAM: Final = "RST_STREAM with error code 7"
"""Part of gRPC's message for a call that a proxy or an older daemon refused before processing it (RFC 9113, 8.7)."""
REFUSED_GIVE_UP: Final = 10.0
"""Seconds after which a call whose stream is still refused fails."""

Pem = str | os.PathLike[str] | bytes
"""The path of a PEM file, or its content."""

Token = str | os.PathLike[str] | Callable[[], str]
"""A bearer token, the path (not as a plain str) of a file with a token, or a function that returns one."""

_log: Final = logging.getLogger(__name__)

_channels: Final[weakref.WeakSet[grpc.aio.Channel]] = weakref.WeakSet()
"""All existing channels, open or closed: gRPC's threads run as long as one of them exists."""
_is_unusable: Final = threading.Event()
"""Set in a forked child process if the parent had channels at the time of the fork."""


def _after_fork() -> None:
    if _channels:
        _is_unusable.set()


os.register_at_fork(after_in_child=_after_fork)


def check_process() -> None:
    """Raises ClientClosed in a process that was forked while a client was connected, because gRPC hangs or crashes
    there.
    """
    if _is_unusable.is_set():
        raise ClientClosed(
            "this process was forked while a client was connected, and gRPC cannot be used in it; close all clients "
            'before a fork, or start the process by "spawn"'
        )


@dataclass(frozen=True)
class ChannelSecurity:
    """How a channel is protected, and how the caller authenticates. PEM files are read when a channel is made and
    the token file for each call, so that renewed credentials are used. Raises InvalidRequest for a contradictory
    combination.
    """

    tls: bool = False
    """Without `ca`, the public authorities are trusted."""
    ca: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    token: Token | None = None

    def __post_init__(self) -> None:
        for name, pem in (("tls_ca", self.ca), ("tls_certificate", self.certificate), ("tls_key", self.key)):
            checked_type(pem, (str, bytes, os.PathLike, type(None)), name, "give the path of a PEM file, or its bytes")
        if not callable(self.token):
            checked_type(self.token, (str, os.PathLike, type(None)), "token", "give a text, a Path, or a function")
        if (self.certificate is None) != (self.key is None):
            raise InvalidRequest("", "tls_certificate and tls_key must be given together")

    @property
    def is_encrypted(self) -> bool:
        return self.tls or self.ca is not None or self.certificate is not None

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials for TLS. Raises InvalidRequest for a file that cannot be read."""
        return grpc.ssl_channel_credentials(
            _pem("tls_ca", self.ca), _pem("tls_key", self.key), _pem("tls_certificate", self.certificate)
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call: the token. Raises InvalidRequest for a token file that cannot be read."""
        token = self.token
        if token is None:
            return ()
        if isinstance(token, os.PathLike):
            try:
                token = Path(token).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequest("token", f"cannot be read from {os.fspath(token)}: {error}") from error
        elif not isinstance(token, str):
            token = token()
        # A file usually ends with a line break, which is not allowed in a header.
        token = token.strip()
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidRequest("token", "must be one line of printable ASCII")  # and is never quoted
        return (("authorization", f"Bearer {token}"),)


UNPROTECTED: Final = ChannelSecurity()
"""Neither TLS nor token, for a daemon on loopback without a policy."""


def open_channel(address: str, security: ChannelSecurity = UNPROTECTED) -> grpc.aio.Channel:
    """Open a channel to an address that `check_address` accepts. Needs a running event loop; connects on first use.

    Raises InvalidRequest for a file of `security` that cannot be read, and ClientClosed as `check_process` does.
    """
    check_process()
    target, options = target_of(address), channel_options(address)
    if security.is_encrypted:
        # Credentials are read for each channel, so a reconnect uses certificates that were renewed in the meantime.
        channel = grpc.aio.secure_channel(target, security.credentials(), options=options)
    else:
        channel = grpc.aio.insecure_channel(target, options=options)
    _channels.add(channel)
    if security.token is not None and not security.is_encrypted and not is_loopback(address):
        _log.warning("the token for %s is sent unencrypted; use TLS (tls_ca=...)", address)
    return cast("grpc.aio.Channel", _Channel(channel, security, address, target))


def channel_options(address: str) -> tuple[tuple[str, int | str], ...]:
    return tuple({**dict(OPTIONS), **options_of(address)}.items())


def is_lost(channel: grpc.aio.Channel) -> bool:
    """Whether nothing serves at the addresses of a channel that `open_channel` made, and its names have others now."""
    return cast("_Channel", channel).is_lost()


class _Channel:
    """A channel that sends the token with every call, and repeats unary calls whose stream was refused.

    Two features of gRPC are not usable here: its call credentials are rejected on a channel without TLS, even on
    loopback, and its interceptors wrap each stream in another one that reads and writes through queues. gRPC itself
    repeats a refused call only once, without a pause.
    """

    def __init__(self, channel: grpc.aio.Channel, security: ChannelSecurity, address: str, target: str) -> None:
        self._channel: Final = channel
        self._address: Final = address
        self._target: Final = target
        self._security: Final = security
        self.unary_stream: Final = _showing(security, channel.unary_stream)
        self.stream_unary: Final = _showing(security, channel.stream_unary)
        self.stream_stream: Final = _showing(security, channel.stream_stream)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's own arguments
        method = _showing(self._security, self._channel.unary_unary)(*args, **kwargs)

        async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - gRPC's own arguments and answer
            # A refused stream was not processed, so the call may be repeated even if it is not idempotent.
            retry = Retry(REFUSED_GIVE_UP)
            while True:
                try:
                    return await method(*args, **kwargs)
                except grpc.aio.AioRpcError as error:
                    # Anything else may have been processed: repeating it could register or signal twice.
                    if not _was_unread(error):
                        raise
                    await retry.pause(error)

        return call

    def is_lost(self) -> bool:
        if self._target == self._address or self._channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return False
        return target_of(self._address) != self._target

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)


def _showing(security: ChannelSecurity, make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a constructor of methods: each call of a method that it makes shows the current token.

    This is not a method of `_Channel`: a reference cycle would keep the channel and gRPC's threads until the next
    garbage collection, and a process could not fork after its clients are closed.
    """

    def made(*args: Any, **kwargs: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's own arguments
        method = make(*args, **kwargs)
        return lambda *request, **options: method(*request, metadata=security.metadata(), **options)

    return made


def _was_unread(error: grpc.aio.AioRpcError) -> bool:
    """Whether no part of a call was processed: its stream was refused, or the daemon reset it before reading.

    CANCELLED always means a reset by the daemon, because a cancel by this client raises no `AioRpcError`.
    """
    if error.code() is grpc.StatusCode.CANCELLED:
        return rpc_status.from_call(error) is None
    return REFUSED_STREAM in (error.details() or "")


def _pem(name: str, pem: Pem | None) -> bytes | None:
    if pem is None or isinstance(pem, bytes):
        return pem
    try:
        return Path(pem).read_bytes()
    except OSError as error:
        raise InvalidRequest(name, f"cannot be read from {os.fspath(pem)}: {error.strerror or error}") from error
