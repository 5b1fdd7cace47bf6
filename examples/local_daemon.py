"""A real daemon for a demonstration: `async with serving(folder, "--source", uri) as address:`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

START_S_MAX: Final = 60.0


@asynccontextmanager
async def serving(folder: Path, *arguments: str) -> AsyncIterator[str]:
    """Serve on free loopback ports until the end of the block; yields the gRPC address. Logs to `folder`."""
    ready = folder / "ready.json"
    options = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--ready-file", str(ready)]
    with (folder / "daemon.log").open("w") as log:
        daemon = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "purgatory", "serve", *options, *arguments,
            stdout=log, stderr=log, start_new_session=True,  # Ctrl-C must reach the demonstration only, which ends it
        )  # fmt: skip
    try:
        async with asyncio.timeout(START_S_MAX):
            while not ready.exists():
                if daemon.returncode is not None:
                    raise SystemExit(f"the daemon did not start:\n{(folder / 'daemon.log').read_text('utf-8')}")
                await asyncio.sleep(0.05)
        yield str(json.loads(ready.read_text("utf-8"))["grpc_address"])
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        await daemon.wait()
