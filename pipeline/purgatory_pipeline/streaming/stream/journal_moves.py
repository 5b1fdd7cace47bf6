"""Moves pending operations between a daemon and a stream: converts a stopped daemon's journal to a shard and back.

Both store the same data: pending operations in the engine's snapshot format, their callers, marks and key counts.
Operations keep their progress and their deadline. A session of the daemon is a caller of the stream.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.batches import PartitionName
from purgatory.engine.codes import NONE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.engine.snapshot.snapshots import SavedKey
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import DATABASE, Directory
from purgatory.journal.errors import JournalError
from purgatory.journal.group import Group, Moment, SessionChanges, SessionState
from purgatory.journal.row_codec import unpack_changes
from purgatory.journal.statements import StatementBuilder
from purgatory.journal.store import Store
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard.caller_ids import CALLERS, CallerIds
from purgatory_pipeline.streaming.stream.shard.shard import LIMITS, Shard

NAMELESS: Final = "stream"
"""Session name for operations without a caller; a session needs a name."""


class MoveRefused(PipelineError):
    """The pending operations cannot be moved in their present state. The message names the remedy."""


def shard_of_journal(folder: Path) -> bytes:
    """Convert the pending operations in a stopped daemon's journal to one saved shard (see `shard_bytes.divided`).

    Raises:
        MoveRefused: Results are unacknowledged or are sent to a callback; a stream supports neither.
    """
    if not (folder / DATABASE).exists():
        raise MoveRefused(f"no journal in {folder}: name the daemon's data folder")
    with opened(folder) as store:
        last = store.moment()
        if last is None:
            raise MoveRefused(f"the journal in {folder} is empty")
        sessions = [SessionState(*row) for row in store.rows("sessions")]
        if store.count("results"):
            raise MoveRefused(f"{folder} has unacknowledged results: start the daemon and collect them")
        if any(state.callback_url for state in sessions):
            raise MoveRefused(f"{folder} has sessions with a callback: wait until they have ended")
        rows = [*store.rows("registrations")]
        parts = [SavedOperations.from_bytes(row[-1]) for row in rows]
        # The daemon has completed what was due. The shard starts before the earliest deadline, so that nothing expires
        # while it is filled.
        deadlines_ms = [min(saved.deadlines_ms) - 1 for saved in parts if len(saved)]
        to_wall_ms = last[0].wall_ms - last[0].engine_ms
        shard = Shard()
        shard.seen_ms = shard.horizon_ms = last[0].wall_ms
        engine = shard.start_engine(min([last[0].engine_ms, *deadlines_ms]) + to_wall_ms)
        contents = {(topic, number): content for _, topic, number, content in store.rows("partitions")}
        for _, content in store.rows("changes"):
            contents.update(unpack_changes(content))
        restore_marks(engine, contents, store.signal_keys())
        callers = {state.session: state.session_id for state in sessions}
        tombstones: dict[int, bytes] = dict(store.rows("gone"))
        with shard_bytes.referenced(engine, unsaved_names(parts, contents)):
            for (number, session, *_), saved in zip(rows, parts, strict=True):
                take_over(shard, saved, tombstones.get(number, b""), callers[session], to_wall_ms)
        return shard_bytes.to_bytes(shard)


def restore_marks(engine: Engine, contents: Mapping[PartitionName, bytes], keys: Sequence[SavedKey]) -> None:
    """Restore partitions, as far as they have content, and keys."""
    for name, content in contents.items():
        if content:
            engine.snapshots.restore_partition(name, content)
    for key in keys:
        engine.snapshots.restore_key(*key[:-1])  # a stream has no accounts


def take_over(shard: Shard, saved: SavedOperations, tombstones: bytes, caller: str, to_wall_ms: int) -> None:
    """Add the operations of one journal row to a shard, with ids of the shard and wall-clock times."""
    assert shard.engine is not None, "the shard has no engine yet"
    count = len(saved)
    ids = np.arange(shard.next_id, shard.next_id + count)
    shard.next_id += count
    padded = np.frombuffer(tombstones.ljust((count + 7) // 8, b"\0"), np.uint8)  # trailing zero bytes are not stored
    removed = np.unpackbits(padded, count=count, bitorder="little").astype(np.bool_)
    registered_ms = np.array(saved.registered_ms) + to_wall_ms
    columns = [ids, pa.array([caller] * count, pa.string()), np.array(saved.operation_ids), registered_ms]
    added = pa.table(columns, schema=CALLERS).filter(pa.array(~removed))
    saved.operation_ids = vec[i64](ids.tolist())
    saved.registered_ms = vec[i64](registered_ms.tolist())
    saved.deadlines_ms = vec[i64]((np.array(saved.deadlines_ms) + to_wall_ms).tolist())
    shard.engine.restore(shard.owner, saved, tombstones, shard.clock_ms)
    shard.callers = CallerIds(pa.concat_tables([shard.callers.table, added]).combine_chunks())


def unsaved_names(parts: Sequence[SavedOperations], contents: Mapping[PartitionName, bytes]) -> set[PartitionName]:
    """Partitions that operations refer to and that have no saved content."""
    names = {saved.names[place] for saved in parts for place in np.array(saved.places)[np.array(saved.removed) == NONE]}
    return {name for name in names if name[1] >= 0 and not contents.get(name)}


def journal_of_shards(saved: Sequence[bytes], folder: Path) -> int:
    """Write the pending operations of saved shards as a new journal. Returns the number of operations.

    Raises:
        MoveRefused: The folder has a journal, or the shards contain rows that are not due yet.
    """
    if (folder / DATABASE).exists():
        raise MoveRefused(f"{folder} already contains a journal: name another folder")
    shards = [shard_bytes.from_bytes(octets, 0) for octets in saved if octets]
    kept = sum(shard.kept.num_rows for shard in shards)
    if kept:
        raise MoveRefused(
            f"{kept} rows are not due yet: send an empty event dated at least the stream's --delay after them, and run "
            "`stream --once`"
        )
    engines = [(shard, shard.engine) for shard in shards if shard.engine is not None]
    if not engines:
        raise MoveRefused("the stream has played nothing yet")
    # The daemon adds the time since this instant, by the wall clock. A stream's clock may be ahead of that; deadlines
    # would then come early by as much.
    now_ms = min(time.time_ns() // 1_000_000, *(shard.clock_ms for shard, _ in engines))
    group = Group(1, Moment(now_ms, now_ms, 0, ""))
    group.is_last = True
    marks = engines[0][1]  # all shards have the same
    contents = {name: marks.snapshots.save_partition(name) for name in marks.partition_names()}
    group.partitions.extend((name, content) for name, content in contents.items() if content)
    group.keys.extend(keys_of([engine for _, engine in engines]))
    together = Engine(LIMITS, now_ms)
    restore_marks(together, contents, group.keys)
    group.sessions.extend(sessions_of(engines, together, contents, now_ms))
    with opened(folder) as store:
        store.commit(StatementBuilder().statements(group))
    return sum(shard.pending for shard in shards)


def keys_of(engines: Sequence[Engine]) -> list[SavedKey]:
    """The keys that a daemon keeps, in eviction order: keys with waiting operations last.

    Raises:
        MoveRefused: Operations wait for more keys than a daemon keeps.
    """
    keys_max = EngineLimits().signal_keys_max
    waited = {key for engine in engines for key, known in engine.snapshots.keys.by_key.items() if known.references}
    if len(waited) > keys_max:
        raise MoveRefused(f"operations wait for {len(waited):,} keys; a daemon keeps the counts of {keys_max:,}")
    return sorted(engines[0].snapshots.save_keys(), key=lambda counted: counted[0] in waited)[-keys_max:]


def sessions_of(
    engines: Sequence[tuple[Shard, Engine]], together: Engine, contents: Mapping[PartitionName, bytes], now_ms: int
) -> Iterator[SessionChanges]:
    """The pending operations in a daemon's format: one session per caller, with operations sorted by the caller's ids,
    which is not their order in the shards. `together` is an engine with all marks and no operations.
    """
    tables = [shard.callers.table.to_pandas().assign(shard=place) for place, (shard, _) in enumerate(engines)]
    waiting = pd.concat(tables)
    if {"", NAMELESS} <= set(waiting["caller"]):
        raise MoveRefused(f"operations without a caller would join session {NAMELESS!r}, which is already a caller")
    waiting["caller"] = waiting["caller"].replace("", NAMELESS)
    for number, (caller, rows) in enumerate(waiting.groupby("caller"), 1):
        owner = together.add_owner()
        for place, owned in rows.groupby("shard"):
            shard, engine = engines[int(place)]
            saved = engine.snapshots.save_some(shard.owner, owned["engine_id"].tolist())
            saved.operation_ids = vec[i64](owned["operation_id"].tolist())
            saved.registered_ms = vec[i64](np.minimum(np.array(saved.registered_ms), now_ms).tolist())
            with shard_bytes.referenced(together, unsaved_names([saved], contents)):
                together.restore(owner, saved, b"", now_ms)
        owner.put_in_order()
        highest = int(rows["operation_id"].max())
        part = SessionChanges(SessionState(number, str(caller), highest, 0, 0, 0, incarnation=secrets.token_hex(8)), 1)
        part.registered = together.snapshots.save_above(owner, 0)
        yield part


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """Open and lock a journal. Errors of the journal are raised as `MoveRefused`."""
    try:
        directory = Directory(folder)
        try:
            store = Store(directory, CrashPoints.from_environment())
            try:
                store.verify()
                yield store
            finally:
                store.close()
        finally:
            directory.release()
    except (JournalError, sqlite3.Error) as error:
        raise MoveRefused(str(error)) from error
