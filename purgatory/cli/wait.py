"""`purgatory wait`: one wait for partitions, keys, both together, or a token. `purgatory caught-up`: a wait for
everything written so far, or before a time, without knowing the end offsets.
"""

import contextlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import click
from purgatory_client import terms as composites
from purgatory_client import waits
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import PurgatoryClientError
from purgatory_client.results import Result, already_satisfied
from purgatory_client.sources.position_tokens import FORMS, Positions

from purgatory.cli import parsing, render
from purgatory.cli.completion import marks_argument
from purgatory.cli.completion import targets as complete_targets
from purgatory.cli.connection_options import WAITS, client_command
from purgatory.cli.exit_codes import Exit, exit_of_outcomes
from purgatory.command_line import NUMBER, Whole


@client_command(WAITS)
@marks_argument(help="Marks without partition numbers: kafka/GROUP/TOPIC, kafka/TOPIC, pg/NAME/SERVER.")
@parsing.TIMEOUT
@parsing.flag("--token", help="Print the current end positions for `purgatory wait TOKEN` instead of waiting.")
@click.option(
    "--as-of",
    type=lambda text: parsing.moment_of(text, datetime.now(UTC)),
    metavar="TIME",
    help="Everything written before this time: the last 00:00 (local time), or 2025-03-01T00:00:00Z.",
)
@parsing.FAIL_WHEN_STALE
async def caught_up(
    client: AsyncClient,
    marks: tuple[str, ...],
    timeout: float,  # noqa: ASYNC109 - the operation's own
    token: bool,
    as_of: datetime | None,
    fail_when_stale: float | None,
) -> Exit:
    if token and fail_when_stale is not None:
        raise parsing.UsageError("--fail-when-stale cannot be combined with --token, which does not wait")
    if token:
        render.token(await client.ends(marks, timeout=max(timeout, 1.0), as_of=as_of))
        return Exit.OK
    return _show(await ends_reached(client, marks, timeout, as_of, fail_when_stale))


async def ends_reached(
    client: AsyncClient, marks: Sequence[str], limit_s: float, as_of: datetime | None = None, stale: float | None = None
) -> Result:
    """Look up the ends of marks, and wait until they are reached, both within the limit."""
    began = time.monotonic()
    ends = await client.ends(marks, timeout=max(limit_s, 1.0), as_of=as_of)
    return await reached(client, ends, max(0.0, limit_s - (time.monotonic() - began)), stale)


async def reached(client: AsyncClient, positions: Positions, seconds_max: float, stale: float | None) -> Result:
    """Wait, in one call, until positions are reached. Returns at once if there are none."""
    if not positions.offsets:
        return already_satisfied()
    return await client.wait_once(positions.wait(timeout=seconds_max, fail_when_stale=stale))


NOT_COMBINED: Final = (
    "--at-least, --unless and signal:KEY cannot be combined with --fetch, --delete-records or --signal, nor --at-least "
    "with --any"
)


@client_command(WAITS)
@click.argument(
    "targets",
    nargs=-1,
    required=True,
    metavar="TARGET...",
    shell_complete=complete_targets,
    help="partition@offset (orders-3@42), signal:KEY, keys with --signal, or a token from `purgatory caught-up "
    "--token`.",
)
@parsing.TIMEOUT
@parsing.flag("--record", help="Treat the offsets as record offsets: wait for offset + 1.")
@parsing.flag("--fetch", help="Wait until records can be read from the offsets.")
@click.option(
    "--min-bytes", type=NUMBER, default=1, help="Total bytes to wait for, over all partitions (with --fetch)."
)
@click.option("--replica-id", type=NUMBER, help="Fetch as this follower (with --fetch).")
@parsing.flag("--read-committed", help="Count bytes up to the last stable offset only (with --fetch).")
@parsing.flag(
    "--delete-records", help="Wait until all replicas have deleted up to the offsets (or the high watermark)."
)
@parsing.flag("--signal", help="Wait until the keys are signalled; key@3: three times.")
@parsing.flag("--any", "any_one", help="Wait for any one of the targets.")
@click.option("--at-least", type=Whole(min=1), help="Wait for this many of the targets.")
@click.option(
    "--unless",
    metavar="TARGET",
    multiple=True,
    shell_complete=complete_targets,
    help="Fail as soon as this target is reached. May be repeated.",
)
@parsing.flag("--from-now", help="Ignore signals sent before this command (with --signal).")
@parsing.DURATION("--heartbeat", help="Fail if one of the keys is silent for this long: 500ms, 5s (with --signal).")
@parsing.FAIL_WHEN_STALE
async def wait(
    client: AsyncClient,
    targets: tuple[str, ...],
    timeout: float,  # noqa: ASYNC109 - the operation's own
    record: bool,
    fetch: bool,
    min_bytes: int,
    replica_id: int | None,
    read_committed: bool,
    delete_records: bool,
    signal: bool,
    any_one: bool,
    at_least: int | None,
    unless: tuple[str, ...],
    from_now: bool,
    heartbeat: float | None,
    fail_when_stale: float | None,
) -> Exit:
    if [fetch, delete_records, signal, record].count(True) > 1:
        raise parsing.UsageError("--fetch, --delete-records, --signal and --record cannot be combined")
    if (from_now or heartbeat is not None) and not signal:
        raise parsing.UsageError("--from-now and --heartbeat require --signal")
    if not fetch and (replica_id is not None or read_committed or min_bytes != 1):
        raise parsing.UsageError("--min-bytes, --replica-id and --read-committed require --fetch")
    names_keys = any(target.startswith(parsing.SIGNAL_PREFIX) for target in targets)
    if at_least is not None or unless or ((any_one or names_keys) and not signal):
        if fetch or delete_records or signal or (any_one and at_least is not None):
            raise parsing.UsageError(NOT_COMBINED)
        goal = parsing.terms(targets, record=record)
        condition = composites.at_least(1 if any_one else at_least or len(goal), *goal)
        failures = parsing.terms(unless, record=record)
        one = waits.wait(condition, unless=failures, timeout=timeout, fail_when_stale=fail_when_stale)
    elif fetch:
        isolation: waits.Isolation = "read_committed" if read_committed else "read_uncommitted"
        read = partial(waits.fetch, replica_id=replica_id, isolation=isolation, min_bytes=min_bytes)
        one = read(parsing.partition_offsets(targets), timeout=timeout, fail_when_stale=fail_when_stale)
    elif delete_records:
        one = waits.delete_records(
            parsing.partition_offsets(targets, -1), timeout=timeout, fail_when_stale=fail_when_stale
        )
    elif signal:
        if fail_when_stale is not None:
            raise parsing.UsageError("--fail-when-stale applies to marks, not to signals")
        counts = parsing.key_counts(targets)
        await _refuse_marks(client, counts)
        by_key = partial(waits.signal, any=any_one, from_now=from_now, heartbeat_timeout=heartbeat)
        one = by_key(counts, timeout=timeout)
    elif targets[0].startswith(FORMS):
        if len(targets) > 1:
            raise parsing.UsageError("a token must be the only target; wait for one token at a time")
        return _show(await reached(client, Positions.of_token(targets[0]), timeout, fail_when_stale))
    else:
        offsets = {name: offset + record for name, offset in parsing.partition_offsets(targets).items()}
        one = waits.produce(offsets, timeout=timeout, fail_when_stale=fail_when_stale)
    return _show(await client.wait_once(one), one)


async def _refuse_marks(client: AsyncClient, counts: dict[str, int]) -> None:
    """Refuse orders-3@42 as 42 signals where orders-3 is a partition that the daemon knows."""
    for target, name in ((f"{name}@{count}", name) for name, count in counts.items() if count > 1):
        with contextlib.suppress(PurgatoryClientError):
            await client.partition(name)
            raise parsing.UsageError(f"{name} is a partition; leave out --signal, or for signals write signal:{target}")


def _show(result: Result, one: waits.Wait | None = None) -> Exit:
    render.result(result, one)
    return exit_of_outcomes([result.outcome])
