"""Shrinks a failing run: removes chunks of steps, of decreasing size, while the rest still fails."""

import time
from collections.abc import Callable, Sequence

from tests.simulator import steps

Steps = Sequence[steps.Step]


def shrink(sequence: Steps, fails: Callable[[Steps], bool], seconds: float) -> list[steps.Step]:
    """The shortest failing sequence found within `seconds`."""
    kept = list(sequence)
    deadline = time.monotonic() + seconds
    size = max(1, len(kept) // 2)
    while time.monotonic() < deadline:
        shorter = drop_chunks(kept, size, fails, deadline)
        shorter = drop_parts(shorter, fails, deadline) if size == 1 else shorter
        if size == 1 and shorter == kept:
            return kept
        kept = shorter
        size = max(1, size // 2)
    return kept


def drop_chunks(
    sequence: list[steps.Step], size: int, fails: Callable[[Steps], bool], deadline: float
) -> list[steps.Step]:
    """Remove each chunk of one size that the failure does not need, from the end."""
    kept = sequence
    start = len(kept) - size
    while start > -size and time.monotonic() < deadline:
        low = max(start, 0)
        candidate = kept[:low] + kept[low + size :]
        if candidate and fails(candidate):
            kept = candidate
        start -= size
    return kept


def drop_parts(sequence: list[steps.Step], fails: Callable[[Steps], bool], deadline: float) -> list[steps.Step]:
    """Remove single operations and events that the failure does not need."""
    kept = list(sequence)
    i = 0
    while i < len(kept) and time.monotonic() < deadline:
        for smaller in smaller_steps(kept[i]):
            candidate = [*kept[:i], smaller, *kept[i + 1 :]]
            if fails(candidate):
                kept = candidate
                break
        else:
            i += 1
    return kept


def smaller_steps(step: steps.Step) -> list[steps.Step]:
    """The step without one of its members, or with an operation without one of its items."""
    found: list[steps.Step] = []
    if isinstance(step, steps.Apply) and len(step.events) > 1:
        found += [step._replace(events=step.events[:i] + step.events[i + 1 :]) for i in range(len(step.events))]
    if isinstance(step, steps.Register):
        operations = step.operations
        if len(operations) > 1:
            found += [step._replace(operations=operations[:i] + operations[i + 1 :]) for i in range(len(operations))]
        elif len(operations[0].items) > 1:
            items = operations[0].items
            fewer = [items[:i] + items[i + 1 :] for i in range(len(items))]
            found += [step._replace(operations=(operations[0]._replace(items=kept),)) for kept in fewer]
    return found
