"""What callers send in a run: batches of registrations and events, made from a chunk of calls at a time."""

from typing import Any, Final

import numpy as np

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.codes import KINDS, SIGNAL
from purgatory.engine.kinds.operation_columns import columns_of
from purgatory_pipeline.generate.draw.arrivals import UNARY, WITHOUT_EPOCHS
from purgatory_pipeline.generate.draw.drawn_run import DrawnRun
from purgatory_pipeline.generate.draw.schedule import EVENTS, NUMBERS, REGISTER
from purgatory_pipeline.generate.draw.topology import Flags, Ints

COLUMNS: Final = {
    kind: {"operation_ids", "timeouts_ms", "item_indexes", *(column.batch_name for column in columns_of(kind))}
    for kind in KINDS
}
"""What can be said of the operations of each kind."""


class CallBatches:
    """The batches of a chunk of calls. Columns become lists once, from which each call takes its rows."""

    def __init__(self, run: DrawnRun, first: int, stop: int) -> None:
        self._run: Final = run
        calls = run.timeline.calls
        what, start, end = (column[first:stop] for column in (calls.what, calls.start, calls.stop))
        self._first_event, rows = _extent(start, end, what == EVENTS)
        self._events: Final = {name: run.timeline.events[name][rows].tolist() for name in NUMBERS[1:]}
        self._first, rows = _extent(start, end, what == REGISTER)
        arrivals, requests = run.arrivals, run.requests
        self._session: Final = arrivals.session[rows].tolist()
        self._kind: Final = arrivals.kind[rows].tolist()
        self._first_items: Final = arrivals.first_item[rows.start : rows.stop + 1].tolist()
        items = slice(self._first_items[0], self._first_items[-1])
        self._item_counts: Final = np.diff(self._first_items).tolist()
        operations = {"operation_ids": arrivals.operation_id, **requests.operations}
        self._operations: Final = {name: column[rows].tolist() for name, column in operations.items()}
        of_items = {"item_indexes": run.item_index, **requests.items}
        self._items: Final = {name: column[items].tolist() for name, column in of_items.items()}
        self._places: Final = arrivals.item_place[items].tolist()

    def events(self, start: int, stop: int) -> EventBatch:
        rows = slice(start - self._first_event, stop - self._first_event)
        columns: dict[str, Any] = {name: column[rows] for name, column in self._events.items()}
        return EventBatch(partitions=self._run.cluster.names, **columns)

    def operations(self, start: int, stop: int) -> tuple[int, int, OperationBatch]:
        """Session, kind and batch of these operations."""
        first = start - self._first
        rows = slice(first, stop - self._first)
        session, kind = self._session[first], self._kind[first]
        before = self._first_items[0]
        items = slice(self._first_items[first] - before, self._first_items[rows.stop] - before)
        both = ((self._operations, rows), (self._items, items))
        columns: dict[str, Any] = {
            name: column[part] for whole, part in both for name, column in whole.items() if name in COLUMNS[kind]
        }
        if items.stop - items.start > len(columns["operation_ids"]):
            columns["item_counts"] = self._item_counts[rows]
        if session == WITHOUT_EPOCHS:
            columns.pop("leader_epochs", None)
        if kind == SIGNAL:
            columns["keys"] = self._run.keys
        elif session == UNARY:
            columns["partitions"] = [self._run.cluster.names[place] for place in self._places[items]]
            del columns["item_indexes"]
        else:
            columns["partitions"] = self._run.session_names[session]
        return session, kind, OperationBatch(**columns)


def _extent(start: Ints, stop: Ints, chosen: Flags) -> tuple[int, slice]:
    """The rows of the chosen calls, which are contiguous."""
    if not chosen.any():
        return 0, slice(0, 0)
    return int(start[chosen].min()), slice(int(start[chosen].min()), int(stop[chosen].max()))
