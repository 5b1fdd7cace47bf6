"""Tail subscribers receive all results that they may see, in order, up to a limit."""

import asyncio
import random

import grpc
import pytest

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.completions import Completions
from purgatory.service.access.account import Account, Accounts
from purgatory.service.access.roles import ALL, NONE, Grants, Names
from purgatory.service.errors import RpcError
from purgatory.service.listeners import result_tail
from purgatory.service.listeners.listener import Completed, Listeners
from purgatory.service.listeners.result_tail import ResultTail, TailSubscriber
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import result_pb2
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import produce, register_request, signal
from tests.kit.served_host import refused, serving

Row = tuple[int, int, list[tuple[str, int]]]
"""Kind, outcome and names of an operation."""

PARTITIONS = {codes.PRODUCE: (0,), codes.SIGNAL: (-1,), codes.COMPOSITE: (0, -1)}
"""The partitions of each kind; a key has -1."""
OUTCOMES = (codes.SATISFIED, codes.EXPIRED)


def account(principal: str, grants: Grants) -> Account:
    one = Accounts().of(principal)
    one.grants = grants
    return one


def completions_of(rows: list[Row]) -> Completions:
    completions = Completions(0)
    for operation_id, (kind, outcome, names) in enumerate(rows, 1):
        for name in names:
            completions.add_item(name, 0, 5, 4, -1, -1, -1.0)
        completions.add_operation(operation_id, kind, outcome, operation_id, 0, len(names))
    completions.finish()
    return completions


def drawn(seeded: random.Random) -> Row:
    """An operation with one to twelve names."""
    kind, names = seeded.choice(list(PARTITIONS)), seeded.randrange(1, 13)
    items = [(seeded.choice(("mine", "yours")), seeded.choice(PARTITIONS[kind])) for _ in range(names)]
    return kind, seeded.choice(OUTCOMES), items


@pytest.mark.parametrize("seed", range(40))
def test_a_follower_is_told_what_it_wants_and_may_see(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with a simple loop over the operations: for all filters, for callers with all kinds of roles."""
    seeded = random.Random(seed)
    monkeypatch.setattr(sizes, "TAIL_ROWS_MAX", 20)
    rows = [drawn(seeded) for _ in range(seeded.randrange(1, 40))]
    kind, outcomes = seeded.choice((0, *PARTITIONS)), seeded.choice(((), (codes.EXPIRED,), OUTCOMES))
    mine = {"admin": Names(["mine"])}
    grants = seeded.choice((ALL, NONE, Grants(mine, mine), Grants(mine, {})))  # type: ignore[arg-type]
    is_own = seeded.random() < 0.3
    follower = TailSubscriber(account("me", grants), outcomes, kind)
    follower.completed(Completed(None, "me" if is_own else "other", completions_of(rows)))
    is_woken = follower.woken.is_set()
    told, left_out = follower.take()

    def may_see(row: Row) -> bool:
        if is_own or grants is ALL:
            return True
        return all(
            name in (grants.on_keys("admin") if partition < 0 else grants.on_topics("admin"))
            for name, partition in row[2]
        )

    expected = [
        (place, row)
        for place, row in enumerate(rows, 1)
        if kind in (0, row[0]) and (not outcomes or row[1] in outcomes) and may_see(row)
    ]
    assert is_woken == bool(expected), "operations that it may not see do not even wake it"
    assert left_out == max(0, len(expected) - 20)
    assert [plain(one) for one in told] == [
        (place, row[0], row[1], row[2][:10], max(0, len(row[2]) - 10)) for place, row in expected[:20]
    ]
    assert follower.take() == ([], 0)


def test_what_it_may_see_is_counted_in_a_whole_slice() -> None:
    mine = {"admin": Names(["mine"])}
    follower = TailSubscriber(account("me", Grants(mine, mine)), (), 0)  # type: ignore[arg-type]
    rows: list[Row] = [(codes.PRODUCE, codes.SATISFIED, [(name, 0)]) for name in ("mine", "yours") * 1_000]
    follower.completed(Completed(None, "other", completions_of(rows)))
    told, left_out = follower.take()
    assert (len(told), left_out) == (sizes.TAIL_ROWS_MAX, 1_000 - sizes.TAIL_ROWS_MAX)


def plain(one: wire.EndedOperation) -> tuple[int, int, int, list[tuple[str, int]], int]:
    """The waited time identifies the operation, because unary waits have no id."""
    assert (one.operation_id, one.session_id) == (0, "")
    names = [
        (item.key, -1) if item.key else (item.topic_partition.topic, item.topic_partition.partition)
        for item in one.partitions
    ]
    return one.waited_ms, one.kind, one.outcome, names, one.partitions_left_out


def test_followers_are_few_of_each_principal_and_in_all() -> None:
    tail = ResultTail(listeners := Listeners())
    me = account("me", NONE)
    for _ in range(result_tail.SUBSCRIBERS_PER_PRINCIPAL_MAX):
        tail.follow(me, (), 0)
    with pytest.raises(RpcError, match="of this principal"):
        tail.follow(me, (), 0)
    for _ in range(result_tail.SUBSCRIBERS_MAX - result_tail.SUBSCRIBERS_PER_PRINCIPAL_MAX):
        tail.follow(account("", ALL), (), 0)
    with pytest.raises(RpcError, match="the limit is 32") as caught:
        tail.follow(account("", ALL), (), 0)
    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    listeners.completed(Completed(None, "me", completions_of([drawn(random.Random(1))] * 9)))
    assert listeners.held_bytes() == result_tail.SUBSCRIBERS_MAX * 9 * result_tail.ROW_BYTES


async def test_what_ends_is_told_over_the_wire() -> None:
    """Results of sessions and unary waits, with session, outcome, names and offsets; one message comes at once."""
    async with serving() as served:
        tail = served.stub.TailResults(wire.TailResultsRequest())
        first = await asyncio.wait_for(tail.read(), PATIENCE_S)
        assert (len(first.operations), first.left_out) == (0, 0)
        await served.stub.Register(register_request("s", produce(7, "orders", 5)))
        await served.high_watermark("orders", 6)
        (ended,) = (await asyncio.wait_for(tail.read(), PATIENCE_S)).operations
        assert (ended.session_id, ended.operation_id, ended.outcome) == ("s", 7, result_pb2.OUTCOME_SATISFIED)
        (item,) = ended.partitions
        assert (item.topic_partition.topic, item.required_offset, item.reached_offset) == ("orders", 5, 6)
        await served.stub.Wait(wire.WaitRequest(operation=signal(9, "key", timeout_ms=0)))
        (ended,) = (await asyncio.wait_for(tail.read(), PATIENCE_S)).operations
        assert (ended.session_id, ended.operation_id, ended.partitions[0].key) == ("", 0, "key")
        assert ended.outcome == result_pb2.OUTCOME_EXPIRED
        tail.cancel()
        await eventually(lambda: not list(served.host.listeners), "nobody looks on any more")


@pytest.mark.parametrize(
    "request_",
    [wire.TailResultsRequest(kind=9), wire.TailResultsRequest(outcomes=[0]), wire.TailResultsRequest(outcomes=[3, 6])],
)
async def test_unknown_filters_are_refused(request_: wire.TailResultsRequest) -> None:
    async with serving() as served:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "kind|outcomes"):
            await served.stub.TailResults(request_).read()
