"""The rows that purgatory.archive.schema describes, made with lists and loops: what `rows` must give."""

from typing import Any

from purgatory.archive import schema
from purgatory.archive.vocabulary import CallStamp, Registrant
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, RegisterReceipt
from purgatory.engine.completions import Completions

Row = dict[str, Any]

OF_KIND = {
    codes.PRODUCE: {"offset", "local_error_code", "leader_epoch"},
    codes.FETCH: {
        "offset", "leader_epoch", "min_bytes", "replica_id", "isolation_level", "follower_reads",
        "partition_max_bytes", "last_fetched_epoch", "throttled",
    },
    codes.DELETE_RECORDS: {"offset", "local_error_code"},
    codes.SIGNAL: {"offset", "any_key", "from_now"},
}  # fmt: skip


def at(values: list[Any], row: int) -> Any:  # noqa: ANN401 - any column
    """The value of a row of a column with a value for each, one for all, or none."""
    return values[row] if len(values) > 1 else values[0] if values else None


def common(stamp: CallStamp, whose: Registrant | None = None) -> Row:
    row: Row = {"run_id": stamp.run_id, "call_number": stamp.call_number, "time_ms": stamp.time_ms, "at": stamp.at_ms}
    if whose is not None:
        row |= {"session_number": whose.session_number, "session_id": whose.session_id, "principal": whose.principal}
    return row


def plain_registrations(
    stamp: CallStamp, whose: Registrant, kind: int, batch: OperationBatch, receipt: RegisterReceipt, known: int
) -> list[Row]:
    """Rows of a batch; ids from 1 to `known` were known before.

    What was refused because its partitions cannot be told has one row without a name.
    """
    codes_by_index = {refusal.index: refusal.code for refusal in receipt.refusals}
    names = [(key, -1) for key in batch.keys] if kind == codes.SIGNAL else batch.partitions
    rows: list[Row] = []
    first_item = 0
    for index, operation_id in enumerate(batch.operation_ids):
        count = 1 if at(batch.item_counts, index) is None else at(batch.item_counts, index)
        of_operation = common(stamp, whose) | {
            "operation_id": min(operation_id, 2**63 - 1),
            "kind": codes.KIND_NAMES[kind],
            "timeout_ms": at(batch.timeouts_ms, index) or 30_000,
            "refusal_code": codes_by_index.get(index, schema.ACCEPTED),
            "item_count": count,
            "min_bytes": at(batch.min_bytes, index),
            "replica_id": at(batch.replica_ids, index),
            "isolation_level": at(batch.isolation_levels, index),
            "follower_reads": at(batch.follower_reads, index),
            "any_key": at(batch.any_key, index),
            "from_now": at(batch.from_now, index),
        }
        items: list[Row] = []
        for item in range(count):
            place = first_item + item
            where = at(batch.item_indexes, place) or 0
            name = names[where] if where < len(names) else None
            items.append(
                {
                    "item": item,
                    "topic": name and name[0],
                    "partition": name and name[1],
                    "offset": at(batch.offsets, place),
                    "local_error_code": at(batch.local_error_codes, place),
                    "leader_epoch": at(batch.leader_epochs, place),
                    "partition_max_bytes": at(batch.partition_max_bytes, place),
                    "last_fetched_epoch": at(batch.last_fetched_epochs, place),
                    "throttled": at(batch.throttled, place),
                }
            )
        first_item += count
        if 1 <= operation_id <= known:
            continue
        names_one_twice = count > 1 and len(batch.item_indexes) <= 1
        if not items or names_one_twice or any(item["topic"] is None for item in items):
            blank = dict.fromkeys(items[0] if items else NO_ITEM)
            items = [blank | {"item": 0}]
        rows += [of_operation | item for item in items]
    not_of_kind = dict.fromkeys(set.union(*OF_KIND.values()) - OF_KIND[kind])
    return [row | not_of_kind for row in rows]


NO_ITEM = (
    "item", "topic", "partition", "offset", "local_error_code", "leader_epoch", "partition_max_bytes",
    "last_fetched_epoch", "throttled",
)  # fmt: skip


def plain_outcomes(stamp: CallStamp, whose: Registrant, completions: Completions) -> list[Row]:
    """Rows of completions."""
    rows: list[Row] = []
    fetched = iter(completions.fetched)
    place = 0
    for index, operation_id in enumerate(completions.operation_ids):
        kind = completions.kinds[index]
        for item in range(completions.item_counts[index]):
            remaining, pace = completions.estimated_remaining_ms[place], completions.paces_per_second[place]
            read = next(fetched) if kind == codes.FETCH else None
            rows.append(
                common(stamp, whose)
                | {
                    "operation_id": operation_id,
                    "kind": codes.KIND_NAMES[kind],
                    "outcome": codes.OUTCOME_NAMES[completions.outcomes[index]],
                    "waited_ms": completions.waited_ms[index],
                    "lateness_ms": completions.lateness_ms[index],
                    "item": item,
                    "item_count": completions.item_counts[index],
                    "topic": completions.item_partitions[place][0],
                    "partition": completions.item_partitions[place][1],
                    "error_code": completions.error_codes[place],
                    "required_offset": completions.required_offsets[place],
                    "reached_offset": completions.reached_offsets[place],
                    "log_start_offset": completions.log_start_offsets[place],
                    "estimated_remaining_ms": remaining if remaining >= 0 else None,
                    "pace_per_second": pace if pace >= 0 else None,
                    "available_bytes": read and read.available_bytes,
                    "high_watermark": read and read.high_watermark,
                    "last_stable_offset": read and read.last_stable_offset,
                    "diverging_epoch": read and read.diverging_epoch,
                    "diverging_end_offset": read and read.diverging_end_offset,
                }
            )
            place += 1
    return rows


def plain_events(stamp: CallStamp, batch: EventBatch, start: int, receipt: EventsReceipt) -> list[Row]:
    """Rows of a slice of events."""
    codes_by_index = {refusal.index: refusal.code for refusal in receipt.refusals}
    rows: list[Row] = []
    for place in range(start, receipt.next_index):
        event_type = batch.types[place]
        names = [(key, -1) for key in batch.keys] if event_type == codes.KEY_SIGNALLED else batch.partitions
        where = at(batch.item_indexes, place) or 0
        name = names[where] if where < len(names) else None
        sets = at(batch.replica_sets, place) if batch.replica_sets else None
        rows.append(
            common(stamp)
            | {
                "row": place - start,
                "type": codes.EVENT_NAMES.get(event_type, ""),
                "topic": name and name[0],
                "partition": name and name[1],
                "offset": at(batch.offsets, place),
                "leader_epoch": at(batch.leader_epochs, place),
                "replica_id": at(batch.replica_ids, place),
                "byte_position": at(batch.byte_positions, place),
                "segment_base_offset": at(batch.segment_base_offsets, place),
                "log_start_offset": at(batch.log_start_offsets, place),
                "flags": at(batch.flags, place),
                "replicas": sets and sets.replicas,
                "in_sync": sets and sets.in_sync,
                "proposed": sets and sets.proposed,
                "leader_id": sets and sets.leader_id,
                "min_in_sync_replicas": sets and sets.min_in_sync_replicas,
                "refusal_code": codes_by_index.get(place, schema.ACCEPTED),
                "ended": receipt.ended[place - start],
            }
        )
    return rows
