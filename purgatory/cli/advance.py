"""`purgatory advance`: reports events; each kind of event is an option."""

from collections.abc import Callable
from typing import Annotated, Any, Final, cast

from purgatory_client.aio import AsyncClient
from purgatory_client.errors import EventRefused
from purgatory_client.marks import Marks
from typer import Argument, Option

from purgatory.cli import render
from purgatory.cli.completion import KeyOption, partitions
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError, checked_partition, follower, ids

Offset = int | None


async def advance(
    client: AsyncClient,
    partition: Annotated[
        str | None, Argument(metavar="PARTITION", autocompletion=partitions, help="Like orders-3.")
    ] = None,
    high_watermark: Annotated[Offset, Option(help="All in-sync replicas have every record below this offset.")] = None,
    log_end_offset: Annotated[Offset, Option(help="The leader's log has grown to this offset.")] = None,
    byte_position: Annotated[Offset, Option(help="Byte position of the log end (with --log-end-offset).")] = None,
    segment_base_offset: Annotated[
        Offset, Option(help="Base offset of the segment of the log end (with --log-end-offset).")
    ] = None,
    replica: Annotated[
        str | None, Option(metavar="ID:END", help="A follower has fetched up to END: 2:41; with its log start: 2:41:7.")
    ] = None,
    last_stable_offset: Annotated[
        Offset, Option(help="Start of the oldest open transaction; -1: none is open.")
    ] = None,
    log_start_offset: Annotated[Offset, Option(help="The first readable offset has moved up.")] = None,
    in_sync_replicas: Annotated[str | None, Option(metavar="IDS", help="The in-sync set, like 1,2,3.")] = None,
    proposed_in_sync_replicas: Annotated[
        str | None, Option(metavar="IDS", help="An in-sync set that is not confirmed yet.")
    ] = None,
    min_in_sync_replicas: Annotated[
        int | None, Option(help="Minimum size of the in-sync set for acknowledging.")
    ] = None,
    leads: Annotated[bool, Option("--leader", help="This broker leads now; needs --leader-epoch.")] = False,
    follows: Annotated[bool, Option("--follower", help="Another broker leads now; needs --leader-epoch.")] = False,
    leader_epoch: Annotated[int | None, Option(help="Leader epoch of the report; an older epoch is refused.")] = None,
    leader_id: Annotated[int | None, Option(help="The leader's replica id.")] = None,
    replica_ids: Annotated[
        str | None,
        Option("--replicas", metavar="IDS", help="All assigned replicas, including the leader (with --leader)."),
    ] = None,
    epoch_start_offset: Annotated[Offset, Option(help="First offset of the epoch (with --leader).")] = None,
    dead_replica: Annotated[int | None, Option(help="This replica's broker is dead.")] = None,
    fenced_replica: Annotated[int | None, Option(help="This replica may not join the in-sync set.")] = None,
    live_replica: Annotated[int | None, Option(help="This replica is neither dead nor fenced.")] = None,
    truncate_to: Annotated[Offset, Option(help="The log was cut to this log end offset.")] = None,
    deleted: Annotated[bool, Option("--removed", help="The partition was deleted.")] = False,
    moved: Annotated[bool, Option("--moved", help="The partition has moved elsewhere.")] = False,
    storage_failed: Annotated[bool, Option("--storage-failed", help="The partition's log directory failed.")] = False,
    storage_online: Annotated[
        bool, Option("--storage-online", help="The partition's log directory is available again.")
    ] = False,
    signal: Annotated[str | None, KeyOption(help="Signal this key instead of reporting on a partition.")] = None,
    count: Annotated[int, Option(help="Number of signals (with --signal).")] = 1,
) -> Exit:
    # The parameters have the names of the marks, so `locals()` collects them; three marks are made from flags.
    is_leader = leads if leads or follows else None
    removed = "moved" if moved else deleted or None
    storage = "failed" if storage_failed else "online" if storage_online else None
    marks = _marks({name: one for name, one in locals().items() if name in Marks.__annotations__ and one is not None})
    if (partition is None) == (signal is None):
        raise UsageError("give a partition or --signal KEY (not both)")
    if partition is not None and not marks.keys() - {"leader_epoch"}:
        raise UsageError("no event given; use an option such as --high-watermark 42 (see --help)")
    if signal is not None and marks:
        raise UsageError("--signal cannot be combined with marks of a partition")
    try:
        if signal is not None:
            receipt = await client.signal_key(signal, count)
        else:
            receipt = await client.advance(checked_partition(partition or ""), **marks)
    except EventRefused as error:
        render.receipt(error.receipt)
        raise
    render.receipt(receipt)
    return Exit.OK


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "replica": follower,
    "replica_ids": ids,
    "in_sync_replicas": ids,
    "proposed_in_sync_replicas": ids,
}


def _marks(given: dict[str, Any]) -> Marks:
    """The given marks, with those in text form parsed."""
    marks = {name: _PARSERS[name](value) if name in _PARSERS else value for name, value in given.items()}
    if marks.get("last_stable_offset") == -1:
        marks["last_stable_offset"] = None
    return cast("Marks", marks)
