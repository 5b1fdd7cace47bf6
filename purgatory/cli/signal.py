"""`purgatory signal`: signals a key, with a value or as failed."""

import sys
from pathlib import Path
from typing import Annotated

from purgatory_client.aio import AsyncClient
from typer import Argument, Option

from purgatory.cli import render
from purgatory.cli.completion import keys
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError


async def signal(
    client: AsyncClient,
    key: Annotated[str, Argument(metavar="KEY", autocompletion=keys, help="Like job-17.")],
    count: Annotated[int, Option(min=1, help="Number of signals.")] = 1,
    value: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            help="For the results of all waits on the key: text, @FILE, or @- for stdin; at most 4,096 bytes.",
        ),
    ] = None,
    failed: Annotated[
        bool, Option("--failed", help="Report a failure: waits on the key fail, with the value as the reason.")
    ] = False,
    heartbeat: Annotated[
        bool, Option("--heartbeat", help="Send a heartbeat, which does not count (see wait --heartbeat).")
    ] = False,
) -> Exit:
    if heartbeat and (value is not None or failed or count != 1):
        raise UsageError("--heartbeat cannot be combined with --count, --value or --failed")
    octets = b"" if value is None else _value(value)
    render.receipt(await client.signal_key(key, 0 if heartbeat else count, value=octets, failed=failed))
    return Exit.OK


def _value(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    if text == "@-":
        if sys.stdin is None:
            raise UsageError("cannot read the value: stdin is closed")
        return sys.stdin.buffer.read()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the value: {error}") from error
