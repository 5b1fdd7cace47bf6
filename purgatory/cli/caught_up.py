"""`purgatory caught-up`: waits for everything written so far, without knowing the end offsets."""

import time
from typing import Annotated, NoReturn

import typer
from purgatory_client.aio import AsyncClient
from purgatory_client.results import Result, already_satisfied
from purgatory_client.sources.position_tokens import Positions

from purgatory.cli import render
from purgatory.cli.connection_options import DEFAULT_ADDRESS, Address, AsJson, run
from purgatory.cli.exit_codes import OF_OUTCOME, Exit
from purgatory.cli.parsing import UsageError, seconds


def caught_up(
    marks: Annotated[
        list[str],
        typer.Argument(
            metavar="MARK...", help="Marks without partition numbers: kafka/GROUP/TOPIC, kafka/TOPIC, pg/NAME/SERVER."
        ),
    ],
    timeout: Annotated[
        str, typer.Option("--timeout", "-t", help="How long to wait: 500ms, 30s, 2m, 1h; 0: answer immediately.")
    ] = "30s",
    token: Annotated[
        bool,
        typer.Option("--token", help="Print the current end positions for `purgatory wait TOKEN` instead of waiting."),
    ] = False,
    fail_when_stale: Annotated[
        str | None,
        typer.Option("--fail-when-stale", help="Fail if a mark is stale or unreported for this long: 500ms, 5s."),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Wait until everything written before this command has been processed or replicated."""

    async def call(client: AsyncClient) -> Exit:
        limit, began = seconds(timeout), time.monotonic()
        stale = None if fail_when_stale is None else seconds(fail_when_stale)
        if token and stale is not None:
            raise UsageError("--fail-when-stale cannot be combined with --token, which does not wait")
        ends = await client.ends(marks, timeout=max(limit, 1.0))
        if token:
            render.token(ends, as_json=as_json)
            return Exit.OK
        left = max(0.0, limit - (time.monotonic() - began))
        result = await reached(client, ends, left, stale)
        render.result(result, as_json=as_json)
        return OF_OUTCOME[result.outcome]

    raise typer.Exit(run(address, call))


async def reached(client: AsyncClient, positions: Positions, seconds_max: float, stale: float | None) -> Result:
    """Wait, in one call, until positions are reached. Returns at once if there are none."""
    if not positions.offsets:
        return already_satisfied()
    return await client.wait_once(positions.wait(timeout=seconds_max, fail_when_stale=stale))
