"""Options that several commands share."""

from typing import Annotated

import typer

from purgatory_client.aio import DEFAULT_ADDRESS

__all__ = ["DEFAULT_ADDRESS", "Address", "AsJson"]

Address = Annotated[
    str, typer.Option("--address", "-a", envvar="PURGATORY_ADDRESS", help="The daemon's gRPC address, host:port.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
