"""A minimal source that reads positions from a file, with a program that runs it.

    python -m tests.sources.file_source POSITIONS STATE_DIR ADDRESS...

The file is JSON and replaced as a whole: {"t/orders": [offset, identity], ...}. Without the file the source is stale.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from purgatory_client import AsyncClient
from purgatory_connectors.cli import start_logging, until_stopped
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.publisher.lineage_store import LineageStore
from purgatory_connectors.publisher.observation import End, Observation, SourceState, StaleMarks
from purgatory_connectors.publisher.publisher import Publisher, Source

PREFIX = "t/"
Positions = dict[str, tuple[int, str]]


def write_positions(path: Path, positions: Positions) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(positions), "utf-8")
    part.replace(path)


class FileSource(Source):
    """Polls the file every 10 ms."""

    def __init__(self, path: Path) -> None:
        self.name = f"file://{path.name}"
        self.topic_prefixes = (PREFIX,)
        self._path = path

    async def run(self, publisher: Publisher) -> None:
        seen: Positions = {}
        stale_since = None
        loop = asyncio.get_running_loop()
        while True:
            try:
                now = self._read()
            except FileNotFoundError:
                stale_since = stale_since or loop.time()
                stale = StaleMarks("", stale_ms=round((loop.time() - stale_since) * 1_000), reason="the file is gone")
                publisher.report(SourceState.STALE, "the file is gone", [stale])
            else:
                stale_since = None
                publisher.observe(Observation(topic, 0, *at) for topic, at in now.items() if seen.get(topic) != at)
                publisher.observe(
                    [Observation(*name, None) for name in publisher.published(PREFIX) if name[0] not in now]
                )
                publisher.report(SourceState.LIVE)
                seen = now
            await asyncio.sleep(0.01)

    async def ends(self, names: Sequence[str]) -> list[End]:
        try:
            return [End(name, 0, self._read()[name][0]) for name in names]
        except FileNotFoundError:
            raise SourceStale("the file is gone") from None

    def _read(self) -> Positions:
        return {topic: (at[0], at[1]) for topic, at in json.loads(self._path.read_text("utf-8")).items()}


class FileSourceProcess:
    """A running source program."""

    def __init__(self, positions: Path, state_dir: Path, addresses: Sequence[str]) -> None:
        state_dir.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.sources.file_source", str(positions), str(state_dir), *addresses]
        with (state_dir / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
        self.log = state_dir / "log"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


async def _main(positions: Path, state_dir: Path, addresses: list[str]) -> None:
    publisher = Publisher(
        FileSource(positions),
        {address: partial(AsyncClient, address, name="source") for address in addresses},
        LineageStore(state_dir),
    )
    await until_stopped(publisher.run())


if __name__ == "__main__":
    start_logging("text", "info")
    logging.getLogger("purgatory_connectors").setLevel("INFO")
    asyncio.run(_main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
