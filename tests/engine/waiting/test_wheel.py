"""The timing wheel and its heap: random histories compared with a plain dictionary of deadlines, and extreme values.

The dictionary knows which slots must fire, and in which order. Where a slot is, when the wheel must run next and what
its clocks show follows from the rules of a hierarchical wheel, which every step checks.
"""

import heapq
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.waiting import wheel as wheel_module
from purgatory.engine.waiting.heap import SHRINK_ABOVE, PackedHeap
from purgatory.engine.waiting.wheel import DEADLINE_MAX, TICK_MS_MAX, WHEEL_SIZE_MAX, TimingWheel

GEOMETRIES: Final = [(1, 20), (1, 3), (1, 2), (20, 20), (7, 3), (1000, 512)]
SLOTS: Final = 16
TEN_YEARS_MS: Final = 10 * 365 * 86_400_000
SIZES = st.sampled_from([2, 3, 20])
GEOMETRY = st.tuples(st.sampled_from([1, 2, 7, 20]), SIZES)
STARTS_MS = st.integers(0, 10_000) | st.sampled_from([12_345_678_901, DEADLINE_MAX // 2])
EDGES = st.builds(lambda size, level, more: size**level + more, SIZES, st.integers(0, 8), st.integers(-1, 1))
"""Around the ends of levels; with a tick above 1 also of the buckets of a level."""
DELAYS = st.one_of(st.integers(-30, 70), st.integers(0, 10_000), EDGES, st.integers(0, TEN_YEARS_MS))
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, SLOTS - 1), DELAYS),
    st.tuples(st.just("remove"), st.integers(0, SLOTS - 1), st.just(0)),
    st.tuples(st.just("advance"), st.integers(0, 5), st.one_of(st.integers(0, 50), st.integers(0, 2**20))),
)


def advance(wheel: TimingWheel, now_ms: int, limit: int = 1_000_000) -> list[int]:
    fired: list[int] = []
    assert wheel.advance(now_ms, limit, fired) == len(fired)
    return fired


class CheckedWheel:
    """A wheel and its model: the deadline of each linked slot, in the order in which they were added."""

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int = 0, slots: int = SLOTS) -> None:
        self.wheel = TimingWheel(tick_ms, wheel_size, start_ms)
        self.wheel.ensure(slots)
        self.model: dict[int, int] = {}
        self.levels = 1

    def tick_ms(self, level: int) -> int:
        return int(self.wheel.tick_ms * self.wheel.wheel_size ** (level - 1))

    def add(self, slot: int, deadline_ms: int) -> None:
        """A slot is linked to the finest level whose interval has its deadline, unless that is due by the clock."""
        wheel = self.wheel
        rounded = -(-deadline_ms // wheel.tick_ms) * wheel.tick_ms
        self.model.pop(slot, None)
        is_linked = wheel.add(slot, deadline_ms)
        assert wheel.deadline_ms(slot) == rounded
        assert is_linked == (rounded > wheel.level_clock(1))
        if is_linked:
            self.model[slot] = rounded
            level, _, _ = wheel.bucket_of(slot)
            reach_ms = [wheel.level_clock(one) + self.tick_ms(one + 1) for one in range(1, level + 1)]
            assert max(reach_ms[:-1], default=0) <= rounded < reach_ms[-1]
            self.levels = max(self.levels, level)

    def remove(self, slot: int) -> None:
        assert self.wheel.remove(slot) == (self.model.pop(slot, None) is not None)

    def advance(self, now_ms: int, limit: int = 1_000) -> None:
        """Due slots fire by deadline; slots with equal deadlines in the order in which they were added."""
        before_ms, clock_ms = self.wheel.next_expiration_ms(), self.wheel.level_clock(1)
        due = sorted((slot for slot, deadline in self.model.items() if deadline <= now_ms), key=self.model.__getitem__)
        assert advance(self.wheel, now_ms, limit) == due[:limit]
        for slot in due[:limit]:
            clock_ms = self.model.pop(slot)
        assert clock_ms <= self.wheel.level_clock(1) <= now_ms
        if not 0 <= before_ms <= now_ms:
            assert self.wheel.level_clock(1) == clock_ms

    def look(self) -> None:
        wheel = self.wheel
        assert (wheel.count, wheel.levels) == (len(self.model), self.levels)
        places = [wheel.bucket_of(slot) for slot in self.model]
        assert wheel.next_expiration_ms() == min((expiration for _, _, expiration in places), default=-1)
        for deadline, (level, index, expiration) in zip(self.model.values(), places, strict=True):
            assert expiration <= deadline < expiration + self.tick_ms(level)
            assert index == expiration // self.tick_ms(level) % wheel.wheel_size
            assert wheel.bucket_count(level, index, SLOTS) == places.count((level, index, expiration))
            assert wheel.bucket_count(level, index, 1) == 1
        for level in range(1, wheel.levels + 1):
            assert wheel.level_clock(level) % self.tick_ms(level) == 0
        assert len(wheel._queue) <= wheel.levels * wheel.wheel_size, "a bucket is queued once"


@given(GEOMETRY, STARTS_MS, st.lists(STEPS, max_size=120))
def test_wheel_against_a_sorted_oracle(
    geometry: tuple[int, int], start_ms: int, steps: list[tuple[str, int, int]]
) -> None:
    checked = CheckedWheel(*geometry, start_ms)
    for step, first, second in steps:
        if step == "add":
            checked.add(first, max(0, checked.wheel.now_ms + second))
        elif step == "remove":
            checked.remove(first)
        else:
            checked.advance(checked.wheel.now_ms + second, limit=first if first < 5 else 1_000)
        checked.look()
    checked.advance(DEADLINE_MAX)
    assert not checked.model
    assert checked.wheel.next_expiration_ms() == -1


@given(st.sampled_from(GEOMETRIES), STARTS_MS, st.integers(0, 9), st.integers(-1, 1), st.booleans())
def test_slot_moves_down_level_by_level_and_fires_at_its_tick(
    geometry: tuple[int, int], start_ms: int, edge: int, more: int, by_the_clock: bool
) -> None:
    """Around the end of each level, from now or by the clock; so years without work cost a few calls."""
    edge_ms = min(geometry[0] * geometry[1] ** edge, TEN_YEARS_MS)
    deadline_ms = (start_ms // edge_ms + 1) * edge_ms if by_the_clock else start_ms + edge_ms
    checked = CheckedWheel(*geometry, start_ms)
    checked.add(0, deadline_ms + more)
    level = checked.levels + 1
    while checked.model:
        finer, _, expiration = checked.wheel.bucket_of(0)
        assert finer < level
        level = finer
        checked.advance(expiration - 1 if expiration > checked.wheel.now_ms else checked.wheel.now_ms)
        checked.advance(max(expiration, checked.wheel.now_ms))
        checked.look()


def test_wheel_continues_a_bucket_that_was_left_half_full() -> None:
    checked = CheckedWheel(1, 20)
    for slot in range(4):
        checked.add(slot, 20)
    checked.advance(20, limit=1)
    checked.remove(2)
    for slot, deadline_ms in ((10, 20), (11, 21), (12, 40), (13, 420)):
        checked.add(slot, deadline_ms)
    for now_ms in (20, 21, 40, 420):
        checked.look()
        checked.advance(now_ms)
    assert not checked.model


def test_bucket_is_queued_once_however_often_it_empties() -> None:
    checked = CheckedWheel(1, 20)
    for _ in range(3):
        checked.add(0, 5)
        checked.remove(0)
    checked.add(1, 5)
    assert len(checked.wheel._queue) == 1
    checked.advance(5)
    checked.look()


# Limits


@pytest.mark.slow
def test_one_call_moves_a_bounded_number() -> None:
    """A cascade of more than MOVES_MAX entries takes several calls, and next_expiration_ms shows that more is due."""
    herd = wheel_module.MOVES_MAX + 10
    wheel = CheckedWheel(1, 20, slots=herd).wheel
    for slot in range(herd):
        wheel.add(slot, 25)
    assert advance(wheel, 25) == []
    assert wheel.next_expiration_ms() == 20
    fired = advance(wheel, 25)
    while wheel.next_expiration_ms() >= 0:
        fired += advance(wheel, 25)
    assert sorted(fired) == list(range(herd))


def test_clock_that_goes_back_is_an_assertion() -> None:
    wheel = TimingWheel(1, 20, 10)
    with pytest.raises(AssertionError, match="now_ms=9 wheel=10"):
        advance(wheel, 9)


@pytest.mark.parametrize(
    ("tick_ms", "wheel_size", "start_ms"), [(0, 20, 0), (1, 1, 0), (1, 20, -1), (2**31 + 1, 20, 0)]
)
def test_impossible_wheels_are_refused(tick_ms: int, wheel_size: int, start_ms: int) -> None:
    with pytest.raises(AssertionError, match="is not in"):
        TimingWheel(tick_ms, wheel_size, start_ms)


@pytest.mark.parametrize(("tick_ms", "wheel_size"), [*GEOMETRIES, (TICK_MS_MAX, 2)])
def test_extreme_deadlines(tick_ms: int, wheel_size: int) -> None:
    """The largest 64-bit deadline is capped and does not overflow; 0 and negative ones are due immediately."""
    wheel = CheckedWheel(tick_ms, wheel_size).wheel
    assert wheel.add(0, 2**63 - 1)
    assert DEADLINE_MAX <= wheel.deadline_ms(0) < DEADLINE_MAX + tick_ms
    assert wheel.add(1, 2**62 - tick_ms)
    assert not wheel.add(2, 0)
    assert not wheel.add(3, -(2**62))
    assert advance(wheel, 2**40) == []
    assert advance(wheel, DEADLINE_MAX - 1) == ([1] if wheel.deadline_ms(1) < DEADLINE_MAX else [])
    assert 0 in advance(wheel, DEADLINE_MAX + tick_ms)
    assert wheel.count == 0


def test_ensure_keeps_what_is_linked() -> None:
    wheel = CheckedWheel(1, 20, slots=1).wheel
    wheel.add(0, 50)
    for slot in range(1, 500):
        wheel.ensure(slot + 1)
        wheel.add(slot, 50)
    wheel.ensure(10)
    assert advance(wheel, 50) == list(range(500))


def test_a_far_deadline_does_not_hide_a_near_one() -> None:
    tick = TICK_MS_MAX
    near, far = 5 * tick, (8 * WHEEL_SIZE_MAX + 5) * tick
    wheel = CheckedWheel(tick, WHEEL_SIZE_MAX).wheel
    wheel.add(0, far)
    wheel.add(1, near)
    assert wheel.next_expiration_ms() == near
    assert advance(wheel, near) == [1]
    assert advance(wheel, far - 1) == []
    assert advance(wheel, far) == [0]


# The heap in which buckets wait, compared with the standard library's.

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
