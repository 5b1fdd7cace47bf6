"""Single waits: one function for each kind of operation, and the `Wait` that it returns.

The client methods of the same names take the same arguments and wait at once; a `Wait` is for `submit` and `wait_once`.
Arguments are checked only as far as necessary to share a batch with others; the daemon enforces all other rules.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from purgatory_client.argument_checks import int32, int64, milliseconds, several, truth
from purgatory_client.errors import InvalidRequest
from purgatory_client.partition_names import PartitionName, checked_key, format_partition, partition_name
from purgatory_client.results import OperationKind
from purgatory_client.sources.source_names import KAFKA, kafka_group
from purgatory_client.terms import Term, Terms, checked_condition, checked_terms

Name = str | PartitionName
"""A partition as callers write it: "orders-3" or ("orders", 3)."""

ByPartition = Mapping[str, int] | Mapping[PartitionName, int] | Mapping[Name, int]
"""A number for each partition."""

Isolation = Literal["read_uncommitted", "read_committed"]

ITEM_DEFAULTS: Final = {
    "leader_epoch": -1,
    "local_error_code": 0,
    "partition_max_bytes": 1_048_576,
    "last_fetched_epoch": -1,
    "throttled": False,
}
"""The columns with a value for each partition, by their names on the wire, and their defaults if absent."""
_ISOLATION_LEVELS: Final[dict[str, int]] = {"read_uncommitted": 1, "read_committed": 2}


@dataclass(slots=True, eq=False)
class Wait:
    """One operation, made by the functions of this module. `names` contains its partitions or keys, in the order of
    `offsets`.

    The session to which it is submitted sets `operation_id` and `submitted_at` (monotonic seconds). `future` receives
    its `Result`.
    """

    kind: OperationKind
    names: Sequence[PartitionName | str]
    offsets: list[int]
    timeout_ms: int | None
    operation_columns: dict[str, int]
    """Optional values, by their names on the wire. All waits of one kind have the same names here."""
    item_columns: dict[str, list[int]]
    """Optional columns with a value for each name. An absent column has its default."""
    stale_timeout_ms: int | None = None
    """Milliseconds for which one of its marks may be stale. None: the wait does not fail when stale."""
    operation_id: int = 0
    submitted_at: float = 0.0
    waited_before_ms: int = 0
    """Milliseconds from its submission until it was last sent, if that was after a lost connection."""
    future: asyncio.Future[Any] | None = None
    count: ClassVar = 1
    """The number of operations: always one, unlike a batch."""
    remaining: ClassVar = 1

    @property
    def weight(self) -> int:
        """An upper estimate of its size on the wire, in bytes."""
        return 32 + 80 * len(self.names)

    @property
    def unless_count(self) -> int:
        """How many of the last names are the failure arm."""
        return self.operation_columns.get("unless_count", 0)


def produce(
    offsets: ByPartition,
    *,
    timeout: float | None = None,
    leader_epochs: ByPartition | int | None = None,
    local_error_codes: ByPartition | int | None = None,
    fail_when_stale: float | None = None,
) -> Wait:
    """Wait until the high watermark of each partition has reached its offset.

    Args:
        offsets: The offset that each partition must reach: last appended offset + 1.
        timeout: Seconds, at most 2,147,483.647; 0: an answer at once. None: the daemon's default.
        leader_epochs: The leader epoch of the append, by partition or one for all. If the partition has a newer or
            older epoch, its wait ends with error 74 or 75. Absent: not checked.
        local_error_codes: Kafka's error codes of the local append; a code other than 0 becomes the result.
        fail_when_stale: Fail (error 1001) once a mark has been stale or unreported for this many seconds. None: never.
    """
    names, required = _items(offsets, "produce.partitions", "required_offset")
    columns = _item_columns(
        names, local_error_code=("local_error_codes", local_error_codes), leader_epoch=("leader_epochs", leader_epochs)
    )
    stale_ms = milliseconds(fail_when_stale, "stale_timeout_ms")
    return Wait(OperationKind.PRODUCE, names, required, milliseconds(timeout), {}, columns, stale_ms)


def processed(
    group: str,
    records: ByPartition,
    *,
    timeout: float | None = None,
    label: str = KAFKA,
    fail_when_stale: float | None = None,
) -> Wait:
    """Wait until a Kafka consumer group has processed records, as reported by a source (docs/sources.md).

    A group commits the offset that it will read next, so a record is processed once the committed offset is above the
    record's own. For groups that commit before they process, as auto-commit may, this shows only that the record was
    read.

    Args:
        group: The consumers' `group.id`.
        records: By partition of the topic ("orders-3"): the offset of the last record to wait for.
        timeout: Seconds, at most 2,147,483.647; 0: an answer at once. None: the daemon's default.
        label: The cluster's label, if its source was configured with another one than kafka.
        fail_when_stale: Fail (error 1001) once a mark has been stale or unreported for this many seconds. None: never.
    """
    names, last = _items(records, "records", "offset")
    marks = [(kafka_group(group, topic, label), partition) for topic, partition in names]
    offsets = dict(zip(marks, [offset + 1 for offset in last], strict=True))
    return produce(offsets, timeout=timeout, fail_when_stale=fail_when_stale)


def fetch(
    offsets: ByPartition,
    *,
    min_bytes: int = 1,
    timeout: float | None = None,
    replica_id: int | None = None,
    isolation: Isolation = "read_uncommitted",
    follower_reads: bool = False,
    partition_max_bytes: ByPartition | int | None = None,
    current_leader_epochs: ByPartition | int | None = None,
    last_fetched_epochs: ByPartition | int | None = None,
    throttled: Iterable[Name] = (),
    fail_when_stale: float | None = None,
) -> Wait:
    """Wait until `min_bytes` can be read past the offsets, or one partition has a reason to answer at once.

    Args:
        offsets: The offset to read from, by partition.
        min_bytes: Bytes to wait for, in total over all partitions. A fetch that times out returns the bytes available.
        timeout: Seconds, at most 2,147,483.647; 0: an answer at once. None: the daemon's default.
        replica_id: The follower that fetches, up to the log end. None: a consumer.
        isolation: How far a consumer reads: to the high watermark, or with "read_committed" to the last stable offset.
        follower_reads: Whether a follower may serve a consumer.
        partition_max_bytes: The maximum number of bytes counted per partition, by partition or one for all; 1 MiB by
            default.
        current_leader_epochs: The leader epoch that the reader knows, by partition or one for all. Absent: not checked.
        last_fetched_epochs: The epoch of the reader's last record, by partition or one for all. If the logs diverge,
            the result contains the offset from which they do.
        throttled: Partitions over the follower's replication quota: they add no bytes while it is out of sync.
        fail_when_stale: Fail (error 1001) once a mark has been stale or unreported for this many seconds. None: never.
    """
    names, fetch_offsets = _items(offsets, "fetch.partitions", "fetch_offset")
    if isolation not in tuple(_ISOLATION_LEVELS):
        raise InvalidRequest("fetch.isolation_level", f"{isolation!r}; must be one of {', '.join(_ISOLATION_LEVELS)}")
    held_back = {partition_name(name) for name in several(throttled, "throttled")}
    options: dict[str, int] = {
        "min_bytes": int64(min_bytes, "fetch.min_bytes"),
        "replica_id": -1 if replica_id is None else int32(replica_id, "fetch.replica_id"),
        "isolation_level": _ISOLATION_LEVELS[isolation],
        "follower_reads": truth(follower_reads, "fetch.follower_reads"),
    }
    columns = _item_columns(
        names,
        partition_max_bytes=("partition_max_bytes", partition_max_bytes),
        last_fetched_epoch=("last_fetched_epochs", last_fetched_epochs),
        leader_epoch=("current_leader_epochs", current_leader_epochs),
    )
    if held_back:
        columns["throttled"] = [name in held_back for name in names]
    stale_ms = milliseconds(fail_when_stale, "stale_timeout_ms")
    return Wait(OperationKind.FETCH, names, fetch_offsets, milliseconds(timeout), options, columns, stale_ms)


def delete_records(
    offsets: ByPartition,
    *,
    timeout: float | None = None,
    local_error_codes: ByPartition | int | None = None,
    fail_when_stale: float | None = None,
) -> Wait:
    """Wait until the low watermark of each partition has reached its offset: every replica has deleted up to it.

    Args:
        offsets: The offset by partition; -1: the high watermark at registration.
        timeout: Seconds, at most 2,147,483.647; 0: an answer at once. None: the daemon's default.
        local_error_codes: Kafka's error codes of the local deletion; a code other than 0 becomes the result.
        fail_when_stale: Fail (error 1001) once a mark has been stale or unreported for this many seconds. None: never.
    """
    names, required = _items(offsets, "delete_records.partitions", "offset")
    columns = _item_columns(names, local_error_code=("local_error_codes", local_error_codes))
    stale_ms = milliseconds(fail_when_stale, "stale_timeout_ms")
    return Wait(OperationKind.DELETE_RECORDS, names, required, milliseconds(timeout), {}, columns, stale_ms)


def signal(
    keys: Mapping[str, int] | Collection[str],
    *,
    timeout: float | None = None,
    any: bool = False,  # noqa: A002 - the word of the wire
    from_now: bool = False,
    heartbeat_timeout: float | None = None,
) -> Wait:
    """Wait until all keys have been signalled. The wait fails (error 1003) when one of them is signalled as failed.

    Args:
        keys: The keys, each needing one signal; or a mapping of key to the number of signals it needs.
        timeout: Seconds, at most 2,147,483.647; 0: an answer at once. None: the daemon's default.
        any: One key is enough; the wait fails when all have failed.
        from_now: Count only signals after the registration; otherwise all since the key was first used at the daemon.
        heartbeat_timeout: Fail (error 1004) once a key that is still waited for has been silent for this many seconds.
            None: never.
    """
    counts = keys if isinstance(keys, Mapping) else dict.fromkeys(several(keys, "signal.keys"), 1)
    if len(counts) != len(keys):
        raise InvalidRequest("signal.keys", "a key is given twice; use a mapping of key to count")
    names = [checked_key(key) for key in counts]
    required = [int64(count, "signal.keys.required_count") for count in counts.values()]
    if not names:
        raise InvalidRequest("signal.keys", "empty; at least one is required")
    heartbeat_timeout_ms = milliseconds(heartbeat_timeout, "signal.heartbeat_timeout_ms")
    if heartbeat_timeout_ms == 0:
        raise InvalidRequest("signal.heartbeat_timeout_ms", "0; must be at least 1 ms, or None for no heartbeat")
    options: dict[str, int] = {
        "any": truth(any, "signal.any"),
        "from_now": truth(from_now, "signal.from_now"),
        "heartbeat_timeout_ms": -1 if heartbeat_timeout_ms is None else heartbeat_timeout_ms,
    }
    return Wait(OperationKind.SIGNAL, names, required, milliseconds(timeout), options, {})


def wait(
    condition: Term | Terms,
    *,
    unless: Term | Iterable[Term] = (),
    timeout: float | None = None,
    fail_when_stale: float | None = None,
) -> Wait:
    """Wait until enough terms are true, marks and signals together (`purgatory_client.terms`).

    A term that was true once stays true.

    Args:
        condition: What to wait for: `mark(...)` or `signal(...)`, or several in `all_of`, `any_of` or `at_least`.
        unless: The failure arm: the wait fails (error 1002) as soon as one of these terms is true, also if the
            condition becomes true at the same moment. One term, or a list of terms.
        timeout: Seconds, at most 2,147,483.647; 0: an answer at once. None: the daemon's default.
        fail_when_stale: Fail (error 1001) once too many marks have been stale or unreported for this many seconds for
            the condition to become true. None: never.
    """
    chosen = checked_condition(condition)
    failures = checked_terms(unless, "composite.unless")
    terms = (*chosen.terms, *failures)
    return Wait(
        OperationKind.COMPOSITE,
        [term.name for term in terms],
        [term.required for term in terms],
        milliseconds(timeout),
        {"required_terms": chosen.required_terms, "unless_count": len(failures)},
        {},
        milliseconds(fail_when_stale, "stale_timeout_ms"),
    )


def _items(offsets: ByPartition, field: str, offset_field: str) -> tuple[list[PartitionName], list[int]]:
    if not isinstance(offsets, Mapping):
        raise InvalidRequest(field, f"{offsets!r}; give a mapping of partition to offset, like {{'orders-3': 42}}")
    if not offsets:
        raise InvalidRequest(field, "empty; at least one is required")
    names = [partition_name(name) for name in offsets]
    return names, [int64(offset, f"{field}.{offset_field}") for offset in offsets.values()]


def _item_columns(names: list[PartitionName], **given: tuple[str, ByPartition | int | None]) -> dict[str, list[int]]:
    """The given columns, each as (its name in errors, a mapping or one number for all partitions)."""
    columns: dict[str, list[int]] = {}
    for column, (field, values) in given.items():
        if values is None or values == {}:
            continue
        check = int64 if column == "partition_max_bytes" else int32
        if not isinstance(values, Mapping):
            columns[column] = [check(values, field)] * len(names)
            continue
        by_name = {partition_name(name): value for name, value in values.items()}
        unknown = by_name.keys() - set(names)
        if unknown:
            raise InvalidRequest(field, f"{format_partition(*min(unknown))} is not one of the operation's partitions")
        columns[column] = [check(by_name.get(name, ITEM_DEFAULTS[column]), field) for name in names]
    return columns
