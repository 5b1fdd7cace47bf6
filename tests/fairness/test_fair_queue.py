"""The fair queue: who has the next turn, for given arrivals. Time is moved by hand, so that orders are exact."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.service.fair_queue import (
    ALONE_US,
    ENDING_MAX,
    EVENTS,
    INSPECTIONS,
    LOOP_TURN_US_MAX,
    RECENT_CALLS_MAX,
    REGISTRATIONS,
    CallerTurns,
    FairQueue,
)


class Queue(FairQueue):
    """A queue whose clock is moved by the work that is done, and the order in which that was done."""

    def __init__(self) -> None:
        self.time_us = 1_000_000
        self.waits: list[tuple[int, int]] = []
        self.done: list[Any] = []
        super().__init__(lambda work, us: self.waits.append((work, us)), lambda: self.time_us)

    async def work(self, caller: CallerTurns, label: object, *, work: int = REGISTRATIONS, cost_us: int = 100) -> None:
        """Takes a turn, and then so much time."""
        await self.turn(caller, work)
        self.time_us += cost_us
        self.done.append(label)


def start(*works: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """They arrive in this order, in one turn of the loop."""
    return [asyncio.ensure_future(work) for work in works]


async def test_with_little_to_do_a_turn_comes_at_once() -> None:
    """Nothing is awaited: the work goes on in the same step of its task, and nobody counts as having waited."""
    queue = Queue()
    caller = queue.enter("a")
    with pytest.raises(StopIteration):
        queue.turn(caller, REGISTRATIONS).send(None)
    assert not queue.waits
    queue.leave(caller)


async def test_a_full_loop_turn_ends_what_comes_at_once() -> None:
    """Work goes on within a turn of the loop until that has taken its time; what is left waits for the next ones."""
    queue = Queue()
    caller = queue.enter("a")
    half_us = LOOP_TURN_US_MAX // 2
    await asyncio.gather(*start(*(queue.work(caller, number, cost_us=half_us) for number in range(4))))
    assert queue.done == [0, 1, 2, 3]
    assert [work for work, _ in queue.waits] == [REGISTRATIONS] * 2


async def test_a_light_caller_passes_a_heavy_one() -> None:
    """Whoever has little to do goes before all that another one has sent before."""
    queue = Queue()
    heavy, light = queue.enter("heavy"), queue.enter("light")
    works = start(*(queue.work(heavy, "heavy", cost_us=LOOP_TURN_US_MAX) for _ in range(10)))
    await asyncio.sleep(0)
    works += start(queue.work(light, "light"))
    await asyncio.gather(*works)
    assert queue.done.index("light") <= 2


async def test_callers_share_by_time_not_by_turns() -> None:
    """A caller whose turns take four times as long has a quarter as many of them."""
    queue = Queue()
    callers = {name: queue.enter(name) for name in ("long", "short")}
    works = start(
        *(queue.work(callers["long"], "long", cost_us=4_000) for _ in range(40)),
        *(queue.work(callers["short"], "short", cost_us=1_000) for _ in range(40)),
    )
    await asyncio.gather(*works)
    long_turns = queue.done[: len(queue.done) - queue.done[::-1].index("short")].count("long")
    assert 9 <= long_turns <= 12


async def test_events_come_before_registrations_before_inspections() -> None:
    """Within what one caller has sent; each sort in order of arrival."""
    queue = Queue()
    caller = queue.enter("a")
    sorts = {INSPECTIONS: "inspection", REGISTRATIONS: "registration", EVENTS: "event"}
    first = start(queue.work(caller, "first", cost_us=LOOP_TURN_US_MAX))
    works = start(*(queue.work(caller, f"{name} {n}", work=sort) for n in range(2) for sort, name in sorts.items()))
    await asyncio.gather(*first, *works)
    assert queue.done[1:] == [
        "event 0", "event 1", "registration 0", "registration 1", "inspection 0", "inspection 1",
    ]  # fmt: skip


async def call(queue: Queue, caller: CallerTurns, label: object) -> None:
    await queue.call_turn(caller, REGISTRATIONS)
    queue.done.append(label)


async def test_calls_of_who_makes_many_are_ended_slower_than_they_come_in() -> None:
    """Then most of them wait here, and not unread in a line with everybody else's; in the end all are served."""
    queue = Queue()
    queue.enter("other")
    works = []
    for number in range(400):
        queue.time_us += 50
        works += start(call(queue, queue.enter("many"), number))
        await asyncio.sleep(0)
    assert len(queue.done) <= RECENT_CALLS_MAX + ENDING_MAX + 400 // 4
    works += start(call(queue, queue.enter("light"), "light"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert queue.done[-1] == "light"
    await asyncio.gather(*works)
    assert [label for label in queue.done if label != "light"] == list(range(400))


async def test_who_is_alone_is_not_held_back() -> None:
    """Calls of a single caller are served as they come, a loop turn full at a time, as nobody stands behind them."""
    queue = Queue()
    queue.enter("other")
    queue.time_us += ALONE_US
    caller = queue.enter("many")
    queue.time_us += ALONE_US
    works = start(*(call(queue, queue.enter("many"), number) for number in range(400)))
    await asyncio.gather(*works)
    assert queue.done == list(range(400))
    assert not queue.waits
    queue.leave(caller)


async def test_nobody_is_alone_beside_streams_of_others() -> None:
    """Who sends messages on streams makes no new calls, and is somebody else all the same: the calls of a caller who
    makes many are held back for its sake.
    """
    queue = Queue()
    streaming, many = queue.enter("streaming"), queue.enter("many")
    for number in range(20):
        queue.time_us += ALONE_US // 10
        queue.leave(queue.enter("many"))
        await queue.work(streaming, number)
    callers = [queue.enter("many") for _ in range(ENDING_MAX * 4)]
    calls = start(*(call(queue, caller, "call") for caller in callers))
    for _ in range(ENDING_MAX * 8):
        await asyncio.sleep(0)
    assert queue.done.count("call") < len(calls)
    for task in calls:
        task.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    queue.leave(many)


async def test_a_cancelled_place_is_passed_over() -> None:
    """Nobody else loses a turn by it, and its caller is forgotten once its calls have ended."""
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


async def test_refused_calls_are_answered_in_the_time_that_is_left() -> None:
    """While others wait for a turn few refusals are answered; then all are."""
    queue = Queue()
    caller = queue.enter("a")

    async def refuse() -> None:
        await queue.refusal_turn()
        queue.done.append("refused")

    works = start(*(queue.work(caller, "served", cost_us=LOOP_TURN_US_MAX) for _ in range(40)))
    refusals = start(*(refuse() for _ in range(40)))
    await asyncio.gather(*works)
    assert queue.done.count("refused") < 10
    await asyncio.gather(*refusals)
    assert not queue.refused


async def test_the_expected_wait_follows_the_turns() -> None:
    """With turns of 2 ms, and 20 calls waiting, a further one would wait for some 40 ms."""
    queue = Queue()
    caller = queue.enter("a")
    works = start(*(queue.work(caller, number, cost_us=2_000) for number in range(200)))
    await works[179]
    assert 30 <= queue.expected_wait_ms(caller) <= 50
    await asyncio.gather(*works)


class Arrival(NamedTuple):
    """A piece of work of a caller, that arrives after so many turns of the loop."""

    caller: int
    after_turns: int


@pytest.mark.slow  # each example runs an event loop of its own
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.builds(Arrival, st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=60),
    st.sampled_from([50, 400, LOOP_TURN_US_MAX]),
)
def test_nobody_waits_for_more_than_one_turn_of_each_other(arrivals: list[Arrival], cost_us: int) -> None:
    """With equal costs: while a caller's work waits, each other caller has at most one turn before its next."""
    history: list[tuple[str, int]] = []

    async def play() -> None:
        queue = Queue()
        callers = [queue.enter(str(number)) for number in range(5)]

        async def work(caller: int) -> None:
            history.append(("arrived", caller))
            await queue.work(callers[caller], None, cost_us=cost_us)
            history.append(("served", caller))

        tasks = []
        for turn in range(7):
            tasks += start(*(work(arrival.caller) for arrival in arrivals if arrival.after_turns == turn))
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks), 60)

    asyncio.run(play())
    check_turns(history, prompt=LOOP_TURN_US_MAX // cost_us + 1)
    assert sum(kind == "served" for kind, _ in history) == len(arrivals), "work was lost"


def check_turns(history: list[tuple[str, int]], prompt: int) -> None:
    """Asserts the above of a history. So many turns that one loop turn holds come at once, whoever has them."""
    for mine in {caller for _, caller in history}:
        waiting, others = 0, dict.fromkeys(range(5), 0)
        for kind, caller in history:
            if caller == mine:
                waiting += 1 if kind == "arrived" else -1
                others = dict.fromkeys(range(5), 0)
            elif kind == "served" and waiting:
                others[caller] += 1
                assert others[caller] <= 1 + prompt, f"caller {mine} waits while {caller} has turns: {history}"
