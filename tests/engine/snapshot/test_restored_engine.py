"""Snapshots: an engine with another engine's restored state continues as the oracle predicts for the first one.

The codec of columns: values are read back as written, in the documented form. Journals hold these bytes.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.calls import PassTime
from purgatory.engine.snapshot.codec import ColumnReader, ColumnWriter
from purgatory.engine.snapshot.live_set import LiveSet
from purgatory.engine.snapshot.saved_completions import completions_from, completions_to
from purgatory.engine.snapshot.saved_operations import SavedOperations
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest, ended_of
from tests.engine.pair import Pair
from tests.histories.plan import Generator
from tests.histories.worlds.engine import Owners
from tests.kit.recorded import assert_recorded, cases_of
from tests.scripts.engine_level import EngineLevel

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
    """Replace the engine by a restored one, and let the oracle forget state that is not restored: counts, the order of
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


INT64 = st.integers(-(2**63), 2**63 - 1)


def written(values: list[int]) -> bytes:
    writer = ColumnWriter()
    writer.add(vec[i64](values))
    return writer.to_bytes()


def test_columns_texts_and_floats_come_back_in_order() -> None:
    writer = ColumnWriter()
    writer.add_text("größe")
    writer.add(vec[i64]([3, 1, 2]))
    writer.add_floats(vec[float]([-1.0, 2.5]))
    writer.add_text("")
    writer.add_list([7])
    reader = ColumnReader(writer.to_bytes())
    assert not reader.is_done
    assert reader.text() == "größe"
    assert list(reader.column()) == [3, 1, 2]
    assert list(reader.floats()) == [-1.0, 2.5]
    assert reader.text() == ""
    assert not reader.is_done
    assert list(reader.column()) == [7]
    assert reader.is_done


@given(st.lists(INT64, max_size=20))
def test_any_64_bit_numbers_come_back(values: list[int]) -> None:
    assert list(ColumnReader(written(values)).column()) == values


@given(st.lists(st.sampled_from([-1.0, 0.0, 2.5, 1e300]), max_size=20))
def test_any_floats_come_back(values: list[float]) -> None:
    """Any floats are read back as written, including columns with only absent values, which are stored as a count."""
    writer = ColumnWriter()
    writer.add_floats(vec[float](values))
    assert list(ColumnReader(writer.to_bytes()).floats()) == values


COLUMNS = Path(__file__).with_name("columns.txt")


def test_column_takes_the_shortest_form_that_holds_it() -> None:
    """As in columns.txt."""

    def size(case: str) -> str:
        values: list[int] = eval(case)
        octets = written(values)
        assert list(ColumnReader(octets).column()) == values
        return f"{len(octets)} bytes"

    assert_recorded(COLUMNS, map(size, cases_of(COLUMNS)))


IDS = st.lists(st.integers(10, 60), min_size=1, max_size=40, unique=True).map(sorted)


@given(IDS, st.lists(st.lists(st.integers(0, 70), max_size=5), max_size=20))
def test_live_set_equals_a_set_of_ids(ids: list[int], removals: list[list[int]]) -> None:
    """It removes ids until one is outside its range. The lowest bit of the first byte is the first id."""
    live, left = LiveSet(vec[i64](ids), b""), set(ids)
    for numbers in removals:
        # Mostly ids of the set; otherwise any number, in its range or not.
        removed = [ids[number % len(ids)] if number < 50 else number for number in numbers]
        start = len(removed) % 2
        stop = next((i for i, one in enumerate(removed) if i >= start and not ids[0] <= one <= ids[-1]), len(removed))
        assert live.remove(vec[i64](removed), start) == stop
        left -= set(removed[start:stop])
        assert (live.first, live.last, live.left, live.remaining()) == (ids[0], ids[-1], len(left), sorted(left))
    bits = sum(1 << place for place, one in enumerate(ids) if one not in left)
    assert live.gone() == bits.to_bytes((len(ids) + 7) // 8, "little")
    for gone in (live.gone(), live.gone().rstrip(b"\0"), live.gone() + b"\xff"):
        again = LiveSet(vec[i64](ids), gone)
        assert (again.left, again.remaining()) == (len(left), sorted(left)), "missing bits remove nothing"


def test_live_set_without_ids_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="a live set needs at least one id"):
        LiveSet(vec[i64](), b"")


def test_saved_operations_are_those_above_the_id_and_name_each_partition_once() -> None:
    level = EngineLevel.played(*(f"produce {number} a-0@9 b-0@9" for number in (1, 2, 3)))
    saved = level.engine.snapshots.save_above(level.engine_owner(), 1)
    assert list(saved.operation_ids) == [2, 3]
    assert saved.names == [("a", 0), ("b", 0)]
    assert list(saved.places) == [0, 1, 0, 1]
