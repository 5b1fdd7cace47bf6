"""The interface of a source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory_connectors.publisher.reports import End

if TYPE_CHECKING:
    from purgatory_connectors.publisher.publisher import Publisher


class Source(ABC):
    """Watches one system and passes observations to a publisher.

    Attributes:
        name: Name in status output and metrics, without secrets: "kafka://broker:9092".
        topic_prefixes: Prefixes of the topics whose partitions it publishes: ("kafka/",).
    """

    name: str
    topic_prefixes: tuple[str, ...]

    @abstractmethod
    async def run(self, publisher: Publisher) -> None:
        """Watch until cancelled. Raises SourceRefused for errors that no retry can fix; the program exits with it."""

    @abstractmethod
    async def ends(self, names: Sequence[str]) -> list[End]:
        """The ends of the partitions of these topics, read after the call began. Raises SourceStale if they cannot be
        read.

        Args:
            names: Topics without partition numbers: "kafka/billing/orders", "pg/main/all".
        """
