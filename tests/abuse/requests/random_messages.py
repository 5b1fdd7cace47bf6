"""Random messages, generated from their descriptors: each field of each message is absent, plausible or hostile.

Plausible values are names in use, rising ids, and sequence numbers and page tokens from the daemon: with them requests
pass the first checks and reach deep states. Hostile values are allowed by the type of a field, and sent by no client.
"""

import random
from collections import deque
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

M = TypeVar("M", bound=Message)

INTEGER_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
EDGES: Final = (0, 1, -1, 2, -2, 249, 250, 2**15, 2**16, 2**31 - 1, 2**31, 2**59, 2**61 - 1, 2**61, 2**62, 2**63 - 1)
TEXTS: Final = (
    *("", " ", "\0", "a\0b", "-", "\n\r\t", "../../../etc/passwd", "C:\\con", "%s%n%x{0}{}", "\u202eorders\u202c"),
    *("\u05e9\u05dc\u05d5\u05dd", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "e\u0301\u0323" * 40),
    *("\ufeff\ufffe\uffff", "\U0010ffff" * 249, "'; DROP TABLE waits; --", "<script>alert(1)</script>"),
    *("x" * 128, "x" * 129, "x" * 249, "x" * 250, "\u0130" * 249, "x" * 9_000, "\u20ac" * 70_000),
)
PLAUSIBLE: Final[dict[str, tuple[int | str, ...]]] = {
    "item_count": (1,),
    "partition": (0, 0, 0, 1, 2),
    "timeout_ms": (0, 1, 2, 5, 20, 50, 100, 300, 1_000, 5_000),
    "page_size": (0, 1, 2, 7, 1_000),
    "topic_prefix": ("", "topic-", "t"),
    "error_code": (0, 0, 0, 0, 3, 7),
    "epoch": (0, 1, 1, 2),
    "bytes": (1, 2, 50, 10_000),
}
"""Values of each field, by the end of its name. Other numbers are small."""
RARE: Final = {"callback_url": 0.9, "incarnation": 0.9}
"""Fields that get most requests refused: these daemons allow no callbacks, and no session has a random incarnation.
Optional fields and filters are absent in 0.6 of all messages.
"""
SPARSE: Final = ("Cancel", "List")
"""Requests whose fields are filters, or exclude each other."""
RENEWED_EACH: Final = 3_000
"""Messages after which topics and sessions are renamed, so that an extreme mark does not block the whole run."""
NEEDED: Final = {"operation_id", "type", "item_index", "offset", "keys"}
"""Columns with a value for each row, or for each key. Others may be absent, or have one value for all."""
BATCH_SIZES: Final = (1, 1, 2, 2, 3, 5, 20)
ITEM_COUNTS: Final = (1, 1, 1, 1, 2, 3)
DISTINCT_MAX: Final = 20
MANY: Final = (100, 2_001, 9_000)
REPEATED_BYTES_MAX: Final = 200_000
"""Repetition stops at this size; gRPC limits the size of a message."""


def in_real_oneof(field: FieldDescriptor) -> bool:
    """Whether the field is an alternative: protoc also creates a oneof for each `optional` field."""
    return field.containing_oneof is not None and not field.containing_oneof.name.startswith("_")


class RandomMessages:
    """One instance per run; all chance comes from `rng`."""

    def __init__(self, seed: int) -> None:
        self.rng: Final = random.Random(seed)
        self.sequences: Final[dict[str, int]] = {}
        """The last sequence number of each session."""
        self._partitions: Final[deque[operation_pb2.TopicPartition]] = deque(maxlen=2_000)
        """Partitions that were listed."""
        self._tokens: Final[deque[str]] = deque([""], maxlen=50)
        self._made = 0
        self._last_id = 0
        self._front = 10
        self._wildness = 0.0

    def message(self, cls: type[M]) -> M:
        """A new message with all fields drawn. The probability of hostile values is drawn for each message."""
        self._made += 1
        self._wildness = self.rng.choice((0.0, 0.0, 0.0, 0.01, 0.05, 0.3))
        self._front += self._happens(0.05)
        made = cls()
        self._fill(made)
        if isinstance(made, wire.AdvanceRequest) and self._happens(0.1):  # or every request would fail at their limit
            removed = event_pb2.PartitionRemoved()
            events = [event_pb2.Event(topic_partition=name, partition_removed=removed) for name in self._partitions]
            made.Clear()
            made.rows.events.extend(events)
            self._partitions.clear()
        return made

    def session_id(self) -> str:
        return f"session-{self._era}-{self.rng.randrange(4)}"

    def learn_from(self, answer: Message, session_id: str = "") -> None:
        """Remember values that later requests can use."""
        if isinstance(answer, wire.ListOperationsResponse | wire.ListPartitionsResponse):
            self._tokens.append(answer.next_page_token)
        if isinstance(answer, wire.ListPartitionsResponse):
            self._partitions.extend(partition.topic_partition for partition in answer.partitions)
        if isinstance(answer, wire.SessionResponse | wire.StreamResultsResponse) and answer.HasField("results"):
            results = answer.results
            count = len(results.columns.operation_id) + len(results.rows.results)
            self.sequences[session_id] = results.first_sequence + count - 1

    # Values.

    @property
    def _era(self) -> int:
        return self._made // RENEWED_EACH

    def _happens(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _is_hostile(self) -> bool:
        return self._happens(self._wildness)

    def _value(self, field: FieldDescriptor) -> Any:  # noqa: ANN401 - of the field's type
        if self._is_hostile():
            return self._hostile_value(field)
        name, rng = field.name, self.rng
        if name == "operation_id" and "GetOperation" not in field.full_name and not self._happens(0.04):
            self._last_id += 1
            return self._last_id
        if name in {"operation_id", "operation_ids"}:
            return max(1, self._last_id - rng.randrange(20))
        if name in {"topic", "key", "keys"}:
            return f"{name[:5]}-{self._era}-{rng.randrange(5)}"
        if name == "session_id":
            return self.session_id()
        if name.endswith("sequence"):
            return max(0, self.sequences.get(self.session_id(), 0) + rng.choice((0, 0, 0, 0, -1, -3, 1)))
        if name == "page_token":
            return rng.choice(self._tokens)
        if name.endswith("offset"):
            return max(0, self._front + rng.randrange(-12, 0 if "start" in name else 12))
        for end, values in PLAUSIBLE.items():
            if name.endswith(end):
                return rng.choice(values)
        if field.enum_type is not None:
            return rng.choice(field.enum_type.values).number
        return rng.choice((0, 1, 1, 2, 3, 4)) if field.cpp_type in INTEGER_RANGES else self._hostile_value(field)

    def _hostile_value(self, field: FieldDescriptor) -> object:
        """A value near a limit of its type or of the engine's arithmetic, or text that often breaks programs."""
        rng = self.rng
        if field.cpp_type in INTEGER_RANGES:
            low, high = INTEGER_RANGES[field.cpp_type]
            return rng.choice((low, high, low + 1, high - 1, min(max(rng.choice(EDGES), low), high)))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice(TEXTS).encode()
        return rng.choice(TEXTS) if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else self._happens(0.3)

    # Messages.

    def _fill(self, message: Message) -> None:
        if message.DESCRIPTOR.name.endswith("Columns"):
            self._fill_columns(message)
            return
        descriptor: Any = message.DESCRIPTOR  # upb's types are not the stubs'
        for oneof in descriptor.oneofs:
            if in_real_oneof(oneof.fields[0]) and not self._is_hostile():
                self._set(message, self.rng.choice(oneof.fields))
        for field in descriptor.fields:
            if not in_real_oneof(field) and not self._is_absent(message, field):
                self._set(message, field)

    def _is_absent(self, message: Message, field: FieldDescriptor) -> bool:
        is_sparse = message.DESCRIPTOR.name.startswith(SPARSE) and not field.name.startswith("page")
        is_optional = field.has_presence and field.message_type is None
        usual = 0.6 if is_sparse or is_optional else 0.0
        return self._happens(RARE.get(field.name, usual)) or self._is_hostile()

    def _set(self, message: Message, field: FieldDescriptor) -> None:
        if field.is_repeated:
            self._repeat(message, field)
        elif field.message_type is None:
            setattr(message, field.name, self._value(field))
        else:
            inner = getattr(message, field.name)
            inner.SetInParent()
            self._fill(inner)

    def _repeat(self, message: Message, field: FieldDescriptor) -> None:
        """A few items; if there are thousands, most of them repeat the first one."""
        usual = BATCH_SIZES if field.name in {"operations", "events"} else ITEM_COUNTS
        count = self.rng.choice(MANY if self._is_hostile() else usual)
        items = getattr(message, field.name)
        for _ in range(min(count, DISTINCT_MAX)):
            if field.message_type is None:
                items.append(self._value(field))
            else:
                self._fill(items.add())
        size = len(str(items[0])) if field.message_type is None else items[0].ByteSize()
        items.extend([items[0]] * min(count - len(items), REPEATED_BYTES_MAX // (1 + size)))

    def _fill_columns(self, message: Message) -> None:
        """Columns of matching lengths, except for an occasional hostile one; each operation has one item."""
        rng, fields = self.rng, cast(Any, message.DESCRIPTOR.fields)
        rows = rng.choice(MANY) if self._is_hostile() else rng.choice(BATCH_SIZES) * rng.choice((1, 1, 1, 1, 1, 1, 10))
        names = rng.choice((1, 2, 4))
        for field in fields:
            values: Any = getattr(message, field.name)
            if not field.is_repeated:
                self._set(message, field)
            elif field.message_type is not None:
                for place in range(0 if self._is_hostile() else names):
                    self._fill(values.add())
                    values[-1].partition = place
            elif field.name == "item_index" and not self._is_hostile():
                values.extend(place % names for place in range(rows))
            else:
                values.extend(self._column(field, names if field.name == "keys" else rows))

    def _column(self, field: FieldDescriptor, length: int) -> list[Any]:
        if field.name not in NEEDED:
            length = self.rng.choice((0, 0, 1, length))
        if self._is_hostile():
            length = self.rng.choice((0, 1, 2, length + 1, max(0, length - 1), length * 2))
        distinct = length if field.name == "operation_id" else min(length, 10 * DISTINCT_MAX)
        values = [self._value(field) for _ in range(distinct)]
        return values + values[-1:] * (length - distinct)


def broken_bytes(rng: random.Random, data: bytes) -> bytes:
    """A message's bytes with some of them removed, changed, duplicated or inserted."""
    broken = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(broken) + 1)
        after = place + rng.choice((1, 2, 8, len(broken)))
        copied = bytes(broken[place : place + 20_000])
        put = rng.choice((b"", rng.randbytes(1), rng.randbytes(40), b"\xff" * 11, copied))
        broken[place : rng.choice((place, after))] = put
    return bytes(broken)
