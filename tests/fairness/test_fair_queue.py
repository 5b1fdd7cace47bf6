"""The fair queue: the order of turns for given arrivals. Tests move the clock by hand, so orders are exact."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.service.fair_queue import (
    EVENTS,
    INSPECTIONS,
    LOOP_TURN_US_MAX,
    REGISTRATIONS,
    CallerQueue,
    FairQueue,
)


class Queue(FairQueue):
    """A queue whose clock is moved by the work that runs; `done` is the order in which it ran."""

    def __init__(self) -> None:
        self.time_us = 1_000_000
        self.waits: list[tuple[int, int]] = []
        self.done: list[Any] = []
        super().__init__(lambda work, us: self.waits.append((work, us)), lambda: self.time_us)

    async def work(self, caller: CallerQueue, label: object, *, work: int = REGISTRATIONS, cost_us: int = 100) -> None:
        """Acquire a turn, then run for `cost_us`."""
        await self.turn(caller, work)
        self.time_us += cost_us
        self.done.append(label)


def start(*works: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Start tasks that arrive in this order, in one loop iteration."""
    return [asyncio.ensure_future(work) for work in works]


async def test_an_idle_loop_grants_a_turn_immediately() -> None:
    queue = Queue()
    caller = queue.enter("a")
    with pytest.raises(StopIteration):
        queue.turn(caller, REGISTRATIONS).send(None)
    assert not queue.waits
    queue.leave(caller)


async def test_work_beyond_the_time_of_an_iteration_is_deferred() -> None:
    queue = Queue()
    caller = queue.enter("a")
    half_us = LOOP_TURN_US_MAX // 2
    await asyncio.gather(*start(*(queue.work(caller, number, cost_us=half_us) for number in range(4))))
    assert queue.done == [0, 1, 2, 3]
    assert [work for work, _ in queue.waits] == [REGISTRATIONS] * 2


async def test_callers_share_by_time_and_not_by_number_of_turns() -> None:
    queue = Queue()
    callers = {name: queue.enter(name) for name in ("long", "short")}
    works = start(
        *(queue.work(callers["long"], "long", cost_us=4_000) for _ in range(40)),
        *(queue.work(callers["short"], "short", cost_us=1_000) for _ in range(40)),
    )
    await asyncio.gather(*works)
    long_turns = queue.done[: len(queue.done) - queue.done[::-1].index("short")].count("long")
    assert 9 <= long_turns <= 12


async def test_each_turn_is_charged_its_own_time() -> None:
    queue = Queue()
    heavy, light = queue.enter("heavy"), queue.enter("light")
    await asyncio.gather(*start(queue.work(heavy, "heavy", cost_us=600), queue.work(light, "light", cost_us=100)))
    await asyncio.sleep(0)  # the iteration ends, and the last turn is charged
    assert (heavy.start_us, light.start_us) == (600, 100)


async def test_events_run_before_registrations_before_inspections() -> None:
    queue = Queue()
    caller = queue.enter("a")
    kinds = {INSPECTIONS: "inspection", REGISTRATIONS: "registration", EVENTS: "event"}
    first = start(queue.work(caller, "first", cost_us=LOOP_TURN_US_MAX))
    works = start(*(queue.work(caller, f"{name} {n}", work=kind) for n in range(2) for kind, name in kinds.items()))
    await asyncio.gather(*first, *works)
    assert queue.done[1:] == [
        "event 0", "event 1", "registration 0", "registration 1", "inspection 0", "inspection 1",
    ]  # fmt: skip


async def test_a_cancelled_waiter_is_skipped() -> None:
    queue = Queue()
    one, other = queue.enter("one"), queue.enter("other")
    works = start(
        queue.work(one, "first", cost_us=LOOP_TURN_US_MAX), *(queue.work(one, number) for number in range(3)),
        queue.work(other, "other"),
    )  # fmt: skip
    await asyncio.sleep(0)
    for work in works[1:3]:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
    assert sorted(map(str, queue.done)) == ["2", "first", "other"]
    queue.leave(one)
    queue.leave(other)
    assert not queue.calls
    assert queue.enter("one") is not one


async def test_the_expected_wait_follows_recent_turns() -> None:
    queue = Queue()
    caller = queue.enter("a")
    works = start(*(queue.work(caller, number, cost_us=2_000) for number in range(200)))
    await works[179]
    assert 30 <= queue.expected_wait_ms(caller) <= 50
    await asyncio.gather(*works)


class Arrival(NamedTuple):
    """A unit of work of a caller that arrives after this many loop iterations."""

    caller: int
    after: int


@pytest.mark.slow  # each example runs an event loop of its own
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.builds(Arrival, st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=60),
    st.sampled_from([50, 400, LOOP_TURN_US_MAX]),
)
def test_a_waiter_waits_for_at_most_one_turn_of_each_other_caller(arrivals: list[Arrival], cost_us: int) -> None:
    history: list[tuple[str, int]] = []

    async def play() -> None:
        queue = Queue()
        callers = [queue.enter(str(number)) for number in range(5)]

        async def work(caller: int) -> None:
            history.append(("arrived", caller))
            await queue.work(callers[caller], None, cost_us=cost_us)
            history.append(("served", caller))

        tasks = []
        for iteration in range(7):
            tasks += start(*(work(arrival.caller) for arrival in arrivals if arrival.after == iteration))
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks), 60)

    asyncio.run(play())
    check_turns(history, immediate=LOOP_TURN_US_MAX // cost_us + 1)
    assert sum(kind == "served" for kind, _ in history) == len(arrivals), "work was lost"


def check_turns(history: list[tuple[str, int]], immediate: int) -> None:
    """Assert the rule above for a history. The `immediate` turns that fit in one iteration go to any caller."""
    for own in {caller for _, caller in history}:
        waiting, others = 0, dict.fromkeys(range(5), 0)
        for kind, caller in history:
            if caller == own:
                waiting += 1 if kind == "arrived" else -1
                others = dict.fromkeys(range(5), 0)
            elif kind == "served" and waiting:
                others[caller] += 1
                assert others[caller] <= 1 + immediate, f"caller {own} waits while {caller} has turns: {history}"
