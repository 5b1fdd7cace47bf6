"""The packed heap compared with the standard library's."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.waiting.heap import SHRINK_ABOVE, PackedHeap

PUSH_OR_POP = st.one_of(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), st.none())


@given(st.lists(PUSH_OR_POP, max_size=200))
def test_heap_gives_the_pairs_of_heapq(steps: list[tuple[int, int] | None]) -> None:
    heap, model = PackedHeap(), list[tuple[int, int]]()
    for step in steps:
        if step is not None:
            heap.push(*step)
            heapq.heappush(model, step)
        elif model:
            assert (heap.top_key(), heap.top_value()) == heapq.heappop(model)
            heap.pop()
        assert len(heap) == heap.size == len(model)


def test_heap_that_empties_frees_its_memory_and_fills_again() -> None:
    heap = PackedHeap()
    for _ in range(2):
        for key in range(2 * SHRINK_ABOVE, 0, -1):
            heap.push(key, -key)
        for key in range(1, 2 * SHRINK_ABOVE + 1):
            assert heap.top_key() == key
            assert heap.top_value() == -key
            heap.pop()
        assert len(heap) == 0
        assert len(heap._keys) == 0


@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), max_size=200))
def test_renumbered_heap_keeps_its_order_and_drops_the_rest(pairs: list[tuple[int, bool]]) -> None:
    heap = PackedHeap()
    numbers, kept = vec[i64]([-1] * len(pairs)), list[tuple[int, int]]()
    for value, (key, is_kept) in enumerate(pairs):
        heap.push(key, value)
        if is_kept:
            numbers[value] = len(kept)
            kept.append((key, len(kept)))
    heap.renumber(numbers)
    found = []
    while len(heap):
        found.append((heap.top_key(), heap.top_value()))
        heap.pop()
    assert found == sorted(kept)


def test_an_empty_heap_has_no_top() -> None:
    heap = PackedHeap()
    for ask in (heap.top_key, heap.top_value, heap.pop):
        with pytest.raises(AssertionError, match="empty"):
            ask()
