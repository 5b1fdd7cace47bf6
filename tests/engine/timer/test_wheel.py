"""The timing wheel and its heap: arithmetic at every edge, the worked example, cases 1 to 19 of docs/semantics.md.

Every step of a case, and of any history, is compared with a plain dictionary of deadlines. Random histories contain
cases 3, 10, 13, 14 and 15: the count, cancelled and moved entries that do not fire, and deadlines that are already due
when they are added, including on an idle wheel.
"""

import ast
import heapq
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.waiting import wheel as wheel_module
from purgatory.engine.waiting.heap import SHRINK_ABOVE, PackedHeap
from purgatory.engine.waiting.wheel import (
    DEADLINE_MAX,
    TICK_MS_MAX,
    WHEEL_SIZE_MAX,
    TimingWheel,
    bucket_index,
    floor_to_tick,
    level_tick_ms,
    levels_needed,
    round_up_to_tick,
)
from tests.parsing import parsed

Place = tuple[int, int, int]
GEOMETRIES = [(1, 20), (1, 3), (1, 2), (20, 20), (7, 3), (1000, 512)]


def make(tick_ms: int, wheel_size: int, start_ms: int = 0, slots: int = 32) -> TimingWheel:
    wheel = TimingWheel(tick_ms, wheel_size, start_ms)
    wheel.ensure(slots)
    return wheel


def advance(wheel: TimingWheel, now_ms: int, limit: int = 1_000_000) -> list[int]:
    fired: list[int] = []
    assert wheel.advance(now_ms, limit, fired) == len(fired)
    return fired


def path(wheel: TimingWheel, slot: int) -> tuple[list[Place], int]:
    """The places that a slot passes as the clock goes from one expiration to the next, and when it fires."""
    places: list[Place] = []
    while True:
        if not places or wheel.bucket_of(slot) != places[-1]:
            places.append(wheel.bucket_of(slot))
        now_ms = max(wheel.next_expiration_ms(), wheel.now_ms)
        if slot in advance(wheel, now_ms):
            return places, now_ms


# Arithmetic


@pytest.mark.parametrize("tick_ms", [1, 2, 7, 20, 1000])
def test_rounding_goes_up_to_the_next_tick(tick_ms: int) -> None:
    for k in (0, 1, 2, 19, 20, 21, 10**9):
        edge = k * tick_ms
        assert round_up_to_tick(edge, tick_ms) == edge
        assert round_up_to_tick(edge + 1, tick_ms) == edge + tick_ms
        assert round_up_to_tick(edge - 1, tick_ms) == (edge if tick_ms > 1 else edge - 1)


@pytest.mark.parametrize(("tick_ms", "wheel_size"), GEOMETRIES)
def test_buckets_at_every_level_edge(tick_ms: int, wheel_size: int) -> None:
    """At tick * size**k - 1, + 0 and + 1 the bucket is the last, the first, and the first again (tick 1: the next)."""
    for level in range(1, levels_needed(tick_ms, wheel_size)):
        tick = level_tick_ms(level, tick_ms, wheel_size)
        interval = tick * wheel_size
        assert tick == tick_ms * wheel_size ** (level - 1)
        assert bucket_index(interval - 1, tick, wheel_size) == wheel_size - 1
        assert bucket_index(interval, tick, wheel_size) == 0
        assert bucket_index(interval + 1, tick, wheel_size) == (1 if tick == 1 else 0)
        assert floor_to_tick(interval - 1, tick) == interval - tick
        assert floor_to_tick(interval, tick) == interval
        assert floor_to_tick(interval + 1, tick) == interval + (1 if tick == 1 else 0)


@pytest.mark.parametrize(("tick_ms", "wheel_size"), [*GEOMETRIES, (2**31, 2**16), (2**31, 2)])
def test_the_levels_reach_the_latest_deadline(tick_ms: int, wheel_size: int) -> None:
    """The last level's interval exceeds DEADLINE_MAX, its tick does not: nothing overflows 64 bits."""
    levels = levels_needed(tick_ms, wheel_size)
    assert level_tick_ms(levels, tick_ms, wheel_size) <= DEADLINE_MAX
    assert level_tick_ms(levels, tick_ms, wheel_size) * wheel_size > DEADLINE_MAX


# The worked examples


def test_worked_example_in_module_docstring() -> None:
    # Compiled modules have no docstring; their source is next to them.
    source = Path(wheel_module.__file__).parent / "wheel.py"
    text = ast.get_docstring(parsed(source.read_text(encoding="utf-8"))) or ""
    adds = re.findall(r"add (\d+) +-> level (\d), bucket (\d), due at (\d+)", text)
    assert len(adds) == 4
    wheel = make(1, 3)
    for deadline, level, bucket, due in adds:
        assert wheel.add(int(deadline), int(deadline))
        assert wheel.bucket_of(int(deadline)) == (int(level), int(bucket), int(due))

    assert len(re.findall(r"advance to \d+ +:", text)) == 5
    assert advance(wheel, 2) == [2]
    assert advance(wheel, 3) == []
    assert wheel.bucket_of(5) == (1, 2, 5)
    assert advance(wheel, 17) == [5, 8]
    assert wheel.level_clock(1) == 8
    assert advance(wheel, 18) == []
    assert wheel.bucket_of(26) == (2, 2, 24)
    assert advance(wheel, 26) == [26]


@pytest.mark.parametrize(
    ("tick_ms", "wheel_size", "start_ms", "deadline_ms", "places", "fires_at"),
    [
        (1, 20, 0, 2, [(1, 2, 2)], 2),  # case 1: levels 1 and 2
        (1, 20, 0, 19, [(1, 19, 19)], 19),
        (1, 20, 0, 20, [(2, 1, 20)], 20),
        (1, 20, 0, 237, [(2, 11, 220), (1, 17, 237)], 237),  # case 2: moves down at 220 without firing
        (1, 20, 0, 350, [(2, 17, 340), (1, 10, 350)], 350),
        (1, 20, 0, 450, [(3, 1, 400), (2, 2, 440), (1, 10, 450)], 450),
        (1, 20, 0, 7999, [(3, 19, 7600), (2, 19, 7980), (1, 19, 7999)], 7999),
        (1, 20, 0, 8000, [(4, 1, 8000)], 8000),
        (20, 20, 0, 437, [(2, 1, 400), (1, 2, 440)], 440),  # case 5: never early; Kafka fires it at 420
        (20, 20, 0, 19, [(1, 1, 20)], 20),  # case 6: below one tick; Kafka fires it in add, 19 ms early
        (20, 20, 7, 27, [(1, 2, 40)], 40),
        (1, 3, 0, 3, [(2, 1, 3)], 3),
        (1, 3, 0, 8, [(2, 2, 6), (1, 2, 8)], 8),
        (1, 3, 0, 9, [(3, 1, 9)], 9),
        (1, 3, 0, 26, [(3, 2, 18), (2, 2, 24), (1, 2, 26)], 26),
        (1, 3, 0, 27, [(4, 1, 27)], 27),
        (1, 3, 100, 103, [(2, 1, 102), (1, 1, 103)], 103),  # case 7: level 2 is at 99
    ],
)
def test_entry_passes_the_buckets_of_semantics_1_6(
    tick_ms: int, wheel_size: int, start_ms: int, deadline_ms: int, places: list[Place], fires_at: int
) -> None:
    wheel = make(tick_ms, wheel_size, start_ms)
    assert wheel.add(0, deadline_ms)
    assert path(wheel, 0) == (places, fires_at)


# Histories

SLOTS = 16
ANY_GEOMETRY = st.tuples(st.sampled_from([1, 2, 7, 20]), st.sampled_from([2, 3, 20]), st.integers(0, 10_000))
DELAYS = st.one_of(st.integers(-30, 70), st.integers(0, 10_000), st.integers(0, 2**40))
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, SLOTS - 1), DELAYS),
    st.tuples(st.just("remove"), st.integers(0, SLOTS - 1), st.just(0)),
    st.tuples(st.just("advance"), st.integers(0, 5), st.one_of(st.integers(0, 50), st.integers(0, 2**20))),
    st.tuples(st.just("look"), st.just(0), st.just(0)),
)


class CheckedWheel:
    """A wheel and its model, a deadline for each linked slot; every step is checked."""

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int, slots: int) -> None:
        self.tick_ms = tick_ms
        self.now_ms = start_ms
        self.wheel = TimingWheel(tick_ms, wheel_size, start_ms)
        self.wheel.ensure(slots)
        self.model: dict[int, int] = {}

    def add(self, slot: int, deadline_ms: int) -> None:
        rounded = round_up_to_tick(deadline_ms, self.tick_ms)
        self.model.pop(slot, None)
        if self.wheel.add(slot, deadline_ms):
            self.model[slot] = rounded
        else:
            assert deadline_ms <= self.wheel.level_clock(1) <= self.now_ms
        assert self.wheel.deadline_ms(slot) == rounded
        assert self.wheel.count == len(self.model)

    def remove(self, slot: int) -> None:
        assert self.wheel.remove(slot) == (self.model.pop(slot, None) is not None)

    def advance(self, now_ms: int, limit: int = 1_000) -> list[int]:
        self.now_ms = now_ms
        fired: list[int] = []
        count = self.wheel.advance(now_ms, limit, fired)
        assert count == len(fired) <= limit
        deadlines = [self.model.pop(slot) for slot in fired]
        assert deadlines == sorted(deadlines)
        assert all(deadline <= now_ms for deadline in deadlines)
        if count < limit:
            assert all(deadline > now_ms for deadline in self.model.values())
        return fired

    def look(self) -> None:
        wheel = self.wheel
        assert wheel.count == len(self.model)
        next_ms = wheel.next_expiration_ms()
        assert (next_ms == -1) == (not self.model)
        if self.model:
            assert next_ms <= min(self.model.values())
        for slot, deadline in self.model.items():
            level, index, expiration = wheel.bucket_of(slot)
            tick = self.tick_ms * wheel.wheel_size ** (level - 1)
            assert expiration <= deadline < expiration + tick
            assert index == expiration // tick % wheel.wheel_size
        for level in range(1, wheel.levels + 1):
            assert wheel.level_clock(level) % (self.tick_ms * wheel.wheel_size ** (level - 1)) == 0


@given(ANY_GEOMETRY, st.lists(STEPS, max_size=120))
def test_wheel_against_a_sorted_oracle(geometry: tuple[int, int, int], steps: list[tuple[str, int, int]]) -> None:
    checked = CheckedWheel(*geometry, slots=SLOTS)
    for step, first, second in steps:
        if step == "add":
            checked.add(first, max(0, checked.now_ms + second))
        elif step == "remove":
            checked.remove(first)
        elif step == "advance":
            checked.advance(checked.now_ms + second, limit=first if first < 5 else 1000)
        checked.look()
    checked.advance(2**42, limit=1000)
    assert not checked.model
    assert checked.wheel.next_expiration_ms() == -1


CASES = """
04 levels are made on demand
  size 20, levels 1, add 0 7999, at 0 3 19 7600, levels 3, add 1 8000, at 1 4 1 8000, levels 4
08 one bucket, queued once, fires one and cascades another
  size 3, add 0 3, add 1 5, at 0 2 1 3, at 1 2 1 3, queued 1, advance 3 fires 0, at 1 1 2 5
09 equal deadlines fire in the order of insertion, from one bucket
  size 20, add 3 5, add 1 5, add 2 5, queued 1, advance 5 fires 3 1 2
11 an emptied bucket is not queued twice
  size 20, add 0 5, remove 0, add 1 5, queued 1, advance 5 fires 1, next -1
12 a bucket is used again in the next lap
  size 20, add 0 5, advance 5 fires 0, add 2 25, at 2 2 1 20, remove 2, add 1 6, advance 6 fires 1, add 2 25
  at 2 1 5 25, advance 25 fires 2
16 an idle wheel catches up in hops
  size 20, add 0 1005, at 0 3 2 800, advance 1000, at 0 1 5 1005, clock 1 1000, advance 1004, advance 1005 fires 0
17 nothing is due, and the clocks stay
  size 20, add 0 100, advance 50, clock 1 0, clock 2 0
18 a late reaper finds all in order, and the clock is that of the last bucket
  size 20, add 5 350, add 4 343, add 3 342, add 2 341, add 1 340, advance 5000 fires 1 2 3 4 5, clock 1 350
19 cancelled while its bucket is half flushed
  size 20, add 0 5, add 1 5, add 2 5, add 3 5, slice 5 fires 0, remove 2, advance 5 fires 1 3
added while a bucket is half flushed
  size 20, add 0 20, add 1 20, add 2 20, add 3 20, slice 20 fires 0, add 10 20, add 11 21, add 12 40, add 13 420
  advance 20 fires 1 2 3, next 21, advance 21 fires 11, advance 40 fires 12, advance 420 fires 13
buckets that cancels have emptied do not expire
  size 20, add 0 3, add 1 30, add 2 300, add 3 3000, remove 0, next 20, remove 1, remove 2, next 2800, remove 3
  next -1, add 0 3, next 3, advance 3 fires 0
"""
"""A name, and steps: `at` slot level bucket expiration, `clock` level ms, `queued` buckets."""


@pytest.mark.parametrize("case", re.findall(r"^(\S.*\n(?:  .*\n)+)", CASES, re.MULTILINE))
def test_wheel_goes_through_the_case(case: str) -> None:
    size, *steps = re.split(r"\n  |, ", case.partition("\n  ")[2].strip())
    checked = CheckedWheel(1, int(size.split()[1]), 0, slots=32)
    wheel = checked.wheel
    for step in steps:
        words, _, fired = step.partition(" fires ")
        verb, *rest = words.split()
        numbers = [int(word) for word in rest]
        match verb, numbers:
            case "add", [slot, deadline_ms]:
                checked.add(slot, deadline_ms)
            case "remove", [slot]:
                checked.remove(slot)
            case "advance" | "slice", [now_ms]:
                limit = 1 if verb == "slice" else 1_000
                assert checked.advance(now_ms, limit) == [int(slot) for slot in fired.split()], step
            case "at", [slot, *place]:
                assert wheel.bucket_of(slot) == tuple(place), step
            case "clock", [level, ms]:
                assert wheel.level_clock(level) == ms, step
            case "next", [ms]:
                assert wheel.next_expiration_ms() == ms, step
            case _:
                assert {"levels": wheel.levels, "queued": len(wheel._queue)}[verb] == numbers[0], step
        assert wheel.count == len(checked.model)


# Limits


@pytest.mark.slow
def test_one_call_moves_a_bounded_number() -> None:
    """A cascade of more than MOVES_MAX entries takes several calls, and next_expiration_ms shows that more is due."""
    herd = wheel_module.MOVES_MAX + 10
    wheel = make(1, 20, slots=herd)
    for slot in range(herd):
        wheel.add(slot, 25)
    assert advance(wheel, 25) == []
    assert wheel.next_expiration_ms() == 20
    fired = advance(wheel, 25)
    while wheel.next_expiration_ms() >= 0:
        fired += advance(wheel, 25)
    assert sorted(fired) == list(range(herd))


def test_clock_must_not_go_back() -> None:
    wheel = make(1, 20)
    advance(wheel, 10)
    with pytest.raises(AssertionError, match="now_ms=9 wheel=10"):
        advance(wheel, 9)


@pytest.mark.parametrize(
    ("tick_ms", "wheel_size", "start_ms"), [(0, 20, 0), (1, 1, 0), (1, 20, -1), (2**31 + 1, 20, 0)]
)
def test_impossible_wheels_are_refused(tick_ms: int, wheel_size: int, start_ms: int) -> None:
    with pytest.raises(AssertionError, match="is not in"):
        TimingWheel(tick_ms, wheel_size, start_ms)


@pytest.mark.parametrize(("tick_ms", "wheel_size"), GEOMETRIES)
def test_extreme_deadlines(tick_ms: int, wheel_size: int) -> None:
    """The largest 64-bit deadline is capped and does not overflow; 0 and negative ones are due immediately."""
    wheel = make(tick_ms, wheel_size)
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
    wheel = make(1, 20, slots=1)
    wheel.add(0, 50)
    for slot in range(1, 500):
        wheel.ensure(slot + 1)
        wheel.add(slot, 50)
    wheel.ensure(10)
    assert advance(wheel, 50) == list(range(500))


def test_a_far_deadline_does_not_hide_a_near_one() -> None:
    tick = TICK_MS_MAX
    near, far = 5 * tick, (8 * WHEEL_SIZE_MAX + 5) * tick
    wheel = make(tick, WHEEL_SIZE_MAX)
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
