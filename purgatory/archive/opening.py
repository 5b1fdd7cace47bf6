"""What a keeper is begun with, and what it says of itself: shared by the daemon and the process that keeps its archive.

Needs no Arrow.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KeeperStatistics", "Opening"]


class KeeperStatistics(NamedTuple):
    """What became of the rows so far, and up to which call everything is in its place."""

    rows_done: int
    """Of those that this keeper was given: rows that are columns by now, or lost."""
    rows_kept: dict[str, int]
    """Rows that lie in files, by table."""
    rows_lost: dict[str, int]
    """Rows that this keeper could not make, by table."""
    files: int
    bytes: int
    errors: int
    """Times that files could not be written, or rows not be made, by this keeper."""
    call_number: int
    """The last call of which everything is in its place; `time_ms` and `at_ms` are its stamp's."""
    time_ms: int
    at_ms: int
    file_numbers: dict[str, int]
    """The last that was given, by table."""


class Opening(NamedTuple):
    """The place, the run, and how its files are rolled."""

    place: str
    run_id: str
    host: str
    pid: int
    """Of the daemon."""
    started_ms: int
    """The engine's clock."""
    started_at_ms: int
    """The same instant as wall-clock time."""
    details: str
    """Of the STARTED marker."""
    roll_s: float
    roll_bytes: int
    rows_at_once: int
    """Rows of a table that are gathered before Arrow arrays are made of them."""
    rows_untold_max: int
    """Rows that may be made and not be told of: those have their room until they are."""
    gives_way: bool
    """Whether everything else comes first where there are not processors enough."""
    kept: KeeperStatistics | None = None
    """What the keeper before had said; it died, and this one goes on with the run."""
