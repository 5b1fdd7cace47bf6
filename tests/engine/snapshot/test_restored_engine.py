"""Snapshots: an engine with another engine's restored state continues exactly like that engine."""

import pytest

from purgatory.engine.calls import PassTime, ShutDown
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.saved_completions import completions_from, completions_to
from purgatory.engine.snapshot.saved_operations import SavedOperations
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest, ended_of, pending_of
from tests.histories.plan import Generator, Leave, Step, advance
from tests.histories.swarm import Swarm
from tests.histories.worlds.engine import Owners

SEEDS = 25
STEPS = 80
COLUMNS = (
    "operation_ids", "kinds", "outcomes", "waited_ms", "lateness_ms", "item_counts", "item_partitions", "error_codes",
    "required_offsets", "reached_offsets", "log_start_offsets", "estimated_remaining_ms", "paces_per_second",
)  # fmt: skip


class ComparableRun:
    """An engine whose results can be compared with another's: owners are identified by their index."""

    def __init__(self, swarm: Swarm) -> None:
        self.engine = EngineUnderTest(swarm.settings)
        self.owners = Owners(swarm, self.engine)

    def perform(self, step: Step) -> list[plain.Ended]:
        """Perform a step; returns the operations that it ended."""
        self.owners.perform(step)
        rows = []
        for completions in self.engine.engine.take_completions():
            packed_and_back(completions)
            rows += [row._replace(owner_id=self.owners.ids.index(row.owner_id)) for row in ended_of(completions)]
        return sorted(rows)

    def seen(self) -> list[object]:
        """Everything pending, and the marks of all partitions."""
        views = self.engine.all_pending()
        pending = {(self.owners.ids.index(view.owner_id), view.operation_id): pending_of(view) for view in views}
        return [pending, {name: self.engine.marks(name) for name in self.engine.engine.inspection.partition_names()}]


def packed_and_back(completions: Completions) -> None:
    """Completions are the same after serialization."""
    again = completions_from(completions_to(completions), completions.owner_id)
    assert again.owner_id == completions.owner_id
    for column in COLUMNS:
        assert list(getattr(again, column)) == list(getattr(completions, column)), column
    assert list(ended_of(again)) == list(ended_of(completions))


def restored(run: ComparableRun, generator: Generator) -> ComparableRun:
    """Another engine with the state of this one, restored from bytes."""
    twin = ComparableRun(generator.swarm)
    twin.engine.advance(run.engine.now_ms - twin.engine.now_ms, 1)
    source, target = run.engine.engine, twin.engine.engine
    for sketch in generator.sketches:
        octets = source.snapshots.save_partition(sketch.name)
        if octets:
            target.snapshots.restore_partition(sketch.name, octets)
    for key, _ in generator.keys:
        saved_key = source.snapshots.save_key(key)
        if saved_key[1]:
            target.snapshots.restore_key(*saved_key[:4])
    for owner_id, twin_id in zip(run.owners.ids, twin.owners.ids, strict=True):
        owner, other = run.engine.owners[owner_id], twin.engine.owners[twin_id]
        octets = source.snapshots.save_above(owner, 0).to_bytes()
        saved = SavedOperations.from_bytes(octets)
        assert saved.to_bytes() == octets
        assert target.restore(other, saved, b"", run.engine.now_ms) == len(saved)
        other.highest_operation_id = owner.highest_operation_id
    return twin


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_restored_engine_goes_on_as_the_first_does(seed: int) -> None:
    generator = Generator(seed)
    generator.swarm.heartbeats = 0.0  # a restored engine counts silence from the restore
    first = ComparableRun(generator.swarm)
    for _ in range(STEPS):
        first.perform(generator.next_step())
    first.perform(advance(0))  # due operations would end on being restored
    twin = restored(first, generator)
    for number in range(STEPS):
        step = generator.next_step()
        if isinstance(step.call, ShutDown):
            continue  # which of several operations end is not specified
        if isinstance(step.call, PassTime):
            step = advance(step.pass_ms)  # nor which of several due operations end first
        assert twin.perform(step) == first.perform(step), f"step {number}: {step}"
        assert twin.seen() == first.seen(), f"step {number}: {step}"


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_each_operation_ends_once_over_many_restores(seed: int) -> None:
    generator = Generator(seed)
    generator.swarm.heartbeats = 0.4
    run = ComparableRun(generator.swarm)
    ended: list[plain.Ended] = []
    for number in range(2 * STEPS):
        if number % 20 == 19:
            ended += run.perform(advance(0))
            before = run.seen()
            run = restored(run, generator)
            assert run.seen() == before
        step = generator.next_step()
        if not isinstance(step.call, Leave):  # its ids start again
            ended += run.perform(step)
        run.engine.engine.check()
    while run.engine.engine.pending:
        ended += run.perform(advance(generator.swarm.timeout_max_ms))
    keys = [(row.owner_id, row.operation_id) for row in ended]
    assert len(set(keys)) == len(keys)
    run.engine.engine.check()
    assert [run.engine.engine.inspection.counts(kind).watched for kind in plain.KINDS] == [0] * len(plain.KINDS)
