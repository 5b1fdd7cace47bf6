"""The options of the format `purgatory`, and the connection that they make."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from purgatory_client.argument_checks import whole_number
from purgatory_client.session.addresses import target_of
from purgatory_client.session.channel import ChannelSecurity, channel_options

from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_pipeline.errors import PipelineError

SESSION: Final = "session"
ADDRESS: Final = "127.0.0.1:7440"


@dataclass(frozen=True)
class DaemonOptions:
    """Plain values that are pickled to Spark's processes. Each process opens its own connection, on first use.

    Attributes:
        address: The daemon's gRPC address, or several as in docs/client.md.
        sessions: `session`: the sessions to read, separated by commas. Each is read by its own task.
        rows_max: `maxRows`: most results of each session in one micro-batch.
        topic_prefix: `topicPrefix`: only pending operations with a topic or key that starts with this.
        checkpoint: `checkpoint`: read what is pending in the stream with this checkpoint, not in the daemon.
        security: `tls` (true or false); `tlsCa`, `tlsCertificate`, `tlsKey`: paths of PEM files; `tokenFile`: path of a
            file with the token.
    """

    address: str
    sessions: tuple[str, ...]
    rows_max: int
    topic_prefix: str
    checkpoint: str
    security: ChannelSecurity

    @staticmethod
    def of(options: Mapping[str, str]) -> "DaemonOptions":
        """Raises `PipelineError`."""
        rows_max = whole_number(options.get("maxRows", "100000"))
        if not rows_max:
            raise PipelineError(f"maxRows: {options['maxRows']}; give a number above 0")
        token = options.get("tokenFile")
        return DaemonOptions(
            options.get("address", ADDRESS),
            tuple(name.strip() for name in options.get(SESSION, "").split(",") if name.strip()),
            rows_max,
            options.get("topicPrefix", ""),
            options.get("checkpoint", ""),
            ChannelSecurity(
                options.get("tls", "").lower() == "true",
                options.get("tlsCa"),
                options.get("tlsCertificate"),
                options.get("tlsKey"),
                None if token is None else Path(token),
            ),
        )


class DaemonConnection:
    """Blocking calls to the daemon. Do not pickle it, and do not use it after a fork."""

    def __init__(self, options: DaemonOptions) -> None:
        security = options.security
        target, of_channel = target_of(options.address), channel_options(options.address)
        if security.is_encrypted:
            self._channel = grpc.secure_channel(target, security.credentials(), options=of_channel)
        else:
            self._channel = grpc.insecure_channel(target, options=of_channel)
        self._security: Final = security
        self.stub: Final = PurgatoryServiceStub(self._channel)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return self._security.metadata()

    def close(self) -> None:
        self._channel.close()
