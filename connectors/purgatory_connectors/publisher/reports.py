"""Health reports of a source, and its replies to requests for the ends of logs. Most types come from the client."""

from typing import NamedTuple, TypeAlias

from purgatory_client.sources.source_link import MarkEnd, SourceState, StaleMarks

__all__ = ["End", "PublishedMark", "SourceState", "StaleMarks"]

End: TypeAlias = MarkEnd
"""The end of a partition. If `leader_epoch` is missing, the publisher adds the epoch of the mark."""


class PublishedMark(NamedTuple):
    """A mark as published to the daemons: the lowest epoch and offset at any of them."""

    epoch: int
    offset: int
