"""Encodes waits: single waits of one kind or a slice of a `WaitColumns` as columns, one wait as a row.

Values were checked when the waits were made (`number_checks`, `partition_names`), so nothing is refused here.
"""

from collections.abc import Iterable, Sequence

from purgatory.v1 import operation_pb2 as wire
from purgatory_client.many import WaitColumns
from purgatory_client.number_checks import squeeze, take
from purgatory_client.partition_names import PartitionName
from purgatory_client.results import OperationKind
from purgatory_client.waits import FetchOptions, Wait


def fill_with_waits(columns: wire.OperationColumns, waits: Sequence[Wait], lost_at: float, now: float) -> None:
    """Encode waits of one kind, all with a timeout or all without.

    A wait submitted before a connection was last lost (at `lost_at`, monotonic seconds like `now`) is sent with its
    remaining time: time without a connection counts.
    """
    first = waits[0]
    columns.kind = first.kind.value  # type: ignore[assignment]
    columns.operation_id.extend([wait.operation_id for wait in waits])
    if first.timeout_ms is not None:
        columns.timeout_ms.extend(squeeze([_remaining_ms(wait, lost_at, now) for wait in waits]))
    counts = squeeze([len(wait.names) for wait in waits])
    if counts != [1]:
        columns.item_count.extend(counts)
    _add_names(columns, waits)
    columns.offset.extend(squeeze([offset for wait in waits for offset in wait.offsets]))
    codes, epochs = [wait.local_error_codes for wait in waits], [wait.leader_epochs for wait in waits]
    if any(codes):
        columns.local_error_code.extend(_filled(codes, waits, 0))
    if any(epochs):
        columns.leader_epoch.extend(_filled(epochs, waits, -1))
    if first.kind == OperationKind.FETCH:
        _add_fetch(columns, [wait.fetch for wait in waits if wait.fetch is not None])
    if first.kind == OperationKind.SIGNAL:
        columns.any.extend(squeeze([wait.any_key for wait in waits]))
        columns.from_now.extend(squeeze([wait.from_now for wait in waits]))


def fill_with_many(
    columns: wire.OperationColumns, batch: WaitColumns, positions: Sequence[int], lost_at: float, now: float
) -> None:
    """Encode the operations of a batch at `positions`, which rise; timeouts as in `fill_with_waits`."""
    items = batch.items_of(positions)
    columns.kind = batch.kind.value  # type: ignore[assignment]
    columns.operation_id.extend(batch.ids_of(positions))
    columns.timeout_ms.extend(take(_remaining_column(batch, lost_at, now), positions))
    if batch.item_counts:
        columns.item_count.extend([batch.item_counts[position] for position in positions])
    columns.offset.extend(take(batch.offsets, items))
    for field, column in batch.operation_columns.items():
        getattr(columns, field).extend(take(column, positions))
    for field, column in batch.item_columns.items():
        getattr(columns, field).extend(take(column, items))
    indexes = take(batch.indexes, items)
    names: Sequence[PartitionName] | Sequence[str] = batch.names
    if len(names) > len(items):
        indexes, names = _narrowed(indexes, names)
    columns.item_index.extend(indexes)
    _extend_names(columns, names)


def row_of_wait(wait: Wait) -> wire.Operation:
    """A wait as a row, for the unary call."""
    row = wire.Operation(timeout_ms=wait.timeout_ms)
    epochs = wait.leader_epochs or [-1] * len(wait.names)
    codes = wait.local_error_codes or [0] * len(wait.names)
    names: Sequence[PartitionName | str] = wait.names
    for place, (name, offset) in enumerate(zip(names, wait.offsets, strict=True)):
        if isinstance(name, str):
            row.signal.keys.add(key=name, required_count=offset)
            continue
        partition = wire.TopicPartition(topic=name[0], partition=name[1])
        epoch = None if epochs[place] < 0 else epochs[place]
        if wait.kind == OperationKind.PRODUCE:
            row.produce.partitions.add(
                topic_partition=partition, required_offset=offset, local_error_code=codes[place], leader_epoch=epoch
            )
        elif wait.kind == OperationKind.DELETE_RECORDS:
            row.delete_records.partitions.add(topic_partition=partition, offset=offset, local_error_code=codes[place])
        else:
            assert wait.fetch is not None, "a fetch without its options"
            row.fetch.partitions.append(_fetch_partition_row(partition, offset, epoch, wait.fetch, place))
    if wait.kind == OperationKind.SIGNAL:
        row.signal.any, row.signal.from_now = wait.any_key, wait.from_now
    elif wait.fetch is not None:
        _add_fetch_row(row.fetch, wait.fetch)
    return row


def _remaining_ms(wait: Wait, lost_at: float, now: float) -> int:
    assert wait.timeout_ms is not None, "a wait without a timeout among waits with one"
    if wait.submitted_at >= lost_at:
        return wait.timeout_ms
    return _remaining(wait.timeout_ms, int((now - wait.submitted_at) * 1_000))


def _remaining_column(batch: WaitColumns, lost_at: float, now: float) -> list[int]:
    if batch.submitted_at >= lost_at:
        return batch.timeouts_ms
    elapsed_ms = int((now - batch.submitted_at) * 1_000)
    return [_remaining(timeout_ms, elapsed_ms) for timeout_ms in batch.timeouts_ms]


def _remaining(timeout_ms: int, elapsed_ms: int) -> int:
    """At least 1 ms: 0 would be another request, for an answer at once. What is not above 0 stays as it is."""
    return max(1, timeout_ms - elapsed_ms) if timeout_ms > 0 else timeout_ms


def _add_names(columns: wire.OperationColumns, waits: Sequence[Wait]) -> None:
    """Add the dictionary of names, and each item's place in it."""
    places: dict[PartitionName | str, int] = {}
    indexes = [places.setdefault(name, len(places)) for wait in waits for name in wait.names]
    if len(places) > 1:
        columns.item_index.extend(indexes)
    _extend_names(columns, places)


def _extend_names(columns: wire.OperationColumns, names: Iterable[PartitionName | str]) -> None:
    for name in names:
        if isinstance(name, str):
            columns.keys.append(name)
            continue
        topic, partition = name
        columns.partitions.add(topic=topic, partition=partition)


def _narrowed(
    indexes: Sequence[int], names: Sequence[PartitionName] | Sequence[str]
) -> tuple[Sequence[int], Sequence[PartitionName] | Sequence[str]]:
    """The same items over a dictionary of only the names that they use."""
    places: dict[int, int] = {}
    narrowed = [places.setdefault(index, len(places)) for index in indexes or [0]]
    used: list[PartitionName] | list[str] = [names[index] for index in places]  # type: ignore[assignment]
    return narrowed, used


def _filled(columns: list[list[int] | None], waits: Sequence[Wait], default: int) -> list[int]:
    """An item column from waits, of which each may have none."""
    pairs = zip(columns, waits, strict=True)
    return squeeze([value for column, wait in pairs for value in column or [default] * len(wait.names)])


def _add_fetch(columns: wire.OperationColumns, fetches: Sequence[FetchOptions]) -> None:
    columns.min_bytes.extend(squeeze([fetch.min_bytes for fetch in fetches]))
    columns.replica_id.extend(squeeze([fetch.replica_id for fetch in fetches]))
    columns.follower_reads.extend(squeeze([fetch.follower_reads for fetch in fetches]))
    levels = squeeze([fetch.isolation_level for fetch in fetches])
    columns.isolation_level.extend(levels)
    columns.partition_max_bytes.extend(squeeze([value for fetch in fetches for value in fetch.partition_max_bytes]))
    columns.last_fetched_epoch.extend(squeeze([value for fetch in fetches for value in fetch.last_fetched_epochs]))
    columns.throttled.extend(squeeze([value for fetch in fetches for value in fetch.throttled]))


def _add_fetch_row(row: wire.Fetch, fetch: FetchOptions) -> None:
    row.min_bytes = fetch.min_bytes
    row.isolation_level = fetch.isolation_level  # type: ignore[assignment]
    row.follower_reads = fetch.follower_reads
    if fetch.replica_id >= 0:
        row.replica_id = fetch.replica_id


def _fetch_partition_row(
    partition: wire.TopicPartition, offset: int, epoch: int | None, fetch: FetchOptions, place: int
) -> wire.FetchPartition:
    last_epoch = fetch.last_fetched_epochs[place]
    return wire.FetchPartition(
        topic_partition=partition,
        fetch_offset=offset,
        partition_max_bytes=fetch.partition_max_bytes[place],
        current_leader_epoch=epoch,
        last_fetched_epoch=None if last_epoch < 0 else last_epoch,
        throttled=fetch.throttled[place],
    )
