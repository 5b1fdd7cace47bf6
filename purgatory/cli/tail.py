"""`purgatory tail` shows operations as they end; `purgatory hot` shows the most watched partitions and keys."""

import contextlib
import sys

import click
from purgatory_client.aio import AsyncClient
from purgatory_client.results import OperationKind, Outcome
from purgatory_client.views import EndedOperation

from purgatory.cli import render
from purgatory.cli.all_shards import WATCH, over_shards, shown
from purgatory.cli.completion import KIND, choice
from purgatory.cli.connection_options import READS, client_command
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import OUTCOMES, outcome_of
from purgatory.cli.render import COLOURS, escape, outcome_text
from purgatory.command_line import Whole


@client_command(READS)
@click.option(
    "--outcome",
    "-o",
    "outcomes",
    type=outcome_of,
    metavar="OUTCOME",
    multiple=True,
    shell_complete=choice(OUTCOMES),
    help=f"Only this outcome: {', '.join(OUTCOMES)}. May be repeated.",
)
@KIND
@click.option("--count", "-n", type=Whole(min=1), help="Exit after this many results.")
async def tail(
    client: AsyncClient, outcomes: tuple[Outcome, ...], kind: OperationKind | None, count: int | None
) -> Exit:
    left = count
    async with contextlib.aclosing((await over_shards(client)).tail(outcomes, kind)) as stream:
        async for ended in stream:
            operations = ended.operations[:left]
            if not render.print_as_json(operations):
                render.print_lines(*map(_ended_line, operations), soft_wrap=True)
            sys.stdout.flush()
            if ended.left_out:
                render.error_line(f"{render.counted(ended.left_out, 'result')} left out because they arrived too fast")
            if left is not None:
                left -= len(operations)
                if left <= 0:
                    break
    return Exit.OK


@client_command(READS)
@click.option("--limit", "-n", type=Whole(1, 1_000), default=20, help="Number of names.")
@WATCH
async def hot(client: AsyncClient, limit: int, watch: float | None) -> Exit:
    async def show() -> None:
        names = await (await over_shards(client)).hot_names(limit)
        if not render.print_as_json(names):
            table = render.plain_table("watched", "what", "name")
            for one in names:
                table.add_row(f"{one.watched:,}", "key" if one.is_key else "partition", escape(one.name))
            render.console_for_data().print(table)

    return await shown(watch, show)


def _ended_line(one: EndedOperation) -> str:
    """An operation that has ended, as rich's markup."""
    outcome = outcome_text(one.outcome)
    colour = COLOURS.get(one.outcome, "red")
    late = f", {render.exact(one.lateness)} late" if one.lateness else ""
    who = f"{one.session_id}/{one.operation_id}" if one.session_id else "-"
    whose = f" of {one.principal}" if one.principal else ""
    when = one.ended_time.astimezone().strftime("%H:%M:%S.%f")[:-3]
    return (
        f"{when} [{colour}]{outcome:9}[/{colour}] {one.kind.name.lower():14} "
        f"after {render.exact(one.waited)}{late}  {escape(who + whose)}  {escape(waited_for(one))}"
    )


def waited_for(one: EndedOperation) -> str:
    """The names and offsets that an operation waited for, and the offsets reached. Not escaped."""
    shown = []
    for item in one.items[:3]:
        reached = "nothing" if item.reached_offset < 0 else item.reached_offset
        missed = "" if one.outcome == Outcome.SATISFIED else f" (reached {reached})"
        shown.append(f"{item.name}@{item.required_offset}{missed}")
    more = len(one.items) - len(shown) + one.items_left_out
    return ", ".join(shown) + (f" and {more} more" if more else "")
