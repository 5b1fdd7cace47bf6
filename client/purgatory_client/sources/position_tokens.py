"""Position tokens: the ends of logs as offsets with leader epochs, in one text that can be waited for."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from purgatory.v1 import source_pb2
from purgatory_client import waits
from purgatory_client.base_errors import InvalidRequest
from purgatory_client.partition_names import PartitionName, format_partition, partition_name
from purgatory_client.waits import ByPartition, Name, Wait

FORM: Final = "at1."
"""Prefix of every token, with the version of the format."""
TOKEN_CHARACTERS_MAX: Final = 1_000_000


class Positions:
    """Offsets to wait for, each with the leader epoch of the history that it was read from.

    Without any offsets (the topics are empty, or all their records were deleted) there is nothing to wait for.

    Attributes:
        offsets: By partition: "kafka/billing/orders-3".
        leader_epochs: Leader epochs by partition, where known. A wait fails (error 74) once that epoch has ended,
            because its offset then belongs to records that no longer exist.
    """

    def __init__(self, offsets: ByPartition, leader_epochs: ByPartition | None = None) -> None:
        """Raises InvalidRequest for an offset that is not a 64-bit integer, or an epoch without an offset."""
        if offsets or leader_epochs:
            waits.produce(offsets, leader_epochs=leader_epochs)
        self.offsets: Final = {_text(name): offset for name, offset in offsets.items()}
        self.leader_epochs: Final = {_text(name): epoch for name, epoch in (leader_epochs or {}).items()}
        assert len(offsets) == len(self.offsets), f"a partition is given twice: {list(offsets)}"

    @property
    def token(self) -> str:
        """The positions as a text of letters, digits and "-_.", for a header or a command line. `of_token` reads it."""
        ends = source_pb2.PositionToken()
        for name, offset in self.offsets.items():
            topic, partition = partition_name(name)
            end = ends.ends.add(offset=offset, leader_epoch=self.leader_epochs.get(name))
            end.topic_partition.topic = topic
            end.topic_partition.partition = partition
        packed = base64.urlsafe_b64encode(ends.SerializeToString(deterministic=True))
        return FORM + packed.decode("ascii").rstrip("=")

    @classmethod
    def of_token(cls, token: str) -> Positions:
        """Parse the text of `token`. Raises InvalidRequest if it is invalid."""
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise InvalidRequest("token", f"{len(token)} characters; at most {TOKEN_CHARACTERS_MAX}")
        form, packed = token[: len(FORM)], token[len(FORM) :]
        if form != FORM:
            raise InvalidRequest("token", f"{token[:40]!r} is not a position token: it does not begin with {FORM}")
        ends = source_pb2.PositionToken()
        try:
            content = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
            ends.ParseFromString(content)
        except (ValueError, binascii.Error, DecodeError) as error:
            raise InvalidRequest("token", f"{token[:40]!r} is not a position token: {error}") from error
        return cls.of_ends(ends.ends)

    @classmethod
    def of_ends(cls, ends: Iterable[source_pb2.PartitionEnd]) -> Positions:
        """Convert the wire message."""
        offsets: dict[Name, int] = {}
        leader_epochs: dict[Name, int] = {}
        for end in ends:
            name: PartitionName = (end.topic_partition.topic, end.topic_partition.partition)
            offsets[name] = end.offset
            if end.HasField("leader_epoch"):
                leader_epochs[name] = end.leader_epoch
        return cls(offsets, leader_epochs)

    def wait(self, *, timeout: float | None = None, fail_when_stale: float | None = None) -> Wait:
        """A wait that is satisfied once all offsets are reached. The arguments are those of `waits.produce`.

        Raises:
            InvalidRequest: The offsets are empty. (`AsyncClient.wait_for` returns at once instead.)
        """
        return waits.produce(
            self.offsets, timeout=timeout, leader_epochs=self.leader_epochs, fail_when_stale=fail_when_stale
        )

    def __repr__(self) -> str:
        return f"Positions({self.offsets!r}, {self.leader_epochs!r})"


def _text(name: Name) -> str:
    return format_partition(*partition_name(name))
