"""`purgatory load` registers many waits in one session, optionally satisfies them, and prints the throughput;
`purgatory results` collects the results of a session without a connected client.
"""

import asyncio
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import click
from purgatory_client import batches, events
from purgatory_client.aio import AsyncClient
from purgatory_client.argument_checks import milliseconds
from purgatory_client.results import Outcome
from purgatory_client.session.detached_sessions import Collected

from purgatory.cli import render
from purgatory.cli.completion import session_option
from purgatory.cli.connection_options import client_command
from purgatory.cli.exit_codes import Exit, exit_of_outcomes
from purgatory.cli.parsing import DURATION, UsageError, checked_partition, flag
from purgatory.command_line import Decimal, Whole


@dataclass(frozen=True, slots=True)
class Load:
    """The load. Operation i waits on partition i % `partitions`, one offset above the previous operation there."""

    session_id: str
    operations: int
    names: list[str]
    timeout_ms: int
    batch: int
    rate: float


@client_command("the registered waits stay pending; cancel them with: purgatory cancel --session {session}")
@click.option(
    "--session",
    metavar="SESSION",
    default=lambda: f"load-{uuid.uuid4().hex[:12]}",
    show_default="random",
    help="Session id, unused so far.",
)
@click.option("--operations", "-n", type=Whole(min=1), default=100_000, help="Number of waits.")
@click.option("--topic", metavar="TOPIC", default="load", help="Topic; the partitions are TOPIC-0, TOPIC-1 and so on.")
@click.option("--partitions", type=Whole(1, 100_000), default=100, help="Number of partitions to wait on.")
@DURATION("--timeout", "-t", default="10m", help="Timeout of each wait: 500ms, 30s, 2m, 1h.")
@click.option("--batch", type=Whole(1, 10_000), default=500, help="Number of waits in one message.")
@click.option("--rate", type=Decimal(min=0), default=0, help="Waits per second; 0: no limit.")
@flag("--advance", help="Advance the high watermarks until all waits are satisfied.")
@flag("--detach", help="Exit after registering; collect with `purgatory results --session ID`.")
async def load(
    client: AsyncClient,
    session: str,
    operations: int,
    topic: str,
    partitions: int,
    timeout: float,  # noqa: ASYNC109 - of each operation
    batch: int,
    rate: float,
    advance: bool,
    detach: bool,
) -> Exit:
    """The exit code is that of the most severe outcome; with --detach, 0 if the daemon accepted all waits."""
    names = [checked_partition(f"{topic}-{number}") for number in range(partitions)]
    wanted = Load(session, operations, names, milliseconds(timeout) or 0, batch, rate)
    known = {one.name: one.high_watermark async for one in client.partitions(prefix=topic)}
    bases = [max(0, known.get(name, 0)) for name in names]
    started_s = time.monotonic()
    refused = await _register(client, wanted, bases)
    registering_s = time.monotonic() - started_s
    collecting = None if detach else asyncio.create_task(_collect(client, session))
    if advance:
        await _advance(client, wanted, bases)
    advancing_s = time.monotonic() - started_s - registering_s if advance else None
    outcomes = +Counter({Outcome.REFUSED: refused}) if collecting is None else await collecting
    ending_s = None if detach else time.monotonic() - started_s - registering_s

    lines = [f"session {session}", _paced("registered", operations, registering_s)]
    if advancing_s is not None:
        lines.append(f"advanced in {render.exact(advancing_s)}")
    if ending_s is None:
        refusals = f"{_outcome_counts(outcomes)}; " if outcomes else ""
        lines.append(f"{refusals}detached; collect with: purgatory results --session {session}")
    else:
        lines.append(f"{_paced('ended', outcomes.total(), ending_s)}: {_outcome_counts(outcomes)}")
    times = {"registering": registering_s, "advancing": advancing_s, "ending": ending_s}
    document = {"session_id": session, "operations": operations, **times, "outcomes": _counts_document(outcomes)}
    render.print_either(document, *map(render.escape, lines))
    return exit_of_outcomes(outcomes)


@client_command("results that were not printed are still at the daemon")
@session_option(required=True, help="Session id, as printed by `purgatory load` and `purgatory ls`.")
@flag("--counts", "counts_only", help="Print only the number of results per outcome.")
async def results(client: AsyncClient, session: str, counts_only: bool) -> Exit:
    """Each result is acknowledged after it was printed, and the daemon then drops it. After Ctrl-C the rest stays at
    the daemon. The exit code is that of the most severe outcome.
    """
    outcomes = await _collect(client, session, None if counts_only else _print_collected)
    line = f"session {session}: {_outcome_counts(outcomes)}"
    if counts_only:
        render.print_either({"session_id": session, "outcomes": _counts_document(outcomes)}, render.escape(line))
    else:
        render.error_line(line)
    return exit_of_outcomes(outcomes)


async def _register(client: AsyncClient, wanted: Load, bases: list[int]) -> int:
    """Register all waits, one message at a time; returns the number of refused ones."""
    started_s = time.monotonic()
    refused, incarnation, partitions = 0, "", len(wanted.names)
    for first in range(0, wanted.operations, wanted.batch):
        if wanted.rate:
            await asyncio.sleep(started_s + first / wanted.rate - time.monotonic())
        chosen = range(first, min(first + wanted.batch, wanted.operations))
        batch = batches.produce(
            wanted.names,
            indexes=[operation % partitions for operation in chosen],
            offsets=[bases[operation % partitions] + operation // partitions + 1 for operation in chosen],
            timeouts_ms=[wanted.timeout_ms],
        )
        answer = await client.register(wanted.session_id, first + 1, batch, incarnation=incarnation)
        incarnation = answer.incarnation
        if first == 0 and answer.already_known == batch.count:
            raise UsageError(
                f"session {wanted.session_id!r} already has operations at the daemon; use another id, or collect "
                f"its results: purgatory results --session {wanted.session_id}"
            )
        refused += len(answer.refusals)
    return refused


async def _advance(client: AsyncClient, wanted: Load, bases: list[int]) -> None:
    """Advance each high watermark to the offset of its last wait, in as many steps as there were batches."""
    each = -(-wanted.operations // len(wanted.names))
    step = max(1, wanted.batch // len(wanted.names))
    for reached in range(step, each + step, step):
        offset = min(reached, each)
        marks = [events.high_watermark(name, base + offset) for name, base in zip(wanted.names, bases, strict=True)]
        (await client.advance_many(marks)).raise_for_refusals()


async def _collect(
    client: AsyncClient, session_id: str, use: Callable[[Collected], None] | None = None
) -> Counter[Outcome]:
    """Collect all results of a session. A batch is acknowledged only after `use` returned."""
    outcomes: Counter[Outcome] = Counter()
    async for collected in client.results(session_id):
        outcomes.update(map(Outcome, collected.results.outcomes))
        if use is not None:
            use(collected)
    return outcomes


def _print_collected(batch: Collected) -> None:
    for operation_id, answer in zip(batch.operation_ids, batch.results, strict=True):
        if render.AS_JSON.get():
            render.print_json({"operation_id": operation_id, **render.result_document(answer)}, indent=None)
        else:
            outcome = render.outcome_text(answer.outcome)
            sys.stdout.write(f"{operation_id} {outcome} after {render.exact(answer.waited)}\n")
    sys.stdout.flush()


def _paced(done: str, count: int, elapsed: float) -> str:
    pace = f" ({count / elapsed:,.0f} per second)" if elapsed > 0 else ""
    return f"{render.counted(count, 'wait')} {done} in {render.exact(elapsed)}{pace}"


def _outcome_counts(counts: Counter[Outcome]) -> str:
    return ", ".join(f"{counts[one]:,} {render.outcome_text(one)}" for one in sorted(counts)) or "no results"


def _counts_document(counts: Counter[Outcome]) -> dict[str, int]:
    return {outcome.name.lower(): counts[outcome] for outcome in sorted(counts)}
