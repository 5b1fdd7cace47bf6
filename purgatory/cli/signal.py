"""`purgatory signal`: signals a key, with a value or as failed."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Final

from purgatory_client.aio import AsyncClient
from typer import Argument, Option

from purgatory.cli import render
from purgatory.cli.completion import keys
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError

VALUE_BYTES_MAX: Final = 4_096


async def signal(
    client: AsyncClient,
    key: Annotated[str, Argument(metavar="KEY", autocompletion=keys, help="Like job-17.")],
    count: Annotated[int, Option(min=1, help="Number of signals.")] = 1,
    value: Annotated[
        str | None, Option(metavar="TEXT", help="For the results of all waits on the key; at most 4,096 bytes.")
    ] = None,
    value_file: Annotated[
        str | None, Option("--value-file", metavar="FILE", help="Read the value from a file; -: from stdin.")
    ] = None,
    failed: Annotated[
        bool, Option("--failed", help="Report a failure: waits on the key fail, with the value as the reason.")
    ] = False,
    heartbeat: Annotated[
        bool, Option("--heartbeat", help="Send a heartbeat, which does not count (see wait --heartbeat).")
    ] = False,
) -> Exit:
    if heartbeat and (value is not None or value_file is not None or failed or count != 1):
        raise UsageError("--heartbeat cannot be combined with --count, --value, --value-file or --failed")
    if value is not None and value_file is not None:
        raise UsageError("--value and --value-file cannot be combined")
    octets = os.fsencode(value or "") if value_file is None else _content(value_file)
    render.receipt(await client.signal_key(key, 0 if heartbeat else count, value=octets, failed=failed))
    return Exit.OK


def _content(path: str) -> bytes:
    if path == "-" and sys.stdin is None:
        raise UsageError("cannot read the value: stdin is closed")
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            content = file.read(VALUE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read the value: {error}") from error
    if len(content) > VALUE_BYTES_MAX:
        raise UsageError(f"the value has more than {VALUE_BYTES_MAX:,} bytes; store it elsewhere, and signal its name")
    return content
