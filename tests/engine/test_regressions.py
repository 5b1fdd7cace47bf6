"""Bugs that the oracle and the simulator found early in the engine's development, each as the shortest steps."""

import pytest

from purgatory.engine.generic.purgatory import DelayedOperationPurgatory
from tests.engine.generic.recording_operation import RecordingOperation, never_called
from tests.engine.world import World


def test_a_replica_made_by_its_state_is_a_change() -> None:
    """A replica created by its state event, alive and not fenced, has not fetched: the low watermark is unknown."""
    world = World()
    world.append("orders-0", 5)
    answer = world.replica("orders-0", 2)
    assert (answer.refused, answer.unchanged) == (None, False)
    assert world.marks("orders-0").low_watermark == -1


def test_an_epoch_without_records_leaves_no_entry() -> None:
    """Epochs 2 and 4 both began at 0, so epoch 3 ended at 0, where the reader is: it has not diverged."""
    world = World()
    world.lead("orders-0", 2)
    world.lead("orders-0", 4)
    world.append("orders-0", 10)
    world.high_watermark("orders-0", 10)
    handle = world.fetch({"orders-0": 0}, last_epoch=3, min_bytes=100)
    assert world.outcome(handle) == "pending"


def test_a_follower_that_turns_leader_within_an_epoch_enters_it() -> None:
    """A reader that has that epoch's records is served instead of refused with an unknown epoch."""
    world = World()
    world.follow("orders-0", 5)
    world.lead("orders-0", 5)
    world.append("orders-0", 10)
    handle = world.fetch({"orders-0": 0}, replica_id=2, last_epoch=5)
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0])


def test_divergence_at_epoch_0_and_offset_0_is_divergence() -> None:
    """The reader must truncate its log to 0; (0, 0) was once taken for agreement."""
    world = World()
    world.lead("orders-0", 1, start=0)
    world.append("orders-0", 5)
    world.high_watermark("orders-0", 5)
    handle = world.fetch({"orders-0": 5}, last_epoch=0, min_bytes=720)
    item = world.item(handle)
    assert (world.outcome(handle), item.diverging_epoch, item.diverging_end) == ("satisfied", 0, 0)


def test_a_throttled_fetch_hears_the_first_append() -> None:
    """A throttled fetch adds no bytes, but it must end if its offset turns out to be beyond the log."""
    world = World()
    handle = world.fetch({"orders-0": 5}, replica_id=3, throttled=True)
    world.append("orders-0", 3)
    assert world.errors(handle) == [1]


def test_a_replica_that_becomes_leader_frees_the_low_watermark() -> None:
    """It no longer counts as a follower that has not fetched; the delete-records waiting for it ends."""
    world = World()
    world.replica("orders-0", 1)
    world.append("orders-0", 26)
    handle = world.delete_records({"orders-0": -1})
    assert world.outcome(handle) == "pending"
    world.in_sync("orders-0", leader_id=1)
    assert world.outcome(handle) == "satisfied"


def test_a_fetch_answers_with_the_marks_after_the_event() -> None:
    """A follower that joins the in-sync set is served with the high watermark that results from its joining."""
    world = World()
    world.append("orders-0", 612)
    handle = world.fetch({"orders-0": 612}, replica_id=2, min_bytes=34, throttled=True)
    world.lead("orders-0", 3, replicas=(1, 2))
    world.append("orders-0", 749)
    world.follower("orders-0", 2, 749)
    world.in_sync("orders-0", 1, 2)
    assert world.item(handle).high_watermark == 749


def test_a_proposal_that_leaves_a_member_out_frees_the_high_watermark() -> None:
    """Replica 3, which never fetched, holds back the high watermark only while it is proposed."""
    world = World()
    world.in_sync("orders-0", 1, 2, proposed=(1, 3))
    world.append("orders-0", 10)
    world.follower("orders-0", 2, 10)
    assert world.marks("orders-0").high_watermark == 0
    world.in_sync("orders-0", proposed=(1,))
    assert world.marks("orders-0").high_watermark == 10


def test_a_first_byte_position_is_settled_before_fetches_are_looked_at() -> None:
    """The high watermark goes from unknown to 8 in one step: no fetch is evaluated with a high watermark of 0."""
    world = World()
    world.in_sync("orders-0", 1)
    handle = world.fetch({"orders-0": 2}, min_bytes=610, committed=True)
    world.append("orders-0", 8, position=40, segment=0)
    assert world.outcome(handle) == "pending"


def test_a_follower_waits_for_less_and_sees_the_new_high_watermark() -> None:
    """The append with the first byte position answers the fetch with the resulting high watermark."""
    world = World()
    handle = world.fetch({"orders-0": 0}, replica_id=3, min_bytes=3)
    world.in_sync("orders-0", 1)
    world.append("orders-0", 9, position=72, segment=0)
    assert world.item(handle).high_watermark == 9


@pytest.mark.parametrize("evaluation", [1, 2])
def test_an_operation_forced_while_it_is_registered_leaves_nothing(evaluation: int) -> None:
    """It completes once, whichever evaluation the force interrupts, and is neither watched nor timed afterwards."""
    purgatory, operation = DelayedOperationPurgatory(0, never_called), RecordingOperation(1_000)

    def force_as_another_thread() -> None:
        """The other thread saw the operation unregistered, and continues only now."""
        if operation.evaluations == evaluation:
            claim, operation.purgatory_claim = operation.purgatory_claim, None
            operation.force_complete()
            operation.purgatory_claim = claim

    operation.when_evaluated = force_as_another_thread
    purgatory.try_complete_else_watch(operation, ["key"], 0)
    purgatory.check_and_complete("key")
    purgatory.advance_clock(5_000, 10)
    assert operation.effects == ["complete"]
    assert (purgatory.watched, purgatory.num_delayed, purgatory.next_expiration_ms()) == (0, 0, -1)
