"""Order and timing of deliveries, and the list of dead letters. Tests control when attempts end, on a manual clock."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from purgatory.extensions.webhooks import deliveries
from purgatory.extensions.webhooks.deliveries import DeadLetters, Deliveries, RetrySchedule
from purgatory.extensions.webhooks.webhook_poster import DELIVERED, REFUSED, UNREACHABLE, Attempt
from purgatory.service.fair_queue import next_loop_turn
from purgatory.v1 import webhook_pb2
from tests.kit.eventually import eventually

SCHEDULE = RetrySchedule(first_ms=1_000, longest_ms=8_000, give_up_ms=20_000)

until = partial(eventually, every_s=0)
"""Attempts end at once, so the state between them is seen only in each iteration of the loop."""


class TriedPosts:
    """Deliveries with a record of their attempts, and a clock that advances by the pauses."""

    def __init__(self, posts_max: int = 100, posts_per_host_max: int = 4, schedule: RetrySchedule = SCHEDULE) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.tried: list[str] = []
        self.ended: dict[str, str] = {}
        self.in_flight: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_of_all = 0
        self.took_s = 0.0
        """Seconds by which each attempt advances the clock."""
        self.answer: Callable[[str], Attempt] = lambda _host: Attempt(DELIVERED)
        self.gates: dict[str, asyncio.Event] = {}
        """Attempts to these hosts end once their event is set."""
        self.awake = asyncio.Event()
        """Pauses end once it is set."""
        self.awake.set()
        self.deliveries = Deliveries(
            schedule,
            posts_max=posts_max,
            posts_per_host_max=posts_per_host_max,
            turn=next_loop_turn,
            jitter=lambda: 1.0,
            sleep=self._sleep,
            clock_s=lambda: self.now_s,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)
        await self.awake.wait()

    def add(self, host: str, sender: str, name: str) -> "Sent":
        sent = Sent(self, host, sender, name)
        self.deliveries.add(sent)
        return sent

    def add_many(self, host: str, count: int, sender: str = "s") -> None:
        """Add webhooks that are called by their host and number."""
        for number in range(count):
            self.add(host, sender, f"{host} {number}")

    async def close(self) -> None:
        await self.deliveries.close(0.0, start_more=False)


class Sent:
    def __init__(self, world: TriedPosts, host: str, sender: str, name: str) -> None:
        self.world, self.host, self.sender, self.name = world, host, sender, name
        self.is_wanted = True

    async def attempt(self) -> Attempt:
        world = self.world
        world.tried.append(self.name)
        world.in_flight[self.host] += 1
        world.most_of_all = max(world.most_of_all, sum(world.in_flight.values()))
        world.most[self.host] = max(world.most[self.host], world.in_flight[self.host])
        try:
            await asyncio.sleep(0)
            if self.host in world.gates:
                await world.gates[self.host].wait()
            world.now_s += world.took_s
        finally:
            world.in_flight[self.host] -= 1
        return world.answer(self.host)

    def delivered(self) -> None:
        self.world.ended[self.name] = DELIVERED

    def given_up(self, attempts: int, reason: str) -> None:
        self.world.ended[self.name] = f"{attempts} {reason}"


@pytest.mark.parametrize(
    ("answers", "pauses", "ended"),
    [
        # Pauses double up to the longest; the last one is cut to the time left.
        ([Attempt(REFUSED, "HTTP 500")] * 6, [1, 2, 4, 8, 5], "6 HTTP 500"),
        # Retry-After makes a pause longer, never shorter, and never longer than the time left.
        ([Attempt(REFUSED, "", after_s) for after_s in (7, 1, 100)] + [Attempt(DELIVERED)], [7, 2, 11], DELIVERED),
        ([Attempt(REFUSED, "HTTP 410", is_final=True)], [], "1 HTTP 410"),
    ],
    ids=["given up", "asked to come back", "final"],
)
async def test_answers_decide_the_pauses_and_the_end_of_a_delivery(
    answers: list[Attempt], pauses: list[float], ended: str
) -> None:
    world = TriedPosts()
    left = iter(answers)
    world.answer = lambda _host: next(left)
    world.add("a", "s", "one")
    await until(lambda: bool(world.ended))
    assert (world.pauses, world.ended, len(world.tried)) == (pauses, {"one": ended}, len(answers))


async def test_hosts_have_places_and_senders_take_turns() -> None:
    world = TriedPosts(posts_per_host_max=2)
    world.add("a", "first", "first")
    await until(lambda: len(world.ended) == 1)
    world.gates["a"] = asyncio.Event()
    world.add_many("a", 100, "many")
    world.add("a", "few", "few")
    await until(lambda: len(world.tried) == 3)
    world.gates["a"].set()
    await until(lambda: len(world.ended) == 102)
    assert world.most["a"] == 2
    assert world.tried.index("few") <= 5


async def test_a_silent_host_has_one_place_and_others_have_theirs() -> None:
    world = TriedPosts(posts_max=8, posts_per_host_max=4, schedule=RetrySchedule(1_000, 8_000, 10**9))
    world.gates["hanging"] = asyncio.Event()
    world.add_many("hanging", 1_000, "h")
    world.add_many("honest", 100)
    await until(lambda: len(world.ended) == 100)
    assert (world.most["hanging"], world.most["honest"]) == (1, 4)
    world.answer = lambda _host: Attempt(UNREACHABLE)
    world.gates["hanging"].set()
    await until(lambda: world.in_flight["hanging"] <= 1 and len(world.tried) > 110)
    world.most.clear()
    before = len(world.tried)
    await until(lambda: len(world.tried) > before + 50)
    assert world.most["hanging"] == 1
    await world.close()


async def test_a_silent_host_rests_after_an_attempt() -> None:
    """The next delivery to it waits for a pause of the host, besides the pause of the one that was tried."""
    world = TriedPosts()
    world.answer = lambda _host: Attempt(UNREACHABLE)
    world.awake.clear()
    world.add_many("a", 3)
    await until(lambda: len(world.pauses) == 2)
    assert world.tried == ["a 0"]
    await world.close()


async def test_silent_hosts_have_half_of_the_places() -> None:
    """70 hosts that never respond use half of 64 slots. A host that has responded before is served immediately, with
    all of its slots. A new host gets a slot as soon as an attempt ends, before the hosts that have been tried.
    """
    world = TriedPosts(posts_max=64, schedule=RetrySchedule(1_000, 8_000, 10**9))
    world.add("known", "s", "known before")
    await until(lambda: "known before" in world.ended)
    silent = [f"silent {number}" for number in range(70)]
    for host in silent:
        world.gates[host] = asyncio.Event()
        world.add_many(host, 3, "h")
    await until(lambda: sum(world.in_flight.values()) == 32)
    world.add_many("known", 200)
    await until(lambda: sum(name.startswith("known") for name in world.ended) == 201)
    assert world.most["known"] == 4
    assert sum(world.in_flight[host] for host in silent) == 32
    assert all(world.most[host] <= 1 for host in silent)
    world.add("new", "s", "new")
    world.answer = lambda host: Attempt(UNREACHABLE if host in silent else DELIVERED)
    next(world.gates[host] for host in silent if world.in_flight[host]).set()
    await until(lambda: "new" in world.ended)
    assert world.deliveries.in_flight <= 32
    await world.close()


async def test_new_host_gets_the_slot_of_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although no attempt ends by itself. The host that gives up its slot is tried again, like any silent one."""
    monkeypatch.setattr(deliveries, "PROMPT_S", 0.01)
    world = TriedPosts(posts_max=4)
    silent = [f"silent {number}" for number in range(6)]
    for host in silent:
        world.gates[host] = asyncio.Event()
        world.add(host, "h", host)
    await until(lambda: sum(world.in_flight.values()) == 2)
    world.add("new", "s", "new")
    await until(lambda: "new" in world.ended)
    assert world.most_of_all <= 3
    for gate in world.gates.values():
        gate.set()
    await until(lambda: len(world.ended) == 7)
    assert set(world.ended.values()) == {DELIVERED}


async def test_a_slow_host_is_not_prompt_until_it_is() -> None:
    world = TriedPosts(posts_max=8, posts_per_host_max=4)
    for took_s, most in ((2.0, 4), (0.5, 8)):
        world.took_s = took_s
        world.ended.clear()
        for host in ("a", "b", "c"):
            world.add_many(host, 20)
        await until(lambda: len(world.ended) == 60)
        assert world.most_of_all == most


async def test_busy_prompt_hosts_do_not_starve_others() -> None:
    world = TriedPosts(posts_max=4, posts_per_host_max=4)
    for host in "abcd":
        world.add(host, "s", f"{host} first")
    await until(lambda: len(world.ended) == 4)
    for host in "abcd":
        world.add_many(host, 50)
    world.add("new", "s", "new")
    await until(lambda: "new" in world.ended)
    assert len(world.ended) < 100
    await until(lambda: len(world.ended) == 205)


async def test_what_is_not_wanted_any_more_is_not_sent() -> None:
    world = TriedPosts(posts_per_host_max=1)
    world.gates["a"] = asyncio.Event()
    first, second = world.add("a", "s", "first"), world.add("a", "s", "second")
    await until(lambda: world.tried == ["first"])
    second.is_wanted = first.is_wanted = False
    world.gates["a"].set()
    await until(lambda: not world.deliveries.in_flight)
    assert (world.tried, world.ended, world.deliveries.paused) == (["first"], {}, 0)
    assert not world.deliveries._queues


async def test_an_abandoned_webhook_does_not_wait_for_the_end_of_its_pause() -> None:
    """A pause may last an hour: a webhook that is no longer wanted is forgotten at once, and others stay."""
    world = TriedPosts()
    world.answer = lambda _host: Attempt(REFUSED, "no")
    world.awake.clear()
    first, second = world.add("a", "s", "first"), world.add("b", "s", "second")
    await until(lambda: len(world.pauses) == 2)
    first.is_wanted = False
    world.deliveries.abandon(first)
    await until(lambda: world.deliveries.paused == 1)
    assert set(world.deliveries._queues) == {"b"}
    world.awake.set()
    await until(lambda: "second" in world.ended)
    assert world.tried.count("first") == 1
    assert second.is_wanted


async def test_the_oldest_delivery_is_open_and_wanted() -> None:
    """Its age counts from when it was added; those that are delivered, given up or unwanted do not count."""
    world = TriedPosts()

    def oldest() -> float | None:
        return world.deliveries.oldest_s

    assert oldest() is None
    for host in "abc":
        world.gates[host] = asyncio.Event()
    unwanted = world.add("a", "s", "unwanted")
    world.now_s = 10.0
    world.add("b", "s", "first")
    world.now_s = 15.0
    world.add("c", "s", "second")
    assert oldest() == 15
    unwanted.is_wanted = False
    assert oldest() == 5
    await until(lambda: len(world.tried) == 2)
    world.gates["b"].set()
    await until(lambda: "first" in world.ended)
    assert oldest() == 0
    world.answer = lambda _host: Attempt(REFUSED, "HTTP 410", is_final=True)
    world.gates["c"].set()
    await until(lambda: "second" in world.ended)
    assert oldest() is None


async def test_a_host_that_answers_again_has_all_its_places() -> None:
    world = TriedPosts(posts_per_host_max=4, schedule=RetrySchedule(1_000, 8_000, 10**9))
    world.answer = lambda _host: Attempt(UNREACHABLE)
    world.add_many("a", 50)
    await until(lambda: len(world.tried) > 60 and world.in_flight["a"] <= 1)
    world.most.clear()
    world.answer = lambda _host: Attempt(DELIVERED)
    await until(lambda: len(world.ended) == 50)
    assert world.most["a"] == 4


async def test_closing_leaves_what_waits() -> None:
    for start_more, delivered in ((False, 1), (True, 3)):
        world = TriedPosts(posts_per_host_max=1)
        world.add_many("a", 3)
        await until(lambda: len(world.tried) == 1)  # noqa: B023 - awaited here
        await world.deliveries.close(5.0, start_more=start_more)
        assert len(world.ended) == delivered


async def test_an_attempt_that_raises_is_retried() -> None:
    world = TriedPosts(posts_per_host_max=1)
    faults = [ValueError("not encodable")]

    def answer(_host: str) -> Attempt:
        if faults:
            raise faults.pop()
        return Attempt(DELIVERED)

    world.answer = answer
    world.add_many("a", 2)
    await until(lambda: len(world.ended) == 2)
    assert world.ended == {"a 0": DELIVERED, "a 1": DELIVERED}
    assert world.pauses == [1.0]


def letter(webhook_id: str, error: str = "HTTP 500", principal: str = "") -> webhook_pb2.DeadLetter:
    return webhook_pb2.DeadLetter(webhook_id=webhook_id, last_error=error, principal=principal)


def listed(letters: DeadLetters) -> list[str]:
    return [one.webhook_id for _, one in letters.above(0)]


@given(st.lists(st.sampled_from(["a", "b", "c", "d", "-a", "-b"]), min_size=8, max_size=40), st.integers(1, 3))
@example(["a", "b", "a", "c"], 2)
def test_the_list_is_a_bounded_dictionary(steps: list[str], most: int) -> None:
    """Compared with a dictionary: the oldest letters are dropped, and a letter added again keeps its position, with the
    new error. The journal's rows match the list, and a list restored from them is equal.
    """
    rows, oracle = dict[int, bytes](), dict[str, str]()

    def changed(number: int, content: bytes) -> None:
        rows[number] = content
        if not content:
            del rows[number]

    letters = DeadLetters(most, changed)
    for number, step in enumerate(steps):
        webhook_id = step.removeprefix("-")
        if step == webhook_id:
            oracle[webhook_id] = f"error {number}"
            letters.add(letter(webhook_id, oracle[webhook_id]))
            if len(oracle) > most:
                del oracle[next(iter(oracle))]
        else:
            letters.remove(webhook_id)
            oracle.pop(webhook_id, None)
        assert {one.webhook_id: one.last_error for _, one in letters.above(0)} == oracle
        assert listed(letters) == list(oracle)
        assert len(rows) == len(letters) == len(oracle)
        assert letters.held_bytes == sum(map(len, rows.values()))
        assert letters.fill_ratio == len(oracle) / most
    again = DeadLetters(most, changed)
    for number in sorted(rows):
        again.restore(number, rows[number])
    assert listed(again) == list(oracle)
    again.add(letter("new"))
    assert listed(again)[-1] == "new"


def test_large_letters_go_by_their_bytes_and_leave_those_of_others() -> None:
    letters = DeadLetters(1_000, lambda _number, _content: None)
    letters.add(letter("small", principal="a"))
    for number in range(5):
        letters.add(letter(f"{number}", "x" * (deliveries.LETTERS_BYTES_MAX // 3), principal="b"))
    assert listed(letters) == ["small", "3", "4"]
    letters = DeadLetters(1_000, lambda _number, _content: None)
    for number in range(5):
        letters.add(letter(f"{number}", "x" * (deliveries.LETTERS_BYTES_MAX // 3)))
    assert listed(letters) == ["3", "4"]
    assert 0.6 < letters.fill_ratio < 0.7
    letters.add(letter("huge", "x" * (deliveries.LETTERS_BYTES_MAX + 1)))
    assert listed(letters) == ["huge"]
    assert letters.fill_ratio == 1
    assert letters.dropped == 5


@given(st.lists(st.sampled_from("abc"), min_size=20, max_size=60))
@example(["a"] * 3 + ["b"] * 40)
def test_no_principal_pushes_out_letters_of_one_with_fewer(principals: list[str]) -> None:
    """With space for six letters of three principals, each principal keeps its two latest letters, whatever the others
    do. The principal with the most letters loses its oldest one.
    """
    letters = DeadLetters(6, lambda _number, _content: None)
    for number, principal in enumerate(principals):
        before = Counter(one.split("/")[0] for one in listed(letters))
        letters.add(letter(f"{principal}/{number}", principal=principal))
        after = Counter(one.split("/")[0] for one in listed(letters))
        for lost in before - after:
            assert before[lost] > before[principal]
    for principal in "abc":
        added = [f"{principal}/{number}" for number, one in enumerate(principals) if one == principal]
        kept = [one for one in listed(letters) if one.startswith(principal)]
        assert kept == added[len(added) - len(kept) :]
        assert len(kept) >= min(2, len(added))
