"""Helpers for tests of the timing wheel: create it, advance it, and follow an entry through its buckets."""

from purgatory.engine.waiting.wheel import TimingWheel

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
