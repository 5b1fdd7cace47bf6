"""The command `replay`: options and output."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import pandas as pd

    from purgatory_pipeline.archive.catalog import ArchiveCatalog
    from purgatory_pipeline.replay.replay_account import ReplayAccount
    from purgatory_pipeline.replay.replay_page import ReplayInfo


@click.command()
@click.argument("archive", metavar="ARCHIVE", help="Folder or URI of the archive.")
@click.option("--out", metavar="DIR", required=True, help="Folder for tables and the page.")
@click.option(
    "--set",
    "settings",
    metavar="[TOPIC:|KIND:]NAME=VALUE",
    multiple=True,
    help="timeout_ms, min_bytes or min_in_sync_replicas; 800, *1.5, +200, -200. May be repeated.",
)
@click.option(
    "--slow-replica", metavar="ID=+MSms", multiple=True, help="Delay the progress of a replica. May be repeated."
)
@click.option("--without-replica", metavar="ID", multiple=True, help="As if a replica were gone. May be repeated.")
@click.option("--leader-moves", metavar="SPAN", default="", help="As if each change of leadership took this time: 10s.")
@click.option(
    "--sweep", metavar="NAME=V1,V2,...", multiple=True, help="A policy for each of several values. May be repeated."
)
@click.option(
    "--results", is_flag=True, help="Also write a row for each operation to DIR/results (replays a second time)."
)
def replay(
    archive: str,
    out: str,
    settings: tuple[str, ...],
    slow_replica: tuple[str, ...],
    without_replica: tuple[str, ...],
    leader_moves: str,
    sweep: tuple[str, ...],
    results: bool,
) -> None:
    """Replays a history through the same engine, first unchanged and then under other policies."""
    from purgatory_pipeline.archive.accounting import account
    from purgatory_pipeline.archive.catalog import find_archive
    from purgatory_pipeline.location import open_output, write_file
    from purgatory_pipeline.replay.policy import parse_policies, parse_policy
    from purgatory_pipeline.spark.spark_session import spark_session, unwrapped_errors

    policies = parse_policies(parse_policy(settings, slow_replica, without_replica, leader_moves), sweep)
    found = find_archive(archive)
    place = open_output(out)
    spark = spark_session("replay", rows=found.all_rows)
    with ThreadPoolExecutor(2) as pool, unwrapped_errors():
        intake = pool.submit(account, spark, found)  # started first; the rest is prepared while its tasks run
        from purgatory_pipeline.page import document
        from purgatory_pipeline.replay import replay_task
        from purgatory_pipeline.replay.replay_account import ReplayAccount
        from purgatory_pipeline.replay.replay_page import replay_page
        from purgatory_pipeline.replay.replay_sums import frames_of, write_frames
        from purgatory_pipeline.replay.run_files import find_runs

        pool.submit(document.libraries)
        sums = replay_task.replay_sums(spark, found, policies)
    intake.result().print()
    if results:
        with unwrapped_errors():
            rows = replay_task.replay_rows(spark, found, policies)
            rows.write.mode("overwrite").parquet(place.spark_path(f"{place.root}/results"))
    frames = frames_of(sums, policies)
    summary = ReplayAccount(sums, [run.facts for run in find_runs(found)], policies)
    click.echo(summary.sentence())
    for line in [*summary.totals(), *summary.notes()]:
        click.echo(f"  {line}")
    for line in outcome_lines(frames["outcomes"]):
        click.echo(line)
    write_frames(place, frames)
    info = _info(found, summary, out)
    page = write_file(place, "replay.html", document.render(replay_page(frames, info)).encode())
    click.echo(f"tables and page in {out}; the page: {page}")


def outcome_lines(outcomes: pd.DataFrame) -> list[str]:
    """Outcomes of each kind, unchanged and under each policy, of the same operations; one line if no policy changes
    anything.
    """
    from purgatory_pipeline.replay.replay_sums import UNCHANGED_NAME

    lines = []
    overall = outcomes[outcomes["topic"].isna()]
    wide = overall.pivot_table(index=["kind", "policy"], columns="outcome", values="share", fill_value=0.0, sort=False)
    for kind, of_kind in wide.groupby(level="kind", sort=False):
        by_policy = {policy: _shares(row) for (_, policy), row in of_kind.iterrows()}
        unchanged = by_policy.pop(UNCHANGED_NAME)
        in_doubt = overall["in_doubt"][overall["kind"] == kind].max()
        rest = f" ({in_doubt:,} in doubt are left out)" if in_doubt else ""
        if by_policy and set(by_policy.values()) == {unchanged}:
            lines.append(f"{kind}, unchanged and under every policy: {unchanged}{rest}")
        else:
            by_policy = {"unchanged": unchanged, **by_policy}
            lines += [f"{kind}, {policy}: {shares}{rest}" for policy, shares in by_policy.items()]
    return lines


def _shares(outcomes: pd.Series[float]) -> str:
    return ", ".join(f"{100 * share:.2f} % {outcome}" for outcome, share in outcomes.items() if share)


def _info(found: ArchiveCatalog, summary: ReplayAccount, out: str) -> ReplayInfo:
    import pyspark

    from purgatory import __version__
    from purgatory_pipeline.replay.replay_page import ReplayInfo

    return ReplayInfo(
        archive=found.uri,
        first_at=min((file.first_at for file in found.used if file.first_at is not None), default=None),
        last_at=max((file.last_at for file in found.used if file.last_at is not None), default=None),
        policies=tuple(policy.label for policy in summary.policies if policy.changes_something),
        compared=summary.compared,
        equal=summary.equal,
        account=tuple(summary.totals()),
        notes=tuple(summary.notes()),
        options={"out": out},
        versions={"purgatory": __version__, "pyspark": pyspark.__version__},
    )
