"""What a source says of itself, and answers when somebody asks where logs end. Most of it is the client's."""

from typing import NamedTuple, TypeAlias

from purgatory_client.sources.source_link import MarkEnd, SourceState, StaleMarks

__all__ = ["End", "PublishedMark", "SourceState", "StaleMarks"]

End: TypeAlias = MarkEnd
"""Where a partition ends. Without `leader_epoch` the publisher gives its mark's."""


class PublishedMark(NamedTuple):
    """What the daemons know of a mark: the lowest epoch and offset among them."""

    epoch: int
    offset: int
