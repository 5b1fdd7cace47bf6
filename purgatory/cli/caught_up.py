"""`purgatory caught-up`: waits for everything written so far, or before a time, without knowing the end offsets."""

import time
from datetime import UTC, datetime
from typing import Annotated

from purgatory_client.aio import AsyncClient
from purgatory_client.results import Result, already_satisfied
from purgatory_client.sources.position_tokens import Positions
from typer import Argument, Option

from purgatory.cli import render
from purgatory.cli.completion import topics
from purgatory.cli.exit_codes import OF_OUTCOME, Exit
from purgatory.cli.parsing import FailWhenStale, Timeout, UsageError, moment_of, optional_seconds, seconds


async def caught_up(
    client: AsyncClient,
    marks: Annotated[
        list[str],
        Argument(
            metavar="MARK",
            autocompletion=topics,
            help="Marks without partition numbers: kafka/GROUP/TOPIC, kafka/TOPIC, pg/NAME/SERVER.",
        ),
    ],
    timeout: Timeout = "30s",  # noqa: ASYNC109 - the operation's own
    token: Annotated[
        bool, Option("--token", help="Print the current end positions for `purgatory wait TOKEN` instead of waiting.")
    ] = False,
    as_of: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Everything written before this time: the last 00:00 (local time), or 2025-03-01T00:00:00Z.",
        ),
    ] = None,
    fail_when_stale: FailWhenStale = None,
) -> Exit:
    limit, began = seconds(timeout), time.monotonic()
    stale = optional_seconds(fail_when_stale)
    if token and stale is not None:
        raise UsageError("--fail-when-stale cannot be combined with --token, which does not wait")
    moment = None if as_of is None else moment_of(as_of, datetime.now(UTC))
    ends = await client.ends(marks, timeout=max(limit, 1.0), as_of=moment)
    if token:
        render.token(ends)
        return Exit.OK
    result = await reached(client, ends, max(0.0, limit - (time.monotonic() - began)), stale)
    render.result(result)
    return OF_OUTCOME[result.outcome]


async def reached(client: AsyncClient, positions: Positions, seconds_max: float, stale: float | None) -> Result:
    """Wait, in one call, until positions are reached. Returns at once if there are none."""
    if not positions.offsets:
        return already_satisfied()
    return await client.wait_once(positions.wait(timeout=seconds_max, fail_when_stale=stale))
