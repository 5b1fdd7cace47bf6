"""Questions to one source: shared answers, and missing answers."""

import asyncio

import pytest

from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.budget.shares import Shares
from purgatory.service.settings import HostSettings
from purgatory.service.sources import ends_asked
from purgatory.service.sources.ends_asked import EndsAnswer, EndsAsked, EndsQuestion, LogEnd

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
