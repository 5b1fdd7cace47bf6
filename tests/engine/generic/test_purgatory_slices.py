"""The limit of one advance of the generic purgatory, whatever it is that is due."""

from __future__ import annotations

from purgatory.engine.generic.purgatory import DelayedOperationPurgatory
from tests.engine.generic.recording_operation import Errors, RecordingOperation


def test_what_was_due_at_once_counts_against_the_limit() -> None:
    """Of two that had no time and two that have run out of theirs, a slice of three expires three."""
    errors, log = Errors(), list[str]()
    purgatory = DelayedOperationPurgatory(0, errors)
    for name, timeout_ms in (("a", 5), ("b", 0), ("c", 7), ("d", -1)):
        assert not purgatory.try_complete_else_watch(RecordingOperation(timeout_ms, name, log), ["k"], 0)
    assert purgatory.advance_clock(10, 3) == 3
    assert log == ["b", "d", "a"]
    assert purgatory.next_expiration_ms() <= 10
    assert purgatory.advance_clock(10, 3) == 1
    assert log == ["b", "d", "a", "c"]
    assert purgatory.next_expiration_ms() == -1
    assert errors.told == []
