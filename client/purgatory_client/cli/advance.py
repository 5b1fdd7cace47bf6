"""`purgatory advance`: every kind of event as an option."""

from typing import Annotated, Any, NoReturn, cast

import typer

from purgatory_client.aio import AsyncClient
from purgatory_client.cli import render
from purgatory_client.cli.exits import Exit
from purgatory_client.cli.parsing import UsageError, checked_partition, follower, ids
from purgatory_client.cli.running import run
from purgatory_client.cli.shared_options import DEFAULT_ADDRESS, Address, AsJson
from purgatory_client.errors import EventRefused
from purgatory_client.marks import Marks

Offset = int | None


def advance(
    partition: Annotated[str | None, typer.Argument(metavar="[PARTITION]", help="Like orders-3.")] = None,
    high_watermark: Annotated[Offset, typer.Option(help="All in-sync replicas have what is below it.")] = None,
    log_end_offset: Annotated[Offset, typer.Option(help="The leader's log has grown to it.")] = None,
    byte_position: Annotated[Offset, typer.Option(help="With --log-end-offset: its position in bytes.")] = None,
    segment_base_offset: Annotated[Offset, typer.Option(help="With --log-end-offset: its segment.")] = None,
    replica: Annotated[
        str | None, typer.Option(metavar="ID:END[:START]", help="A follower has fetched up to END, like 2:41.")
    ] = None,
    last_stable: Annotated[
        Offset, typer.Option("--last-stable-offset", help="Start of the oldest open transaction; -1: none is open.")
    ] = None,
    log_start_offset: Annotated[Offset, typer.Option(help="The first readable offset has moved up.")] = None,
    in_sync: Annotated[
        str | None, typer.Option("--in-sync-replicas", metavar="IDS", help="The in-sync set, like 1,2,3.")
    ] = None,
    proposed: Annotated[
        str | None, typer.Option("--proposed-in-sync-replicas", metavar="IDS", help="A set that is not confirmed yet.")
    ] = None,
    min_in_sync_replicas: Annotated[int | None, typer.Option(help="The smallest set that may acknowledge.")] = None,
    leader: Annotated[
        bool | None, typer.Option("--leader/--follower", help="Leadership has changed; needs --leader-epoch.")
    ] = None,
    leader_epoch: Annotated[int | None, typer.Option(help="On behalf of this epoch; an older one is refused.")] = None,
    leader_id: Annotated[int | None, typer.Option(help="The leader's replica id.")] = None,
    replicas: Annotated[
        str | None, typer.Option(metavar="IDS", help="With --leader: all assigned replicas, the leader included.")
    ] = None,
    epoch_start_offset: Annotated[Offset, typer.Option(help="With --leader: first offset of the epoch.")] = None,
    dead_replica: Annotated[int | None, typer.Option(help="This replica's broker is dead.")] = None,
    fenced_replica: Annotated[int | None, typer.Option(help="This replica may not join the in-sync set.")] = None,
    live_replica: Annotated[int | None, typer.Option(help="This replica is neither dead nor fenced.")] = None,
    truncate_to: Annotated[Offset, typer.Option(help="The log was cut to this log end offset.")] = None,
    removed: Annotated[bool, typer.Option("--removed", help="The partition was deleted.")] = False,
    moved: Annotated[bool, typer.Option("--moved", help="The partition has moved elsewhere.")] = False,
    storage_failed: Annotated[bool, typer.Option("--storage-failed", help="Its log directory failed.")] = False,
    storage_online: Annotated[bool, typer.Option("--storage-online", help="Its log directory is back.")] = False,
    signal: Annotated[str | None, typer.Option(metavar="KEY", help="Signal a key, instead of a partition.")] = None,
    count: Annotated[int, typer.Option(help="With --signal: how many times.")] = 1,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Report what happened to a partition (or signal a key), and print how many waits that ended."""
    given: dict[str, Any] = {
        "high_watermark": high_watermark,
        "log_end_offset": log_end_offset,
        "byte_position": byte_position,
        "segment_base_offset": segment_base_offset,
        "log_start_offset": log_start_offset,
        "min_in_sync_replicas": min_in_sync_replicas,
        "is_leader": leader,
        "leader_epoch": leader_epoch,
        "leader_id": leader_id,
        "epoch_start_offset": epoch_start_offset,
        "dead_replica": dead_replica,
        "fenced_replica": fenced_replica,
        "live_replica": live_replica,
        "truncate_to": truncate_to,
        "removed": "moved" if moved else removed or None,
        "storage": "failed" if storage_failed else "online" if storage_online else None,
    }

    written = {"replica": replica, "replicas": replicas, "in_sync": in_sync, "proposed": proposed}

    async def call(client: AsyncClient) -> Exit:
        return await _report(client, partition, _marks(given, written, last_stable), signal, count, as_json)

    raise typer.Exit(run(address, call))


def _marks(given: dict[str, Any], written: dict[str, str | None], last_stable: int | None) -> Marks:
    """The marks that were given, with those written as text parsed."""
    marks = cast("Marks", {name: value for name, value in given.items() if value is not None})
    if (replica := written["replica"]) is not None:
        marks["replica"] = follower(replica)
    if (replicas := written["replicas"]) is not None:
        marks["replica_ids"] = ids(replicas)
    if (in_sync := written["in_sync"]) is not None:
        marks["in_sync_replicas"] = ids(in_sync)
    if (proposed := written["proposed"]) is not None:
        marks["proposed_in_sync_replicas"] = ids(proposed)
    if last_stable is not None:
        marks["last_stable_offset"] = None if last_stable == -1 else last_stable
    return marks


async def _report(
    client: AsyncClient, partition: str | None, marks: Marks, signal: str | None, count: int, as_json: bool
) -> Exit:
    if (partition is None) == (signal is None):
        raise UsageError("say what it happened to: a partition, or --signal KEY; one of them")
    if partition is not None and not marks.keys() - {"leader_epoch"}:
        raise UsageError("say what happened, such as --high-watermark 42; see --help")
    if signal is not None and marks:
        raise UsageError("--signal goes alone; report a partition's marks in a call of their own")
    try:
        receipt = await (
            client.signal_key(signal, count)
            if signal is not None
            else client.advance(checked_partition(partition or ""), **marks)
        )
    except EventRefused as error:
        render.receipt(error.receipt, as_json=as_json)
        raise
    render.receipt(receipt, as_json=as_json)
    return Exit.OK
