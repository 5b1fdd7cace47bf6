"""What a report leaves in its folder: DIR/tables/NAME as Parquet, DIR/csv/NAME.csv, and the page DIR/report.html.

Spark writes the tables, as large as they are. The CSV files and the page get the first rows of each, in its order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory_pipeline.archive.place import first_line
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.page.report_page import write_page
from purgatory_pipeline.report.tables import INTAKE, PAGE_ROWS_MAX, TABLES, ReportInfo, Table

PAGE: Final = "report.html"
INTAKE_TYPE: Final = "table string, reason string, files bigint, rows bigint"


def open_output(out: str) -> Path:
    """The folder that a report goes to, made if need be. Raises `ArchiveUnusable` where it cannot be written to."""
    folder = Path(out).expanduser()
    try:
        for part in ("tables", "csv"):
            (folder / part).mkdir(parents=True, exist_ok=True)
            probe = folder / part / ".probe"
            probe.write_bytes(b"")
            probe.unlink()
    except OSError as error:
        raise ArchiveUnusable(f"cannot write to {out}: {first_line(error)}") from error
    return folder.absolute()


def intake_table(spark: SparkSession, rows: list[dict[str, object]]) -> DataFrame:
    """The account of an intake as the table `intake`."""
    return spark.createDataFrame([tuple(row[name] for name in INTAKE.column_names) for row in rows], INTAKE_TYPE)


def write_table(frame: DataFrame, table: Table, folder: Path) -> tuple[pd.DataFrame, int]:
    """One table as Parquet and, its first rows, as CSV; gives those rows and how many there are in all."""
    path = str(folder / "tables" / table.name)
    frame.select(*table.column_names).coalesce(1).write.mode("overwrite").parquet(f"file://{path}")
    written = frame.sparkSession.read.parquet(f"file://{path}")
    order = [F.desc(name[1:]) if name.startswith("-") else F.asc(name) for name in table.order]
    shown: pd.DataFrame = written.orderBy(*order).limit(PAGE_ROWS_MAX).toPandas()
    shown.to_csv(folder / "csv" / f"{table.name}.csv", index=False)
    return shown, written.count()


def write_report_page(frames: dict[str, pd.DataFrame], info: ReportInfo, folder: Path) -> Path:
    """The page; its path. A table that was not made is an empty one."""
    whole = {
        name: frames[name] if name in frames else pd.DataFrame(columns=list(table.column_names))
        for name, table in TABLES.items()
    }
    write_page(whole, info, folder / PAGE)
    return folder / PAGE
