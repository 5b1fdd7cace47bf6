"""What a source is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory_sources.publisher.reports import End

if TYPE_CHECKING:
    from purgatory_sources.publisher.publisher import Publisher


class Source(ABC):
    """Watches one system and hands what it sees to a publisher.

    Attributes:
        name: What status and metrics call it, without secrets: "kafka://broker:9092".
        topic_prefixes: It feeds the partitions of all topics that start with one of these: ("kafka/",).
    """

    name: str
    topic_prefixes: tuple[str, ...]

    @abstractmethod
    async def run(self, publisher: Publisher) -> None:
        """Watch until cancelled. Raises SourceRefused for what no retry can cure; the program ends with its line."""

    @abstractmethod
    async def ends(self, names: Sequence[str]) -> list[End]:
        """Where the partitions of these topics end, by a look that begins now. Raises SourceStale when it cannot see.

        Args:
            names: Topics without partition numbers: "kafka/billing/orders", "pg/main/all".
        """
