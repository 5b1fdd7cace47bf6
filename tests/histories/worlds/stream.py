"""The shards of a Spark stream, without Spark: random histories as rows, out of order, in batches of any size.

The outcomes must be those of one engine that is called directly.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
from purgatory_pipeline.stream import shard_state
from purgatory_pipeline.stream.outcome_rows import OUTCOME_ROWS
from purgatory_pipeline.stream.shard import Shard
from purgatory_pipeline.stream.stream_rows import ROWS, hashes_of, shards_of

from purgatory.engine.codes import HIGH_WATERMARK, PRODUCE
from tests.histories.history import History
from tests.histories.tables import OF_OPERATIONS, features_of
from tests.pipeline.stream.simulated_history import Row, SimulatedHistory, outcomes_of

PATHS = ("stream",)
FAULTS = ("none",)
FEATURES = tuple(OF_OPERATIONS.keys() - {"value", "failed key", "extended", "cancelled"})
STEPS = 10_000
PLAYS_MAX = 400
"""A shard played and saved costs milliseconds, whatever it holds."""


def differences(found: Iterable[object], expected: Iterable[object]) -> list[str]:
    """Items found more or less often than expected."""
    surplus = Counter(map(repr, found))
    surplus.subtract(map(repr, expected))
    return sorted(f"{count:+d} {what}" for what, count in surplus.items() if count)


class Drive:
    """Takes the history of a seed through shards: rows out of order within the delay, cut into batches at random, and
    each shard saved and loaded between them. In half of the histories some rows are late or cannot be read.
    """

    def __init__(self, seed: int, step_count: int, *, crowded: bool = False) -> None:
        self.history = SimulatedHistory.of_seed(seed, step_count, crowded=crowded)
        self._rng = rng = random.Random(seed)
        shards = rng.choice((1, 1, 3) if crowded else (1, 2, 4, 16))
        self._has_strays = rng.random() < 0.5
        self._delay_ms = delay_ms = rng.choice((0, 1, 1, 2, 20) if crowded else (0, 1, 50, 3_000))
        self._shards = [Shard(delay_ms, number=number) for number in range(shards)]
        self._set_aside: Counter[str] = Counter()
        """Rows that the shards have set aside, minus those that were sent so."""
        self._found = [OUTCOME_ROWS.empty_table()]
        arrived = self._arrived(self.history.rows)
        batch_max = max(rng.choice((3, 40, 400, 4_000)), 2 * len(arrived) * shards // PLAYS_MAX)
        if crowded:
            batch_max = 3
        start = 0
        while start < len(arrived):
            stop = start + 1 + rng.randrange(batch_max)
            together = "place" if delay_ms else "at_ms"  # without a delay a millisecond must come in one batch
            while stop < len(arrived) and arrived[stop][together] == arrived[stop - 1][together]:
                stop += 1
            self._play(arrived[start:stop])
            start = stop
        self._play([{"at_ms": self.history.end_ms + delay_ms}])  # a heartbeat

    def complaints(self) -> list[str]:
        """Differences from the engine's outcomes."""
        self._set_aside["malformed"] -= self.history.refused_events
        self._set_aside["pending"] = sum(shard.pending for shard in self._shards)
        wrong = [f"{count:+d} rows {what}" for what, count in self._set_aside.items() if count]
        wrong += differences(outcomes_of(pa.concat_tables(self._found)), self.history.outcomes)
        how = f"{len(self._shards)} shards, a delay of {self._delay_ms} ms"
        return [how, *wrong] if wrong else []

    def _arrived(self, rows: list[Row]) -> list[Row]:
        """The rows of an operation stay together; all else comes up to the delay late."""
        if not self._delay_ms:
            return rows
        arrives_ms: dict[int, float] = {}
        for row in rows:
            arrives_ms.setdefault(row["place"], row["at_ms"] + self._rng.random() * 0.99 * self._delay_ms)
        return sorted(rows, key=lambda row: arrives_ms[row["place"]])

    def _play(self, rows: Sequence[Row]) -> None:
        rows = [*rows, *(self._some_strays() if self._has_strays else ())]
        table = pa.Table.from_pylist(rows, schema=ROWS)
        seen_ms = max(row["at_ms"] for row in rows)
        ids = table.column("operation_id").fill_null(0).to_numpy()
        own = shards_of(hashes_of(table.column("caller"), ids), len(self._shards))
        is_event = table.column("kind").is_null().to_numpy()
        for number, shard in enumerate(self._shards):
            played = shard.play(table.filter(pa.array(is_event | (own == number))), seen_ms)
            self._found.append(played.outcomes)
            self._set_aside.update(late=played.late.num_rows, malformed=played.malformed.num_rows)
            octets = shard_state.to_bytes(shard)
            self._shards[number] = shard_state.from_bytes(octets, self._delay_ms, number=number)

    def _some_strays(self) -> list[Row]:
        """None, or some; an operation's row without the others, next to those of any other operation."""
        rng, horizon_ms = self._rng, self._shards[0].horizon_ms
        if rng.random() < 0.7:
            return []
        somewhere = {"topic": "orders", "partition": 0, "offset": 2**40}
        operation = {"kind": PRODUCE, "caller": "stray", "timeout_ms": 9, "item": 0}
        operation |= {"operation_id": rng.randrange(1, 100)}  # one below 1 would be malformed, not late
        now = somewhere | {"at_ms": max(horizon_ms, 0)}
        second, unknown, first = (
            operation | now | {"item_count": 2, "item": 1}, now | {"type": 99}, operation | now | {"item_count": 2},
        )  # fmt: skip
        self._set_aside["malformed"] -= 3
        if horizon_ms < 1_000:
            return [second, unknown, first]
        before = somewhere | {"at_ms": horizon_ms - 1 - rng.randrange(999)}
        self._set_aside["late"] -= 2
        return [second, unknown, before | {"type": HIGH_WATERMARK}, operation | before | {"item_count": 1}, first]


def run(history: History) -> None:
    crowded = history.seed % 3 == 0
    drive = Drive(history.seed, STEPS // 10 if crowded else STEPS, crowded=crowded)
    history.judge.complaints.extend(drive.complaints())
    for operation in drive.history.operations:
        history.seen.note(features_of(operation), "stream", "none")
    history.figures.update(rows=len(drive.history.rows), outcomes=len(drive.history.outcomes))
