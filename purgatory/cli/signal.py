"""`purgatory signal`: signals a key, with a value or as failed."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

import click
from purgatory_client.aio import AsyncClient

from purgatory.cli import render
from purgatory.cli.completion import keys
from purgatory.cli.connection_options import WRITES, client_command
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError, flag
from purgatory.command_line import FILE, Whole

VALUE_BYTES_MAX: Final = 4_096


@client_command(WRITES)
@click.argument("key", metavar="KEY", shell_complete=keys, help="Like job-17.")
@click.option("--count", type=Whole(min=1), default=1, help="Number of signals.")
@click.option("--value", metavar="TEXT", help="For the results of all waits on the key; at most 4,096 bytes.")
@click.option("--value-file", metavar="FILE", type=FILE, help="Read the value from a file; -: from stdin.")
@flag("--failed", help="Report a failure: waits on the key fail, with the value as the reason.")
@flag("--heartbeat", help="Send a heartbeat, which does not count (see wait --heartbeat).")
async def signal(
    client: AsyncClient,
    key: str,
    count: int,
    value: str | None,
    value_file: Path | None,
    failed: bool,
    heartbeat: bool,
) -> Exit:
    if heartbeat and (value is not None or value_file is not None or failed or count != 1):
        raise UsageError("--heartbeat cannot be combined with --count, --value, --value-file or --failed")
    if value is not None and value_file is not None:
        raise UsageError("--value and --value-file cannot be combined")
    octets = os.fsencode(value or "") if value_file is None else _content(value_file)
    render.receipt(await client.signal_key(key, 0 if heartbeat else count, value=octets, failed=failed))
    return Exit.OK


def _content(path: Path) -> bytes:
    is_stdin = str(path) == "-"
    if is_stdin and sys.stdin is None:
        raise UsageError("cannot read the value: stdin is closed")
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as file:
            content = file.read(VALUE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read the value: {error}") from error
    if len(content) > VALUE_BYTES_MAX:
        raise UsageError(f"the value has more than {VALUE_BYTES_MAX:,} bytes; store it elsewhere, and signal its name")
    return content
