"""`purgatory load` registers many waits in one session, optionally satisfies them, and prints the throughput;
`purgatory results` collects the results of a session without a connected client.
"""

import asyncio
import functools
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NoReturn

import typer
from purgatory_client import events
from purgatory_client.aio import AsyncClient
from purgatory_client.batches import partition_columns
from purgatory_client.number_checks import milliseconds
from purgatory_client.results import OperationKind, Outcome
from purgatory_client.session.detached_sessions import Collected

from purgatory.cli import render_load
from purgatory.cli.connection_options import DEFAULT_ADDRESS, Address, AsJson, run
from purgatory.cli.exit_codes import Exit, exit_of_outcomes
from purgatory.cli.parsing import UsageError, checked_partition, seconds


@dataclass(frozen=True, slots=True)
class Load:
    """The load. Operation i waits on partition i % `partitions`, one offset above the previous operation there."""

    session_id: str
    operations: int
    topic: str
    partitions: int
    timeout_ms: int
    batch: int
    rate: float

    @property
    def names(self) -> list[str]:
        return [checked_partition(f"{self.topic}-{number}") for number in range(self.partitions)]


def load(
    operations: Annotated[int, typer.Option("--operations", "-n", min=1, help="Number of waits.")] = 100_000,
    session: Annotated[str, typer.Option(help="Session id, unused so far; random by default.")] = "",
    topic: Annotated[str, typer.Option(help="Topic; the partitions are TOPIC-0, TOPIC-1 and so on.")] = "load",
    partitions: Annotated[int, typer.Option(min=1, max=100_000, help="Number of partitions to wait on.")] = 100,
    timeout: Annotated[str, typer.Option("--timeout", "-t", help="Timeout of each wait: 500ms, 30s, 2m, 1h.")] = "10m",
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Number of waits in one message.")] = 500,
    rate: Annotated[float, typer.Option(min=0, help="Waits per second; 0: no limit.")] = 0.0,
    advance: Annotated[
        bool, typer.Option("--advance", help="Advance the high watermarks until all waits are satisfied.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Exit after registering; collect with `purgatory results --session ID`.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Register many produce waits in one session, wait for their results, and print the throughput.

    The exit code is that of the most severe outcome; with --detach, 0 if the daemon accepted all waits.
    """
    session_id = session or f"load-{uuid.uuid4().hex[:12]}"

    async def call(client: AsyncClient) -> Exit:
        timeout_ms = milliseconds(seconds(timeout)) or 0
        wanted = Load(session_id, operations, topic, partitions, timeout_ms, batch, rate)
        report = await _load(client, wanted, advance=advance, detach=detach)
        render_load.load_report(report, as_json=as_json)
        return exit_of_outcomes(report.outcomes)

    stays = f"the registered waits stay pending; cancel them with: purgatory cancel --session {session_id}"
    raise typer.Exit(run(address, call, interrupted=stays))


def results(
    session: Annotated[
        str, typer.Option("--session", help="Session id, as printed by `purgatory load` and `purgatory ls`.")
    ],
    counts_only: Annotated[
        bool, typer.Option("--counts", help="Print only the number of results per outcome.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """Collect the results of a session until none of its operations is pending.

    Each result is acknowledged after it was printed, and the daemon then drops it. After Ctrl-C the rest stays at the
    daemon. The exit code is that of the most severe outcome.
    """

    async def call(client: AsyncClient) -> Exit:
        printing = None if counts_only else functools.partial(render_load.collected, as_json=as_json)
        outcomes = await _collect(client, session, printing)
        render_load.outcomes(session, outcomes, as_json=as_json, on_stdout=counts_only)
        return exit_of_outcomes(outcomes)

    raise typer.Exit(run(address, call, interrupted="results that were not printed are still at the daemon"))


async def _load(client: AsyncClient, wanted: Load, *, advance: bool, detach: bool) -> render_load.LoadReport:
    known = {one.name: one.high_watermark async for one in client.partitions(prefix=wanted.topic, page_size=1_000)}
    bases = [max(0, known.get(name, 0)) for name in wanted.names]
    started_s = time.monotonic()
    refused = await _register(client, wanted, bases)
    registered_s = time.monotonic()
    collecting = None if detach else asyncio.create_task(_collect(client, wanted.session_id))
    if advance:
        await _advance(client, wanted, bases)
    advanced_s = time.monotonic()
    outcomes = Counter({Outcome.REFUSED: refused}) if collecting is None else await collecting
    return render_load.LoadReport(
        session_id=wanted.session_id,
        operations=wanted.operations,
        registering=registered_s - started_s,
        advancing=advanced_s - registered_s if advance else None,
        ending=None if detach else time.monotonic() - registered_s,
        outcomes=+outcomes,
    )


async def _register(client: AsyncClient, wanted: Load, bases: list[int]) -> int:
    """Register all waits, one message at a time; returns the number of refused ones."""
    started_s = time.monotonic()
    refused, incarnation = 0, ""
    for first in range(0, wanted.operations, wanted.batch):
        if wanted.rate:
            await asyncio.sleep(started_s + first / wanted.rate - time.monotonic())
        chosen = range(first, min(first + wanted.batch, wanted.operations))
        indexes = [operation % wanted.partitions for operation in chosen]
        offsets = [bases[operation % wanted.partitions] + operation // wanted.partitions + 1 for operation in chosen]
        batch = partition_columns(
            OperationKind.PRODUCE, wanted.names, indexes, offsets, [wanted.timeout_ms], item_counts=None
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
    each = -(-wanted.operations // wanted.partitions)
    step = max(1, wanted.batch // wanted.partitions)
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
