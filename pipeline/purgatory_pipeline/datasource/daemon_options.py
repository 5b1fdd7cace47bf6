"""The options of the format `purgatory`, and the connection that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from purgatory_client.session.channel import OPTIONS, ChannelSecurity

from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_pipeline.errors import PipelineError

SESSION: Final = "session"
ADDRESS: Final = "127.0.0.1:7440"


class DaemonOptionInvalid(PipelineError):
    """An option of the format `purgatory` that cannot be used."""


@dataclass(frozen=True)
class DaemonOptions:
    """Plain values, which travel to Spark's processes; each connects for itself, on first use.

    Attributes:
        address: The daemon's gRPC address.
        sessions: `session`: to be read, by comma; each is read by a task of its own.
        rows_max: `maxRows`: of each session in one micro-batch.
        topic_prefix: `topicPrefix`: of pending waits, only those that have such a partition or key.
        security: `tlsCa`, `tlsCertificate`, `tlsKey`, `tls`: paths of PEM files; `tokenFile`: the path of a token.
    """

    address: str
    sessions: tuple[str, ...]
    rows_max: int
    topic_prefix: str
    security: ChannelSecurity

    @staticmethod
    def of(options: Mapping[str, str]) -> DaemonOptions:
        """Raises `DaemonOptionInvalid`."""
        rows_max = options.get("maxRows", "100000")
        if not rows_max.isdigit() or not int(rows_max):
            raise DaemonOptionInvalid(f"maxRows {rows_max}: give a number above 0")
        token = options.get("tokenFile")
        return DaemonOptions(
            options.get("address", ADDRESS),
            tuple(name.strip() for name in options.get(SESSION, "").split(",") if name.strip()),
            int(rows_max),
            options.get("topicPrefix", ""),
            ChannelSecurity(
                options.get("tls", "").lower() == "true",
                options.get("tlsCa"),
                options.get("tlsCertificate"),
                options.get("tlsKey"),
                None if token is None else Path(token),
            ),
        )

    def connect(self) -> DaemonConnection:
        """A connection for this process."""
        return DaemonConnection(self)


class DaemonConnection:
    """Calls to the daemon that block. Not to be pickled, and not to be used after a fork."""

    def __init__(self, options: DaemonOptions) -> None:
        security = options.security
        if security.is_encrypted:
            self._channel = grpc.secure_channel(options.address, security.credentials(), options=OPTIONS)
        else:
            self._channel = grpc.insecure_channel(options.address, options=OPTIONS)
        self._security: Final = security
        self.stub: Final = PurgatoryServiceStub(self._channel)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """To be given with each call."""
        return self._security.metadata()

    def close(self) -> None:
        """Ends what is running on it."""
        self._channel.close()
