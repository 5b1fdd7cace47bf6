"""`purgatory caught-up`: waits for everything written so far, or before a time, without knowing the end offsets."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from purgatory_client.aio import AsyncClient
from purgatory_client.results import Result, already_satisfied
from purgatory_client.sources.position_tokens import Positions

from purgatory.cli import render
from purgatory.cli.completion import topics
from purgatory.cli.connection_options import WAITS, client_command
from purgatory.cli.exit_codes import OF_OUTCOME, Exit
from purgatory.cli.parsing import FAIL_WHEN_STALE, TIMEOUT, UsageError, flag, moment_of


def _as_of(text: str) -> datetime:
    return moment_of(text, datetime.now(UTC))


@client_command(WAITS)
@click.argument(
    "marks",
    nargs=-1,
    required=True,
    metavar="MARK...",
    shell_complete=topics,
    help="Marks without partition numbers: kafka/GROUP/TOPIC, kafka/TOPIC, pg/NAME/SERVER.",
)
@TIMEOUT
@flag("--token", help="Print the current end positions for `purgatory wait TOKEN` instead of waiting.")
@click.option(
    "--as-of",
    type=_as_of,
    metavar="TIME",
    help="Everything written before this time: the last 00:00 (local time), or 2025-03-01T00:00:00Z.",
)
@FAIL_WHEN_STALE
async def caught_up(
    client: AsyncClient,
    marks: tuple[str, ...],
    timeout: float,  # noqa: ASYNC109 - the operation's own
    token: bool,
    as_of: datetime | None,
    fail_when_stale: float | None,
) -> Exit:
    if token and fail_when_stale is not None:
        raise UsageError("--fail-when-stale cannot be combined with --token, which does not wait")
    if token:
        render.token(await client.ends(marks, timeout=max(timeout, 1.0), as_of=as_of))
        return Exit.OK
    result = await ends_reached(client, marks, timeout, as_of, fail_when_stale)
    render.result(result)
    return OF_OUTCOME[result.outcome]


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
