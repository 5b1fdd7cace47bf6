"""How waits are stored and evaluated: fetches, rows on the fast path, and rows that are used again.

The watch list of one key compared with a naive sorted list, and its memory and compaction.

The usage of an account is counted wherever things are created or released; scripts/limits has its limits.
"""

import bisect
import random
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i32

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import OperationBatch
from purgatory.engine.calls import CancelName, Register
from purgatory.engine.codes import PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.memory_estimate import (
    ITEM_BYTES,
    KEY_BYTES,
    OPERATION_BYTES,
    POSITION_BYTES,
    VALUE_BYTES,
    WATCH_LIST_BYTES,
    name_bytes,
)
from purgatory.engine.waiting.watches import SHIFT_MAX, SLACK, WatchList, make_ref, ref_is_live, ref_item
from tests.engine import plain
from tests.scripts.engine_level import EngineLevel

NAMES = [("orders", 0), ("orders", 1), ("payments", 0), ("orders", 1), ("unknown", 7)]
"""A dictionary in which one name is repeated, and one names a partition that no event has named."""


def test_a_batch_without_names_is_refused_row_by_row() -> None:
    engine = Engine(EngineLimits(), 0)
    receipt = engine.perform(engine.add_owner(), Register(PRODUCE, OperationBatch([1, 2], offsets=[7])), 0)
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(0, "item_index"), (1, "item_index")]


def test_a_place_stands_for_the_name_that_is_there_now() -> None:
    """Batches with the same or an equal dictionary find the same partitions; a changed name finds another partition."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    names = [("orders", 0), ("orders", 1)]
    for first in (1, 3):
        engine.perform(
            owner, Register(PRODUCE, OperationBatch([first, first + 1], partitions=names, item_indexes=[0, 1])), 0
        )
    names.reverse()
    engine.perform(owner, Register(PRODUCE, OperationBatch([5, 6], partitions=names, item_indexes=[0, 1])), 0)
    alike = [(topic, partition) for topic, partition in names]
    engine.perform(owner, Register(PRODUCE, OperationBatch([7, 8], partitions=alike, item_indexes=[0, 1])), 0)
    assert engine.perform(None, CancelName(("orders", 0)), 0).ended == 4
    [completions] = engine.take_completions()
    assert list(completions.operation_ids) == [1, 3, 6, 8]


ROUNDS = 150


def expired_one_by_one(wait: str, *first: str) -> EngineLevel:
    """An engine in which equal waits have expired one after another; `N` stands for their ids."""
    rounds = [line for number in range(2, ROUNDS + 2) for line in (wait.replace("N", str(number)), "jump 1000")]
    return EngineLevel.played(*first, *rounds)


def test_rows_of_ended_waits_are_used_again() -> None:
    engine = expired_one_by_one("produce N orders-0@10 orders-1@10 timeout=1000").engine
    assert engine.inspection.counts(PRODUCE).expired == ROUNDS
    assert (engine._pending.operations.size, engine._pending.items.size) == (1, 2)


def test_an_owner_forgets_what_has_ended() -> None:
    first = "produce 1 orders-0@10 timeout=10000000"
    level = expired_one_by_one("produce N orders-0@10 timeout=1000", first)
    assert len(level.engine_owner().ids) < 100
    assert level.answer("cancel 1") == [f"1 cancelled after {ROUNDS}000 ms: orders-0@10 at -1 error 7"]


def test_places_of_partitions_and_keys_are_used_again() -> None:
    engine = expired_one_by_one("composite N orders-N@10 key/N timeout=1000").engine
    assert len(engine._partitions.by_index) == 1
    assert len(engine._keys.by_index) == 1
    assert (engine.partition_count, engine.inspection.signal_key_count) == (0, 0)


def test_places_of_owners_are_used_again() -> None:
    engine = Engine(EngineLimits(), 0)
    engine.add_owner()
    for _ in range(ROUNDS):
        engine.remove_owner(engine.add_owner(), 0)
    assert len(engine._pending.owners) == 2


def test_an_owner_is_removed_only_when_its_results_were_taken() -> None:
    """Otherwise the next owner, which has the same id, would get them."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    batch = OperationBatch([1], partitions=[("orders", 0)], offsets=[5], timeouts_ms=[0])
    assert engine.perform(owner, Register(PRODUCE, batch), 0).accepted == 1
    with pytest.raises(AssertionError, match=f"owner {owner.owner_id} has results that were not taken: 1"):
        engine.remove_owner(owner, 0)
    assert [completions.owner_id for completions in engine.take_completions()] == [owner.owner_id]
    engine.remove_owner(owner, 0)
    assert engine.add_owner().owner_id == owner.owner_id
    assert engine.take_completions() == []


STEP = 200


def test_no_registration_makes_room_in_all_columns() -> None:
    """At any row, a small batch allocates less than 48 bytes per pending operation: a column of 16 bytes per row, twice
    as long as before. All columns together have 110 bytes per row.
    """
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    engine.perform(
        owner, Register(PRODUCE, OperationBatch([1], partitions=[("orders", 0)], offsets=[1_000])), 0
    )  # imports
    tracemalloc.start()
    try:
        for first in range(2, 12_000, STEP):
            batch = OperationBatch(
                list(range(first, first + STEP)), partitions=[("orders", 0)], offsets=[1_000], timeouts_ms=[60_000]
            )
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            engine.perform(owner, Register(PRODUCE, batch), 0)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 48 * first + 50_000, f"at {first} operations"
    finally:
        tracemalloc.stop()
    assert engine.pending == 12_001


def test_fetch_is_not_woken_by_every_append() -> None:
    level = EngineLevel.played("append orders-0 0", "fetch 1 orders-0@0 replica_id=2 min_bytes=10000")
    before = level.engine.inspection.counts(plain.FETCH).evaluations
    level.apply([plain.Event(plain.LEADER_APPEND, ("orders", 0), offset) for offset in range(1, 10_001)])
    assert [row.outcome for _, row in level.ended()] == [plain.SATISFIED]
    assert level.engine.inspection.counts(plain.FETCH).evaluations - before <= 40


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 30)),
    st.tuples(st.just("rise"), st.integers(0, 3)),
    st.tuples(st.just("outlier"), st.integers(10**6, 10**6 + 3)),
    st.tuples(st.just("pop"), st.integers(0, 60)),
    st.tuples(st.just("end"), st.integers(0, 10**6)),
    st.tuples(st.just("compact"), st.just(0)),
    st.tuples(st.just("drain"), st.just(0)),
)


Model = list[tuple[int, int]]
"""(threshold, ref), sorted. Refs rise from item to item, so equal thresholds stay in order of insertion."""


def popped(model: Model, mark: int) -> int:
    """Remove and return the ref of the model's first entry if a mark reaches its threshold; else -1."""
    return model.pop(0)[1] if model and model[0][0] <= mark else -1


def popped_live(watches: WatchList, mark: int, generations: vec[i32]) -> int:
    """The first live ref that a mark reaches, popping stale ones before it; -1 if there is none."""
    while (ref := watches.pop_reached(mark)) >= 0 and not ref_is_live(ref, generations):
        pass
    return ref


def generations_of(count: int) -> vec[i32]:
    return vec[i32]([0] * count)


def pop_all(watches: WatchList, mark: int) -> list[int]:
    refs = []
    while (ref := watches.pop_reached(mark)) >= 0:
        refs.append(ref)
    return refs


@given(st.lists(STEPS, max_size=150))
def test_watch_list_against_a_naive_list(steps: list[tuple[str, int]]) -> None:
    """Any mix of adds, pops, compactions and drains returns the live entries of a naive list, ties in order of
    insertion. A compaction leaves few stale entries.
    """
    watches, model = WatchList(), Model()
    generations = generations_of(len(steps))
    ended: set[int] = set()
    items, high = 0, 0
    for step, value in steps:
        if step in {"add", "rise", "outlier"}:
            high = high + value if step == "rise" else high
            threshold = high if step == "rise" else value
            watches.add(threshold, make_ref(items, 0))
            bisect.insort(model, (threshold, make_ref(items, 0)))
            items += 1
        elif step == "pop":
            assert popped_live(watches, value, generations) == popped(model, value)
        elif step == "end" and items:
            item = value % items
            if item not in ended:
                ended.add(item)
                generations[item] = 1
                watches.forget()
                model = [entry for entry in model if ref_item(entry[1]) != item]
        elif step == "compact":
            before = len(watches)
            assert watches.compact(generations) == before - len(watches)
            assert len(watches) <= len(model) + (SHIFT_MAX + 1 if watches._overflow.size else 0)
        elif step == "drain":
            refs = watches.drain()
            assert [ref for ref in refs if ref_is_live(ref, generations)] == [ref for _, ref in model]
            model = []
        assert len(watches) >= len(model)
        assert watches.live == items - len(ended)
    left = [ref for ref in pop_all(watches, 2**62) if ref_is_live(ref, generations)]
    assert left == [ref for _, ref in model]


@pytest.mark.parametrize("generation", [0, 5, 2**31 - 1])
def test_ref_carries_item_and_generation_and_is_live_in_its_own_only(generation: int) -> None:
    for item in (0, 1, 2**31 - 1):
        assert ref_item(make_ref(item, generation)) == item
        assert 0 <= make_ref(item, generation) < 2**62
    generations, ref = vec[i32]([0, generation]), make_ref(1, generation)
    assert ref_is_live(ref, generations)
    generations[1] = (generation + 1) & (2**31 - 1)
    assert not ref_is_live(ref, generations)


@pytest.mark.slow
def test_a_falling_load_is_not_quadratic() -> None:
    """Of 30,000 falling thresholds nearly all go to the overflow heap, and they are popped in order."""
    watches = WatchList()
    count = 30_000
    for item in range(count):
        watches.add(count - item, make_ref(item, 0))
    assert len(watches._refs) <= SHIFT_MAX + 1
    assert [ref_item(ref) for ref in pop_all(watches, count)] == list(range(count - 1, -1, -1))


def test_an_outlier_does_not_send_the_rest_to_the_heap() -> None:
    watches = WatchList()
    for item in range(5):
        watches.add(10**15 + item, make_ref(item, 0))
    for item in range(5, 500):
        watches.add(item, make_ref(item, 0))
    assert watches._overflow.size == 0
    assert [ref_item(ref) for ref in pop_all(watches, 10**9)] == list(range(5, 500))


def test_popped_entries_give_their_memory_back() -> None:
    watches = WatchList()
    for item in range(10_000):
        watches.add(item, make_ref(item, 0))
    for mark in range(10_000):
        assert ref_item(watches.pop_reached(mark)) == mark
        assert len(watches._refs) <= 2 * (10_000 - mark) + SLACK
    assert len(watches) == 0


def test_overflow_positions_are_given_back() -> None:
    watches, model, rng = WatchList(), Model(), random.Random(5)
    for item in range(SHIFT_MAX + 2):
        watches.add(10**9, make_ref(item, 0))
        bisect.insort(model, (10**9, make_ref(item, 0)))
    for item in range(SHIFT_MAX + 2, 5000):
        threshold = item + rng.randrange(40)
        watches.add(threshold, make_ref(item, 0))
        bisect.insort(model, (threshold, make_ref(item, 0)))
        if len(model) > 50:
            assert watches.pop_reached(10**8) == popped(model, 10**8)
        assert len(watches._overflow_refs) <= 2 * watches._overflow.size + SLACK + 1


def test_stale_entries_are_bounded_by_compaction() -> None:
    watches = WatchList()
    pending = 100
    generations = generations_of(20_000)
    for item in range(20_000):
        watches.add(10**9 - item % 7, make_ref(item, 0))
        if item >= pending:
            generations[item - pending] = 1
            watches.forget()
        if watches.wants_compaction():
            watches.compact(generations)
        assert len(watches) <= 2 * watches.live + SLACK + 1
    assert watches.live == pending
    watches.compact(generations)
    live = [ref_item(ref) for ref in watches.drain() if ref_is_live(ref, generations)]
    assert sorted(live) == list(range(20_000 - pending, 20_000))


def test_forget_without_a_live_entry() -> None:
    with pytest.raises(AssertionError, match="forget without a live entry"):
        WatchList().forget()


def test_equal_thresholds_keep_their_order() -> None:
    oldest, latest = make_ref(0, 0), make_ref(SHIFT_MAX + 2, 0)
    for first in ("pop", "drain", "compact"):
        watches = WatchList()
        watches.add(5, oldest)
        for item in range(1, SHIFT_MAX + 2):
            watches.add(9, make_ref(item, 0))
        watches.add(5, latest)
        if first == "compact":
            assert watches.compact(generations_of(SHIFT_MAX + 3)) == 0
        assert (watches.drain()[:2] if first == "drain" else pop_all(watches, 5)) == [oldest, latest]


def test_compaction_beside_an_overflow_keeps_the_order_of_equal_thresholds() -> None:
    watches, generations = WatchList(), generations_of(SHIFT_MAX + 4)
    watches.add(5, make_ref(0, 0))
    for item in range(1, SHIFT_MAX + 2):
        watches.add(9, make_ref(item, 0))
        generations[item] = 1
    watches.add(5, make_ref(SHIFT_MAX + 2, 0))
    watches.compact(generations)
    watches.add(5, make_ref(SHIFT_MAX + 3, 0))
    assert [ref_item(ref) for ref in pop_all(watches, 5)] == [0, SHIFT_MAX + 2, SHIFT_MAX + 3]


SESSIONS = {"a": "ann", "b": "bob", "c": "ann"}
"""The account of each session."""
PARTITION = st.sampled_from(["orders-0", "payments-0", "a-topic-that-is-forgotten-when-nobody-waits-on-it-0"])
KEY = st.sampled_from(["one", "two", "three"])
OFFSET = st.integers(0, 5)
TIMEOUT = st.sampled_from([0, 5, 50])


def items(*names: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(st.one_of(*names), OFFSET)
    several = st.lists(pairs, min_size=1, max_size=3, unique_by=lambda pair: pair[0])
    return several.map(lambda some: " ".join(f"{name}@{max(offset, 1)}" for name, offset in some))


WAITS = st.builds(
    "{} {}:{{id}} {} timeout={}".format,
    st.sampled_from(["produce", "delete-records"]) | st.just("fetch"),
    st.sampled_from(list(SESSIONS)),
    items(PARTITION),
    TIMEOUT,
)
OTHER_WAITS = st.builds(
    "{0[0]} {1}:{{id}} {0[1]} timeout={2}".format,
    st.tuples(st.just("await"), items(KEY))
    | st.tuples(st.just("composite"), items(PARTITION, KEY) | items(PARTITION, KEY).map("{} required_terms=1".format)),
    st.sampled_from(list(SESSIONS)),
    TIMEOUT,
)
LINES = st.one_of(
    WAITS,
    OTHER_WAITS,
    st.builds("high-watermark {} {}".format, PARTITION, OFFSET),
    st.builds("lead {} {} replicas=0..{} leader_id=0".format, PARTITION, OFFSET, OFFSET),
    st.builds("signal {} {}".format, KEY, st.integers(1, 3)),
    st.builds("signal {} value={}{}".format, KEY, st.sampled_from([1, 12, 123]), st.sampled_from(["", " failed"])),
    st.builds("{} {}".format, st.sampled_from(["cancel-all", "close"]), st.sampled_from(list(SESSIONS))),
    st.builds("remove {}".format, PARTITION),
    st.just("jump 20"),
)


def recount(engine: Engine, accounts: list[AccountUsage]) -> None:
    """Recount everything by walking the engine, and compare."""
    engine.check()
    operations: Counter[AccountUsage] = Counter()
    items: Counter[AccountUsage] = Counter()
    views, _ = engine.inspection.list_pending(0, 1_000)
    for view in views:
        owner = engine._pending.owners[view.owner_id]
        assert owner is not None
        operations[owner.usage] += 1
        items[owner.usage] += len(view.items)
    partitions = engine._partitions
    keys = engine._keys
    made = Counter(partition.account for partition in partitions.by_name.values())
    held_keys = Counter(key.holder for key in keys.by_key.values() if key.references)
    assert items.total() == engine.pending_items
    for usage in [*accounts, partitions.unowned, keys.unowned]:
        assert usage.operations == operations[usage]
        assert usage.items == items[usage]
        assert usage.partitions == made[usage]
        assert usage.keys == held_keys[usage]
    placed = [partition for partition in partitions.by_index if partition is not None]
    known_keys = [key for key in keys.by_index if key is not None]
    assert partitions.bytes == sum(partition.weighed_bytes for partition in placed)
    for key in known_keys:
        value_bytes = VALUE_BYTES + len(key.value) if key.value else 0
        list_bytes = WATCH_LIST_BYTES if key.composite_waits is not None else 0
        assert key.bytes == KEY_BYTES + name_bytes(key.name) + value_bytes + list_bytes
    for usage in accounts:
        assert usage.name_bytes == sum(
            partition.weighed_bytes for partition in placed if partition.account is usage
        ) + sum(key.bytes for key in known_keys if (key.holder if key.references else key.account) is usage)
        owned = [key for key in known_keys if key.account is usage]
        assert usage.owned_keys == len(owned)
        assert usage.value_bytes == sum(len(key.value) for key in owned)
        assert usage.held_value_bytes == sum(len(key.value) for key in owned if key.references)
    for partition in placed:
        before = partition.weighed_bytes
        partitions.weigh(partition)
        assert partition.weighed_bytes == before, f"{partition.name} was not weighed when it changed"


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ann", "bob"]), LINES), max_size=40))
def test_counts_are_those_of_a_recount(lines: list[tuple[str, str]]) -> None:
    level = EngineLevel.played("limits signal_keys_max=2 signal_values_bytes_max=10 partitions_max=3")
    for number, (account, line) in enumerate(lines, 1):
        for session, owner in SESSIONS.items():
            level.answer(f"account {owner}")
            level.owner(session)
        level.answer(f"account {account}")
        level.answer(line.format(id=number))
        recount(level.engine, list(level.accounts.values()))
    for session in list(level.owners):
        level.close_session(session)
    accounts = list(level.accounts.values())
    recount(level.engine, accounts)
    assert all((held.operations, held.items, held.keys) == (0, 0, 0) for held in accounts)
    assert level.engine._wakeups.fetches.item_count == 0


def test_positions_are_thinned_while_memory_is_short() -> None:
    appends = [f"append orders-0 {offset} position={offset * 10}" for offset in range(1, 400)]
    level = EngineLevel.played("limits partitions_max=1", *appends[:100], "memory short", *appends[100:])
    assert level.answer("marks orders-0")[0].endswith("log end 399, min in sync 1")
    assert len(level.engine._partitions.by_name["orders", 0].positions) < 100


def test_character_of_a_name_takes_one_byte_or_four() -> None:
    for letter, size in (("x", 1), ("\u00fc", 4)):
        assert name_bytes((letter * 200, 0)) - name_bytes((letter * 100, 0)) == 100 * size


def test_memory_of_an_account_and_of_the_engine_grows_with_what_they_hold() -> None:
    level = EngineLevel.played("limits partitions_max=3", "account ann", "produce 1 orders-0@1 orders-1@2")
    ann, engine = level.accounts["ann"], level.engine
    assert ann.memory_bytes() == OPERATION_BYTES + 2 * ITEM_BYTES + ann.name_bytes
    before, named = engine.memory_bytes(), ann.name_bytes
    level.answer("append orders-2 10")
    partition = engine._partitions.by_name["orders", 2]
    added = partition.weighed_bytes
    assert engine.memory_bytes() - before == ann.name_bytes - named == added
    level.answer("append orders-2 20 position=200")
    assert partition.weighed_bytes - added == len(partition.positions) * POSITION_BYTES > 0
