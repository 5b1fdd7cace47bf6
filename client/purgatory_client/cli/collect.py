"""`purgatory results`: collects the results of a session that nobody is connected to."""

from collections import Counter
from typing import Annotated, NoReturn

import typer

from purgatory_client.aio import AsyncClient
from purgatory_client.cli import render_load
from purgatory_client.cli.exits import Exit, exit_of_outcomes
from purgatory_client.cli.running import run
from purgatory_client.cli.shared_options import DEFAULT_ADDRESS, Address, AsJson
from purgatory_client.results import Outcome


def results(
    session: Annotated[str, typer.Option("--session", help="The session, as `purgatory load` and `ls` name it.")],
    counts_only: Annotated[bool, typer.Option("--counts", help="Print only how many had each outcome.")] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Collect the results of a session, until nothing is pending in it.

    Each is acknowledged once it is printed, and is then gone from the daemon. Ctrl-C leaves the rest there. The exit
    code is that of the gravest outcome.
    """

    async def call(client: AsyncClient) -> Exit:
        outcomes: Counter[Outcome] = Counter()
        async for collected in client.results(session):
            outcomes.update(map(Outcome, collected.results.outcomes))
            if not counts_only:
                render_load.collected(collected, as_json=as_json)
        render_load.outcomes(session, outcomes, as_json=as_json, on_stdout=counts_only)
        return exit_of_outcomes(outcomes)

    raise typer.Exit(run(address, call, interrupted="what was not printed is still at the daemon"))
