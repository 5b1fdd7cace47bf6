"""The calls of a window other than registrations and events, as steps of a tape: cancels, extensions, stale marks,
shutdowns.
"""

from functools import cached_property
from typing import Final

import numpy as np

from purgatory.engine import calls as codes
from purgatory.engine.calls import Cancel, CancelAll, CancelName, Extend, FailStale, Pause, ShutDown
from purgatory.engine.codes import SHUTTING_DOWN
from purgatory.extensions.archive.schema import CALL_NAMES, CALLS
from purgatory_pipeline.engine_rows.row_chunk import Column, Name, RowChunk
from purgatory_pipeline.engine_rows.tape_steps import NOTHING, TapeSteps
from purgatory_pipeline.replay.open_operations import OpenOperations

RECORDED: Final = list(CALL_NAMES)
"""The calls by their codes in a chunk."""


class EndedByCalls:
    """Ids and names ended or extended by calls other than registrations and events, in the order of the calls."""

    def __init__(self) -> None:
        self.names: Final[list[Name]] = []
        self.stale: Final[dict[int, set[Name]]] = {}
        """The stale marks of each id that failed because of them."""
        self.extensions_ms: Final[list[int]] = []
        """The timeout of each extension."""
        self._ids: Final[list[Column]] = []
        self._rows: Final[list[tuple[int, int, int, int]]] = []

    @property
    def steps(self) -> TapeSteps:
        call, time, code, count = np.array(self._rows, np.int64).reshape(-1, 4).T
        return TapeSteps(call, time, code, count)

    @property
    def operation_ids(self) -> list[int]:
        found: list[int] = np.concatenate([NOTHING, *self._ids]).tolist()
        return found

    def add(self, call: int, time: int, code: int, count: int) -> None:
        self._rows.append((call, time, code, count))

    def add_ids(self, call: int, time: int, code: int, ids: Column) -> bool:
        """Add a call that ends or extends ids. Returns whether there are any."""
        if len(ids):
            self.add(call, time, code, len(ids))
            self._ids.append(ids)
        return len(ids) > 0


class OtherCalls:
    """The calls of a window that are neither registrations nor events: cancels and shutdowns."""

    def __init__(self, chunk: RowChunk | None, operations: OpenOperations, last_shut_down: int) -> None:
        self.last_shut_down: Final = last_shut_down if chunk is None else max(last_shut_down, _last_shut_down(chunk))
        """The last call of a shutdown, which may have ended a slice of the pending operations only; -1: none yet."""
        self._chunk: Final = chunk
        self._operations: Final = operations
        self._shut_down_before: Final = last_shut_down

    def ends(self, *, recorded: bool) -> EndedByCalls:
        """The ids and names that they end. A shutdown ends the recorded operations (`recorded`), or all open ones."""
        found = EndedByCalls()
        if self._chunk is None:
            return found
        assert self._chunk.table == CALLS, self._chunk.table
        columns, names = self._chunk.columns, self._chunk.names
        numbers = (columns["call"], columns["time"], columns["what"], self._chunk.column("timeout_ms"))
        shut_down, was = self._shut_down_before, self._operations.recorded
        for row, (call, time, what, timeout_ms) in enumerate(zip(*(one.tolist() for one in numbers), strict=True)):
            kind, ids = RECORDED[what], self._cancelled_ids[row]
            if kind is Cancel:
                found.add_ids(call, time, codes.CANCEL, ids)
            elif kind is Extend:
                if found.add_ids(call, time, codes.EXTEND, ids):
                    found.extensions_ms.append(timeout_ms)
            elif kind is Pause:
                found.add(call, time, codes.PAUSE, timeout_ms)
            elif kind is CancelAll:
                of_session = self._operations["session"] == self._chunk.column("session")[row]
                found.add_ids(call, time, codes.CANCEL, self._open_at(call, of_session))
            elif kind is CancelName:
                found.add(call, time, codes.CANCEL_NAME, 1)
                found.names.append(names[columns["name"][row]])
            elif kind is FailStale:
                found.add_ids(call, time, codes.FAIL_STALE, ids)
                found.stale.update(dict.fromkeys(ids.tolist(), self._stale_names[call]))
            elif recorded:
                own_end = (was["outcome"] == SHUTTING_DOWN) & (was["call"] == call)
                found.add_ids(call, time, codes.SHUT_DOWN, self._operations["ids"][own_end])
            else:  # operations open before have ended with the previous slice
                found.add_ids(call, time, codes.SHUT_DOWN, self._open_at(call, self._operations["call"] > shut_down))
                shut_down = call
        return found

    def _open_at(self, call: int, chosen: Column) -> Column:
        ids: Column = self._operations["ids"][chosen & (self._operations["call"] < call)]
        return ids

    @cached_property
    def _stale_names(self) -> dict[int, set[Name]]:
        """By call: the marks that were stale. Each has a row of its own."""
        chunk = self._chunk
        assert chunk is not None, "no calls"
        found: dict[int, set[Name]] = {}
        for row in np.flatnonzero(chunk.columns["what"] == RECORDED.index(FailStale)).tolist():
            found.setdefault(int(chunk.columns["call"][row]), set()).add(chunk.names[chunk.columns["name"][row]])
        return found

    @cached_property
    def _cancelled_ids(self) -> dict[int, Column]:
        """The open ids named by each call that has ids, by row."""
        chunk = self._chunk
        assert chunk is not None, "no calls"
        details = zip(chunk.detail_rows.tolist(), chunk.details, strict=True)
        cancels = [(row, detail) for row, detail in details if detail]
        counts = [len(detail) for _, detail in cancels]
        sessions = np.repeat(chunk.column("session")[[row for row, _ in cancels]], counts) if cancels else NOTHING
        wanted = np.array([operation for _, detail in cancels for operation in detail], np.int64)
        rows = self._operations.rows_of_operations(sessions, wanted)
        found: dict[int, Column] = dict.fromkeys(range(len(chunk)), NOTHING)
        stop = 0
        for (row, _), count in zip(cancels, counts, strict=True):
            own = rows[stop : stop + count]
            found[row] = self._operations["ids"][own[own >= 0]]
            stop += count
        return found


def _last_shut_down(chunk: RowChunk) -> int:
    calls = chunk.columns["call"][chunk.columns["what"] == RECORDED.index(ShutDown)]
    return int(calls[-1]) if len(calls) else -1
