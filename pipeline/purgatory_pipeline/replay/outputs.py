"""What a replay leaves in its folder: tables as CSV and Parquet, and the page."""

import io
from collections.abc import Mapping

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory_pipeline.archive.location import Location, write_by_path, write_file
from purgatory_pipeline.replay.page.replay_page import ReplayInfo, write_replay_page

PAGE = "replay.html"


def write_frames(place: Location, frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Writes each table as NAME.csv, for people, and NAME.parquet, for programs; returns their paths."""
    paths = []
    for name, frame in frames.items():
        paths.append(write_file(place, f"{name}.csv", frame.to_csv(index=False).encode()))
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), buffer)
        paths.append(write_file(place, f"{name}.parquet", buffer.getvalue()))
    return paths


def write_page(place: Location, frames: Mapping[str, pd.DataFrame], info: ReplayInfo) -> str:
    return write_by_path(place, PAGE, lambda path: write_replay_page(frames, info, path))
