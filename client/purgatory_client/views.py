"""The daemon's state as plain values made from wire messages: pending operations, partitions, status.

Offsets are -1 if unknown, durations are in seconds, times are aware datetimes in UTC.
"""

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import IntEnum
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import result_pb2, source_pb2, webhook_pb2
from purgatory_client.partition_names import format_partition
from purgatory_client.results import OperationKind, Outcome
from purgatory_client.sources.source_link import SourceState

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PendingItem:
    """One partition ("orders-3") or key of a pending operation. Error code 7: not reached yet.

    Attributes:
        estimated_remaining: Seconds until it is reached at the pace since registration. None: the mark does not move.
        pace_per_second: That pace. None as above.
        held_back_by: Why it has not been reached, as text for people. Only from `operation`.
    """

    name: str
    error_code: int
    required_offset: int
    reached_offset: int
    estimated_remaining: float | None = None
    pace_per_second: float | None = None
    held_back_by: str = ""


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """A pending operation. `session_id` is empty for unary waits; `min_bytes` is None unless it is a fetch.

    `required_terms` (how many terms must be true) and `unless_count` (the last so many items are the failure arm) are
    None unless it is a composite.
    """

    session_id: str
    operation_id: int
    kind: OperationKind
    registered_time: datetime
    deadline_time: datetime
    waited: float
    remaining: float
    items: list[PendingItem]
    min_bytes: int | None
    required_terms: int | None = None
    unless_count: int | None = None


class OperationOrder(IntEnum):
    """Sort orders of a listing."""

    LEAST_REMAINING = 1
    MOST_REMAINING = 2
    LONGEST_WAITED = 3
    SHORTEST_WAITED = 4


class RankedOperations(NamedTuple):
    """The first operations in an order, and the total number that match the filters."""

    operations: list[PendingOperation]
    matching: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as the leader sees it."""

    replica_id: int
    log_end_offset: int
    log_start_offset: int
    in_sync: bool
    dead: bool
    fenced: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its marks and replicas, and the number of watches on it.

    Attributes:
        stale_for: Seconds for which its mark has been stale. None: it is not stale, or no source ever fed it.
        stale_reason: Why, as text for people.
    """

    name: str
    topic: str
    partition: int
    leader_epoch: int
    is_leader: bool
    leader_id: int
    storage_failed: bool
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    low_watermark: int
    min_in_sync_replicas: int
    in_sync_replica_ids: list[int]
    replicas: list[Replica]
    watched: int
    unchanged_events: int
    stale_events: int
    stale_for: float | None = None
    stale_reason: str = ""


@dataclass(frozen=True, slots=True)
class KindStatus:
    """One kind's counts: registered = satisfied + failed + expired + cancelled + shutting_down + pending."""

    kind: OperationKind
    registered: int
    pending: int
    watched: int
    satisfied: int
    failed: int
    expired: int
    cancelled: int
    shutting_down: int


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source of marks, as the daemon sees it (docs/sources.md).

    Attributes:
        name: The name under which it attached.
        principal: The identity that runs it. Empty on a daemon without a policy.
        topic_prefixes: It feeds the partitions of all topics that start with one of these.
        attached: The number of its streams. 0: it is disconnected.
        state: "loading", "live", "behind", "held", "stale", "refused", "silent" or "detached".
        reason: Why, as text for people.
        state_for: Seconds since the state changed.
        stale_for: Seconds for which its longest stale mark has been stale. None: no mark is stale.
        stale_partitions: The number of known partitions that it feeds and whose marks are stale.
        lag: Seconds by which its reports lag behind the system it reads from.
        restarts: How often the daemon has restarted it. None: the daemon does not run it.
    """

    name: str
    principal: str
    topic_prefixes: list[str]
    attached: int
    state: str
    reason: str
    state_for: float
    stale_for: float | None
    stale_partitions: int
    lag: float
    restarts: int | None


@dataclass(frozen=True, slots=True)
class RemainingTime:
    """The remaining time of pending operations, in seconds.

    Attributes:
        soonest: The shortest remaining time; None: no operation is pending.
        latest: The longest remaining time; None: no operation is pending.
        bounds: Upper bounds of a histogram, increasing.
        operations: The number of operations in each bucket; one bucket more than bounds, for those above the last.
    """

    soonest: float | None
    latest: float | None
    bounds: list[float]
    operations: list[int]


@dataclass(frozen=True, slots=True)
class WebhookStatus:
    """The daemon's webhooks, of all callers.

    Attributes:
        undelivered: Results of sessions with a callback that are neither delivered nor dead letters.
        paused: Deliveries that have failed and will be retried.
        dead_letters: Results whose delivery was given up.
        oldest: Age in seconds of the oldest delivery that has neither succeeded nor been given up. None: there is none.
    """

    undelivered: int
    paused: int
    dead_letters: int
    oldest: float | None


@dataclass(frozen=True, slots=True)
class Status:
    """The daemon's counts and version. `remaining_time` is None unless it was asked for; `webhooks` is None if the
    daemon does not deliver any; `fleet` is empty unless it has a replicated log or shards.
    """

    version: str
    compiled: bool
    started_time: datetime
    draining: bool
    kinds: list[KindStatus]
    partitions: int
    signal_keys: int
    sessions: int
    sessions_connected: int
    unacknowledged_results: int
    remaining_time: RemainingTime | None
    sources: list[SourceStatus] = field(default_factory=list)
    webhooks: WebhookStatus | None = None
    fleet: str = ""


@dataclass(frozen=True, slots=True)
class HotName:
    """A partition ("orders-3") or key that operations wait on, and the number of watches on it."""

    name: str
    is_key: bool
    watched: int


@dataclass(frozen=True, slots=True)
class EndedOperation:
    """An operation that has ended.

    Attributes:
        session_id: Empty for unary waits.
        operation_id: 0 for unary waits.
        principal: The identity that registered it. Empty on a daemon without a policy.
        kind: The kind of operation.
        outcome: How it ended.
        ended_time: When it ended.
        waited: Seconds from registration to end.
        lateness: For an expired operation: seconds from its deadline to its end.
        items: Its first ten partitions or keys.
        items_left_out: The number of further partitions or keys.
    """

    session_id: str
    operation_id: int
    principal: str
    kind: OperationKind
    outcome: Outcome
    ended_time: datetime
    waited: float
    lateness: float
    items: list[PendingItem]
    items_left_out: int


@dataclass(frozen=True, slots=True)
class EndedTogether:
    """Operations that ended at about the same time. `left_out` counts further ones that were dropped to limit the
    load.
    """

    operations: list[EndedOperation]
    left_out: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A result that could not be delivered to its callback (docs/webhooks.md). `attempts` includes resends."""

    webhook_id: str
    callback_url: str
    session_id: str
    operation_id: int
    outcome: Outcome
    attempts: int
    last_error: str
    given_up_time: datetime


class ResentLetters(NamedTuple):
    """The number of dead letters being sent again, and the given ids that are not (or no longer) dead letters."""

    resent: int
    unknown_ids: tuple[str, ...] = ()


class DeletedLetters(NamedTuple):
    """The number of deleted dead letters, and the given ids that are not (or no longer) dead letters."""

    deleted: int
    unknown_ids: tuple[str, ...] = ()


def hot_name(message: wire.HotName) -> HotName:
    """Decode the message."""
    return HotName(_name(message), bool(message.key), message.watched)


def ended(message: wire.TailResultsResponse) -> EndedTogether:
    """Decode the message."""
    return EndedTogether([_ended_operation(one) for one in message.operations], message.left_out)


def _ended_operation(message: wire.EndedOperation) -> EndedOperation:
    items = [_pending_item(item) for item in message.partitions]
    return _view(EndedOperation, message, items=items, items_left_out=message.partitions_left_out)


def pending_operation(message: wire.PendingOperation) -> PendingOperation:
    """Decode the message."""
    # Listings have no causes, and a long operation has them for its first items.
    named = zip(message.partitions, chain(message.held_back_by, repeat("")), strict=False)
    return _view(PendingOperation, message, items=[_pending_item(item, cause) for item, cause in named])


def partition(message: wire.Partition) -> Partition:
    """Decode the message."""
    topic, number = message.topic_partition.topic, message.topic_partition.partition
    replicas = [_view(Replica, one) for one in message.replicas]
    name = format_partition(topic, number)
    return _view(Partition, message, name=name, topic=topic, partition=number, replicas=replicas)


def status(message: wire.GetStatusResponse) -> Status:
    """Decode the message."""
    left = message.remaining_time if message.HasField("remaining_time") else None
    remaining_time = left and _view(RemainingTime, left, bounds=[bound_ms / 1_000 for bound_ms in left.bound_ms])
    kinds, sources = [_view(KindStatus, one) for one in message.kinds], [_source(one) for one in message.sources]
    webhooks = _view(WebhookStatus, message.webhooks) if message.HasField("webhooks") else None
    return _view(Status, message, kinds=kinds, sources=sources, remaining_time=remaining_time, webhooks=webhooks)


def dead_letter(message: webhook_pb2.DeadLetter) -> DeadLetter:
    """Decode the message."""
    operation_id, outcome = message.result.operation_id, Outcome(message.result.outcome)
    return _view(DeadLetter, message, operation_id=operation_id, outcome=outcome)


def _source(message: source_pb2.SourceStatus) -> SourceStatus:
    state = SourceState(message.state).name.lower()
    return _view(SourceStatus, message, state=state)


def _pending_item(item: result_pb2.PartitionResult, held_back_by: str = "") -> PendingItem:
    left = item.estimated_remaining_ms / 1_000 if item.HasField("estimated_remaining_ms") else None
    pace = item.pace_per_second if item.HasField("pace_per_second") else None
    return PendingItem(
        _name(item), item.error_code, item.required_offset, item.reached_offset, left, pace, held_back_by
    )


def _name(named: result_pb2.PartitionResult | wire.HotName) -> str:
    return named.key or format_partition(named.topic_partition.topic, named.topic_partition.partition)


def _view(view: type[_T], message: Message, **given: object) -> _T:
    """A view of a message: the `given` fields, and the message's for the others.

    The duration `waited` is the message's `waited_ms`, and `stale_for` is its `stale_ms`, in seconds.
    """
    message_fields = message.DESCRIPTOR.fields_by_name
    for name in [one.name for one in fields(view) if one.name not in given]:  # type: ignore[arg-type]
        in_ms = name not in message_fields
        given[name] = _value(message, message_fields[f"{name.removesuffix('_for')}_ms" if in_ms else name], in_ms)
    return view(**given)


def _value(message: Message, source: Any, in_ms: bool) -> object:  # noqa: ANN401 - a field descriptor
    value: Any = getattr(message, source.name)
    if source.message_type is not None and source.message_type.name == "Timestamp":
        return value.ToDatetime(tzinfo=UTC)
    if source.has_presence and not message.HasField(source.name):
        return None
    if source.is_repeated:
        return list(value)
    if source.name in _ENUMS:
        return _ENUMS[source.name](value)
    return value / 1_000 if in_ms else value


_ENUMS: Final[dict[str, type[IntEnum]]] = {"kind": OperationKind, "outcome": Outcome}
