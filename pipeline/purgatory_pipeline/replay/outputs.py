"""What a replay leaves in its folder: tables as CSV and Parquet, and the page."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory_pipeline.archive.place import Place, first_line, open_place
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.page.replay_page import ReplayInfo, write_replay_page

PAGE = "replay.html"


def open_output(out: str) -> Place:
    """The folder that results go to, made if need be. Raises `ArchiveUnusable` where it cannot be written to."""
    place = open_place(out)
    try:
        place.filesystem.create_dir(place.root, recursive=True)
        _write(place, ".probe", b"purgatory")
        place.filesystem.delete_file(f"{place.root}/.probe")
    except (OSError, pa.ArrowException) as error:
        raise ArchiveUnusable(f"cannot write to {out}: {first_line(error)}") from error
    return place


def write_frames(place: Place, frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Each table as NAME.csv, for people, and NAME.parquet, for programs; the paths."""
    paths = []
    for name, frame in frames.items():
        paths.append(_write(place, f"{name}.csv", frame.to_csv(index=False).encode()))
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), buffer)
        paths.append(_write(place, f"{name}.parquet", buffer.getvalue()))
    return paths


def write_page(place: Place, frames: Mapping[str, pd.DataFrame], info: ReplayInfo) -> str:
    """The page; its path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PAGE
        write_replay_page(frames, info, path)
        return _write(place, PAGE, path.read_bytes())


def _write(place: Place, name: str, content: bytes) -> str:
    path = f"{place.root}/{name}"
    with place.filesystem.open_output_stream(path) as stream:
        stream.write(content)
    return path
