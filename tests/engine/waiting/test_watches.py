"""The watch list of one key compared with a naive sorted list, and its memory and compaction."""

import bisect
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i32

from purgatory.engine.waiting.watches import SHIFT_MAX, SLACK, WatchList, make_ref, ref_is_live, ref_item

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
