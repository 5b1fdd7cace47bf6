"""The committed offsets of a query, from progress events and from the log of its checkpoint.

A mark is always exclusive, as Kafka's are: at 43, everything up to record 42 is committed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from purgatory_pipeline.location import open_location

SEQUENCE: Final = "sequence"
"""Field of an offset of the format `purgatory`: the last result read from a session."""
NO_OFFSET: Final = "-"
"""Entry of the log for a source without any data yet."""

_logger = logging.getLogger("purgatory_pipeline.listener")

Marks = dict[tuple[str, int], int]
"""Marks by topic (without the query's prefix) and partition."""


def marks_of(ends: Sequence[str | None]) -> Marks:
    """The marks of a query, from the end offset of each of its sources, in order.

    Kafka partitions keep their names; if two sources read the same partition, the lower offset counts. Any other source
    at index N is the topic `sourceN`, partition 0.
    """
    marks: Marks = {}
    for place, end_offset in enumerate(ends):
        for name, mark in _marks_of_source(place, end_offset).items():
            marks[name] = min(mark, marks.get(name, mark))
    return marks


def _marks_of_source(place: int, end_offset: str | None) -> Marks:
    if end_offset is None or end_offset == NO_OFFSET:
        return {}
    end = json.loads(end_offset)
    whole = (f"source{place}", 0)
    if isinstance(end, int):
        return {whole: end}
    if not isinstance(end, dict):
        return {}
    if "logOffset" in end:  # files: the number of the last set of files that was taken, itself included
        return {whole: int(end["logOffset"]) + 1}
    if all(isinstance(partitions, Mapping) and SEQUENCE not in partitions for partitions in end.values()):
        return {
            (topic, int(partition)): offset
            for topic, partitions in end.items()
            for partition, offset in partitions.items()
            if isinstance(offset, int) and offset >= 0
        }
    parts = [value.get(SEQUENCE) if isinstance(value, Mapping) else value for value in end.values()]
    numbers = [value for value in parts if isinstance(value, int)]
    return {whole: numbers[0]} if len(numbers) == 1 else {}


def committed_marks(checkpoint: str) -> Marks:
    """The marks of the last commit in a checkpoint. Empty if there is no commit or it cannot be read (logged).

    This is needed because a restarted query without new input sends no progress event.
    """
    place = open_location(checkpoint)
    try:
        infos = place.filesystem.get_file_info(fs.FileSelector(f"{place.root}/commits", allow_not_found=True))
        batches = [int(info.base_name) for info in infos if info.base_name.isdigit()]
        if not batches:
            return {}
        with place.filesystem.open_input_stream(f"{place.root}/offsets/{max(batches)}") as stream:
            return marks_of(ends_of_log(stream.read().decode()))
    except (OSError, ValueError, pa.ArrowException) as error:
        _logger.warning(
            "cannot read the checkpoint %s: %s; its marks will be published after the next batch", checkpoint, error
        )
        return {}


def ends_of_log(text: str) -> list[str | None]:
    """The end offsets in an entry of a checkpoint's `offsets`: a version, metadata, and a line for each source."""
    version, _, *lines = text.splitlines()
    if version.strip() == "v1":
        return [None if line == NO_OFFSET else line for line in lines]
    found: list[Any] = [json.loads(line) for line in lines if line != NO_OFFSET]
    return [json.dumps(end) for end in found]
