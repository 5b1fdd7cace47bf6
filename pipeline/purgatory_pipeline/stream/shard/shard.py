"""A shard of the purgatory: the engine, fed with rows of any order, its state as bytes between two batches.

Time is the rows' own. The shard's horizon is the latest instant that any row has shown, less the delay that rows may
have. What lies before it is played in order of time, the rest is kept; what comes later than that is late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.engine.batches import Refusal
from purgatory.engine.codes import EVENT_NAMES, KINDS
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.tape import Played
from purgatory_pipeline.archive.integers import Flags, Hashes, Integers
from purgatory_pipeline.stream.shard.caller_ids import CALLERS, CallerIds
from purgatory_pipeline.stream.shard.outcome_rows import OUTCOME_ROWS, completed_rows, refused_rows
from purgatory_pipeline.stream.shard.repeated_operations import Repeats
from purgatory_pipeline.stream.shard.row_order import Things, column_of, play_order, things_of
from purgatory_pipeline.stream.shard.shard_tape import TapeOfRows, tape_of
from purgatory_pipeline.stream.shard.stream_rows import ROWS, conformed, hashes_of

UNBOUNDED: Final = 2**60
LIMITS: Final = EngineLimits(
    pending_operations_max=UNBOUNDED,
    pending_items_max=UNBOUNDED,
    partitions_max=UNBOUNDED,
    signal_keys_max=UNBOUNDED,
)
"""What a shard holds is bounded by its memory; all else as in the daemon.

Every shard has the counts of all keys. If it forgot some, which ones would depend on the operations that wait in it, so
outcomes would depend on the number of shards.
"""
NOTHING: Final = np.empty(0, np.int64)
NEVER: Final = -1
"""No row has come yet."""

BROKEN: Final = "is not whole: items are missing, kind or type is unknown, or operation_id is below 1"
SET_ASIDE: Final = pa.schema([*ROWS, pa.field("reason", pa.string())])
"""Rows that could not be played, and why."""


@dataclass(frozen=True)
class PlayedRows:
    """What a batch has brought: outcomes, late rows, and rows that say nothing an engine could take."""

    outcomes: pa.Table
    late: pa.Table
    malformed: pa.Table


class Shard:
    """`delay_ms`: how far rows may be out of order. With 0, rows of one millisecond may be cut apart by batches."""

    def __init__(self, delay_ms: int = 0, *, number: int = 0) -> None:
        assert delay_ms >= 0, f"delay_ms={delay_ms}"
        self.delay_ms = delay_ms
        self.number: Final = number
        """Events go to all shards: what there is to say of them, the first one says."""
        self.seen_ms = NEVER
        """The latest instant of any row."""
        self.horizon_ms = NEVER
        """Everything before it has been played, and without a delay everything at it."""
        self.clock_ms = NEVER
        """The engine's. With a delay it stays before the horizon, at which rows may still come."""
        self.late = 0
        """How many operations and events came late, so far."""
        self.callers = CallerIds()
        self.kept: pa.Table = ROWS.empty_table().select(["at_ms"])
        """Rows that are not due yet."""
        self.next_id = 1
        self.engine: Engine | None = None

    @property
    def pending(self) -> int:
        """Operations that wait; those whose time to be registered has not come do not count."""
        return len(self.callers)

    def start_engine(self, now_ms: int) -> Engine:
        """Makes the engine and its only owner, who is number 0."""
        self.clock_ms = now_ms
        self.engine = Engine(LIMITS, now_ms)
        self.owner = self.engine.add_owner()
        return self.engine

    def play(self, rows: pa.Table, seen_ms: int = NEVER) -> PlayedRows:
        """Takes rows (`ROWS`, or some columns of it) and plays what is due.

        `seen_ms` is the latest instant of the batch: the shards of a stream all have the same time.
        """
        fresh = rows.num_rows
        rows = pa.concat_tables([self.kept, conformed(rows)], promote_options="default").combine_chunks()
        first_fresh = rows.num_rows - fresh
        at_ms = column_of(rows, "at_ms")
        self.seen_ms = max(self.seen_ms, seen_ms, int(at_ms.max(initial=NEVER)))
        before_ms, self.horizon_ms = self.horizon_ms, max(self.horizon_ms, self.seen_ms - self.delay_ms)
        things = things_of(rows)
        known = known_things(rows, things)
        is_late = (things.at_ms < before_ms) & (things.start >= first_fresh) & known
        self.late += int(is_late.sum())
        is_whole = known & things.is_whole & ~is_late
        # With a delay a millisecond is played when it is over, so that no cut goes through it.
        is_due = things.at_ms < self.horizon_ms if self.delay_ms else things.at_ms <= self.horizon_ms
        self.kept = used_columns(rows.take(pa.array(things.rows(is_whole & ~is_due))))
        due = np.flatnonzero(is_whole & is_due)
        outcomes, refused = self._play(rows, things, play_order(rows, things, due))
        mine = things.is_registration if self.number else np.ones(len(things), np.bool_)
        is_heartbeat = ~things.is_registration & (column_of(rows, "type")[things.start] == 0)
        broken = mine & ~is_late & (~known | ~things.is_whole) & ~is_heartbeat
        malformed = [set_aside(rows, things.rows(broken), BROKEN)]
        malformed += refused if not self.number else []
        late = set_aside(rows, things.rows(is_late & mine), "")
        return PlayedRows(outcomes, late, pa.concat_tables(malformed))

    def _play(self, rows: pa.Table, things: Things, order: Integers) -> tuple[pa.Table, list[pa.Table]]:
        if self.engine is None and not len(order):
            return OUTCOME_ROWS.empty_table(), []
        engine = self.engine or self.start_engine(int(things.at_ms[order[0]]))
        self.clock_ms = max(self.clock_ms, self.horizon_ms - bool(self.delay_ms))
        arriving = tape_of(rows, things, order, self.next_id, self.clock_ms, LIMITS.timeout_ms_default)
        repeats = self._add(rows, things, arriving)
        played = engine.play(self.owner, arriving.tape, prompt=True)
        refused = self._refused(rows, arriving, played)
        return self._outcomes(played, arriving, repeats), refused

    def _add(self, rows: pa.Table, things: Things, arriving: TapeOfRows) -> Repeats:
        """Enters the operations that arrive among those that are pending."""
        operations = arriving.operations
        if operations is None:
            return Repeats.none()
        first = things.start[arriving.registrations]
        callers = rows.column("caller").take(pa.array(first)) if "caller" in rows.column_names else None
        more = pa.table(
            {
                "engine_id": operations.ids,
                "caller": pa.nulls(len(first), pa.string()).fill_null("") if callers is None else callers.fill_null(""),
                "operation_id": column_of(rows, "operation_id")[first],
                "registered_ms": operations.time,
            },
            schema=CALLERS,
        )
        hashes: Hashes = hashes_of(more.column("caller"), more.column("operation_id").to_numpy())
        repeats = Repeats.among(self.callers, more, hashes)
        self.callers.add(more, hashes)
        self.next_id += len(first)
        return repeats

    def _refused(self, rows: pa.Table, arriving: TapeOfRows, played: Played) -> list[pa.Table]:
        """The events that the engine refused."""
        refusals = played.events.refusals
        if not refusals:
            return []
        places = arriving.events[[refusal.index for refusal in refusals]]
        return [set_aside(rows, places, [said(refusal) for refusal in refusals])]

    def _outcomes(self, played: Played, arriving: TapeOfRows, repeats: Repeats) -> pa.Table:
        """What was refused and what has ended, but for operations that were sent again while they waited."""
        assert self.engine is not None, "nothing was played"
        ids = [np.array(played.refused_ids, np.int64)]
        found = [self._refused_rows(played, arriving)]
        for ended in self.engine.take_completions():  # there is one owner
            ids.append(np.asarray(ended.operation_ids, np.int64))
            found.append(completed_rows(ended, self.callers.table.take(pa.array(self.callers.places(ids[-1])))))
        outcomes, ended_ids = pa.concat_tables(found), np.concatenate(ids)
        repeated = repeats.dropped(ended_ids, outcomes) if repeats else NOTHING
        self._forget(ended_ids)
        waiting = self.callers.present(repeated)
        if len(waiting):
            self.engine.cancel(self.owner, waiting.tolist(), self.clock_ms)
            self.engine.take_completions()
            self._forget(waiting)
        return outcomes.filter(pa.array(~np.isin(ended_ids, repeated))) if len(repeated) else outcomes

    def _refused_rows(self, played: Played, arriving: TapeOfRows) -> pa.Table:
        if not played.refused_ids:
            return OUTCOME_ROWS.empty_table()
        assert arriving.operations is not None, f"refused {played.refused_ids[:3]}, nothing was registered"
        refused = np.array(played.refused_ids, np.int64)
        kinds = arriving.operations.kind[refused - arriving.operations.ids[0]]
        return refused_rows(played.refusals, self.callers.table.take(pa.array(self.callers.places(refused))), kinds)

    def _forget(self, engine_ids: Integers) -> None:
        kept = np.ones(len(self.callers), np.bool_)
        kept[self.callers.places(engine_ids)] = False
        self.callers.keep(kept)


def known_things(rows: pa.Table, things: Things) -> Flags:
    """Which are operations of a known kind with an id, or events of a known type; no heartbeats."""
    kind, kind_of_event = (column_of(rows, name)[things.start] for name in ("kind", "type"))
    is_operation = np.isin(kind, KINDS) & (column_of(rows, "operation_id")[things.start] >= 1)
    return np.where(things.is_registration, is_operation, np.isin(kind_of_event, list(EVENT_NAMES)))


def used_columns(rows: pa.Table) -> pa.Table:
    """Without columns in which all is null."""
    return rows.select(
        [name for name in rows.column_names if name == "at_ms" or rows.column(name).null_count < len(rows)]
    )


def set_aside(rows: pa.Table, places: Integers, reason: str | Sequence[str]) -> pa.Table:
    """Some rows, each with why."""
    if not len(places):
        return SET_ASIDE.empty_table()
    chosen = rows.take(pa.array(places))
    reasons = [reason] * len(places) if isinstance(reason, str) else list(reason)
    columns = {
        field.name: chosen.column(field.name)
        if field.name in chosen.column_names
        else pa.nulls(len(places), field.type)
        for field in ROWS
    }
    return pa.table({**columns, "reason": pa.array(reasons, pa.string())}, schema=SET_ASIDE)


def said(refusal: Refusal) -> str:
    """A refusal as a line."""
    return f"{refusal.field}: {refusal.message}" if refusal.field else refusal.message
