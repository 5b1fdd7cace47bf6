"""The connections of one daemon of a pair, which tests cut: those of callers to it, and its own to the log."""

from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from examples.free_ports import free_port
from tests.kit.proxy import BOTH, DOWN, UP, FaultyProxy

CUTS: Final = ("cut from the log", "cut from callers")
WAYS: Final = (UP, DOWN, BOTH)
CUTS_S: Final = (0.3, 1.5, 3.5)
"""How long a cut lasts: shorter than the silence, longer, and longer than a leader lives without its log."""


class Links:
    """Two proxies, from entering to leaving the context.

    A log in Kafka is connected directly: its brokers tell clients their own addresses.
    """

    def __init__(self, log_uri: str) -> None:
        self.daemon_address: Final = f"127.0.0.1:{free_port()}"
        """Where the daemon should listen."""
        self.callers: Final = FaultyProxy(self.daemon_address)
        self._uri: Final = log_uri
        self._login, _, log_address = urlsplit(log_uri).netloc.rpartition("@")
        self.log: Final = FaultyProxy(log_address)

    @property
    def address(self) -> str:
        """Where callers connect."""
        return self.callers.address

    @property
    def can_cut_log(self) -> bool:
        return self._uri.startswith("postgresql:")

    @property
    def log_uri(self) -> str:
        """The log, as the daemon should connect to it."""
        if not self.can_cut_log:
            return self._uri
        return urlsplit(self._uri)._replace(netloc=f"{self._login}@{self.log.address}").geturl()

    async def __aenter__(self) -> Self:
        await self.callers.__aenter__()
        await self.log.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.log.__aexit__(kind, error, trace)
        await self.callers.__aexit__(kind, error, trace)
