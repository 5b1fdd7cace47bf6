"""Snapshots: an engine with another engine's restored state continues as the oracle says of the first one."""

import pytest

from purgatory.engine.calls import PassTime
from purgatory.engine.snapshot.saved_completions import completions_from, completions_to
from purgatory.engine.snapshot.saved_operations import SavedOperations
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest, ended_of
from tests.engine.pair import Pair
from tests.histories.plan import Generator
from tests.histories.worlds.engine import Owners

SEEDS = 40
STEPS = 160
STEPS_PER_LIFE = 20


class PackedPair(Pair):
    """An engine and its oracle. The results of the engine are packed and unpacked."""

    def take_ended(self) -> list[plain.Ended]:
        packed = [(completions_to(one), one.owner_id) for one in self.engine.take_completions()]
        return [row for octets, owner_id in packed for row in ended_of(completions_from(octets, owner_id))]


def restored(first: EngineUnderTest, settings: plain.Settings) -> EngineUnderTest:
    """Another engine with the state of this one, restored from bytes."""
    twin = EngineUnderTest(settings)
    twin.now_ms = first.now_ms
    source, target = first.engine, twin.engine
    for name in source.inspection.partition_names():
        octets = source.snapshots.save_partition(name)
        if octets:
            target.snapshots.restore_partition(name, octets)
    for key, count, value, failed, _ in source.snapshots.save_keys():
        target.snapshots.restore_key(key, count, value, failed)
    for owner_id, owner in sorted(first.owners.items()):
        assert twin.add_owner() == owner_id
        other = twin.owners[owner_id]
        octets = source.snapshots.save_above(owner, 0).to_bytes()
        saved = SavedOperations.from_bytes(octets)
        assert saved.to_bytes() == octets
        assert target.restore(other, saved, b"", first.now_ms) == len(saved)
        other.highest_operation_id = owner.highest_operation_id
    return twin


def restore(pair: Pair) -> None:
    """Replace the engine by a restored one, and let the oracle forget what that does not know: counts, the order of
    equal deadlines, and for how long something has been silent or stale.
    """
    pair.perform(-1, PassTime(1_000_000))  # due operations would end on being restored
    oracle, twin = pair.oracle, restored(pair, pair.oracle.settings)
    pair.engine, pair.owners = twin.engine, twin.owners
    pair.forget_evaluations()
    oracle.paused_ms = 0
    oracle.world.signalled_ms.clear()
    oracle.pending = dict(sorted(oracle.pending.items()))
    oracle.tally = {kind: [0] * 6 for kind in plain.KINDS}
    for waiting in oracle.pending.values():
        waiting.listening_ms = pair.now_ms
        oracle.tally[waiting.operation.kind][0] += 1


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_restored_engine_goes_on_as_the_first_would(seed: int) -> None:
    """Over many restores; so each operation ends once."""
    generator = Generator(seed)
    pair = PackedPair(generator.swarm.settings)
    owners = Owners(generator.swarm, pair)
    for number in range(1, STEPS + 1):
        owners.perform(generator.next_step())
        if number % STEPS_PER_LIFE == 0:
            restore(pair)
            pair.compare_everything()
    pair.heal()
