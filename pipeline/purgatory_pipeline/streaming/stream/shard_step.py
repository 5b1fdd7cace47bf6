"""The stateful step: a shard of the purgatory plays the payloads of a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from purgatory_pipeline.streaming.stream.payloads import unpacked
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard.outcome_rows import OUTCOME_ROWS
from purgatory_pipeline.streaming.stream.shard.shard import SET_ASIDE, Shard
from purgatory_pipeline.streaming.stream.shard_seeds import Division
from purgatory_pipeline.streaming.stream.wire_records import MALFORMED

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

OUTCOMES: Final = "outcomes"
LATE: Final = "late"
REFUSED_ROWS: Final = "set_aside"
MALFORMED_RECORDS: Final = "malformed"
TABLES: Final = {OUTCOMES: OUTCOME_ROWS, LATE: SET_ASIDE, REFUSED_ROWS: SET_ASIDE, MALFORMED_RECORDS: MALFORMED}
"""The output tables of a stream."""

PLAYED_DDL: Final = "table string, count long, pending long, shard int, rows binary"
STATE_DDL: Final = "shard binary"
NUMBERS_DDL: Final = "pending long, bytes long, horizon_ms long, late long, division long"


@dataclass(frozen=True)
class PlayedBatch:
    """The result of a micro-batch in one shard: the rows of each table, and the number of pending operations."""

    tables: dict[str, pa.Table]
    pending: int

    def records(self, shard: int) -> list[dict[str, Any]]:
        """The same as records of PLAYED_DDL. There is at least one, with the number of pending operations."""
        return [
            {
                "table": name,
                "count": rows.num_rows,
                "pending": self.pending if name == OUTCOMES else 0,
                "shard": shard,
                "rows": shard_bytes.table_bytes(rows),
            }
            for name, rows in self.tables.items()
            if rows.num_rows or name == OUTCOMES
        ]


def play_payloads(shard: Shard, payloads: pa.Table) -> PlayedBatch:
    """Play the payloads of one micro-batch."""
    seen_ms = max(payloads.column("seen_ms").to_pylist())
    played = shard.play(unpacked(payloads.column("rows").to_pylist()), seen_ms)
    malformed = unpacked(payloads.column("malformed").to_pylist(), MALFORMED)
    aside = pa.concat_tables([played.malformed, unpacked(payloads.column("set_aside").to_pylist(), SET_ASIDE)])
    tables = (played.outcomes, played.late, aside, malformed)
    return PlayedBatch(dict(zip(TABLES, tables, strict=True)), shard.pending)


class ShardProcessor(StatefulProcessor):
    """A shard of the purgatory for `transformWithStateInPandas`, with time mode None: the shard handles event time.

    Spark's watermark would drop late registrations silently and complete operations one batch later.
    """

    def __init__(self, delay_ms: int, division: Division) -> None:
        self._delay_ms: Final = delay_ms
        self._division: Final = division

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the two states: the shard, and its key figures, which can be read without loading the shard."""
        self._shard = handle.getValueState("shard", STATE_DDL)
        self._numbers = handle.getValueState("numbers", NUMBERS_DDL)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ANN401 - Spark's names
        """Play one micro-batch of one shard."""
        del timerValues
        number = int(key[0])
        shard = self._begin(number)
        payloads = pd.concat(list(rows))
        played = play_payloads(shard, pa.Table.from_pandas(payloads, preserve_index=False))
        octets = shard_bytes.to_bytes(shard)
        self._shard.update((octets,))
        self._numbers.update((shard.pending, len(octets), shard.horizon_ms, shard.late, self._division.number))
        yield pd.DataFrame(played.records(number))

    def _begin(self, number: int) -> Shard:
        """The shard after the previous micro-batch, or as divided since then."""
        numbers, stored = self._numbers.get(), self._shard.get()
        played_in = numbers[-1] if numbers is not None else 0
        if played_in < self._division.number:
            octets = self._division.read(number)
        elif stored is not None:
            octets = bytes(stored[0])
        else:
            return Shard(self._delay_ms, number=number)
        return shard_bytes.from_bytes(octets, self._delay_ms, number=number)

    def close(self) -> None:
        """Nothing is held between batches."""
