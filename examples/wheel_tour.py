"""The worked examples that articles on Kafka's timing wheel use, on this project's wheel: which bucket, and when.

    python examples/wheel_tour.py

It needs no daemon and no clock: time is an argument of the wheel. Levels and buckets count from 1 and from 0, as in
purgatory/engine/waiting/wheel.py, whose docstring has the costs. docs/wheel.md explains the idea.

Prints:
    A tick of 1 ms, 20 buckets. Level 1 spans 20 ms, level 2 400 ms, level 3 8 s, level 4 160 s.
    L2[11] at 220: in bucket 11 of level 2, which is due at 220 ms.
          2 ms: L1[2] at 2
          8 ms: L1[8] at 8
         19 ms: L1[19] at 19
        237 ms: L2[11] at 220 -> L1[17] at 237
        350 ms: L2[17] at 340 -> L1[10] at 350
        450 ms: L3[1] at 400 -> L2[2] at 440 -> L1[10] at 450
        446 ms: L3[1] at 400 -> L2[2] at 440 -> L1[6] at 446
        455 ms: L3[1] at 400 -> L2[2] at 440 -> L1[15] at 455
        473 ms: L3[1] at 400 -> L2[3] at 460 -> L1[13] at 473
       8000 ms: L4[1] at 8000
     159999 ms: L4[19] at 152000 -> L3[19] at 159600 -> L2[19] at 159980 -> L1[19] at 159999
     160000 ms: L5[1] at 160000

    A tick of 1 ms, 3 buckets, at c = 27: what each bucket holds.
      level 1, bucket 1, due at c+1: c+1
      level 1, bucket 2, due at c+2: c+2
      level 2, bucket 1, due at c+3: c+3 to c+5
      level 2, bucket 2, due at c+6: c+6 to c+8
      level 3, bucket 1, due at c+9: c+9 to c+17
      level 3, bucket 2, due at c+18: c+18 to c+26

    Timers of 200 and 840 ms: a wheel that ticks, beside one whose buckets are in a queue.
      until 200 ms: 200 ticks, 199 of them for nothing; woken at [200] ms
      until 840 ms: 640 ticks, 639 of them for nothing; woken at [800, 840] ms
"""

from collections.abc import Iterator

from purgatory.engine.waiting.wheel import TimingWheel

SLOT = 0
BUCKETS = 20
"""Kafka's default: a tick of 1 ms, 20 buckets for each level."""
ALL = 1_000


def path(deadline_ms: int, wheel: TimingWheel) -> Iterator[tuple[int, int, int]]:
    """Each bucket that a timer is in until it fires: level, bucket, and when that bucket is due, milliseconds."""
    wheel.ensure(1)
    assert wheel.add(SLOT, deadline_ms), f"{deadline_ms} ms is due already"
    fired: list[int] = []
    while not fired:
        place = wheel.bucket_of(SLOT)
        yield place
        while not fired and wheel.bucket_of(SLOT) == place:
            wheel.advance(wheel.next_expiration_ms(), ALL, fired)
    assert wheel.now_ms == deadline_ms, f"fired at {wheel.now_ms} ms"


def show_paths() -> None:
    print(f"A tick of 1 ms, {BUCKETS} buckets. Level 1 spans 20 ms, level 2 400 ms, level 3 8 s, level 4 160 s.")
    print("L2[11] at 220: in bucket 11 of level 2, which is due at 220 ms.")
    for deadline_ms in (2, 8, 19, 237, 350, 450, 446, 455, 473, 8_000, 159_999, 160_000):
        steps = [
            f"L{level}[{bucket}] at {due_ms}" for level, bucket, due_ms in path(deadline_ms, TimingWheel(1, BUCKETS, 0))
        ]
        print(f"{deadline_ms:>7} ms: {' -> '.join(steps)}")


def show_small_wheel(clock_ms: int = 27) -> None:
    print(f"\nA tick of 1 ms, 3 buckets, at c = {clock_ms}: what each bucket holds.")
    held: dict[tuple[int, int, int], list[int]] = {}
    wheel = TimingWheel(1, 3, clock_ms)
    wheel.ensure(27)
    for more in range(1, 27):
        wheel.add(more, clock_ms + more)
        held.setdefault(wheel.bucket_of(more), []).append(more)
    for (level, bucket, due_ms), deadlines in sorted(held.items(), key=lambda one: (one[0][0], one[0][2])):
        first, last = deadlines[0], deadlines[-1]
        span = f"c+{first}" if first == last else f"c+{first} to c+{last}"
        print(f"  level {level}, bucket {bucket}, due at c+{due_ms - clock_ms}: {span}")


def show_ticks_saved() -> None:
    """Kafka queues its buckets by time, so it sleeps until the first one that holds something; so does this wheel."""
    print("\nTimers of 200 and 840 ms: a wheel that ticks, beside one whose buckets are in a queue.")
    wheel = TimingWheel(1, BUCKETS, 0)
    wheel.ensure(2)
    for slot, deadline_ms in enumerate((200, 840)):
        wheel.add(slot, deadline_ms)
    fired: list[int] = []
    before_ms = 0
    while wheel.count:
        woken_ms: list[int] = []
        count = len(fired)
        while len(fired) == count:
            woken_ms.append(wheel.next_expiration_ms())
            wheel.advance(woken_ms[-1], ALL, fired)
        ticks = wheel.now_ms - before_ms
        # A wheel that ticks looks at a bucket each millisecond; all but the last of these hold nothing that fires.
        print(f"  until {wheel.now_ms} ms: {ticks} ticks, {ticks - 1} of them for nothing; woken at {woken_ms} ms")
        before_ms = wheel.now_ms


if __name__ == "__main__":
    show_paths()
    show_small_wheel()
    show_ticks_saved()
