"""A client with an outbox: what it stores, recovers after a restart, and refuses."""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Client, Outcome, Ticket, batches, errors, waits
from purgatory_client.batches import WaitBatch, partition_columns
from purgatory_client.batches import fetch as fetch_many
from purgatory_client.batches import signal as signal_many
from purgatory_client.errors import OutboxReason
from purgatory_client.outbox import outbox_file
from purgatory_client.outbox.outbox_file import OpeningRecord, OutboxFile
from purgatory_client.outbox.outbox_gate import batch_of as decoded_batch
from purgatory_client.outbox.outbox_gate import wait_of
from purgatory_client.results import OperationKind
from purgatory_client.wire.encode_waits import fill_with_many, fill_with_waits

from purgatory.v1 import operation_pb2
from tests.client.outbox.test_outbox_file import limit_pages, outbox_error
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually, until_pending
from tests.kit.proxy import FaultyProxy

LONG = 120.0


def batch_of(*offsets: int, partition: str = "p-1") -> WaitBatch:
    return partition_columns(OperationKind.PRODUCE, [partition], None, list(offsets), [120_000], None)


async def test_what_is_unconfirmed_is_recovered(
    shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path
) -> None:
    path = tmp_path / "o.db"
    async with AsyncClient(shared_daemon.address, outbox=path) as first:
        session_id = first.session_id
        assert await first.recovered() == []
        confirmed = await first.submit(waits.produce({"p-1": 1}, timeout=LONG), "confirmed")
        answered = await first.submit(waits.produce({"p-1": 1}, timeout=LONG), "answered")
        await first.submit(waits.produce({"p-1": 9}, timeout=LONG), "waiting")
        await first.submit_many(batch_of(1, 9, 1), "batch")
        await client.advance("p-1", high_watermark=1)
        assert (await first.result(confirmed)).satisfied
        assert (await first.result(answered)).satisfied
        await first.confirm(confirmed)
        await first.confirm(confirmed)
    await until_pending(client, 2)
    async with AsyncClient(shared_daemon.address, outbox=path) as second:
        assert second.session_id == session_id
        tickets = {ticket.tag: ticket for ticket in await second.recovered()}
        assert [(one.tag, one.operation_id, one.operations) for one in tickets.values()] == [
            ("answered", 2, 1), ("waiting", 3, 1), ("batch", 4, 3),
        ]  # fmt: skip
        again = tickets["answered"]
        assert abs((again.submitted_time - answered.submitted_time).total_seconds()) < 0.001
        assert (await second.result(again)).partitions["p-1"].reached_offset == 1
        await client.advance("p-1", high_watermark=9)
        assert (await second.result(tickets["waiting"])).satisfied
        assert (await second.result_many(tickets["batch"])).reached_offsets[0] == 1
        for ticket in tickets.values():
            await second.confirm(ticket)
        assert (await client.status()).kinds[0].registered >= 6
    async with AsyncClient(shared_daemon.address, outbox=path) as third:
        assert await third.recovered() == []


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


async def test_every_kind_of_wait_survives(shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    many = fetch_many(
        ["p-1", "p-2"],
        indexes=[0, 1, 0],
        offsets=[5, 6, 7],
        item_counts=[2, 1],
        min_bytes=[10, 20],
        partition_max_bytes=[100, 200, 300],
    )
    async with AsyncClient("127.0.0.1:1", outbox=path) as away:
        await away.submit(waits.produce({"p-1": 5, "p-2": 7}, timeout=LONG, leader_epochs={"p-2": 3}))
        await away.submit(waits.fetch({"p-1": 5, "p-2": 5}, min_bytes=77, timeout=LONG, isolation="read_committed"))
        await away.submit(waits.delete_records({"p-1": 5}, timeout=LONG))
        await away.submit(waits.signal({"a": 3, "b": 3}, timeout=LONG, any=True))
        await away.submit(waits.produce({"p-1": 5}))
        await away.submit_many(many)
        await away.submit_many(signal_many(["k", "l"], counts=[2, 1], timeouts_ms=[90_000]))
        assert away.pending == 9
    async with AsyncClient(shared_daemon.address, outbox=path) as back:
        assert len(await back.recovered()) == 7
        await until_pending(client, 9)
        found = [one async for one in client.operations(session_id=back.session_id)]
        shown = {one.operation_id: [(item.name, item.required_offset) for item in one.items] for one in found}
        assert shown == {
            1: [("p-1", 5), ("p-2", 7)], 2: [("p-1", 5), ("p-2", 5)], 3: [("p-1", 5)], 4: [("a", 3), ("b", 3)],
            5: [("p-1", 5)], 6: [("p-1", 5), ("p-2", 6)], 7: [("p-1", 7)], 8: [("k", 2)], 9: [("l", 1)],
        }  # fmt: skip
        assert {one.operation_id: one.min_bytes for one in found if one.min_bytes} == {2: 77, 6: 10, 7: 20}
        assert max(one.remaining for one in found if one.operation_id < 5) < LONG
        await client.signal_key("a", 3)
        signalled = (await back.recovered())[3]
        assert (await back.result(signalled)).satisfied
        await client.cancel(session_id=back.session_id)


async def test_wait_expires_in_the_time_without_a_program(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    async with AsyncClient("127.0.0.1:1", outbox=path) as away:
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


NOWHERE = "127.0.0.1:1"


async def copied_offline(path: Path, copy: Path, address: str) -> None:
    """An outbox with a registered wait, and a copy of it; then each file gets a different wait while offline."""
    async with AsyncClient(address, outbox=path) as first:
        await first.submit(waits.produce({"never-1": 1}, timeout=LONG), "both")
    shutil.copy(path, copy)
    for one in (path, copy):
        async with AsyncClient(NOWHERE, outbox=one) as offline:
            await offline.submit(waits.produce({f"{one.stem}-1": 1}, timeout=LONG), one.stem)


@pytest.mark.parametrize("names", [("original", "copy"), ("copy", "original")])
async def test_of_two_copies_the_second_is_refused(
    shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path, names: tuple[str, str]
) -> None:
    """Both copies registered a wait while offline. The second one to connect fails (COPIED) for all its waits
    and acknowledges nothing: the first one collects its result afterwards.
    """
    first, second = (tmp_path / f"{name}.db" for name in names)
    await copied_offline(tmp_path / "original.db", tmp_path / "copy.db", shared_daemon.address)
    async with AsyncClient(shared_daemon.address, outbox=first) as kept:
        await kept.recovered()
        await until_pending(client, 2)
    await client.advance(f"{names[0]}-1", high_watermark=1)
    async with AsyncClient(shared_daemon.address, outbox=second) as refused:
        for ticket in await refused.recovered():
            with outbox_error(OutboxReason.COPIED):
                await refused.result(ticket)
    async with AsyncClient(shared_daemon.address, outbox=first) as kept:
        both, own = await kept.recovered()
        assert (await kept.result(own)).satisfied
        await kept.cancel([both.operation_id])
        await kept.result(both)


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


async def test_a_connection_that_breaks_changes_nothing(
    shared_daemon: DaemonProcess, client: AsyncClient, tmp_path: Path
) -> None:
    path = tmp_path / "o.db"
    before = (await client.status()).unacknowledged_results
    async with FaultyProxy(shared_daemon.address) as proxy, AsyncClient(proxy.address, outbox=path) as kept:
        tickets: list[Ticket] = []
        for step in range(1, 31):
            tickets.append(await kept.submit(waits.produce({"p-1": step}, timeout=LONG), str(step)))
            await client.advance("p-1", high_watermark=max(0, step - 5))
            if not step % 4:
                proxy.drop_all()
        await client.advance("p-1", high_watermark=30)
        for ticket in tickets:
            assert (await kept.result(ticket)).satisfied
            await kept.confirm(ticket)

        async def acknowledged() -> bool:
            return (await client.status()).unacknowledged_results == before

        await eventually(acknowledged, "all results are acknowledged")
    file = OutboxFile(path)
    assert (file.registrations(), file.results()) == ([], [])
    file.commit([OpeningRecord(file.incarnation, 30)])  # the highest id that it assigned
    with outbox_error(OutboxReason.COPIED):
        file.commit([OpeningRecord(file.incarnation, 31)])
    file.close()


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


def test_the_blocking_client_has_an_outbox_too(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    with Client(shared_daemon.address, outbox=path) as kept:
        kept.submit(waits.produce({"never-1": 5}, timeout=0.001), "first")
        with outbox_error(OutboxReason.IN_USE):
            Client(shared_daemon.address, outbox=path)
    with Client(shared_daemon.address, outbox=path) as again:
        (ticket,) = again.recovered()
        assert ticket.tag == "first"
        assert again.result(ticket).outcome is Outcome.EXPIRED
        again.confirm(ticket)
    with Client(shared_daemon.address) as without, pytest.raises(errors.OutboxError, match="outbox=PATH"):
        without.recovered()


def test_a_stale_timeout_is_kept() -> None:
    for seconds, wanted in ((2.5, 2_500), (0, 0), (None, None)):
        columns = operation_pb2.OperationColumns()
        wait = waits.produce({"p-1": 5}, fail_when_stale=seconds)
        wait.operation_id = 7
        fill_with_waits(columns, [wait], 0.0, 0.0)
        assert wait_of(columns).stale_timeout_ms == wanted
    columns = operation_pb2.OperationColumns()
    batch = batches.produce(["p-1"], offsets=[5, 6], stale_timeouts_ms=[100, -1])
    batch.operation_id = 7
    fill_with_many(columns, batch, range(2), 0.0, 0.0)
    assert decoded_batch(columns).operation_columns["stale_timeout_ms"] == [100, -1]
