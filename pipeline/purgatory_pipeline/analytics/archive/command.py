"""The command `check`: usable and unusable parts of an archive, and inconsistencies."""

from typing import Annotated

import typer


def check(
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="Folder or URI of the archive.")],
    since: Annotated[str, typer.Option(metavar="INSTANT", help="Only rows at or after this instant (UTC).")] = "",
    until: Annotated[str, typer.Option(metavar="INSTANT", help="Only rows before this instant (UTC).")] = "",
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; may be repeated.")] = None,
) -> None:
    """Accounts for an archive: files and rows used or set aside, and operations without registration or outcome."""
    from purgatory_pipeline.analytics.archive.accounting import account
    from purgatory_pipeline.analytics.archive.catalog import find_archive
    from purgatory_pipeline.spark.spark_session import spark_session
    from purgatory_pipeline.time_arguments import parse_window

    start, end = parse_window(since, until)
    found = find_archive(archive)
    intake = account(spark_session("check", rows=found.all_rows), found, since=start, until=end, topics=topic or None)
    intake.print()
    for file in found.set_aside:
        typer.echo(f"set aside {file.path}: {file.reason}: {file.detail}")
