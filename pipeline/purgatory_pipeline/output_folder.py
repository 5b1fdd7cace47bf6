"""The folder that a command writes to: local or a URI. It is created and tried out before the work begins."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from purgatory_pipeline.archive.location import Location, first_line, open_location
from purgatory_pipeline.errors import ArchiveUnusable


def open_output(out: str) -> Location:
    """Creates the folder `out`. Raises `ArchiveUnusable` where it cannot be written to."""
    place = open_location(out)
    try:
        place.filesystem.create_dir(place.root, recursive=True)
        write_file(place, ".probe", b"purgatory")
        place.filesystem.delete_file(f"{place.root}/.probe")
    except (OSError, pa.ArrowException) as error:
        raise ArchiveUnusable(f"cannot write to {out}: {first_line(error)}") from error
    return place


def write_file(place: Location, name: str, content: bytes) -> str:
    """Writes a file below the folder and returns its path."""
    path = f"{place.root}/{name}"
    if "/" in name:
        place.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    with place.filesystem.open_output_stream(path) as stream:
        stream.write(content)
    return path


def write_by_path(place: Location, name: str, write: Callable[[Path], object]) -> str:
    """The same for a file that `write` can only put at a local path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return write_file(place, name, path.read_bytes())
