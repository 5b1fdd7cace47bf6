"""Tables that count and measure waits by group, topic and window, the hot keys, and the deepest backlog: SQL in Spark.

The queries are the files `*.sql` next to this module.
"""

from typing import Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory_pipeline.report.facts import queried
from purgatory_pipeline.report.report_tables import TABLES
from purgatory_pipeline.spark.tasks import BROADCAST_ROWS_MAX, small_side

OF_GROUPS: Final = 0
OF_TOPICS: Final = 1
OF_WINDOWS: Final = 2
OF_TOPICS_AND_WINDOWS: Final = 3
"""Levels of the rows of `rolled_up`."""


def rolled_up(facts: DataFrame, few: DataFrame) -> DataFrame:
    """Counts, rates and quantiles at all levels, with the columns of the tables `groups` and `topics`. `few` are the
    condensed facts. The columns that identify a row are null at levels that do not have them.
    """
    return queried("rolled_up", facts=facts, few=few)


def group_waits(rows: DataFrame, window_ms: int) -> DataFrame:
    window_start = F.timestamp_millis(F.col("window") * F.lit(window_ms))
    of_groups = rows.where(F.col("level") == OF_GROUPS)
    return of_groups.withColumn("window_start", window_start).select(*TABLES["groups"].column_names)


def topic_waits(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("level") == OF_TOPICS).select(*TABLES["topics"].column_names)


def window_waits(rows: pd.DataFrame, window_ms: int) -> pa.Table:
    """The table `windows`, from rows of `rolled_up`; other levels are ignored."""
    of_windows = rows[rows["level"] == OF_WINDOWS]
    starts = pd.to_datetime(of_windows["window"] * window_ms, unit="ms", utc=True)
    return pa.Table.from_pandas(of_windows.assign(window_start=starts), TABLES["windows"].schema, preserve_index=False)


def hot_keys(rows: DataFrame, top: int) -> DataFrame:
    found = queried("hot_keys", lost=queried("lost", rows=rows, by="partition"), top=top)
    return found.select(*TABLES["hot_keys"].column_names)


def principals(rows: DataFrame) -> DataFrame:
    return queried("principals", lost=queried("lost", rows=rows, by="principal"))


SLOT_BITS: Final = 5
"""A slot is 2**5 ms, shorter than most waits, so that few waits begin in a slot compared with those pending."""


def deepest_backlog(outcomes: DataFrame, unfinished: DataFrame | None = None) -> DataFrame:
    """Makes the table `backlog`: the deepest moment of each partition and kind over all runs, the first in a tie.

    It is the largest number of waits pending at once: +1 at each registration, -1 at each end, summed over time. An
    outcome contains the time of its registration (`time_ms - waited_ms`), so registrations are not read again. Waits of
    0 ms were never pending.

    Sorting all these steps would cost too much, so they are first counted in slots of some milliseconds. A slot can
    contain the deepest moment only if the number pending before it plus the number that began in it exceeds the number
    pending at the end of every slot. Only a few slots meet this condition. Their waits are read again and summed
    millisecond by millisecond.
    """
    never = outcomes.where("false") if unfinished is None else unfinished
    steps = queried("backlog_steps", outcomes=outcomes, unfinished=never, slot_bits=SLOT_BITS)
    deep = queried("backlog_slots", steps=steps).localCheckpoint(eager=False)
    return queried("backlog", steps=steps, deep=small_side(deep, BROADCAST_ROWS_MAX))
