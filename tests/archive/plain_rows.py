"""The rows of purgatory.extensions.archive.schema, built with lists and loops: the expected results of `rows`."""

from typing import Any

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, Receipt
from purgatory.engine.completions import Completions
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.vocabulary import CallStamp, Registrant

Row = dict[str, Any]

OF_KIND = {
    codes.PRODUCE: {"offset", "local_error_code", "leader_epoch"},
    codes.FETCH: {
        "offset", "leader_epoch", "min_bytes", "replica_id", "isolation_level", "follower_reads",
        "partition_max_bytes", "last_fetched_epoch", "throttled",
    },
    codes.DELETE_RECORDS: {"offset", "local_error_code"},
    codes.SIGNAL: {"offset", "any_key", "from_now", "heartbeat_timeout_ms"},
    codes.COMPOSITE: {"offset", "required_terms", "unless_count"},
}  # fmt: skip
ALIKE = {
    "min_bytes", "follower_reads", "any_key", "from_now", "partition_max_bytes", "throttled", "flags", "required_terms",
}  # fmt: skip
"""Columns whose attribute in a batch has the same name. The attributes of all others are plurals,"""
IRREGULAR = {"stale_timeout_ms": "stale_timeouts_ms", "heartbeat_timeout_ms": "heartbeat_timeouts_ms"}
"""or listed here."""
OF_OPERATIONS = (
    "min_bytes", "replica_id", "isolation_level", "follower_reads", "any_key", "from_now",
    "heartbeat_timeout_ms", "stale_timeout_ms", "required_terms", "unless_count",
)  # fmt: skip
OF_ITEMS = ("offset", "local_error_code", "leader_epoch", "partition_max_bytes", "last_fetched_epoch", "throttled")
OF_OUTCOMES = ("error_code", "required_offset", "reached_offset", "log_start_offset")
OF_FETCHES = ("available_bytes", "high_watermark", "last_stable_offset", "diverging_epoch", "diverging_end_offset")
OF_EVENTS = (
    "offset", "leader_epoch", "replica_id", "byte_position", "segment_base_offset", "log_start_offset", "flags",
)  # fmt: skip
OF_REPLICA_SETS = ("replicas", "in_sync", "proposed", "leader_id", "min_in_sync_replicas")


def at(values: list[Any], row: int) -> Any:  # noqa: ANN401 - any column
    """The value in a row of a column that has one value for each row, one for all rows, or none."""
    return values[row] if len(values) > 1 else values[0] if values else None


def given(batch: object, names: tuple[str, ...], row: int) -> Row:
    """The values that a row of a batch has in these columns."""
    sources = {name: name if name in ALIKE else f"{name}s" for name in names} | IRREGULAR
    return {name: at(getattr(batch, sources[name]), row) for name in names}


def common(stamp: CallStamp, whose: Registrant | None = None) -> Row:
    row: Row = {"run_id": stamp.run_id, "call_number": stamp.call_number, "time_ms": stamp.time_ms, "at": stamp.at_ms}
    if whose is not None:
        row |= {"session_number": whose.session_number, "session_id": whose.session_id, "principal": whose.principal}
    return row


def plain_registrations(
    stamp: CallStamp, whose: Registrant, kind: int, batch: OperationBatch, receipt: Receipt, known: int
) -> list[Row]:
    """Rows of a batch; ids from 1 to `known` were known before.

    Refused operations whose items cannot be identified have one row without a name.
    """
    codes_by_index = {refusal.index: refusal.code for refusal in receipt.refusals}
    keys = [(key, -1) for key in batch.keys]
    names = {codes.SIGNAL: keys, codes.COMPOSITE: batch.partitions + keys}.get(kind, batch.partitions)
    rows: list[Row] = []
    first_item = 0
    for index, operation_id in enumerate(batch.operation_ids):
        count = 1 if at(batch.item_counts, index) is None else at(batch.item_counts, index)
        of_operation = (
            common(stamp, whose)
            | {
                "operation_id": min(operation_id, 2**63 - 1),
                "kind": codes.KIND_NAMES[kind],
                "timeout_ms": at(batch.timeouts_ms, index) or 30_000,
                "refusal_code": codes_by_index.get(index, schema.ACCEPTED),
                "item_count": count,
            }
            | given(batch, OF_OPERATIONS, index)
        )
        items: list[Row] = []
        for item in range(count):
            place = first_item + item
            where = at(batch.item_indexes, place) or 0
            name = names[where] if where < len(names) else None
            named = {"item": item, "topic": name and name[0], "partition": name and name[1]}
            items.append(named | given(batch, OF_ITEMS, place))
        first_item += count
        if 1 <= operation_id <= known:
            continue
        names_one_twice = count > 1 and len(batch.item_indexes) <= 1
        if not items or names_one_twice or any(item["topic"] is None for item in items):
            items = [dict.fromkeys(("topic", "partition", *OF_ITEMS)) | {"item": 0}]
        rows += [of_operation | item for item in items]
    not_of_kind = dict.fromkeys(set.union(*OF_KIND.values()) - OF_KIND[kind])
    return [row | not_of_kind for row in rows]


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
                    "estimated_remaining_ms": remaining if remaining >= 0 else None,
                    "pace_per_second": pace if pace >= 0 else None,
                }
                | given(completions, OF_OUTCOMES, place)
                | {name: read and getattr(read, name) for name in OF_FETCHES}
            )
            place += 1
    return rows


def plain_events(stamp: CallStamp, principal: str, batch: EventBatch, start: int, receipt: Receipt) -> list[Row]:
    """Rows of a slice of a principal's events."""
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
                "principal": principal,
                "row": place - start,
                "type": codes.EVENT_NAMES.get(event_type, ""),
                "topic": name and name[0],
                "partition": name and name[1],
                "refusal_code": codes_by_index.get(place, schema.ACCEPTED),
                "ended": receipt.ended_by_event[place - start],
            }
            | given(batch, OF_EVENTS, place)
            | {name: sets and getattr(sets, name) for name in OF_REPLICA_SETS}
        )
    return rows
