"""What callers send in a run: batches of registrations and events, made from a chunk of calls at a time."""

from typing import Final

import numpy as np

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.codes import FETCH, PRODUCE, SIGNAL
from purgatory_pipeline.generate.draw.arrivals import UNARY, WITHOUT_EPOCHS
from purgatory_pipeline.generate.draw.drawn_run import DrawnRun
from purgatory_pipeline.generate.draw.schedule import EVENTS, REGISTER
from purgatory_pipeline.generate.draw.topology import Flags, Ints


class CallBatches:
    """The batches of a chunk of calls. Columns become lists once, from which each call takes its rows."""

    def __init__(self, run: DrawnRun, first: int, stop: int) -> None:
        self._run: Final = run
        calls = run.timeline.calls
        what, start, end = (column[first:stop] for column in (calls.what, calls.start, calls.stop))
        self._first_event, event_rows = _extent(start, end, what == EVENTS)
        events = run.timeline.events
        self._events: Final = [
            column[event_rows].tolist()
            for column in (
                events.type, events.partition, events.offset, events.leader_epoch, events.replica_id,
                events.byte_position, events.segment_base_offset, events.log_start_offset,
            )
        ]  # fmt: skip
        self._first, rows = _extent(start, end, what == REGISTER)
        arrivals, requests = run.arrivals, run.requests
        self._session: Final = arrivals.session[rows].tolist()
        self._kind: Final = arrivals.kind[rows].tolist()
        self._first_items: Final = arrivals.first_item[rows.start : rows.stop + 1].tolist()
        items = slice(self._first_items[0], self._first_items[-1])
        self._item_counts: Final = np.diff(self._first_items).tolist()
        self._operations: Final = [
            column[rows].tolist()
            for column in (
                arrivals.operation_id, requests.timeout_ms, requests.min_bytes, requests.replica_id,
                requests.isolation_level, requests.any_key, requests.from_now,
            )
        ]  # fmt: skip
        self._items: Final = [
            column[items].tolist() for column in (run.item_index, requests.offset, requests.leader_epoch)
        ]
        self._places: Final = arrivals.item_place[items].tolist()

    def events(self, start: int, stop: int) -> EventBatch:
        rows = slice(start - self._first_event, stop - self._first_event)
        types, partitions, offsets, epochs, replica_ids, positions, segments, log_starts = self._events
        return EventBatch(
            types[rows],
            partitions=self._run.cluster.names,
            item_indexes=partitions[rows],
            offsets=offsets[rows],
            leader_epochs=epochs[rows],
            replica_ids=replica_ids[rows],
            byte_positions=positions[rows],
            segment_base_offsets=segments[rows],
            log_start_offsets=log_starts[rows],
        )

    def operations(self, start: int, stop: int) -> tuple[int, int, OperationBatch]:
        """Session, kind and batch of these operations."""
        first = start - self._first
        rows = slice(first, stop - self._first)
        session, kind = self._session[first], self._kind[first]
        before = self._first_items[0]
        items = slice(self._first_items[first] - before, self._first_items[rows.stop] - before)
        ids, timeouts_ms, min_bytes, replica_ids, isolation_levels, any_key, from_now = (
            column[rows] for column in self._operations
        )
        indexes, offsets, epochs = (column[items] for column in self._items)
        item_counts = self._item_counts[rows] if len(indexes) > len(ids) else []
        names = self._run.session_names[session]
        if session == UNARY:
            names, indexes = [self._run.cluster.names[place] for place in self._places[items]], []
        batch = OperationBatch(
            ids,
            partitions=[] if kind == SIGNAL else names,
            keys=self._run.keys if kind == SIGNAL else [],
            timeouts_ms=timeouts_ms,
            item_counts=item_counts,
            item_indexes=indexes,
            offsets=offsets,
            leader_epochs=epochs if kind in {PRODUCE, FETCH} and session != WITHOUT_EPOCHS else [],
            min_bytes=min_bytes if kind == FETCH else [],
            replica_ids=replica_ids if kind == FETCH else [],
            isolation_levels=isolation_levels if kind == FETCH else [],
            any_key=any_key if kind == SIGNAL else [],
            from_now=from_now if kind == SIGNAL else [],
        )
        return session, kind, batch


def _extent(start: Ints, stop: Ints, chosen: Flags) -> tuple[int, slice]:
    """The rows of the chosen calls, which are contiguous."""
    if not chosen.any():
        return 0, slice(0, 0)
    return int(start[chosen].min()), slice(int(start[chosen].min()), int(stop[chosen].max()))
