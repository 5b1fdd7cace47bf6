"""The timing wheel compared with a plain dictionary of deadlines: it fires the same slots, and never early."""

from hypothesis import given
from hypothesis import strategies as st

from purgatory.engine.waiting.wheel import TimingWheel, round_up_to_tick

SLOTS = 16
GEOMETRIES = st.tuples(st.sampled_from([1, 2, 7, 20]), st.sampled_from([2, 3, 20]), st.integers(0, 10_000))
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

    def advance(self, now_ms: int, limit: int) -> None:
        self.now_ms = now_ms
        fired: list[int] = []
        count = self.wheel.advance(now_ms, limit, fired)
        assert count == len(fired) <= limit
        deadlines = [self.model.pop(slot) for slot in fired]
        assert deadlines == sorted(deadlines)
        assert all(deadline <= now_ms for deadline in deadlines)
        if count < limit:
            assert all(deadline > now_ms for deadline in self.model.values())

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


@given(GEOMETRIES, st.lists(STEPS, max_size=120))
def test_wheel_against_a_sorted_oracle(geometry: tuple[int, int, int], steps: list[tuple[str, int, int]]) -> None:
    """Any mix of add, re-add, cancel and limited advance fires the slots of the model, in order, never early."""
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
