"""`purgatory tail` shows operations as they end; `purgatory hot` shows the most watched partitions and keys."""

from typing import Annotated, NoReturn

import typer
from purgatory_client.aio import AsyncClient

from purgatory.cli import render_tail
from purgatory.cli.connection_options import DEFAULT_ADDRESS, Address, AsJson, run
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import kind_of, outcome_of
from purgatory.cli.watching import Watch, shown


def tail(
    outcomes: Annotated[
        list[str] | None,
        typer.Option(
            "--outcome", "-o", help="Only this outcome: satisfied, failed, expired or cancelled. May be repeated."
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind: produce, fetch, delete_records or signal.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Exit after this many results.")] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Print results as they arrive, until Ctrl-C: your own, or everyone's with the role admin."""

    async def call(client: AsyncClient) -> Exit:
        left = count
        wanted, only = [outcome_of(name) for name in outcomes or ()], None if kind is None else kind_of(kind)
        async for ended in client.tail(outcomes=wanted, kind=only):
            operations = ended.operations[:left]
            render_tail.ended(operations, as_json=as_json)
            if ended.left_out:
                render_tail.left_out(ended.left_out)
            if left is not None:
                left -= len(operations)
                if left <= 0:
                    break
        return Exit.OK

    raise typer.Exit(run(address, call, interrupted="nothing was changed"))


def hot(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Number of names.")] = 20,
    watch: Watch = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """List the partitions and keys that most operations wait on."""

    async def call(client: AsyncClient) -> Exit:
        async def show() -> None:
            render_tail.hot_names(await client.hot_names(limit), as_json=as_json)

        return await shown(watch, show)

    raise typer.Exit(run(address, call, interrupted="nothing was changed"))
