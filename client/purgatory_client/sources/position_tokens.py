"""Position tokens: the ends of logs as offsets with leader epochs, in one text that can be waited for.

Positions can be compared and merged, also across clusters: each name begins with the label of its cluster.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.message import DecodeError

from purgatory.v1 import source_pb2
from purgatory_client import waits
from purgatory_client.argument_checks import checked_type
from purgatory_client.errors import InvalidRequest
from purgatory_client.partition_names import PartitionName, format_partition, partition_name
from purgatory_client.waits import ByPartition, Name, Wait

_PLAIN: Final = "at1."
_COMPRESSED: Final = "at2."
FORMS: Final = (_PLAIN, _COMPRESSED)
"""The beginnings of tokens. Names repeat, so 64 partitions are five times shorter compressed; one position is not."""
_TOKEN_CHARACTERS_MAX: Final = 1_000_000
_EXPANSION_MAX: Final = 64
"""A compressed token may expand to this many times its size. Names of real tokens that only differ in the partition
number expand about 20 times; much more is an attack on the memory of the reader."""
_POSITION_BYTES_MAX: Final = 1_100
"""Bytes of one position before compression: a topic of 249 characters of up to 4 bytes, and its numbers."""


class Positions:
    """Offsets to wait for, each with the leader epoch of the history that it was read from.

    Without any offsets (the topics are empty, or all their records were deleted) there is nothing to wait for.

    `a <= b` means that a is reached whenever b is. It is a partial order: of two positions on different marks, or in
    different histories (epochs) of one mark, neither includes the other.

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
        if len(offsets) != len(self.offsets):  # in a token: ("pg/a", 1) and ("pg/a-1", 0)
            raise InvalidRequest("offsets", f"a partition is given twice: {list(offsets)}")

    @property
    def token(self) -> str:
        """The positions as a text of letters, digits and "-_.", for a header or a command line. `of_token` reads it."""
        ends = source_pb2.PositionToken()
        for name, offset in self.offsets.items():
            topic, partition = partition_name(name)
            end = ends.ends.add(offset=offset, leader_epoch=self.leader_epochs.get(name))
            end.topic_partition.topic = topic
            end.topic_partition.partition = partition
        plain = ends.SerializeToString(deterministic=True)
        compressed = zlib.compress(plain, 9, wbits=-zlib.MAX_WBITS)
        form, content = (_COMPRESSED, compressed) if len(compressed) < len(plain) else (_PLAIN, plain)
        return form + base64.urlsafe_b64encode(content).decode("ascii").rstrip("=")

    @classmethod
    def of_token(cls, token: str, *, positions_max: int = _TOKEN_CHARACTERS_MAX) -> "Positions":
        """Parse the text of `token`. Raises InvalidRequest for nonsense, or more positions than `positions_max`."""
        if len(token) > _TOKEN_CHARACTERS_MAX:
            raise InvalidRequest("token", f"{len(token)} characters; at most {_TOKEN_CHARACTERS_MAX}")
        form, packed = token[: len(_PLAIN)], token[len(_PLAIN) :]
        if form not in FORMS:
            if re.match(r"at\d+\.", token):
                raise InvalidRequest("token", f"{token[:40]!r} was made by a newer version: upgrade this program")
            raise InvalidRequest("token", f"{token[:40]!r} is not a position token: it does not begin with {_PLAIN}")
        ends = source_pb2.PositionToken()
        try:
            content = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
            ends.ParseFromString(content if form == _PLAIN else _expanded(content, positions_max * _POSITION_BYTES_MAX))
        except (ValueError, binascii.Error, zlib.error, DecodeError) as error:
            raise InvalidRequest("token", f"{token[:40]!r} is not a position token: {error}") from error
        if len(ends.ends) > positions_max:
            raise InvalidRequest("token", f"{len(ends.ends)} positions; at most {positions_max}")
        return cls.of_ends(ends.ends)

    @classmethod
    def of_ends(cls, ends: Iterable[source_pb2.PartitionEnd]) -> "Positions":
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

    def merge(self, other: "Positions") -> "Positions":
        """The positions of both, so that one wait stands for two.

        If both have a position of the same mark, the higher offset counts. If their epochs differ, the one with the
        newer epoch counts, because the history of the other has ended.
        """
        offsets, epochs = dict(self.offsets), dict(self.leader_epochs)
        for name, offset in other.offsets.items():
            epoch, own = other.leader_epochs.get(name), epochs.get(name)
            if name in offsets and epoch is not None and own is not None and epoch != own:
                offsets[name], epochs[name] = (offset, epoch) if epoch > own else (offsets[name], own)
                continue
            offsets[name] = max(offset, offsets.get(name, offset))
            if epoch is not None:
                epochs[name] = epoch
        return Positions(offsets, epochs)

    def select(self, is_wanted: Callable[[str], bool]) -> "Positions":
        """The positions whose names ("kafka/billing/orders-3") a function accepts."""
        names = [name for name in self.offsets if is_wanted(name)]
        epochs = {name: self.leader_epochs[name] for name in names if name in self.leader_epochs}
        return Positions({name: self.offsets[name] for name in names}, epochs)

    def __le__(self, other: "Positions") -> bool:
        return all(
            name in other.offsets
            and offset <= other.offsets[name]
            and self.leader_epochs.get(name) in {None, other.leader_epochs.get(name)}
            for name, offset in self.offsets.items()
        )

    def __lt__(self, other: "Positions") -> bool:
        return self <= other and self != other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Positions):
            return NotImplemented
        return self.offsets == other.offsets and self.leader_epochs == other.leader_epochs

    def __hash__(self) -> int:
        return hash((frozenset(self.offsets.items()), frozenset(self.leader_epochs.items())))

    def __repr__(self) -> str:
        return f"Positions({self.offsets!r}, {self.leader_epochs!r})"


def _expanded(content: bytes, bytes_max: int) -> bytes:
    """Raises ValueError if the content is cut off or expands to too much."""
    expander = zlib.decompressobj(-zlib.MAX_WBITS)
    plain = expander.decompress(content, min(_EXPANSION_MAX * len(content), bytes_max))
    if not expander.eof or expander.unused_data:
        raise ValueError("its compressed content is too long or incomplete")
    return plain


def _text(name: Name) -> str:
    return format_partition(*partition_name(name))


def positions_of(given: object) -> Positions:
    """Return positions, decoded if they are a token. Raises InvalidRequest for anything else."""
    if isinstance(given, str):
        return Positions.of_token(given)
    remedy = "give the result of `ends` or a token, or call `produce` with offsets"
    return checked_type(given, Positions, "positions", remedy)
