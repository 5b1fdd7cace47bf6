"""A client with an outbox: what it stores, recovers after a restart, and refuses."""

import asyncio
import random
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Client, Outcome, Ticket, batches, errors, waits
from purgatory_client.batches import WaitBatch, partition_columns
from purgatory_client.errors import LimitExceeded, OutboxReason
from purgatory_client.outbox import outbox_file
from purgatory_client.outbox.outbox_file import OutboxFile
from purgatory_client.outbox.outbox_gate import entry_of
from purgatory_client.results import OperationKind
from purgatory_client.session.session_core import SessionCore
from purgatory_client.wire.encode_waits import fill_with_entry

from purgatory.v1 import operation_pb2, purgatory_service_pb2
from tests.client.outbox.test_outbox_file import limit_pages, outbox_error
from tests.client.session.test_session import submit
from tests.client.session.wire_script import many, opened, registered, results, sent
from tests.client.test_blocking import environment
from tests.histories.day_actors import batch_of as client_batch
from tests.histories.plan import one_owner
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually, until_pending
from tests.kit.programs import run_program
from tests.kit.proxy import NOBODY, FaultyProxy
from tests.scripts.client_level import wait_of as client_wait

LONG = 120.0


def batch_of(*offsets: int, partition: str = "p-1") -> WaitBatch:
    return batches.produce([partition], offsets=list(offsets), timeouts_ms=[120_000])


@pytest.mark.slow  # each lost connection costs a pause
@pytest.mark.parametrize("seed", range(3))
async def test_each_kept_wait_is_recovered_until_it_is_confirmed(
    shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path, seed: int
) -> None:
    """Connections break, and clients are closed with waits pending, answered and confirmed. The next client of the
    file has the tickets that were not confirmed, and each gets its result.
    """
    generator, path = random.Random(seed), tmp_path / "o.db"
    before = (await client.status()).unacknowledged_results
    kept: dict[str, Ticket] = {}
    mark, sessions = 0, set()

    async def use(caller: AsyncClient, share: float) -> None:
        """Use the results of a share of the waits that are satisfied."""
        for tag, ticket in list(kept.items()):
            if int(tag) <= mark and generator.random() < share:
                ended = await (caller.result_many if ticket.is_batch else caller.result)(ticket)
                assert ended.satisfied
                await caller.confirm(ticket)
                await caller.confirm(ticket)
                del kept[tag]

    for life in range(4):
        async with FaultyProxy(shared_daemon.address) as proxy, AsyncClient(proxy.address, outbox=path) as caller:
            sessions.add(caller.session_id)
            recovered = {ticket.tag: ticket for ticket in await caller.recovered()}
            for one, other in zip(recovered.values(), kept.values(), strict=True):
                assert (one.tag, one.operation_id, one.operations) == (other.tag, other.operation_id, other.operations)
                assert abs((one.submitted_time - other.submitted_time).total_seconds()) < 0.001
            kept = recovered
            for offset in range(10 * life + 1, 10 * life + 11) if life < 3 else ():
                if generator.random() < 0.7:
                    ticket = await caller.submit(waits.produce({"p-1": offset}, timeout=LONG), str(offset))
                else:
                    ticket = await caller.submit_many(batch_of(1, offset, 1), str(offset))
                kept[ticket.tag] = ticket
                if generator.random() < 0.3:
                    proxy.drop_all()
                mark = max(mark, offset - generator.randrange(8))
                await client.advance("p-1", high_watermark=mark)
                await use(caller, 0.3)
            if life == 3:
                mark = 30
                await client.advance("p-1", high_watermark=mark)
                await use(caller, 1.0)

                async def is_acknowledged() -> bool:
                    return (await client.status()).unacknowledged_results == before

                await eventually(is_acknowledged, "all results are acknowledged")
    [session_id] = sessions
    assert (kept, [one async for one in client.operations(session_id=session_id)]) == ({}, [])
    with closing(OutboxFile(path)) as file:
        assert (file.registrations(), file.results()) == ([], [])


async def test_plain_calls_are_forgotten_when_they_return(
    shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path
) -> None:
    path = tmp_path / "o.db"
    async with AsyncClient(shared_daemon.address, outbox=path) as first:
        unfinished = asyncio.create_task(first.produce({"p-1": 9}, timeout=LONG))
        cancelled = asyncio.create_task(first.signal(["never"], timeout=LONG))
        finished = asyncio.create_task(first.produce_many(["p-1"], offsets=[1, 1], timeouts_ms=[120_000]))
        await until_pending(client, 4)
        cancelled.cancel()
        await until_pending(client, 3)
        await client.advance("p-1", high_watermark=1)
        assert (await finished).satisfied
    with pytest.raises(errors.ClientClosed):
        await unfinished
    async with AsyncClient(shared_daemon.address, outbox=path) as second:
        (ticket,) = await second.recovered()
        assert (ticket.tag, ticket.kind, ticket.operation_id) == ("", OperationKind.PRODUCE, 1)
        await client.advance("p-1", high_watermark=9)
        assert (await second.result(ticket)).satisfied
        await second.confirm(ticket)


async def test_wait_expires_in_the_time_without_a_program(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    async with AsyncClient(NOBODY, outbox=path) as away:
        await away.submit(waits.produce({"never-1": 5}, timeout=0.001))
    async with AsyncClient(shared_daemon.address, outbox=path) as back:
        (ticket,) = await back.recovered()
        assert (await back.result(ticket)).outcome is Outcome.EXPIRED


async def test_a_refused_wait_raises_until_it_is_confirmed(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    async with AsyncClient(shared_daemon.address, outbox=path) as first:
        ticket = await first.submit(waits.produce({"p-1": -5}, timeout=LONG), "bad")
        with pytest.raises(errors.InvalidRequest):
            await first.result(ticket)
        with pytest.raises(errors.InvalidRequest):
            await first.produce({"p-1": -5}, timeout=LONG)
    async with AsyncClient(shared_daemon.address, outbox=path) as second:
        (ticket,) = await second.recovered()
        with pytest.raises(errors.InvalidRequest):
            await second.result(ticket)
        await second.confirm(ticket)


async def test_what_cannot_be_written_is_refused_and_nothing_else(
    shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path
) -> None:
    async with AsyncClient(shared_daemon.address, outbox=tmp_path / "o.db") as kept:
        ticket = await kept.submit(waits.produce({"p-1": 1}, timeout=LONG), "before")
        file = kept._session.outbox()._writer.file
        limit_pages(file)
        big = batch_of(*range(1, 100_001))
        with outbox_error(OutboxReason.UNWRITABLE, match="nothing was registered"):
            await kept.submit_many(big, "too big")
        limit_pages(file)
        with outbox_error(OutboxReason.UNWRITABLE):
            await kept.produce_many(["p-1"], offsets=list(range(1, 100_001)))
        assert kept.pending == 1
        await client.advance("p-1", high_watermark=1)
        assert (await kept.result(ticket)).satisfied
        await kept.confirm(ticket)
        assert (await kept.produce({"p-1": 1}, timeout=LONG)).satisfied
        assert (await client.status()).kinds[0].pending == 0


async def test_results_wait_for_room(shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path) -> None:
    """Results that cannot be written stay at the daemon, and are sent again over the next connection."""
    async with (
        FaultyProxy(shared_daemon.address) as proxy,
        AsyncClient(proxy.address, outbox=tmp_path / "o.db") as kept,
    ):
        ticket = await kept.submit_many(batch_of(*range(1, 5_001)), "many")
        await until_pending(client, 5_000)
        connections = proxy.accepted
        limit_pages(kept._session.outbox()._writer.file, 1)
        await client.advance("p-1", high_watermark=5_000)
        assert (await kept.result_many(ticket)).satisfied
        assert proxy.accepted > connections
        await kept.confirm(ticket)


async def test_an_older_copy_of_the_file_is_refused(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    async with AsyncClient(shared_daemon.address, outbox=tmp_path / "o.db") as first:
        assert (await first.produce({"never-1": 1}, timeout=0.001)).outcome is Outcome.EXPIRED
    shutil.copy(tmp_path / "o.db", tmp_path / "copy.db")
    async with AsyncClient(shared_daemon.address, outbox=tmp_path / "o.db") as second:
        assert (await second.produce({"never-1": 1}, timeout=0.001)).outcome is Outcome.EXPIRED
    async with AsyncClient(shared_daemon.address, outbox=tmp_path / "copy.db") as old:
        ticket = await old.submit(waits.produce({"p-1": 1}, timeout=LONG))
        with outbox_error(OutboxReason.COPIED, match="older copy"):
            await old.result(ticket)
        with outbox_error(OutboxReason.COPIED, match="older copy"):
            await old.produce({"p-1": 1})


async def copied_offline(path: Path, copy: Path, address: str) -> None:
    """An outbox with a registered wait, and a copy of it; then each file gets a different wait while offline."""
    async with AsyncClient(address, outbox=path) as first:
        await first.submit(waits.produce({"never-1": 1}, timeout=LONG), "both")
    shutil.copy(path, copy)
    for one in (path, copy):
        async with AsyncClient(NOBODY, outbox=one) as offline:
            await offline.submit(waits.produce({f"{one.stem}-1": 1}, timeout=LONG), one.stem)


async def test_a_result_of_other_names_is_not_accepted(
    shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two copies ever use the same id, the result of one is not given to the other: it fails (COPIED), and
    the result is neither stored nor acknowledged.
    """
    monkeypatch.setattr(outbox_file, "IDS_SKIPPED_MAX", 1)
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    before = (await client.status()).unacknowledged_results
    await copied_offline(first, second, shared_daemon.address)
    async with AsyncClient(shared_daemon.address, outbox=first) as kept:
        await kept.recovered()
        await until_pending(client, 2)
    await client.advance("first-1", high_watermark=1)
    async with AsyncClient(shared_daemon.address, outbox=second) as refused:
        _, own = await refused.recovered()
        with outbox_error(OutboxReason.COPIED, match="other partitions or keys"):
            await refused.result(own)
    with closing(OutboxFile(second)) as file:
        assert (len(file.registrations()), file.results()) == (2, [])
    assert (await client.status()).unacknowledged_results == before + 1
    async with AsyncClient(shared_daemon.address, outbox=first) as kept:
        both, own = await kept.recovered()
        assert (await kept.result(own)).satisfied
        await kept.cancel([both.operation_id])
        await kept.result(both)


async def test_tickets_of_waits_and_batches_are_not_confused(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    async with AsyncClient(shared_daemon.address, outbox=tmp_path / "o.db") as kept:
        single = await kept.submit(waits.produce({"never-1": 5}, timeout=0.001))
        many = await kept.submit_many(batch_of(10**9))
        assert (await kept.result(single)).outcome is Outcome.EXPIRED
        with pytest.raises(errors.InvalidRequest, match="use result"):
            await kept.result_many(single)
        with pytest.raises(errors.InvalidRequest, match="still pending"):
            await kept.confirm(many)
        assert await kept.cancel([many.operation_id]) == 1
        assert (await kept.result_many(many)).outcomes == [Outcome.CANCELLED]
        with pytest.raises(errors.InvalidRequest, match="use result_many"):
            await kept.result(many)


def test_outbox_of_a_blocking_client_that_was_not_closed_is_used_by_the_next(
    shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    path = tmp_path / "o.db"
    program = (
        "import sys\n"
        "from purgatory_client import Client, waits\n"
        "client = Client(sys.argv[1], outbox=sys.argv[2])\n"
        "client.signal(['never'], timeout=0)\n"  # its confirmation is written after its result is returned
        "client.submit(waits.produce({'never-1': 5}, timeout=0.001), 'kept')\n"
    )
    ended = run_program([sys.executable, "-c", program, shared_daemon.address, str(path)], env=environment())
    assert ended.stderr == ""
    with Client(shared_daemon.address, outbox=path) as again:
        with outbox_error(OutboxReason.IN_USE):
            Client(shared_daemon.address, outbox=path)
        (ticket,) = again.recovered()
        assert (ticket.tag, again.result(ticket).outcome) == ("kept", Outcome.EXPIRED)
        again.confirm(ticket)
    with Client(shared_daemon.address) as without, pytest.raises(errors.OutboxError, match="outbox=PATH"):
        without.recovered()


def encoded(entry: waits.Wait | WaitBatch) -> operation_pb2.OperationColumns:
    columns = operation_pb2.OperationColumns()
    fill_with_entry(columns, entry)
    return columns


@pytest.mark.parametrize("seed", range(20))
def test_a_wait_of_any_kind_is_restored_as_it_was(seed: int) -> None:
    """A restored wait is sent in the same message."""
    generator = one_owner(seed, timeout_max_ms=900)
    generator.swarm.nonsense = 0
    for kind in OperationKind:
        operations = tuple(generator.operation(0, kind)._replace(heartbeat_timeout_ms=5) for _ in range(3))
        single, batch = client_wait(operations[0]), client_batch(operations)
        if kind != OperationKind.SIGNAL:
            single.stale_timeout_ms = generator.rng.choice((None, 0, 2_500))
            batch.set_columns({"stale_timeout_ms": [-1, 0, 2_500]})
        single.operation_id = batch.operation_id = 7
        for entry in (single, batch):
            restored = entry_of(encoded(entry), isinstance(entry, WaitBatch))
            assert (type(restored), encoded(restored)) == (type(entry), encoded(entry))


# The session with an outbox, without daemon and file.


def core_with_outbox() -> SessionCore:
    core = SessionCore("s", 100)
    core.restore([], 1, 0.0)
    core.receive(opened(), 0.0)
    return core


def test_with_an_outbox_only_what_is_written_is_sent() -> None:
    core = core_with_outbox()
    first = submit(core, 2)
    assert sent(core, 0.0) == []
    assert core.stage() == first
    assert [wait.operation_id for wait in first] == [1, 2]
    assert sent(core, 0.0) == []
    core.written_id = 1
    assert sent(core, 0.0) == []
    core.connection_lost(0.1)
    core.receive(opened(), 0.2)
    core.written_id = 2
    assert registered(sent(core, 0.2)) == [[1, 2]]


def test_a_refused_batch_has_results_for_the_outbox() -> None:
    """The daemon stores no results for a batch refused as a whole: the client creates them, and they end its waits."""
    core = core_with_outbox()
    waiting = submit(core, 2)
    core.stage()
    core.written_id = 2
    assert registered(sent(core, 0.0)) == [[1, 2]]
    refusal = operation_pb2.OperationRefusal(code=8, message="no room")
    answer = purgatory_service_pb2.Receipt(batch_id=1, batch_refusal=refusal)
    ended = core.replay(core.refused_results(answer))
    assert [wait for wait, _ in ended] == waiting
    assert all(isinstance(error, LimitExceeded) and str(error) == "no room" for _, error in ended)


def test_names_of_results_are_compared() -> None:
    """Names are compared for single waits, signals and batches, in every column form; refused operations have no
    names.
    """
    core = core_with_outbox()
    core.submit(waits.produce({"orders-3": 1}), 0.0)
    core.submit(many(2), 0.0)
    batch = partition_columns(OperationKind.PRODUCE, ["a-0", "orders-3"], [1, 1, 0], [1, 2, 3], None, [1, 2])
    core.submit(batch, 0.0)
    core.submit(waits.signal(["k"]), 0.0)
    core.stage()
    core.check_names(results(1, [1, 2, 3, 4, 99]).results)
    for foreign in (5, 6):
        with outbox_error(OutboxReason.COPIED, match=f"operation {foreign} "):
            core.check_names(results(1, [1, foreign]).results)
    refused = purgatory_service_pb2.ResultBatch()
    refused.rows.results.add(operation_id=6, kind=4, outcome=6)
    core.check_names(refused)
    signalled = purgatory_service_pb2.ResultBatch()
    signalled.rows.results.add(operation_id=6, kind=4, outcome=1).partitions.add(key="k")
    core.check_names(signalled)
    signalled.rows.results[0].partitions[0].key = "j"
    with outbox_error(OutboxReason.COPIED, match="operation 6 "):
        core.check_names(signalled)
