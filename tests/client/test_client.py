"""The asyncio client against the real daemon: outcomes, forms of waits, inspection, detached sessions, event loops."""

import asyncio
from pathlib import Path

import grpc
import pytest
import uvloop
from purgatory_client import AsyncClient, Client, OperationKind, Outcome, Result, batches, errors, events, waits
from purgatory_client.default_timeouts import DefaultTimeouts
from purgatory_client.rpc_errors import from_code
from purgatory_client.session.detached_sessions import Registered
from purgatory_client.session.session_core import SessionCore

from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually, until_pending
from tests.kit.recorded import assert_recorded, cases_of

LONG = 60.0
CODES = Path(__file__).with_name("codes.txt")


async def test_satisfied_wait_has_a_result_for_each_partition(client: AsyncClient) -> None:
    wanted: dict[str | tuple[str, int], int] = {"orders-3": 42, ("orders", 4): 7}
    waiting = asyncio.create_task(client.produce(wanted, timeout=LONG))
    await until_pending(client, 1)
    assert (await client.advance("orders-4", high_watermark=7)).ended_total == 0
    assert (await client.advance("orders-3", high_watermark=50)).ended == [1]
    result = await waiting
    assert result
    assert result.raise_for_outcome() is result
    assert (result.outcome, result.kind, result.lateness) == (Outcome.SATISFIED, OperationKind.PRODUCE, 0)
    assert list(result.partitions) == ["orders-3", "orders-4"]
    orders = result.partitions["orders", 3]
    assert ("orders", 4) in result.partitions  # type: ignore[comparison-overlap]
    assert result.partitions.get(("orders", 5)) is None
    assert (orders.error_code, orders.required_offset, orders.reached_offset) == (0, 42, 50)
    assert orders.fetched is None


async def test_waits_without_a_timeout_get_the_one_of_a_file(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    """Timeouts depend on kind, topic and caller; a wait with a timeout keeps it."""
    rows = (("produce", "advised", "", 20), ("signal", "", "", 30), ("produce", "advised", "ann", 10))
    file = tmp_path / "timeouts.toml"
    table = '[[timeout]]\nkind = "{}"\ntopic = "{}"\nprincipal = "{}"\ntimeout_ms = {}\n'
    file.write_text("".join(table.format(*row) for row in rows))
    assert DefaultTimeouts(file, "ann").timeouts_ms == {("produce", "advised"): 10}
    async with AsyncClient(shared_daemon.address, default_timeouts=DefaultTimeouts(file)) as client:
        results = [
            await client.produce({"advised-3": 5}),
            await client.signal(["advised"]),
            await client.wait_once(waits.produce({"advised-3": 5})),
            await client.produce({"advised-3": 5}, timeout=0.001),
        ]
    assert {result.outcome for result in results} == {Outcome.EXPIRED}
    due = [round(1_000 * (result.waited - result.lateness)) for result in results]
    assert due == [20, 30, 20, 1]
    file.write_text('[[timeout]]\nprincipal = ""')
    with pytest.raises(errors.InvalidRequest, match="not a file of purgatory-pipeline advise"):
        DefaultTimeouts(file)


async def test_a_wait_expires_with_what_was_reached_and_an_estimate(client: AsyncClient) -> None:
    await client.advance("orders-3", high_watermark=10)
    waiting = asyncio.create_task(client.produce({"orders-3": 1_000}, timeout=0.3))
    await until_pending(client, 1)
    await client.advance("orders-3", high_watermark=20)
    result = await waiting
    assert result.outcome is Outcome.EXPIRED
    assert not result
    assert result.waited >= 0.3
    item = result.partitions["orders-3"]
    assert (item.error_code, item.reached_offset) == (7, 20)
    assert item.pace_per_second is not None
    assert item.pace_per_second > 0
    assert item.estimated_remaining is not None
    assert item.estimated_remaining > result.waited
    with pytest.raises(errors.WaitExpired, match=r"orders-3: 20 of 1000 \(error 7\)") as expired:
        result.raise_for_outcome()
    assert expired.value.result is result


async def test_cancelling_the_task_cancels_at_the_daemon(client: AsyncClient) -> None:
    before = (await client.status()).kinds[0]
    one = asyncio.create_task(client.produce({"orders-3": 42}, timeout=LONG))
    many = asyncio.create_task(client.produce_many(["orders-3"], offsets=range(1, 101), timeouts_ms=[60_000]))
    await until_pending(client, 101)
    one.cancel()
    many.cancel()
    await asyncio.gather(one, many, return_exceptions=True)
    await until_pending(client, 0)
    await eventually(lambda: client.pending == 0, "the results of what was cancelled have come")
    produce = (await client.status()).kinds[0]
    assert produce.registered - before.registered == 101
    assert produce.cancelled - before.cancelled == 101


async def test_operations_are_cancelled_by_id_session_partition_and_key(client: AsyncClient) -> None:
    first = asyncio.create_task(client.produce({"orders-3": 42}, timeout=LONG))
    await until_pending(client, 1)
    second = asyncio.create_task(client.produce({"orders-4": 42}, timeout=LONG))
    third = asyncio.create_task(client.signal(["job"], timeout=LONG))
    fourth = asyncio.create_task(client.signal(["other"], timeout=LONG))
    await until_pending(client, 4)
    assert await client.cancel([1, 999]) == 1
    assert await client.cancel(partition="orders-4") == 1
    assert await client.cancel(key="job") == 1
    assert await client.cancel(session_id=client.session_id) == 1
    for result in await asyncio.gather(first, second, third, fourth):
        assert result.outcome is Outcome.CANCELLED
        with pytest.raises(errors.WaitError, match="cancelled after"):
            result.raise_for_outcome()
    assert await client.cancel([]) == 0
    with pytest.raises(errors.InvalidRequest, match="exactly one of"):
        await client.cancel()


async def test_columns_are_answered_in_operation_order(client: AsyncClient) -> None:
    """The items of an operation stay together."""
    await client.advance_many([events.high_watermark("a-0", 5), events.high_watermark("b-0", 3)])
    answer = await client.produce_many(
        ["a-0", "b-0"], indexes=[0, 1, 1, 0, 0], offsets=[5, 3, 4, 5, 6], item_counts=[2, 2, 1], timeouts_ms=[50]
    )
    assert answer.outcomes == [Outcome.SATISFIED, Outcome.EXPIRED, Outcome.EXPIRED]
    assert (answer.error_codes, answer.reached_offsets) == ([0, 0, 7, 0, 7], [5, 3, 3, 5, 5])
    assert [answer.name_of(item) for item in range(5)] == ["a-0", "b-0", "b-0", "a-0", "a-0"]
    assert (bool(answer), answer.count(Outcome.EXPIRED)) == (False, 2)
    assert {name: item.error_code for name, item in list(answer)[1].partitions.items()} == {"b-0": 7, "a-0": 0}


async def test_every_kind_has_a_column_form(client: AsyncClient) -> None:
    await client.advance("logs-0", log_end_offset=100, high_watermark=100, log_start_offset=20)
    await client.signal_key("k")
    fetched = await client.fetch_many(["logs-0"], offsets=[30, 100], min_bytes=[1], timeouts_ms=[50])
    assert fetched.outcomes == [Outcome.SATISFIED, Outcome.EXPIRED]
    assert fetched.available_bytes == [70, 0]
    deleted = await client.delete_records_many(["logs-0"], offsets=[20, 30], timeouts_ms=[50])
    assert deleted.outcomes == [Outcome.SATISFIED, Outcome.EXPIRED]
    signalled = await client.signal_many(["k", "never"], timeouts_ms=[50])
    assert signalled.outcomes == [Outcome.SATISFIED, Outcome.EXPIRED]


async def test_a_refused_wait_raises_with_its_field(client: AsyncClient) -> None:
    await client.advance("orders-3", high_watermark=10)
    good, bad = await asyncio.gather(
        client.produce({"orders-3": 1}, timeout=5), client.produce({"orders-3": -5}, timeout=5), return_exceptions=True
    )
    assert not isinstance(good, BaseException)
    assert good.satisfied
    assert isinstance(bad, errors.InvalidRequest)
    assert "required_offset" in bad.field
    assert "-5" in bad.message
    answer = await client.produce_many(["orders-3"], offsets=[1, -5, 2], timeouts_ms=[5_000])
    assert answer.outcomes == [Outcome.SATISFIED, Outcome.REFUSED, Outcome.SATISFIED]
    assert isinstance(answer.refusals[1], errors.InvalidRequest)
    with pytest.raises(errors.InvalidRequest):
        list(answer)[1].raise_for_outcome()
    with pytest.raises(errors.InvalidRequest) as refused:
        await client.wait_once(waits.produce({"orders-3": -5}, timeout=5))
    assert "required_offset" in refused.value.field


async def test_cancelling_a_unary_wait_cancels_at_the_daemon(client: AsyncClient) -> None:
    waiting = asyncio.create_task(client.wait_once(waits.signal(["never"], timeout=LONG)))
    await until_pending(client, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until_pending(client, 0)


async def test_closing_ends_a_unary_wait_with_its_own_error(shared_daemon: DaemonProcess) -> None:
    async with AsyncClient(shared_daemon.address) as direct:
        client = AsyncClient(shared_daemon.address)
        waiting = [asyncio.create_task(client.wait_once(waits.signal(["never"], timeout=LONG))) for _ in range(2)]
        await until_pending(direct, 2)
        waiting[0].cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        with pytest.raises(errors.ClientClosed):
            await waiting[1]
        await until_pending(direct, 0)


async def test_refused_events_are_raised_or_listed(client: AsyncClient) -> None:
    await client.advance("orders-3", high_watermark=5, leader_epoch=7)
    with pytest.raises(errors.StaleEpoch, match="leader_epoch") as stale:
        await client.advance("orders-3", high_watermark=6, leader_epoch=6)
    assert stale.value.receipt.refusals[0].error_code == 74
    receipt = await client.advance_many(
        [
            events.high_watermark("orders-3", 9, leader_epoch=1),
            events.high_watermark("orders-3", 8),
            events.high_watermark("orders-3", 8),
        ]
    )
    assert [refusal.index for refusal in receipt.refusals] == [0]
    assert receipt.unchanged == 1
    assert (await client.partition("orders-3")).high_watermark == 8
    with pytest.raises(errors.InvalidRequest, match="at least one mark"):
        await client.advance("orders-3")


async def test_events_of_many_callers_share_messages_in_order(client: AsyncClient) -> None:
    waiting = [asyncio.create_task(client.produce({f"p-{i}": 1}, timeout=LONG)) for i in range(0, 200, 2)]
    await until_pending(client, 100)
    receipts = await asyncio.gather(*(client.advance(f"p-{i}", high_watermark=1) for i in range(200)))
    assert [receipt.ended for receipt in receipts] == [[1], [0]] * 100
    assert all(result.satisfied for result in await asyncio.gather(*waiting))
    marks = await asyncio.gather(*(client.advance("q-0", high_watermark=i + 1) for i in range(100)))
    assert all(receipt.unchanged in {0, None} for receipt in marks)
    assert (await client.partition("q-0")).unchanged_events == 0


async def test_operations_partitions_and_counts_are_read_page_by_page(client: AsyncClient) -> None:
    waiting = [asyncio.create_task(client.produce({f"p-{i}": 9}, timeout=LONG)) for i in range(5)]
    waiting.append(asyncio.create_task(client.signal(["job"], timeout=LONG)))
    await until_pending(client, 6)
    found = [one async for one in client.operations(page_size=2)]
    assert sorted(one.operation_id for one in found) == [1, 2, 3, 4, 5, 6]
    assert {one.session_id for one in found} == {client.session_id}
    assert client.session_id.startswith("test-")
    assert len([one async for one in client.operations(kind=OperationKind.SIGNAL)]) == 1
    (on_partition,) = [one async for one in client.operations(partition="p-3")]
    one = await client.operation(client.session_id, on_partition.operation_id)
    assert (one.kind, one.items[0].name, one.items[0].required_offset) == (OperationKind.PRODUCE, "p-3", 9)
    assert 0 < one.remaining <= LONG
    assert len([each async for each in client.partitions(prefix="p", page_size=2)]) == 5
    with pytest.raises(errors.NotFound):
        await client.operation(client.session_id, 999)
    with pytest.raises(errors.NotFound):
        await client.partition("nope-1")
    status = await client.status()
    assert [kind.pending for kind in status.kinds] == [5, 0, 0, 1, 0]
    for task in waiting:
        task.cancel()


async def test_closing_may_let_waits_finish(client: AsyncClient, shared_daemon: DaemonProcess) -> None:
    other = AsyncClient(shared_daemon.address)
    waiting = asyncio.create_task(other.produce({"orders-3": 42}, timeout=LONG))
    await until_pending(client, 1)
    closing = asyncio.create_task(other.close(finish=True))
    await client.advance("orders-3", high_watermark=42)
    assert (await waiting).satisfied
    await closing


async def test_exceeding_a_limit_of_pending_operations_is_refused(shared_daemon: DaemonProcess) -> None:
    says = r"2 operations are pending .* 1 more .* limit of 2 \(pending_max\)"
    async with AsyncClient(shared_daemon.address, pending_max=2) as client:
        waiting = [asyncio.create_task(client.produce({"limited-3": 42}, timeout=LONG)) for _ in range(2)]
        await eventually(lambda: client.pending == 2)
        with pytest.raises(errors.LimitExceeded, match=says):
            await client.produce({"limited-3": 42}, timeout=LONG)
        await client.advance("limited-3", high_watermark=42)
        assert all(result.satisfied for result in await asyncio.gather(*waiting))


async def test_results_of_a_session_that_was_created_again(client: AsyncClient) -> None:
    await client.advance("orders-3", high_watermark=9)

    async def register(count: int, incarnation: str = "") -> Registered:
        batch = batches.produce(["orders-3"], offsets=range(1, count + 1))
        return await client.register("again", 1, batch, incarnation=incarnation)

    first = await register(3)
    collecting = client.results("again", incarnation=first.incarnation)
    assert len((await anext(collecting)).operation_ids) == 3
    await client.close_session("again")
    second = await register(5)
    assert second.incarnation not in ("", first.incarnation)
    with pytest.raises(errors.NotFound, match=first.incarnation):
        await anext(collecting)
    with pytest.raises(errors.NotFound, match="created again"):
        await anext(client.results("again", incarnation=first.incarnation))
    with pytest.raises(errors.NotFound, match=first.incarnation):
        await register(9, first.incarnation)
    collected = [ids async for one in client.results("again") for ids in one.operation_ids]
    assert collected == [1, 2, 3, 4, 5]


def test_timers_that_are_due_already_on_uvloop(shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle of uvloop has no `when` if it is already due; a client whose timers are all due loses nothing."""
    monkeypatch.setattr(SessionCore, "wake_at", lambda _: 0.0)

    async def wait_often() -> list[Result]:
        async with AsyncClient(shared_daemon.address) as client:
            waiting = [asyncio.create_task(client.produce({"due-0": offset}, timeout=60)) for offset in range(1, 21)]
            await client.advance("due-0", high_watermark=20)
            return await asyncio.gather(*waiting)

    assert all(result.satisfied for result in uvloop.run(wait_often()))


def test_code_of_a_status_becomes_its_error() -> None:
    """As in codes.txt."""

    def error(code: str) -> str:
        found = from_code(grpc.StatusCode[code].value[0], "timeout_ms", "is wrong")
        return f"{type(found).__name__}: {found}"

    assert_recorded(CODES, map(error, cases_of(CODES)))


# Sessions without a connected client.


def test_refused_operation_is_in_the_receipt_and_among_the_results(shared_daemon: DaemonProcess) -> None:
    batch = batches.produce(["refused-1"], offsets=[1, -7, 3], timeouts_ms=[60_000])
    with Client(shared_daemon.address) as client:
        first = client.register("refused", 1, batch)
        assert (first.accepted, first.already_known, list(first.refusals)) == (2, 0, [2])
        assert isinstance(first.refusals[2], errors.InvalidRequest)
        again = client.register("refused", 1, batch)
        assert (again.accepted, again.already_known) == (0, 3)
        client.advance("refused-1", high_watermark=3)
        ends: dict[int, int] = {}
        for collected in client.results("refused"):
            ends |= dict(zip(collected.operation_ids, collected.results.outcomes, strict=True))
    assert ends == {1: Outcome.SATISFIED, 2: Outcome.REFUSED, 3: Outcome.SATISFIED}


def test_last_batch_of_results_that_was_not_used_comes_again(shared_daemon: DaemonProcess) -> None:
    batch = batches.produce(["unused-1"], offsets=[1, 2], timeouts_ms=[60_000])
    with Client(shared_daemon.address) as client:
        client.register("unused", 1, batch)
        client.advance("unused-1", high_watermark=1)
        client.advance("unused-1", high_watermark=2)
        assert next(client.results("unused")).operation_ids[0] == 1
    with Client(shared_daemon.address) as other:
        assert [one for collected in other.results("unused") for one in collected.operation_ids] == [1, 2]


def test_daemon_that_does_not_come_back_is_given_up(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    daemon.kill()
    batch = batches.produce(["p-1"], offsets=[1])
    with Client(daemon.address, give_up_after=0.2) as client:
        with pytest.raises(errors.Unavailable, match="no connection for"):
            client.register("s", 1, batch)
        with pytest.raises(errors.Unavailable, match="no connection for"):
            next(client.results("s"))


# Several event loops, as when a client is created while a module is imported.


def test_client_connects_again_when_its_loop_is_closed(daemon: DaemonProcess) -> None:
    client = AsyncClient(daemon.address)

    async def leave_a_wait() -> str:
        assert (await client.advance("a-0", high_watermark=1)).unchanged == 0
        waiting = asyncio.create_task(client.produce({"never-0": 1}, timeout=600))
        await until_pending(client, 1)
        assert not waiting.done()
        return client.session_id

    async def go_on() -> str:
        assert (await client.produce({"a-0": 1}, timeout=600)).satisfied
        await until_pending(client, 0)
        assert (await client.advance("a-0", high_watermark=1)).unchanged == 1
        return client.session_id

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(leave_a_wait())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
    loop.close()
    assert asyncio.run(go_on()) == session
    asyncio.run(client.close())


def test_client_in_two_loops_at_once_is_refused(daemon: DaemonProcess) -> None:
    async def use_in_two() -> None:
        async with AsyncClient(daemon.address) as client:
            await client.status()
            for call in (client.status, lambda: client.signal(["k"]), lambda: client.signal_key("k"), client.close):
                with pytest.raises(errors.WrongEventLoop, match="create an AsyncClient in each"):
                    await asyncio.to_thread(asyncio.run, call())
            await client.status()

    asyncio.run(use_in_two())


def test_client_with_an_outbox_stays_in_its_loop(daemon: DaemonProcess, tmp_path: Path) -> None:
    """The thread that writes its file reports to that loop."""
    client = AsyncClient(daemon.address, outbox=tmp_path / "outbox.db")
    assert asyncio.run(client.recovered()) == []
    with pytest.raises(errors.WrongEventLoop, match="create another one"):
        asyncio.run(client.recovered())
    asyncio.run(client.close())
    asyncio.run(AsyncClient(daemon.address, outbox=tmp_path / "outbox.db").close())  # the file is free
