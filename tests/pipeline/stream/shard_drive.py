"""Rows of a history through shards, out of order, in batches of any size, saved and loaded between them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
from purgatory_pipeline.stream import shard_state
from purgatory_pipeline.stream.outcome_rows import OUTCOME_ROWS
from purgatory_pipeline.stream.shard import Shard
from purgatory_pipeline.stream.stream_rows import ROWS, hashes_of, shards_of

from purgatory.engine.codes import HIGH_WATERMARK, PRODUCE
from tests.pipeline.stream.simulated_history import Outcome, Row, SimulatedHistory, outcomes_of

PLAYS_MAX = 400
"""A shard played and saved costs milliseconds, whatever it holds."""


class Drive:
    """Takes a history through shards: rows out of order within the delay, cut into batches at random, and each shard
    saved and loaded between them.

    `strays`: some rows are late or cannot be read; `late` and
    `malformed` count the rows that the shards set aside, `strays_late` and `strays_malformed` those that were sent.
    """

    def __init__(
        self,
        history: SimulatedHistory,
        rng: random.Random,
        *,
        shards: int,
        delay_ms: int,
        strays: bool = False,
        batch_max: int | None = None,
    ) -> None:
        self.shards = [Shard(delay_ms, number=number) for number in range(shards)]
        self.late = self.strays_late = 0
        self.malformed = self.strays_malformed = 0
        self._delay_ms = delay_ms
        self._rng = rng
        self._strays = strays
        self._found = [OUTCOME_ROWS.empty_table()]
        arrived = self._arrived(history.rows)
        if batch_max is None:
            batch_max = max(rng.choice((3, 40, 400, 4_000)), 2 * len(arrived) * shards // PLAYS_MAX)
        start = 0
        while start < len(arrived):
            stop = start + 1 + rng.randrange(batch_max)
            together = "place" if delay_ms else "at_ms"  # without a delay a millisecond must come in one batch
            while stop < len(arrived) and arrived[stop][together] == arrived[stop - 1][together]:
                stop += 1
            self._play(arrived[start:stop])
            start = stop
        self._play([{"at_ms": history.end_ms + delay_ms}])  # a heartbeat

    def outcomes(self) -> list[Outcome]:
        return outcomes_of(pa.concat_tables(self._found))

    def _arrived(self, rows: list[Row]) -> list[Row]:
        """The rows of an operation stay together; all else comes up to the delay late."""
        if not self._delay_ms:
            return rows
        arrives_ms: dict[int, float] = {}
        for row in rows:
            arrives_ms.setdefault(row["place"], row["at_ms"] + self._rng.random() * 0.99 * self._delay_ms)
        return sorted(rows, key=lambda row: arrives_ms[row["place"]])

    def _play(self, rows: Sequence[Row]) -> None:
        rows = [*rows, *(self._some_strays() if self._strays else ())]
        table = pa.Table.from_pylist(rows, schema=ROWS)
        seen_ms = max(row["at_ms"] for row in rows)
        ids = table.column("operation_id").fill_null(0).to_numpy()
        own = shards_of(hashes_of(table.column("caller"), ids), len(self.shards))
        is_event = table.column("kind").is_null().to_numpy()
        for number, shard in enumerate(self.shards):
            played = shard.play(table.filter(pa.array(is_event | (own == number))), seen_ms)
            self._found.append(played.outcomes)
            self.late += played.late.num_rows
            self.malformed += played.malformed.num_rows
            octets = shard_state.to_bytes(shard)
            self.shards[number] = shard_state.from_bytes(octets, self._delay_ms, number=number)

    def _some_strays(self) -> list[Row]:
        """None, or some; an operation's row without the others, next to those of any other operation."""
        rng, horizon_ms = self._rng, self.shards[0].horizon_ms
        if rng.random() < 0.7:
            return []
        somewhere = {"topic": "orders", "partition": 0, "offset": 2**40}
        operation = {"kind": PRODUCE, "caller": "stray", "timeout_ms": 9, "item": 0}
        operation |= {"operation_id": rng.randrange(1, 100)}  # one below 1 would be malformed, not late
        now = somewhere | {"at_ms": max(horizon_ms, 0)}
        second, unknown, first = (
            operation | now | {"item_count": 2, "item": 1}, now | {"type": 99}, operation | now | {"item_count": 2},
        )  # fmt: skip
        self.strays_malformed += 3
        if horizon_ms < 1_000:
            return [second, unknown, first]
        before = somewhere | {"at_ms": horizon_ms - 1 - rng.randrange(999)}
        self.strays_late += 2
        return [second, unknown, before | {"type": HIGH_WATERMARK}, operation | before | {"item_count": 1}, first]
