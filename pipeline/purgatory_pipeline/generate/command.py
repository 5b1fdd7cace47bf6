"""The command `generate`: its options, and what it prints."""

import sys
from typing import Annotated

import typer

from purgatory.engine import COMPILED


def generate(
    operations: Annotated[str, typer.Option(metavar="N", help="How many operations: 10k, 1M, 100M.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the archive goes: an empty folder, or a URI.")],
    seed: Annotated[int, typer.Option(help="The same seed and options give the same archive.")] = 1,
    topics: Annotated[str, typer.Option(metavar="N|NAMES", help="How many topics, or their names with commas.")] = "5",
    slow_replica: Annotated[
        str, typer.Option(metavar="ID=+MSms@SHARE%", help="A replica that fetches late now and then; or none.")
    ] = "3=+150ms@8%",
    timeout_ms: Annotated[
        int | None,
        typer.Option(metavar="MS", help="Timeout of most produces; some get a quarter, some five times as much."),
    ] = None,
    duration: Annotated[str, typer.Option(metavar="SPAN", help="Time that the history spans: 90m, 24h, 7d.")] = "24h",
    start: Annotated[str, typer.Option(metavar="INSTANT", help="When it begins (UTC); 2026-11-02 if not given.")] = "",
    runs: Annotated[
        int | None, typer.Option(metavar="N", help="How many daemon lives, each a task; by size if not given.")
    ] = None,
) -> None:
    """Generates a history of any size through the real engine, with its ground truth in DIR/_truth."""
    from purgatory_pipeline.generate.history_plan import make_plan
    from purgatory_pipeline.generate.make_archive import check_empty, make_archive
    from purgatory_pipeline.generate.truth import summarize
    from purgatory_pipeline.spark.spark_session import spark_session

    plan = make_plan(
        operations,
        seed=seed,
        topics=topics,
        slow_replica=slow_replica,
        timeout_ms=timeout_ms,
        duration=duration,
        start=start,
        runs=runs,
    )
    check_empty(out)
    if not COMPILED:
        print("the engine is not compiled here: this takes about five times as long", file=sys.stderr)
    made = make_archive(spark_session("generate"), plan, out)
    truth = summarize(plan, out)
    print(
        f"{made.operations:,} operations in {made.runs} runs: {made.rows:,} rows, {made.files:,} files, "
        f"{made.bytes / 1e6:,.1f} MB in {made.seconds:.1f} s ({made.operations / made.seconds:,.0f} operations/s)"
    )
    for kind, counts in truth["outcomes"].items():
        print(f"  {kind}: " + ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items())))
    print(f"archive {out}, truth {out.rstrip('/')}/_truth/truth.json")
