"""The table of sources, compared with a model that stores everything, and the questions to one source."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.budget.shares import Shares
from purgatory.service.settings import HostSettings
from purgatory.service.sources import ends_asked, source_table
from purgatory.service.sources.ends_asked import EndsAnswer, EndsAsked, EndsQuestion, LogEnd

TOPICS = ("k/a", "k/ab", "k/b", "p/a", "x")
PREFIXES = ("k/", "k/a", "k/b", "p/", "k")
PARTITIONS = (0, 1)
MARKS = [(topic, partition) for topic in TOPICS for partition in PARTITIONS]

Entry = tuple[str, bool, list[int], int]
"""Prefix, whether it is a whole name, partitions, and for how long they have not been seen."""

entries = st.lists(
    st.tuples(
        st.sampled_from(["", "k/", "k/a", "k/ab", "p/a"]),
        st.booleans(),
        st.lists(st.sampled_from(PARTITIONS), max_size=2, unique=True),
        st.integers(0, 20_000),
    ),
    max_size=3,
)


def index_of(reported: list[Entry], now_ms: int) -> source_table.StaleIndex:
    """Convert a report's entries to the daemon's index."""
    index = source_table.StaleIndex()
    for prefix, exact, partitions, stale_ms in reported:
        index.add(prefix, exact, partitions, source_table.Unseen(now_ms - stale_ms, "why"))
    return index


def named(entry: Entry, mark: tuple[str, int]) -> bool:
    """Whether an entry matches a mark."""
    prefix, exact, partitions, _ = entry
    fits = mark[0] == prefix if exact else mark[0].startswith(prefix)
    return fits and (not partitions or mark[1] in partitions)


@given(entries)
def test_the_index_finds_what_each_entry_names(reported: list[Entry]) -> None:
    """If several entries match a mark, the oldest applies."""
    index = index_of(reported, 100_000)
    for mark in MARKS:
        ages = [entry[3] for entry in reported if named(entry, mark)]
        found = index.find(mark)
        assert (None if found is None else 100_000 - found.since_ms) == max(ages, default=None)
    assert index.has_all == any(entry[:3] == ("", False, []) for entry in reported)


@dataclass
class Said:
    """All reports of one stream, for the oracle."""

    name: str
    prefixes: list[str]
    attached_ms: int
    reports: list[tuple[int, list[Entry]]] = field(default_factory=list)
    ended_ms: int | None = None

    def heard_ms(self) -> int:
        return self.reports[-1][0] if self.reports else self.attached_ms

    def is_away(self, now_ms: int) -> bool:
        return self.ended_ms is not None or now_ms - self.heard_ms() > source_table.SILENT_MS_MAX

    def feeds(self, mark: tuple[str, int]) -> bool:
        return any(mark[0].startswith(prefix) for prefix in self.prefixes)

    def sees(self, mark: tuple[str, int], now_ms: int) -> bool:
        if not self.reports or self.is_away(now_ms):
            return False
        return not any(named(entry, mark) for entry in self.reports[-1][1])


class Sources(RuleBasedStateMachine):
    """Sources of two names attach, report, fall silent and detach; some feed the same marks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = source_table.SourceTable()
        self.now_ms = 1_000_000
        self.streams: list[tuple[source_table.SourceStream, Said]] = []
        self.all_told: list[Said] = []

    @rule(name=st.sampled_from(["one", "two"]), prefixes=st.lists(st.sampled_from(PREFIXES), min_size=1, max_size=2))
    def attach(self, name: str, prefixes: list[str]) -> None:
        stream = self.table.attach(name, "", prefixes, self.now_ms)
        told = Said(name, prefixes, self.now_ms)
        self.streams.append((stream, told))
        self.all_told.append(told)

    @precondition(lambda self: self.streams)
    @rule(place=st.integers(0, 10), reported=entries)
    def report(self, place: int, reported: list[Entry]) -> None:
        stream, told = self.streams[place % len(self.streams)]
        stream.report(
            source_table.STALE if reported else source_table.LIVE, "", 0, index_of(reported, self.now_ms), self.now_ms
        )
        told.reports.append((self.now_ms, reported))

    @precondition(lambda self: self.streams)
    @rule(place=st.integers(0, 10))
    def detach(self, place: int) -> None:
        stream, told = self.streams.pop(place % len(self.streams))
        self.table.detach(told.name, "", stream, self.now_ms)
        told.ended_ms = self.now_ms

    @rule(ms=st.sampled_from([1, 500, 2_000, source_table.SILENT_MS_MAX, source_table.SILENT_MS_MAX + 1, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @invariant()
    def says_which_marks_are_stale(self) -> None:
        """A mark is stale if a known source feeds or fed it, and no source sees it."""
        known = {source.name: source for source in self.table}
        for mark in MARKS:
            remembered = any(
                mark[0].startswith(stream.topic_prefixes)
                for source in known.values()
                for stream in source.all_streams()
            )
            seen = any(told.feeds(mark) and told.sees(mark, self.now_ms) for told in self.all_told)
            stale = self.table.stale(mark, self.now_ms)
            assert (stale is not None) == (remembered and not seen), mark
            if stale is not None:
                assert stale.ms(self.now_ms) >= 0
                assert stale.since_ms <= self.now_ms
                assert stale.reason

    @invariant()
    def counts_what_is_attached(self) -> None:
        assert self.table.attached == len(self.streams)
        for source in self.table:
            assert (source.state_at(self.now_ms) == source_table.DETACHED) == (not source.streams)


TestSources = Sources.TestCase
TestSources.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_only_so_many_that_are_gone_are_remembered() -> None:
    table = source_table.SourceTable(remembered_max=2)
    streams = [table.attach(str(number), "", [f"t{number}/"], 0) for number in range(4)]
    for number in (3, 1, 0):
        table.detach(str(number), "", streams[number], 1_000)
    assert sorted(source.name for source in table) == ["0", "1", "2"]
    assert table.stale(("t3/x", 0), 2_000) is None
    assert table.stale(("t1/x", 0), 2_000) is not None


def test_principal_with_the_most_gone_sources_is_forgotten_first() -> None:
    table = source_table.SourceTable(remembered_max=3)
    for principal, number in [("ann", 0), *(("bob", number) for number in range(20))]:
        table.detach(f"s{number}", principal, table.attach(f"s{number}", principal, [f"{principal}/"], 0), 1_000)
    assert [(source.principal, source.name) for source in table] == [("ann", "s0"), ("bob", "s18"), ("bob", "s19")]
    assert table.stale(("ann/x", 0), 2_000) is not None


def test_what_has_just_been_attached_is_loading() -> None:
    table = source_table.SourceTable()
    table.attach("a", "", ["k/"], 0)
    (source,) = table
    assert source.state_at(5) == source_table.LOADING
    stale = table.stale(("k/a", 0), 5)
    assert stale is not None
    assert stale.reason == "the source a has not reported yet"


ORDERS = EndsQuestion(frozenset({"kafka/orders"}))
BILLS = EndsQuestion(frozenset({"kafka/bills"}))
SHARES = Shares(HostSettings(), Engine(EngineLimits(), 0)).principal_may_add


def answer(offset: int) -> EndsAnswer:
    """An answer with one end."""
    return EndsAnswer([LogEnd(("kafka/orders", 0), offset, None)])


async def asking(asks: EndsAsked, question: EndsQuestion, principal: str = "") -> asyncio.Task[EndsAnswer]:
    """A caller that has asked."""
    task = asyncio.create_task(asks.ask(question, principal))
    await asyncio.sleep(0)
    return task


async def test_who_asks_while_a_question_is_on_its_way_shares_the_next_one() -> None:
    """An answer is shared by the callers that asked before its question was sent, and by no others."""
    woken = asyncio.Event()
    asks = EndsAsked("a", woken, SHARES)
    early = [await asking(asks, ORDERS) for _ in range(3)]
    other = await asking(asks, BILLS)
    assert woken.is_set()
    assert asks.take() == [(1, ORDERS), (2, BILLS)]
    late = [await asking(asks, ORDERS) for _ in range(20)]
    assert asks.take() == [(3, ORDERS)]
    asks.answer(1, answer(10))
    assert [(await one).ends[0].offset for one in early] == [10, 10, 10]
    assert not any(one.done() for one in late)
    asks.answer(3, answer(11))
    assert {(await one).ends[0].offset for one in late} == {11}
    asks.answer(2, answer(5))
    assert (await other).ends[0].offset == 5
    asks.answer(2, answer(6))
    asks.answer(77, answer(6))


async def test_a_caller_that_goes_away_takes_nobody_with_it() -> None:
    asks = EndsAsked("a", asyncio.Event(), SHARES)
    first, second = await asking(asks, ORDERS), await asking(asks, ORDERS)
    first.cancel()
    await asyncio.wait([first])
    assert asks.take() == [(1, ORDERS)]
    asks.answer(1, answer(10))
    assert (await second).ends[0].offset == 10


async def test_only_so_many_questions_at_a_time() -> None:
    """Further ones are sent when there are answers; beyond the maximum of waiting ones, there is an error at once."""
    asks = EndsAsked("a", asyncio.Event(), SHARES)
    most = ends_asked.UNANSWERED_MAX + ends_asked.WAITING_MAX
    callers = []
    for place in range(most + 1):
        callers.append(await asking(asks, EndsQuestion(frozenset({f"t{place}"}))))
        if place == ends_asked.UNANSWERED_MAX - 1:
            assert len(asks.take()) == ends_asked.UNANSWERED_MAX
    assert asks.take() == []
    assert "1000 unanswered questions, 1000 of them are yours" in (await callers[-1]).error
    asks.answer(1, answer(1))
    assert [ask_id for ask_id, _ in asks.take()] == [ends_asked.UNANSWERED_MAX + 1]
    asks.end()
    gone = await asyncio.gather(*callers[1:-1])
    assert {one.error for one in gone} == {"the source a has gone"}
    assert (await asks.ask(ORDERS, "")).error == "the source a has gone"


async def test_questions_of_one_principal_do_not_delay_those_of_another() -> None:
    """Although it is the same question."""
    asks = EndsAsked("a", asyncio.Event(), SHARES)
    questions = [EndsQuestion(frozenset({f"t{place}"})) for place in range(1_000)]
    callers = [await asking(asks, question, "bob") for question in questions[:20]]
    sent = asks.take()
    assert len(sent) == 2 * ends_asked.UNANSWERED_MAX // 3
    callers += [await asking(asks, question, "bob") for question in questions[20:]]
    assert not asks.has_unsent
    refused = [caller for caller in callers if caller.done()]
    assert len(callers) - len(refused) - len(sent) == 2 * ends_asked.WAITING_MAX // 3
    assert "666 of them are yours" in (await refused[0]).error
    first = await asking(asks, questions[15], "ann")
    assert [question for _, question in asks.take()] == [questions[15]]
    asks.answer(sent[0][0], answer(1))
    second = await asking(asks, questions[16], "ann")
    assert [question for _, question in asks.take()] == [questions[len(sent)], questions[16]], "in turn"
    asks.end()
    await asyncio.gather(first, second, *callers)


async def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends_asked, "ANSWER_S_MAX", 0.01)
    asks = EndsAsked("a", asyncio.Event(), SHARES)
    caller = await asking(asks, ORDERS)
    asks.take()
    assert (await caller).error == "the source a has not answered for 0.01 s"


async def test_a_question_about_a_time_needs_an_answer_about_it() -> None:
    """Sources that do not know the field do not repeat the time."""
    asks = EndsAsked("a", asyncio.Event(), SHARES)
    questions = [ORDERS, *(ORDERS._replace(as_of_ms=at_ms) for at_ms in (1_000, 2_000, 3_000))]
    callers = [await asking(asks, question) for question in questions]
    assert asks.take() == list(enumerate(questions, 1))
    asks.answer(1, answer(10))
    asks.answer(2, answer(5)._replace(as_of_ms=1_000))
    asks.answer(3, answer(10))
    asks.answer(4, EndsAnswer([], "it has no clock"))
    present, known, unknown, refused = await asyncio.gather(*callers)
    assert [one.ends[0].offset for one in (present, known)] == [10, 5]
    assert (unknown.is_impossible, unknown.ends) == (True, [])
    assert unknown.error == "the source a cannot look up where its logs ended at a time"
    assert (refused.is_impossible, refused.error) == (True, "it has no clock")
