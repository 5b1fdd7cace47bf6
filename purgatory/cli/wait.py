"""`purgatory wait`: one wait for partitions, keys, both together, or a token."""

from functools import partial
from typing import Annotated, Final

from purgatory_client import terms as composites
from purgatory_client import waits
from purgatory_client.aio import AsyncClient
from purgatory_client.results import Result
from purgatory_client.sources.position_tokens import FORMS, Positions
from typer import Option

from purgatory.cli import render
from purgatory.cli.caught_up import reached
from purgatory.cli.completion import TargetOption, Targets
from purgatory.cli.exit_codes import OF_OUTCOME, Exit
from purgatory.cli.parsing import (
    SIGNAL_PREFIX,
    Duration,
    FailWhenStale,
    Timeout,
    UsageError,
    key_counts,
    optional_seconds,
    partition_offsets,
    seconds,
    terms,
)

NOT_COMBINED: Final = (
    "--at-least, --unless and signal:KEY cannot be combined with --fetch, --delete-records or --signal, nor --at-least "
    "with --any"
)


async def wait(
    client: AsyncClient,
    targets: Annotated[
        list[str],
        Targets(
            help="partition@offset (orders-3@42), signal:KEY, keys with --signal, or a token from `purgatory caught-up "
            "--token`."
        ),
    ],
    timeout: Timeout = "30s",  # noqa: ASYNC109 - the operation's own
    record: Annotated[
        bool, Option("--record", help="Treat the offsets as record offsets: wait for offset + 1.")
    ] = False,
    fetch: Annotated[bool, Option("--fetch", help="Wait until records can be read from the offsets.")] = False,
    min_bytes: Annotated[int, Option(help="Total bytes to wait for, over all partitions (with --fetch).")] = 1,
    replica_id: Annotated[int | None, Option(help="Fetch as this follower (with --fetch).")] = None,
    read_committed: Annotated[
        bool, Option("--read-committed", help="Count bytes up to the last stable offset only (with --fetch).")
    ] = False,
    delete_records: Annotated[
        bool,
        Option(
            "--delete-records", help="Wait until all replicas have deleted up to the offsets (or the high watermark)."
        ),
    ] = False,
    signal: Annotated[bool, Option("--signal", help="Wait until the keys are signalled; key@3: three times.")] = False,
    any_one: Annotated[bool, Option("--any", help="Wait for any one of the targets.")] = False,
    at_least: Annotated[int | None, Option("--at-least", min=1, help="Wait for this many of the targets.")] = None,
    unless: Annotated[
        list[str] | None,
        TargetOption("--unless", help="Fail as soon as this target is reached. May be repeated."),
    ] = None,
    from_now: Annotated[
        bool, Option("--from-now", help="Ignore signals sent before this command (with --signal).")
    ] = False,
    heartbeat: Annotated[
        str | None, Duration(help="Fail if one of the keys is silent for this long: 500ms, 5s (with --signal).")
    ] = None,
    fail_when_stale: FailWhenStale = None,
) -> Exit:
    if [fetch, delete_records, signal, record].count(True) > 1:
        raise UsageError("--fetch, --delete-records, --signal and --record cannot be combined")
    if (from_now or heartbeat is not None) and not signal:
        raise UsageError("--from-now and --heartbeat require --signal")
    limit, stale = seconds(timeout), optional_seconds(fail_when_stale)
    names_keys = any(target.startswith(SIGNAL_PREFIX) for target in targets)
    if at_least is not None or unless or ((any_one or names_keys) and not signal):
        if fetch or delete_records or signal or (any_one and at_least is not None):
            raise UsageError(NOT_COMBINED)
        one = _composite(targets, unless or [], 1 if any_one else at_least, record, limit, stale)
    elif fetch:
        isolation: waits.Isolation = "read_committed" if read_committed else "read_uncommitted"
        read = partial(waits.fetch, replica_id=replica_id, isolation=isolation, min_bytes=min_bytes)
        one = read(partition_offsets(targets), timeout=limit, fail_when_stale=stale)
    elif delete_records:
        one = waits.delete_records(partition_offsets(targets, -1), timeout=limit, fail_when_stale=stale)
    elif signal:
        if stale is not None:
            raise UsageError("--fail-when-stale applies to marks, not to signals")
        by_key = partial(waits.signal, any=any_one, from_now=from_now, heartbeat_timeout=optional_seconds(heartbeat))
        one = by_key(key_counts(targets), timeout=limit)
    elif targets[0].startswith(FORMS):
        if len(targets) > 1:
            raise UsageError("a token must be the only target; wait for one token at a time")
        return _show(await reached(client, Positions.of_token(targets[0]), limit, stale))
    else:
        offsets = {name: offset + record for name, offset in partition_offsets(targets).items()}
        one = waits.produce(offsets, timeout=limit, fail_when_stale=stale)
    return _show(await client.wait_once(one), one)


def _composite(
    targets: list[str], unless: list[str], needed: int | None, record: bool, limit_s: float, stale_s: float | None
) -> waits.Wait:
    """The wait for `needed` of the targets (None: all of them)."""
    goal = terms(targets, record=record)
    return waits.wait(
        composites.at_least(len(goal) if needed is None else needed, *goal),
        unless=terms(unless, record=record),
        timeout=limit_s,
        fail_when_stale=stale_s,
    )


def _show(result: Result, one: waits.Wait | None = None) -> Exit:
    render.result(result, one)
    return OF_OUTCOME[result.outcome]
