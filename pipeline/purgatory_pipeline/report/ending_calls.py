"""How much wider bounds are because operations end together: the variance by ending call, over all outcomes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory_pipeline.report.advice import ALL, COMPETING, CurveKey
from purgatory_pipeline.report.estimates import VARIANCES_AT_MS, Curve, Floats, cluster_variances, widened
from purgatory_pipeline.report.facts import EXPIRED
from purgatory_pipeline.report.near_misses import LOOKED_UP, REACHED

COLLECTED_ROWS_MAX: Final = 200_000
"""Up to this many ends are added up on the driver, which starts no Python worker."""
_SUMS: Final = "curve int, place int, variance double"


def operation_ends(outcomes: DataFrame, missed: DataFrame) -> DataFrame:
    """A row for each operation that ended: its topic, kind, ending call and wait, and whether it ended by itself. An
    expired one whose mark was reached later ends with that call (see `near_misses`).
    """
    is_missed = F.col("kind").isin(*LOOKED_UP) & (F.col("outcome") == EXPIRED)
    own = outcomes.where((F.col("item") == 0) & ~is_missed)
    row = ("topic", "kind", "run_id", "call_number", "waited_ms")
    both = own.select(*row, F.col("outcome").isin(*COMPETING).alias("has_ended"))
    return both.unionAll(missed.select(*row, (F.col("fate") == REACHED).alias("has_ended")))


def widening(ends: DataFrame, curves: Mapping[CurveKey, Curve]) -> dict[CurveKey, Floats]:
    """The factor of the variance of each curve (see `estimate`), from `operation_ends`."""
    add = VarianceSums(tuple(curves.items()))
    rows = sum(curve.operations for (topic, _), curve in curves.items() if topic is ALL)
    if rows <= COLLECTED_ROWS_MAX:
        sums = pa.Table.from_batches(add(ends.toArrow().combine_chunks().to_batches())).to_pandas()
    else:
        parts = ends.mapInArrow(add, _SUMS).groupBy("curve", "place")
        sums = parts.agg(F.sum("variance").alias("variance")).toPandas()
    found = np.zeros((len(curves), len(VARIANCES_AT_MS)))
    np.add.at(found, (sums["curve"].to_numpy(), sums["place"].to_numpy()), sums["variance"].to_numpy())
    return {key: widened(curve, own) for (key, curve), own in zip(curves.items(), found, strict=True)}


@dataclass(frozen=True)
class VarianceSums:
    """A Spark task: adds up the variances of each curve over all batches. A call has its rows next to each other; one
    whose rows are divided between two batches counts as two.
    """

    curves: tuple[tuple[CurveKey, Curve], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums = np.zeros((len(self.curves), len(VARIANCES_AT_MS)))
        for batch in batches:
            rows = batch.to_pandas()
            by_kind = dict(iter(rows.groupby("kind")))
            by_topic = dict(iter(rows.groupby(["topic", "kind"])))
            for number, ((topic, kind), curve) in enumerate(self.curves):
                own = by_kind.get(kind) if topic is ALL else by_topic.get((topic, kind))
                if own is not None:
                    sums[number] += _variances(curve, own)
        numbers, places = (axis.ravel() for axis in np.indices(sums.shape, np.int32))
        yield pa.record_batch({"curve": numbers, "place": places, "variance": sums.ravel()})


def _variances(curve: Curve, rows: pd.DataFrame) -> Floats:
    call = rows.groupby(["run_id", "call_number"], sort=False).ngroup()
    waited_ms, has_ended = rows["waited_ms"].to_numpy(np.int64), rows["has_ended"].to_numpy(bool)
    return cluster_variances(curve, waited_ms, has_ended, call.to_numpy())
