"""Messages generated from their descriptors: every field of every message, absent, plausible or hostile.

Messages and fields are named here only if they need plausible values; a new field is fuzzed automatically.
"""

import random
from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor, OneofDescriptor
from google.protobuf.message import Message

from tests.abuse.requests.hostile_values import INTEGER_RANGES, hostile_value
from tests.abuse.requests.plausible import PlausibleValues

M = TypeVar("M", bound=Message)

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


class FieldLayout:
    """The fields of a message type, read from its descriptor once."""

    def __init__(self, descriptor: Any) -> None:  # noqa: ANN401 - upb's descriptors have no common type with the stubs'
        self.single: Final = [
            field for field in descriptor.fields if not in_real_oneof(field) and not field.is_repeated
        ]
        self.repeated: Final = [field for field in descriptor.fields if field.is_repeated]
        self.oneofs: Final = [list(oneof.fields) for oneof in descriptor.oneofs if is_real(oneof)]


def is_real(oneof: OneofDescriptor) -> bool:
    """False for the oneof that protoc creates for an `optional` field."""
    return not oneof.name.startswith("_")


def in_real_oneof(field: FieldDescriptor) -> bool:
    """Whether the field is part of a oneof with alternatives."""
    return field.containing_oneof is not None and is_real(field.containing_oneof)


class MessageMaker:
    def __init__(self, world: PlausibleValues) -> None:
        self.world: Final = world
        self.rng: Final[random.Random] = world.rng
        self._pick: Final = world.pick
        self._plans: Final[dict[str, FieldLayout]] = {}
        self._plausible: Final[dict[str, Callable[[], object]]] = {
            "topic": world.topic,
            "partition": world.partition,
            "key": world.key,
            "keys": world.key,
            "session_id": world.session_id,
            "operation_id": world.operation_id,
            "operation_ids": world.used_operation_id,
            "GetOperationRequest.operation_id": world.used_operation_id,
            "timeout_ms": world.timeout_ms,
            "offset": world.offset,
            "required_offset": world.offset,
            "fetch_offset": world.offset,
            "log_end_offset": world.offset,
            "epoch_start_offset": world.offset,
            "log_start_offset": lambda: max(0, world.front - 12),
            "LogStartOffset.offset": lambda: max(0, world.front - 12),
            "sequence": world.sequence,
            "last_sequence": world.sequence,
            "page_token": world.page_token,
            "page_size": lambda: self._pick((0, 1, 2, 7, 1_000)),
            "topic_prefix": lambda: self._pick(("", "topic-", "t")),
        }

    def message(self, cls: type[M]) -> M:
        """A new message with all fields drawn."""
        self.world.next_message()
        made = cls()
        self._fill(made, 0)
        return made

    def _fill(self, message: Message, depth: int) -> None:
        descriptor = message.DESCRIPTOR
        if descriptor.name.endswith("Columns"):
            self._fill_columns(message)
            return
        plan = self._plans.get(descriptor.full_name)
        if plan is None:
            plan = self._plans[descriptor.full_name] = FieldLayout(descriptor)
        for fields in plan.oneofs:
            if not self.world.hostile():
                self._set(message, self._pick(fields), depth)
        for field in plan.single:
            self._maybe_set(message, field, depth)
        for field in plan.repeated:
            self._repeat(message, field, depth)

    def _maybe_set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        """Set a field, or omit it."""
        if self.world.hostile():
            if self.rng.random() < 0.7:
                self._set(message, field, depth, hostile=True)
            return
        if message.DESCRIPTOR.name == "CancelRequest" and self.rng.random() < 0.7:
            return
        optional = field.has_presence and field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE
        filter_field = message.DESCRIPTOR.name.startswith("List") and not field.name.startswith("page")
        if (optional or filter_field) and self.rng.random() < 0.6:
            return
        self._set(message, field, depth)

    def _set(self, message: Message, field: FieldDescriptor, depth: int, *, hostile: bool = False) -> None:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            inner = getattr(message, field.name)
            inner.SetInParent()
            if depth < DEPTH_MAX and not (hostile and self.rng.random() < 0.5):
                self._fill(inner, depth + 1)
        else:
            setattr(message, field.name, self._value(message, field, hostile=hostile or self.world.hostile()))

    def _value(self, message: Message, field: FieldDescriptor, *, hostile: bool = False) -> Any:  # noqa: ANN401
        if hostile:
            return hostile_value(self.rng, field)
        name = field.name
        plausible = self._plausible.get(f"{message.DESCRIPTOR.name}.{name}") or self._plausible.get(name)
        if plausible is not None:
            return plausible()
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return self.rng.random() < 0.3
        if field.enum_type is not None:
            return self._pick(field.enum_type.values).number
        if name.endswith("error_code"):
            return self._pick((0, 0, 0, 0, 3, 7))
        if name.endswith("epoch"):
            return self._pick((0, 1, 1, 2, self.world.era))
        if name.endswith("bytes"):
            return self._pick((1, 2, 50, 10_000))
        if field.cpp_type in INTEGER_RANGES:
            return self._pick((1, 1, 2, 3, 4))
        return hostile_value(self.rng, field)

    def _repeat(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        count = self._pick(BATCH_SIZES if field.name in {"operations", "events"} else REPEATS)
        if message.DESCRIPTOR.name == "CancelRequest" and self.rng.random() < 0.7:
            count = 0
        if self.world.hostile():
            count = self._pick((0, 0, self._pick(MANY)))
        items = getattr(message, field.name)
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            many = count > max(REPEATS)
            values = [self._value(message, field, hostile=self.world.hostile()) for _ in range(1 if many else count)]
            longest = max((len(value) for value in values if isinstance(value, str)), default=1)
            items.extend(values * min(count, REPEATED_BYTES_MAX // max(1, longest)) if many else values)
            return
        for _ in range(min(count, 20)):
            self._fill(items.add(), depth + 1)
        if items and (count > 20 or self.world.hostile()):
            repeated = items[0]
            items.extend([repeated] * min(count, 2_500, REPEATED_BYTES_MAX // (1 + repeated.ByteSize())))

    # Columns.

    def _fill_columns(self, message: Message) -> None:
        """Columns of matching lengths, except for an occasional hostile one."""
        rows = self._pick(BATCH_SIZES) * self._pick((1, 1, 1, 1, 1, 1, 1, 10))
        if self.world.hostile():
            rows = self._pick((0, 1, *MANY))
        names = self._pick((1, 2, 4))
        counts = [self._pick((1, 1, 2, names)) for _ in range(rows)]
        is_operations = any(field.name == "item_count" for field in message.DESCRIPTOR.fields)
        with_counts = is_operations and self.rng.random() < 0.5
        items = sum(counts) if with_counts else rows
        fields: list[Any] = list(message.DESCRIPTOR.fields)
        for field in fields:
            name = field.name
            if not field.is_repeated:
                self._set(message, field, 0)
            elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE or name == "keys":
                self._fill_dictionary(message, field, names)
            elif name == "item_count" and with_counts and not self.world.hostile():
                message_list(message, name).extend(counts)
            elif name != "item_count" or self.world.hostile():
                per_item = is_operations and name not in PER_OPERATION
                self._fill_column(message, field, items if per_item else rows, names)

    def _fill_dictionary(self, message: Message, field: FieldDescriptor, names: int) -> None:
        items = message_list(message, field.name)
        for place in range(0 if self.world.hostile() else names):
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                self._fill(items.add(), 1)
                if not self.world.hostile():
                    items[-1].partition = place
            else:
                items.append(self._value(message, field, hostile=self.world.hostile()))

    def _fill_column(self, message: Message, field: FieldDescriptor, length: int, names: int) -> None:
        name = field.name
        if self.world.hostile():
            length = self._pick((0, 1, length + 1, max(0, length - 1), length * 2, 2))
        elif name not in {"operation_id", "type", "item_index", "offset"}:
            length = self._pick((0, 0, 1, length))
        distinct = min(length, 200)
        if name == "item_index" and not self.world.hostile():
            values: list[Any] = [place % names for place in range(length)]
        else:
            values = [self._value(message, field, hostile=self.world.hostile()) for _ in range(distinct)]
            values += [values[-1]] * (length - distinct) if values else []
        if name == "operation_id" and len(values) > distinct:
            values = [self.world.operation_id() for _ in values]
        message_list(message, name).extend(values)


def message_list(message: Message, name: str) -> Any:  # noqa: ANN401 - repeated containers have no common type
    return getattr(message, name)
