"""Ids of batches that were refused as a whole: they are never known, but free, or refused with a result."""

import asyncio
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import sizes
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.limits import EngineLimits
from purgatory.service.host import Host
from purgatory.service.rpc import session_requests
from purgatory.service.sessions.refused import RefusedIds
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings
from purgatory.service.translate import batch_limits
from purgatory.testing import ManualClock
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.messages import produce, register_batch

BATCH_MAX = 8

Ids = st.lists(st.integers(1, 20), min_size=1, max_size=6, unique=True).map(sorted)
Steps = st.lists(st.tuples(Ids, st.sampled_from(["columns", "rows", "short column", "refused columns"])), max_size=30)


@pytest.fixture(autouse=True)
def small_batches() -> Iterator[None]:
    """A batch has at most `BATCH_MAX` operations."""
    with mock.patch.object(batch_limits, "OPERATIONS_MAX", BATCH_MAX):
        yield


def register_or_refuse(host: Host, session: Session, batch: wire.RegisterBatch) -> wire.Receipt:
    return asyncio.run(session_requests.register_or_refuse(host, session, batch))


def opened() -> tuple[Host, Session]:
    clock = ManualClock()
    host = Host(Engine(EngineLimits(), clock.now_ms()), clock, HostSettings())
    return host, host.sessions.open("s", 0)[0]


def batch_of(ids: list[int], form: str) -> wire.RegisterBatch:
    """Waits that no event ends; "refused columns" have an offset that makes the engine refuse each of them."""
    if form == "rows":
        return register_batch(*[produce(one, "orders", 9) for one in ids])
    columns = operation_pb2.OperationColumns(
        kind=1,
        partitions=[operation_pb2.TopicPartition(topic="orders")],
        operation_id=ids,
        offset=[-1 if form == "refused columns" else 9],
        timeout_ms=[1_000] * (len(ids) + 1) if form == "short column" else [1_000],
    )
    return wire.RegisterBatch(columns=columns)


def refused_results(session: Session) -> list[int]:
    """The ids of all results, which are refusals because no operation ends here."""
    _, slices = session.outbox.take(1_000)
    session.outbox.rewind()
    return [operation_id for part in slices for operation_id in part.completions.operation_ids[part.start : part.stop]]


class Oracle:
    """The expected answer for each id, one after another."""

    def __init__(self) -> None:
        self.accepted: set[int] = set()
        self.refused: set[int] = set()
        self.free: set[int] = set()
        self.highest = 0

    def answers(self, ids: list[int], form: str) -> Iterator[str]:
        """Return the answer for each id of a batch. A skipped id that was never sent counts as sent before."""
        known = self.highest
        for one in ids:
            if one > known:
                yield "refused" if form == "refused columns" else "accepted"
                (self.refused if form == "refused columns" else self.accepted).add(one)
                self.highest = one
            elif one in self.free:
                yield "refused"
                self.refused.add(one)
            else:
                yield "already_known"
            self.free.discard(one)


@settings(max_examples=40)
@given(Steps)
def test_an_id_is_accepted_once_or_has_a_refused_result(steps: list[tuple[list[int], str]]) -> None:
    """An id of a batch that was refused as a whole is not reported as known unless it was accepted, or has a result."""
    host, session = opened()
    oracle = Oracle()
    for ids, form in steps:
        receipt = register_or_refuse(host, session, batch_of(ids, form))
        if form == "short column":
            assert receipt.batch_refusal.field == "columns.timeout_ms"
            oracle.free.update(one for one in ids if one > oracle.highest)
            continue
        answers = dict(zip(ids, oracle.answers(ids, form), strict=True))
        expected = [list(answers.values()).count(answer) for answer in ("accepted", "already_known")]
        assert [receipt.accepted, receipt.already_known] == expected
        assert [one.operation_id for one in receipt.refusals] == [one for one in ids if answers[one] == "refused"]
        assert host.engine.pending == len(oracle.accepted)
        assert sorted(refused_results(session)) == sorted(oracle.refused)
        assert {one for one in range(21) if one in session.refused_ids} == oracle.free
        session.refused_ids = RefusedIds(session.refused_ids.to_bytes())


async def refused_in_slices(monkeypatch: pytest.MonkeyPatch, is_cancelled: bool) -> tuple[Host, Session]:
    """Refuse a batch with ids 1 to 8, two ids in a slice. Between the slices, a second one with id 9 arrives."""
    monkeypatch.setattr(sizes, "REFUSED_IDS_PER_SLICE", 2)
    host, session = opened()
    broken = batch_of(list(range(1, 9)), "short column")
    first = asyncio.create_task(session_requests.register_or_refuse(host, session, broken))
    await asyncio.sleep(0)
    assert (2 in session.refused_ids, 8 in session.refused_ids) == (True, False)
    if is_cancelled:
        first.cancel()
    second = await session_requests.register_or_refuse(host, session, batch_of([9], "columns"))
    assert second.accepted == 1
    assert first.done()
    assert first.cancelled() == is_cancelled
    return host, session


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_many_ids_are_noted_in_slices(monkeypatch: pytest.MonkeyPatch, is_cancelled: bool) -> None:
    host, session = await refused_in_slices(monkeypatch, is_cancelled)
    assert [one for one in range(12) if one in session.refused_ids] == list(range(1, 9))
    receipt = await session_requests.register_or_refuse(host, session, batch_of([4, 8, 9, 10], "columns"))
    assert (receipt.accepted, receipt.already_known) == (1, 1)
    assert [one.operation_id for one in receipt.refusals] == [4, 8]


async def test_while_another_batch_is_registered_no_id_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """That batch may raise the highest id, so all ids that are not known count as refused at once."""
    monkeypatch.setattr(sizes, "REFUSED_IDS_PER_SLICE", 2)
    host, session = opened()
    async with session.registering:
        broken = batch_of(list(range(1, 9)), "columns")
        broken.columns.ClearField("kind")
        receipt = await session_requests.register_or_refuse(host, session, broken)
        assert receipt.batch_refusal.field == "columns.kind"
        assert OPERATION_ID_MAX in session.refused_ids
    assert (await session_requests.register_or_refuse(host, session, batch_of([3], "columns"))).accepted == 1
    assert [one for one in range(5) if one in session.refused_ids] == [1, 2, 4]


@pytest.mark.parametrize("extra", [0, 1])
def test_a_session_with_too_many_gaps_takes_nothing_more(extra: int) -> None:
    host, session = opened()
    gaps = list(range(2, 2 * (sizes.REFUSED_ID_RANGES_MAX + extra) + 1, 2))
    for first in range(0, len(gaps), BATCH_MAX):
        register_or_refuse(host, session, batch_of(gaps[first : first + BATCH_MAX], "short column"))
    receipt = register_or_refuse(host, session, batch_of([gaps[-1] + 2], "columns"))
    assert receipt.accepted == 1 - extra
    assert receipt.batch_refusal.message.count("close it") == extra
    session.refused_ids = RefusedIds(session.refused_ids.to_bytes())
    assert session.refused_ids.is_full == bool(extra)
