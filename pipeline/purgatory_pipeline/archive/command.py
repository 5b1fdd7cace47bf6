"""The command `check`: reports the content of an archive, unusable files, and inconsistencies."""

from typing import Annotated

import typer


def check(
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="The archive's folder, or its URI.")],
    since: Annotated[str, typer.Option(metavar="INSTANT", help="From this instant on (UTC).")] = "",
    until: Annotated[str, typer.Option(metavar="INSTANT", help="Before this instant (UTC).")] = "",
    topic: Annotated[list[str] | None, typer.Option(help="Of this topic only; may be repeated.")] = None,
) -> None:
    """Accounts for an archive: files and rows used or set aside, and operations with a missing end."""
    from purgatory_pipeline.archive.accounting import account
    from purgatory_pipeline.archive.catalog import find_archive
    from purgatory_pipeline.spark.spark_session import spark_session
    from purgatory_pipeline.time_arguments import parse_window

    start, end = parse_window(since, until)
    found = find_archive(archive)
    intake = account(spark_session("check"), found, since=start, until=end, topics=topic or None)
    intake.print()
    for file in found.set_aside:
        typer.echo(f"set aside {file.path}: {file.reason}: {file.detail}")
