"""One pass over an archive's files, on the executors: counts rows inside and outside the window, checks the clocks, and
checks that every registration has an outcome.

Each task reads the few columns it needs with pyarrow, in the order in which they were written, and returns sums. To
match registrations and outcomes without a shuffle, each side's operations are hashed into BUCKETS, with neighbouring
operations in the same bucket. Each bucket holds the number of its operations and the sums of both halves of their
hashes. If the sums of a bucket agree on both sides, its operations are the same, except with a probability of 2**-48.
Only the other buckets are compared row by row, in `unmatched.sql`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.extensions.archive import schema
from purgatory_pipeline.archive.catalog import ROW_KEYS
from purgatory_pipeline.archive.footer import ArchiveFile, open_parquet, to_utc
from purgatory_pipeline.engine_rows.integers import Flags, Integers, hash_operations, mix
from purgatory_pipeline.location import open_location, reading

BUCKETS: Final = 1 << 14
# How the rows of used files are classified.
USED: Final = "used"
OUTSIDE: Final = "outside the window"
OTHER_TOPIC: Final = "of another topic"

SIDES: Final = (schema.REGISTRATIONS, schema.OUTCOMES)

_CLOCKS: Final = ("call_number", "time_ms", "at")
_KEY: Final = ("session_number", "operation_id", "item")
_BLOCK_BITS: Final = 10
_SESSION_BUCKETS: Final = 31
BUCKET: Final = f"(session_number * {_SESSION_BUCKETS} + shiftright(operation_id, {_BLOCK_BITS})) & {BUCKETS - 1}"
"""An operation's bucket, in Spark's words. Neighbours share one, so a lost range of rows makes only a few differ."""
_PART_BITS: Final = 24
_PART: Final = np.uint64((1 << _PART_BITS) - 1)
"""Mask for half of a 48-bit hash. float64 sums of up to 2**29 such halves are exact."""

_NEVER_MS: Final = 2**62


@dataclass(frozen=True)
class Selection:
    """Selects rows with since_ms <= at < until_ms (Unix time) of these topics; None: of all."""

    since_ms: int
    until_ms: int
    topics: tuple[str, ...] | None

    @classmethod
    def of(cls, since: datetime | None, until: datetime | None, topics: Iterable[str] | None) -> "Selection":
        """Makes a selection from a command's arguments; instants without a time zone are UTC."""
        start, end = (None if at is None else round(at.timestamp() * 1_000) for at in (to_utc(since), to_utc(until)))
        chosen = None if topics is None else tuple(topics)
        return cls(-_NEVER_MS if start is None else start, _NEVER_MS if end is None else end, chosen)

    def holds(self, at_ms: Integers) -> Flags:
        held: Flags = (at_ms >= self.since_ms) & (at_ms < self.until_ms)
        return held


@dataclass
class Survey:
    """The survey of some files; `add` merges another survey into this one."""

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of rows, by table and USED, OUTSIDE or OTHER_TOPIC."""
    earlier: int = 0
    """Operations that ended in the window and were registered before it."""
    clocks: "list[FileClock]" = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    """Paths of files with duplicate rows."""
    sums: Integers = field(default_factory=lambda: np.zeros((len(SIDES), 3, BUCKETS), np.int64))

    def add(self, other: "Survey") -> "Survey":
        self.rows.update(other.rows)
        self.earlier += other.earlier
        self.clocks += other.clocks
        self.doubled += other.doubled
        self.sums += other.sums
        return self

    def differing(self) -> Flags:
        """A mask of the buckets in which registrations and outcomes differ."""
        differs: Flags = np.any(self.sums[0] != self.sums[1], axis=0)
        return differs


def survey_files(uri: str, files: Sequence[ArchiveFile], window: Selection) -> Survey:
    survey = Survey()
    for file in files:
        clock = FileClock(file.run_id, file.table)
        keys = ROW_KEYS[file.table][1:] if file.table in (*SIDES, schema.EVENTS) else []
        rows: list[pa.Table] = []
        for part in _parts_of(uri, file, window):
            survey.rows[file.table, USED] += part.num_rows
            if file.table != schema.MARKERS:  # the window does not apply to markers
                _count(survey, file, part, window)
            clock.read(part)
            rows.append(part.select(keys))
        survey.clocks.append(clock)
        if keys and rows:
            every = pa.concat_tables(rows)
            if every.group_by(keys, use_threads=False).aggregate([]).num_rows < every.num_rows:
                survey.doubled.append(file.path)
    return survey


def _parts_of(uri: str, file: ArchiveFile, window: Selection) -> Iterator[pa.Table]:
    """Yields the columns needed of a file's row groups. Raises `ArchiveUnusable` if one cannot be read."""
    own = {schema.REGISTRATIONS: [*_KEY, "refusal_code"], schema.OUTCOMES: [*_KEY, "waited_ms"], schema.EVENTS: ["row"]}
    topic = [] if window.topics is None or file.table == schema.MARKERS else ["topic"]
    with reading(file.path):
        parquet = open_parquet(open_location(uri).read(file.path))
        for group in range(parquet.num_row_groups):
            columns = [*_CLOCKS, *own.get(file.table, []), *topic]
            yield parquet.read_row_group(group, columns=columns, use_threads=False)


def _count(survey: Survey, file: ArchiveFile, part: pa.Table, window: Selection) -> None:
    """Counts rows that are left out, and sums up the operations that must match: accepted, and registered in the
    window.
    """
    at_ms = instants_of(part, "at")
    inside, chosen = window.holds(at_ms), np.ones(len(at_ms), bool)
    if window.topics is not None:  # rows without a topic are used too
        chosen = pc.is_in(part.column("topic"), pa.array([*window.topics, None], pa.string())).to_numpy()
    left_out = {OUTSIDE: np.count_nonzero(~inside), OTHER_TOPIC: np.count_nonzero(inside & ~chosen)}
    for reason, count in left_out.items():
        survey.rows[file.table, reason] += int(count)
        survey.rows[file.table, USED] -= int(count)
    if file.table not in SIDES:
        return
    if file.table == schema.REGISTRATIONS:
        chosen &= inside & (numbers_of(part, "refusal_code") == schema.ACCEPTED)
    else:
        registered_at_ms = at_ms - numbers_of(part, "waited_ms")
        earlier = chosen & inside & (registered_at_ms < window.since_ms) & (numbers_of(part, "item") == 0)
        survey.earlier += int(np.count_nonzero(earlier))
        chosen &= window.holds(registered_at_ms) & (at_ms >= window.since_ms)
    keys = (numbers_of(part, name)[chosen] for name in _KEY)
    survey.sums[SIDES.index(file.table)] += _bucket_sums(file.run_id, *keys)


def _bucket_sums(run_id: str, session: Integers, operation: Integers, item: Integers) -> Integers:
    """Of items, by bucket: their number and the sums of both halves of their hashes."""
    seed = int.from_bytes(blake2b(run_id.encode(), digest_size=8).digest(), "little")
    hashes = mix(hash_operations(session, operation, seed) + item.astype(np.uint64))
    buckets = (session * _SESSION_BUCKETS + (operation >> _BLOCK_BITS)) & (BUCKETS - 1)
    parts = hashes & _PART, (hashes >> np.uint64(_PART_BITS)) & _PART
    sums = [np.bincount(buckets, weights=part.astype(np.float64), minlength=BUCKETS) for part in parts]
    return np.stack([np.bincount(buckets, minlength=BUCKETS), *sums]).astype(np.int64)


@dataclass
class FileClock:
    """The clocks of one file. A fall is a later call with an earlier time.

    Pairs are of the engine's clock and the wall clock. Calls and instants are of no use before the first `read`.
    """

    run_id: str
    table: str
    first_call: int = 2**63 - 1
    last_call: int = -1
    first_ms: tuple[int, int] = (0, 0)
    """Both clocks at the first call; `last_ms` those at the last call."""
    last_ms: tuple[int, int] = (0, 0)
    falls: list[int] = field(default_factory=lambda: [0, 0])
    deepest_fall_ms: list[int] = field(default_factory=lambda: [0, 0])

    def read(self, part: pa.Table) -> None:
        """Takes the file's next rows, which may be out of order within a part."""
        if part.num_rows == 0 or self.table == schema.MARKERS:  # a marker may be about another run
            return
        calls = numbers_of(part, "call_number")
        clocks = [numbers_of(part, "time_ms"), instants_of(part, "at")]
        if np.any(np.diff(calls) < 0):
            order = np.argsort(calls, kind="stable")
            calls, clocks = calls[order], [clock[order] for clock in clocks]
        follows = 0 <= self.last_call <= calls[0]
        for index, clock in enumerate(clocks):
            steps_ms = np.diff(clock, prepend=self.last_ms[index] if follows else clock[0])
            self.falls[index] += int(np.count_nonzero(steps_ms < 0))
            self.deepest_fall_ms[index] = max(self.deepest_fall_ms[index], -int(steps_ms.min()))
        if calls[0] < self.first_call:
            self.first_call, self.first_ms = int(calls[0]), (int(clocks[0][0]), int(clocks[1][0]))
        if calls[-1] >= self.last_call:
            self.last_call, self.last_ms = int(calls[-1]), (int(clocks[0][-1]), int(clocks[1][-1]))


def numbers_of(part: pa.Table, column: str) -> Integers:
    """A column as 64-bit integers, null as 0."""
    found = part.column(column)
    values: Integers = (found.fill_null(0) if found.null_count else found).to_numpy()
    return values.astype(np.int64, copy=False)


def instants_of(part: pa.Table, column: str) -> Integers:
    """A column of instants in milliseconds of Unix time."""
    values: Integers = part.column(column).cast(pa.int64()).to_numpy()
    return values
