"""The events of a window as a policy changes them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from purgatory.engine import codes
from purgatory_pipeline.engine_rows.row_chunk import Name, RowChunk, join
from purgatory_pipeline.replay.policy import MIN_IN_SYNC_REPLICAS, Policy

MARKS_LEFT_OUT: Final = "pushed high watermarks left out"
MARKS_KEPT: Final = "pushed high watermarks kept"
"""Counters of each player; its place is appended."""
ROLE_EVENTS: Final = (codes.IN_SYNC_REPLICAS, codes.LEADERSHIP, codes.PARTITION_REMOVED)


class EventRewriter:
    """Rewrites recorded events for a policy that moves high watermarks.

    A slow replica's progress is delayed, in order with the other events of that time. If the in-sync set of a partition
    is known, its high watermark follows from the replicas; marks that were pushed as well were computed from the
    recorded replicas, so they are dropped. If the set is not known, pushed marks are the only information: they are
    kept, and neither replicas nor the minimum have an effect.
    """

    def __init__(self, policy: Policy) -> None:
        self.marks_left_out = 0
        self.marks_kept = 0
        self._policy: Final = policy
        self._minimum: Final = policy.named(MIN_IN_SYNC_REPLICAS)
        self._late: RowChunk | None = None
        """Events that come after the last window; their `time` is when."""
        self._in_sync_known: Final[set[Name]] = set()
        self._followed: Final[set[Name]] = set()

    def take(self, chunk: RowChunk | None, last_ms: int) -> RowChunk | None:
        """The events up to `last_ms`, in the order in which they reach the engine: those of a window, and those delayed
        from before.
        """
        if chunk is not None:
            chunk = self._delayed(self._with_minimum(self._without_pushed(chunk)))
        parts = [part for part in (self._late, chunk) if part is not None and len(part)]
        self._late = None
        if not parts:
            return None
        whole = join(parts)
        whole = whole.take(np.lexsort((whole.columns["call"], whole.columns["time"])))
        stop = int(np.searchsorted(whole.columns["time"], last_ms, side="right"))
        if stop < len(whole):
            self._late = whole.slice(stop, len(whole)).with_names_used()
        return whole.slice(0, stop) if stop else None

    def _delayed(self, chunk: RowChunk) -> RowChunk:
        time = chunk.columns["time"].copy()
        progress = chunk.columns["type"] == codes.FOLLOWER_PROGRESS
        for replica_id, delay_ms in self._policy.slow_replicas:
            time[progress & (chunk.column("replica_id") == replica_id)] += delay_ms
        return replace(chunk, columns={**chunk.columns, "time": time})

    def _without_pushed(self, chunk: RowChunk) -> RowChunk:
        """Drops pushed marks of partitions whose high watermark follows from the replicas."""
        types, places = chunk.columns["type"], chunk.columns["name"]
        is_mark = types == codes.HIGH_WATERMARK
        derived = np.array([self._is_derived(name) for name in chunk.names], np.bool_)
        left_out = np.zeros(len(chunk), np.bool_)
        start = 0
        details = dict(zip(chunk.detail_rows.tolist(), chunk.details, strict=True))
        for row in np.flatnonzero(np.isin(types, ROLE_EVENTS)).tolist():
            left_out[start:row] = is_mark[start:row] & derived[places[start:row]]
            start = row
            name = chunk.names[places[row]]
            self._follow_role(name, types[row], chunk.column("flags")[row] != 0, details.get(row))
            derived[[place for place, other in enumerate(chunk.names) if other == name]] = self._is_derived(name)
        left_out[start:] = is_mark[start:] & derived[places[start:]]
        counted = chunk.column("copy") == 0
        self.marks_left_out += int(np.count_nonzero(left_out & counted))
        self.marks_kept += int(np.count_nonzero(is_mark & ~left_out & counted))
        return chunk.take(~left_out) if left_out.any() else chunk

    def _is_derived(self, name: Name) -> bool:
        return name in self._in_sync_known and name not in self._followed

    def _follow_role(self, name: Name, event_type: int, flag: bool, detail: Sequence[Any] | None) -> None:
        """Follows whether a partition knows its in-sync set, and whether it is led elsewhere (a follower gets its
        mark).
        """
        if event_type == codes.IN_SYNC_REPLICAS:
            if detail is not None and detail[1]:
                self._in_sync_known.add(name)
        elif event_type == codes.LEADERSHIP:
            (self._followed.discard if flag else self._followed.add)(name)
        else:
            self._in_sync_known.discard(name)
            self._followed.discard(name)

    def _with_minimum(self, chunk: RowChunk) -> RowChunk:
        """Replaces the minimum in every event that has an in-sync set."""
        if not self._minimum or not chunk.details:
            return chunk
        details = []
        for row, detail in zip(chunk.detail_rows.tolist(), chunk.details, strict=True):
            topic, _ = chunk.names[chunk.columns["name"][row]]
            *lists, minimum = detail
            if chunk.columns["type"][row] == codes.IN_SYNC_REPLICAS:
                for change in self._minimum:
                    if not change.topic or change.topic == topic:
                        before = 1 if minimum is None or minimum < 1 else minimum
                        minimum = int(change.applied(np.array([before]))[0])
            details.append((*lists, minimum))
        return replace(chunk, details=details)
