"""What a simulation is made of: steps as plain data, so that a failing run can be shrunk and reported.

Counted is what is drawn, applied and compared one by one: a registration, an event, an id to cancel, a move of the
clock, or one of the rare calls. A batch counts for each of its members (`weight`).
"""

from typing import NamedTuple

from tests.engine import plain


class Register(NamedTuple):
    owner: int
    operations: tuple[plain.Operation, ...]


class Apply(NamedTuple):
    """A batch of events; `limit` is where a slice ends."""

    events: tuple[plain.Event, ...]
    limit: int = 100_000


class Advance(NamedTuple):
    """Time passes by `ms`; the reaper is woken once and may end `limit` operations."""

    ms: int
    limit: int = 100_000


class Sleep(NamedTuple):
    """Time passes, and the reaper is stalled: it is not called."""

    ms: int


class Cancel(NamedTuple):
    owner: int
    operation_ids: tuple[int, ...]


class CancelAll(NamedTuple):
    owner: int


class CancelName(NamedTuple):
    name: plain.Name


class FailStale(NamedTuple):
    """Some marks have been stale for some time: each with its milliseconds."""

    stale: tuple[tuple[plain.Name, int], ...]


class ReplaceOwner(NamedTuple):
    """An owner vanishes, and another comes in its place."""

    owner: int


class ShutDown(NamedTuple):
    limit: int


Step = Register | Apply | Advance | Sleep | Cancel | CancelAll | CancelName | FailStale | ReplaceOwner | ShutDown


def weight(step: Step) -> int:
    """How many steps a batch counts for: its registrations, events or ids. All else is one."""
    if isinstance(step, Register):
        return len(step.operations)
    if isinstance(step, Apply):
        return len(step.events)
    if isinstance(step, Cancel):
        return len(step.operation_ids)
    return 1
