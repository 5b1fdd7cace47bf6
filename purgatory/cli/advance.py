"""`purgatory advance` reports events, each kind of which is an option; `purgatory signal` signals a key."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, Final, cast

import click
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import EventRefused
from purgatory_client.marks import Marks

from purgatory.cli import render
from purgatory.cli.completion import keys, partitions
from purgatory.cli.connection_options import WRITES, client_command
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError, checked_partition, flag, follower, ids
from purgatory.command_line import FILE, NUMBER, Whole

OFFSET: Final = {"type": NUMBER}
IDS: Final = {"type": ids, "metavar": "IDS"}
FOLLOWER: Final = {"type": follower, "metavar": "ID:END"}
VALUE_BYTES_MAX: Final = 4_096


def _is(value: object) -> dict[str, Any]:
    """A flag that gives its mark this value."""
    return {"is_flag": True, "flag_value": value, "type": click.UNPROCESSED, "default": None}


EVENTS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("--high-watermark", OFFSET, "All in-sync replicas have every record below this offset."),
    ("--log-end-offset", OFFSET, "The leader's log has grown to this offset."),
    ("--byte-position", OFFSET, "Byte position of the log end (with --log-end-offset)."),
    ("--segment-base-offset", OFFSET, "Base offset of the segment of the log end (with --log-end-offset)."),
    ("--replica", FOLLOWER, "A follower has fetched up to END: 2:41; with its log start: 2:41:7."),
    ("--last-stable-offset", OFFSET, "Start of the oldest open transaction; -1: none is open."),
    ("--log-start-offset", OFFSET, "The first readable offset has moved up."),
    ("--in-sync-replicas", IDS, "The in-sync set, like 1,2,3."),
    ("--proposed-in-sync-replicas", IDS, "An in-sync set that is not confirmed yet."),
    ("--min-in-sync-replicas", OFFSET, "Minimum size of the in-sync set for acknowledging."),
    ("--leader is_leader", _is(True), "This broker leads now; needs --leader-epoch."),
    ("--follower is_leader", _is(False), "Another broker leads now; needs --leader-epoch."),
    ("--leader-epoch", OFFSET, "Leader epoch of the report; an older epoch is refused."),
    ("--leader-id", OFFSET, "The leader's replica id."),
    ("--replicas replica_ids", IDS, "All assigned replicas, including the leader (with --leader)."),
    ("--epoch-start-offset", OFFSET, "First offset of the epoch (with --leader)."),
    ("--dead-replica", OFFSET, "This replica's broker is dead."),
    ("--fenced-replica", OFFSET, "This replica may not join the in-sync set."),
    ("--live-replica", OFFSET, "This replica is neither dead nor fenced."),
    ("--truncate-to", OFFSET, "The log was cut to this log end offset."),
    ("--removed", _is(True), "The partition was deleted."),
    ("--moved removed", _is("moved"), "The partition has moved elsewhere."),
    ("--storage-failed storage", _is("failed"), "The partition's log directory failed."),
    ("--storage-online storage", _is("online"), "The partition's log directory is available again."),
)
"""The options, each with the name of its mark if that is another one."""


@client_command(WRITES, params=[click.Option(names.split(), help=text, **kind) for names, kind, text in EVENTS])
@click.argument("partition", type=checked_partition, shell_complete=partitions, help="Like orders-3.")
async def advance(client: AsyncClient, partition: str, **events: object) -> Exit:
    marks = cast("Marks", {name: value for name, value in events.items() if value is not None})
    if marks.get("last_stable_offset") == -1:
        marks["last_stable_offset"] = None
    if not marks.keys() - {"leader_epoch"}:
        raise UsageError("no event given; use an option such as --high-watermark 42 (see --help)")
    try:
        receipt = await client.advance(partition, **marks)
    except EventRefused as error:
        render.receipt(error.receipt)
        raise
    render.receipt(receipt)
    return Exit.OK


@client_command(WRITES)
@click.argument("key", metavar="KEY", shell_complete=keys, help="Like job-17.")
@click.option("--count", type=Whole(min=1), default=1, help="Number of signals.")
@click.option("--value", metavar="TEXT", help="For the results of all waits on the key; at most 4,096 bytes.")
@click.option("--value-file", metavar="FILE", type=FILE, help="Read the value from a file; -: from stdin.")
@flag("--failed", help="Report a failure: waits on the key fail, with the value as the reason.")
@flag("--heartbeat", help="Send a heartbeat, which does not count (see wait --heartbeat).")
async def signal(
    client: AsyncClient, key: str, count: int, value: str | None, value_file: Path | None, failed: bool, heartbeat: bool
) -> Exit:
    if heartbeat and (value is not None or value_file is not None or failed or count != 1):
        raise UsageError("--heartbeat cannot be combined with --count, --value, --value-file or --failed")
    if value is not None and value_file is not None:
        raise UsageError("--value and --value-file cannot be combined")
    octets = os.fsencode(value or "") if value_file is None else _content(value_file)
    render.receipt(await client.signal_key(key, 0 if heartbeat else count, value=octets, failed=failed))
    return Exit.OK


def _content(path: Path) -> bytes:
    is_stdin = str(path) == "-"
    if is_stdin and sys.stdin is None:
        raise UsageError("cannot read the value: stdin is closed")
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as file:
            content = file.read(VALUE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read the value: {error}") from error
    if len(content) > VALUE_BYTES_MAX:
        raise UsageError(f"the value has more than {VALUE_BYTES_MAX:,} bytes; store it elsewhere, and signal its name")
    return content
