"""The steps of a simulation as plain data, so that a failing run can be shrunk and reported.

Steps are counted by the things that are drawn, applied and compared one by one: a registration, an event, an id to
cancel, a move of the clock, or one of the rare calls. A batch counts once for each of its members (`weight`).
"""

from typing import NamedTuple

from tests.engine import plain


class Register(NamedTuple):
    owner: int
    operations: tuple[plain.Operation, ...]


class Apply(NamedTuple):
    """A batch of events; `limit` bounds each slice."""

    events: tuple[plain.Event, ...]
    limit: int = 100_000


class Advance(NamedTuple):
    """Time advances by `ms`; the reaper runs once and may end `limit` operations."""

    ms: int
    limit: int = 100_000


class Sleep(NamedTuple):
    """Time advances while the reaper is stalled: it is not called."""

    ms: int


class Pause(NamedTuple):
    """Nothing could be received for `ms` milliseconds, which are neither silence nor staleness."""

    ms: int


class Cancel(NamedTuple):
    owner: int
    operation_ids: tuple[int, ...]


class CancelAll(NamedTuple):
    owner: int


class CancelName(NamedTuple):
    name: plain.Name


class FailStale(NamedTuple):
    """Some marks have been stale for a time, in milliseconds."""

    stale: tuple[tuple[plain.Name, int], ...]


class Extend(NamedTuple):
    """The operations with these ids may wait for at least another `timeout_ms`."""

    owner: int
    operation_ids: tuple[int, ...]
    timeout_ms: int


class ReplaceOwner(NamedTuple):
    """An owner is removed, and replaced by a new one."""

    owner: int


class ShutDown(NamedTuple):
    limit: int


Step = (
    Register
    | Apply
    | Advance
    | Sleep
    | Pause
    | Cancel
    | CancelAll
    | CancelName
    | FailStale
    | Extend
    | ReplaceOwner
    | ShutDown
)


def weight(step: Step) -> int:
    """The number of steps that a batch counts for: its registrations, events or ids. All other steps count once."""
    if isinstance(step, Register):
        return len(step.operations)
    if isinstance(step, Apply):
        return len(step.events)
    if isinstance(step, Cancel | Extend):
        return len(step.operation_ids)
    return 1
