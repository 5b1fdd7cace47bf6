"""The command line of sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from purgatory_sources.feed.source import Source
    from purgatory_sources.uri import SourceUri

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Tell Purgatory daemons where things stand.")


def open_source(uri: SourceUri) -> Source:
    """The source of an address. Raises SourceRefused; ExtraMissing where what it reads with is not installed."""
    raise NotImplementedError(uri)


def main() -> None:
    """The console script `purgatory-source`."""
    app()
