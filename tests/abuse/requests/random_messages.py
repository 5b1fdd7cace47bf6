"""Random messages, generated from their descriptors: each field of each message is absent, plausible or hostile.

Plausible values are names in use, rising ids, and sequence numbers and page tokens from the daemon: with them requests
pass the first checks and reach deep states. Hostile values are allowed by the type of a field, and sent by no client.
"""

import base64
import functools
import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from purgatory.v1 import purgatory_service_pb2 as wire

M = TypeVar("M", bound=Message)
T = TypeVar("T")

INTEGER_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
EDGES: Final = (0, 1, -1, 2, -2, 249, 250, 2**15, 2**16, 2**31 - 1, 2**31, 2**59, 2**61 - 1, 2**61, 2**62, 2**63 - 1)
FLOATS: Final = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e308, 5e-324)
TEXTS: Final = (
    *("", " ", "\0", "a\0b", "-", "\n\r\t", "../../../etc/passwd", "C:\\con", "%s%n%x{0}{}", "\u202eorders\u202c"),
    *("\u05e9\u05dc\u05d5\u05dd", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "e\u0301\u0323" * 40),
    *("\ufeff\ufffe\uffff", "\U0010ffff" * 249, "'; DROP TABLE waits; --", "<script>alert(1)</script>"),
    *("x" * 128, "x" * 129, "x" * 249, "x" * 250, "\u0130" * 249),
)
CODE_POINTS: Final = ((0, 0xD800), (0xE000, 0x110000))
LONG_LENGTHS: Final = (1_000, 5_000, 9_000, 17_000, 70_000)
FORGED: Final[tuple[Any, ...]] = (
    *(-1, 0, 2**31, 2**61, 2**63, 2**64, 10**300, True, 1.5),
    *("x", "\ud800", "1", None, [], {}, [1]),
)
"""Parts of a page token that no daemon has written."""

RENEWED_EACH: Final = 3_000
"""Messages after which topics and sessions are renamed, so that an extreme mark does not block the whole run."""
DEPTH_MAX: Final = 12
PER_OPERATION: Final = frozenset(
    {"operation_id", "timeout_ms", "item_count", "min_bytes", "isolation_level", "follower_reads", "any", "from_now"}
)
"""Columns with one value per operation; the other columns of OperationColumns have one per item."""
REPEATS: Final = (1, 1, 1, 1, 1, 2, 2, 3, 8)
BATCH_SIZES: Final = (1, 1, 2, 2, 3, 5, 20)
MANY: Final = (100, 2_001, 9_000)
REPEATED_BYTES_MAX: Final = 200_000
"""Repetition stops at this size; gRPC limits the size of a message."""


def in_real_oneof(field: FieldDescriptor) -> bool:
    """Whether the field is an alternative: protoc also creates a oneof for each `optional` field."""
    return field.containing_oneof is not None and not field.containing_oneof.name.startswith("_")


@functools.cache
def layout_of(descriptor: Any) -> tuple[list[Any], list[list[Any]]]:  # noqa: ANN401 - upb's type is not the stubs'
    """The fields of a message that are no alternatives, and the alternatives of each of its oneofs."""
    oneofs = [list(oneof.fields) for oneof in descriptor.oneofs if not oneof.name.startswith("_")]
    return [field for field in descriptor.fields if not in_real_oneof(field)], oneofs


class RandomMessages:
    """One instance per run; all chance comes from `rng`."""

    def __init__(self, seed: int) -> None:
        self.rng: Final = random.Random(seed)
        self.sequences: Final[dict[str, int]] = {}
        """The last sequence number of each session."""
        self.pending: Final[deque[tuple[str, int]]] = deque(maxlen=200)
        """Sessions and ids of operations that were listed."""
        self.partitions: Final[deque[Any]] = deque(maxlen=2_000)
        """Partitions that were listed."""
        self._random: Final = self.rng.random
        self._tokens: Final[deque[str]] = deque(maxlen=50)
        self._made = 0
        self._last_id = 0
        self._front = 10
        self._wildness = 0.0
        low = lambda: max(0, self._front - 12)  # noqa: E731 - as the others
        used_id = lambda: max(1, self._last_id - self.rng.randrange(60))  # noqa: E731 - as the others
        self._plausible: Final[dict[str, Callable[[], object]]] = {
            "topic": lambda: f"topic-{self._era}-{self.rng.randrange(4)}",
            "partition": lambda: self.pick((0, 0, 0, 1, 2)),
            **dict.fromkeys(("key", "keys"), lambda: f"key-{self._era}-{self.rng.randrange(6)}"),
            "session_id": self.session_id,
            "operation_id": self._operation_id,
            **dict.fromkeys(("operation_ids", "GetOperationRequest.operation_id"), used_id),
            "timeout_ms": lambda: self.pick((0, 1, 2, 5, 20, 50, 100, 300, 1_000, 5_000)),
            **dict.fromkeys(
                ("offset", "required_offset", "fetch_offset", "log_end_offset", "epoch_start_offset"),
                lambda: max(0, self._front + self.rng.randrange(-8, 12)),
            ),
            **dict.fromkeys(("log_start_offset", "LogStartOffset.offset"), low),
            **dict.fromkeys(("sequence", "last_sequence"), self.sequence),
            "page_token": self._page_token,
            "page_size": lambda: self.pick((0, 1, 2, 7, 1_000)),
            "topic_prefix": lambda: self.pick(("", "topic-", "t")),
        }

    def message(self, cls: type[M]) -> M:
        """A new message with all fields drawn. The probability of hostile values is drawn for each message."""
        self._made += 1
        self._wildness = self.pick((0.0, 0.0, 0.0, 0.01, 0.05, 0.3))
        self._front += self._random() < 0.05
        made = cls()
        self._fill(made, 0)
        return made

    def pick(self, some: Sequence[T]) -> T:
        """A random element; three times as fast as `choice`, which would dominate the time for generating messages."""
        return some[int(self._random() * len(some))]

    def session_id(self) -> str:
        return f"session-{self._era}-{self.rng.randrange(8)}"

    def sequence(self) -> int:
        """A sequence number of some session, or one near it."""
        return max(0, self.sequences.get(self.session_id(), 0) + self.pick((0, 0, 0, 0, -1, -3, 1)))

    def learn_from(self, answer: Message, session_id: str = "") -> None:
        """Remember values that later requests can use."""
        if isinstance(answer, wire.ListOperationsResponse | wire.ListPartitionsResponse) and answer.next_page_token:
            self._tokens.append(answer.next_page_token)
        if isinstance(answer, wire.ListOperationsResponse):
            self.pending.extend((found.session_id, found.operation_id) for found in answer.operations)
        if isinstance(answer, wire.ListPartitionsResponse):
            self.partitions.extend(partition.topic_partition for partition in answer.partitions)
        if isinstance(answer, wire.SessionResponse | wire.StreamResultsResponse) and answer.HasField("results"):
            results = answer.results
            count = len(results.columns.operation_id) if results.HasField("columns") else len(results.rows.results)
            if len(self.sequences) > 500:
                self.sequences.clear()
            self.sequences[session_id] = results.first_sequence + count - 1

    # Values.

    @property
    def _era(self) -> int:
        return self._made // RENEWED_EACH

    def _is_hostile(self) -> bool:
        return self._wildness > 0 and self._random() < self._wildness

    def _operation_id(self) -> int:
        """Usually a new id, otherwise one that was used."""
        if self._random() < 0.04:
            return max(1, self._last_id - self.rng.randrange(200))
        self._last_id += 1
        return self._last_id

    def _page_token(self) -> str:
        """No token; or one from the daemon, unchanged or with another position."""
        drawn = self._random()
        if drawn < 0.4 or not self._tokens:
            return ""
        token = self.pick(self._tokens)
        if drawn < 0.8:
            return token
        try:
            parts = json.loads(base64.urlsafe_b64decode(token))
        except ValueError:
            return token[: len(token) // 2]
        parts[self.rng.randrange(len(parts))] = self.pick(FORGED)
        nested = "[" * self.pick((100, 5_000, 100_000))
        text = nested if self._random() < 0.1 else json.dumps(parts[: self.pick((1, 2, 3, 3))])
        return base64.urlsafe_b64encode(text.encode()).decode()

    def _value(self, message: Message, field: FieldDescriptor, *, hostile: bool = False) -> Any:  # noqa: ANN401
        if hostile or self._is_hostile():
            return self._hostile_value(field)
        name = field.name
        plausible = self._plausible.get(f"{message.DESCRIPTOR.name}.{name}") or self._plausible.get(name)
        if plausible is not None:
            return plausible()
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return self._random() < 0.3
        if field.enum_type is not None:
            return self.pick(field.enum_type.values).number
        if name.endswith("error_code"):
            return self.pick((0, 0, 0, 0, 3, 7))
        if name.endswith("epoch"):
            return self.pick((0, 1, 1, 2, self._era))
        if name.endswith("bytes"):
            return self.pick((1, 2, 50, 10_000))
        return self.pick((1, 1, 2, 3, 4)) if field.cpp_type in INTEGER_RANGES else self._hostile_value(field)

    def _hostile_value(self, field: FieldDescriptor) -> object:
        """A value near a limit of its type or of the engine's arithmetic, or text that often breaks programs."""
        rng, drawn = self.rng, self._random()
        if field.cpp_type in INTEGER_RANGES:
            low, high = INTEGER_RANGES[field.cpp_type]
            if drawn < 0.2:
                return rng.choice((low, high, low + 1, high - 1))
            return min(max(rng.choice(EDGES), low), high) if drawn < 0.9 else rng.randint(low, high)
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            text = rng.choice(TEXTS)
            if drawn >= 0.95:
                text = "".join(chr(rng.randrange(*rng.choice(CODE_POINTS))) for _ in range(20))
            elif drawn >= 0.9:
                text = rng.choice("xé\u20ac\U0001f480\0") * rng.choice(LONG_LENGTHS)
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        return drawn < 0.5 if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else rng.choice(FLOATS)

    # Rows.

    def _fill(self, message: Message, depth: int) -> None:
        if message.DESCRIPTOR.name.endswith("Columns"):
            self._fill_columns(message)
            return
        fields, oneofs = layout_of(message.DESCRIPTOR)
        for alternatives in oneofs:
            if not self._is_hostile():
                self._set(message, self.pick(alternatives), depth)
        for field in fields:
            if field.is_repeated:
                self._repeat(message, field, depth)
            elif self._is_hostile():
                if self._random() < 0.7:
                    self._set(message, field, depth, hostile=True)
            elif not self._is_left_out(message.DESCRIPTOR.name, field):
                self._set(message, field, depth)

    def _is_left_out(self, message: str, field: FieldDescriptor) -> bool:
        """Whether a field is absent: most of those that exclude each other, and of optional ones and filters."""
        if message == "CancelRequest":
            return self._random() < 0.7
        is_optional = field.has_presence and field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE
        is_filter = message.startswith("List") and not field.name.startswith("page")
        return (is_optional or is_filter) and self._random() < 0.6

    def _set(self, message: Message, field: FieldDescriptor, depth: int, *, hostile: bool = False) -> None:
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            setattr(message, field.name, self._value(message, field, hostile=hostile))
            return
        inner = getattr(message, field.name)
        inner.SetInParent()
        if depth < DEPTH_MAX and not (hostile and self._random() < 0.5):
            self._fill(inner, depth + 1)

    def _repeat(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        count = self.pick(BATCH_SIZES if field.name in {"operations", "events"} else REPEATS)
        if message.DESCRIPTOR.name == "CancelRequest" and self._random() < 0.7:
            count = 0
        if self._is_hostile():
            count = self.pick((0, 0, self.pick(MANY)))
        items = getattr(message, field.name)
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            many = count > max(REPEATS)
            values = [self._value(message, field) for _ in range(1 if many else count)]
            longest = max((len(value) for value in values if isinstance(value, str)), default=1)
            items.extend(values * min(count, REPEATED_BYTES_MAX // max(1, longest)) if many else values)
            return
        for _ in range(min(count, 20)):
            self._fill(items.add(), depth + 1)
        if items and (count > 20 or self._is_hostile()):
            repeated = items[0]
            items.extend([repeated] * min(count, 2_500, REPEATED_BYTES_MAX // (1 + repeated.ByteSize())))

    # Columns.

    def _fill_columns(self, message: Message) -> None:
        """Columns of matching lengths, except for an occasional hostile one."""
        fields: list[Any] = list(message.DESCRIPTOR.fields)
        rows = self.pick(BATCH_SIZES) * self.pick((1, 1, 1, 1, 1, 1, 1, 10))
        if self._is_hostile():
            rows = self.pick((0, 1, *MANY))
        names = self.pick((1, 2, 4))
        counts = [self.pick((1, 1, 2, names)) for _ in range(rows)]
        is_operations = any(field.name == "item_count" for field in fields)
        with_counts = is_operations and self._random() < 0.5
        items = sum(counts) if with_counts else rows
        for field in fields:
            name, values = field.name, getattr(message, field.name)
            if not field.is_repeated:
                self._set(message, field, 0)
            elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                for place in range(0 if self._is_hostile() else names):
                    self._fill(values.add(), 1)
                    if not self._is_hostile():
                        values[-1].partition = place
            elif name == "keys":
                values.extend(self._value(message, field) for _ in range(0 if self._is_hostile() else names))
            elif name == "item_count" and with_counts and not self._is_hostile():
                values.extend(counts)
            elif name != "item_count" or self._is_hostile():
                per_item = is_operations and name not in PER_OPERATION
                values.extend(self._column(message, field, items if per_item else rows, names))

    def _column(self, message: Message, field: FieldDescriptor, length: int, names: int) -> list[Any]:
        name = field.name
        if self._is_hostile():
            length = self.pick((0, 1, length + 1, max(0, length - 1), length * 2, 2))
        elif name not in {"operation_id", "type", "item_index", "offset"}:
            length = self.pick((0, 0, 1, length))
        if name == "item_index" and not self._is_hostile():
            return [place % names for place in range(length)]
        distinct = min(length, 200)
        if name == "operation_id" and length > distinct:
            return [self._operation_id() for _ in range(length)]
        values = [self._value(message, field) for _ in range(distinct)]
        return values + values[-1:] * (length - distinct)


def broken_bytes(rng: random.Random, data: bytes) -> bytes:
    """A message's bytes with some of them removed, changed, duplicated or inserted."""
    broken = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        drawn, place = rng.random(), rng.randrange(len(broken) + 1)
        if drawn < 0.35 and broken:
            broken[place % len(broken)] = rng.randrange(256)
        elif drawn < 0.5:
            del broken[place:]
        elif drawn < 0.75:
            broken[place:place] = rng.choice(
                (rng.randbytes(rng.choice((1, 2, 9, 40))), b"\xff" * rng.choice((1, 5, 11)))
            )
        elif drawn < 0.85:
            del broken[place : place + rng.choice((1, 2, 8))]
        elif drawn < 0.95 and len(broken) < 20_000:
            broken += broken[place:]
        else:
            broken[:] = rng.randbytes(rng.choice((0, 1, 3, 50, 500)))
    return bytes(broken)
