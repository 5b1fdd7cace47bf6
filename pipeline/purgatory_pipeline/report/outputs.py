"""What a report leaves in its folder: DIR/tables/NAME as Parquet, DIR/csv/NAME.csv, and the page DIR/report.html.

Spark writes the tables, as large as they are. The CSV files and the page get the first rows of each, in its order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pandas as pd
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory_pipeline.archive.place import Place
from purgatory_pipeline.output import write_by_path, write_file
from purgatory_pipeline.page.report_page import write_page
from purgatory_pipeline.report.tables import INTAKE, PAGE_ROWS_MAX, ReportInfo, Table

PAGE: Final = "report.html"
INTAKE_TYPE: Final = "table string, reason string, files bigint, rows bigint"


def intake_table(spark: SparkSession, rows: list[dict[str, object]]) -> DataFrame:
    """The account of an intake as the table `intake`."""
    return spark.createDataFrame([tuple(row[name] for name in INTAKE.column_names) for row in rows], INTAKE_TYPE)


def write_table(frame: DataFrame, table: Table, place: Place) -> tuple[pd.DataFrame, int]:
    """One table as Parquet, sorted, and its first rows as CSV; gives those rows and how many there are in all."""
    path = f"{place.root}/tables/{table.name}"
    order = [F.desc(name[1:]) if name.startswith("-") else F.asc(name) for name in table.order]
    rows = frame.select(*table.column_names).repartition(1).sortWithinPartitions(*order)
    rows.write.mode("overwrite").parquet(f"{place.spark_prefix}{path}")
    written = dataset.dataset(path, filesystem=place.filesystem, format="parquet")
    shown: pd.DataFrame = written.head(PAGE_ROWS_MAX).to_pandas()
    write_file(place, f"csv/{table.name}.csv", shown.to_csv(index=False).encode())
    return shown, written.count_rows()


def write_report_page(frames: Mapping[str, pd.DataFrame], info: ReportInfo, place: Place) -> str:
    """The page; its path."""
    return write_by_path(place, PAGE, lambda path: write_page(frames, info, path))
