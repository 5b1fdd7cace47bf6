"""The snapshots next to the log: the leader stores them, and every daemon shows how old the last one is."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from purgatory.extensions.fleet.settings import FleetSettings
from purgatory.replicated_log.errors import FleetLogError
from purgatory.replicated_log.leadership import Leadership
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.replicated_log import ReplicatedLog
from purgatory.replicated_log.snapshots import LastSnapshot, find_last, store_and_trim

LOGGER: Final = logging.getLogger(__name__)

AGE_S_MAX: Final = 3_600.0
"""Age after which a snapshot is stored, however little was appended."""
CHECK_S: Final = 5.0
LOOK_S: Final = 600.0
"""How often a standby looks: Kafka has to return the whole snapshot for it."""


class SnapshotTask:
    """The last snapshot, as far as this daemon knows. `follow` and `store` run until they are cancelled."""

    def __init__(self, settings: FleetSettings) -> None:
        self.last = LastSnapshot()
        self._settings: Final = settings

    async def follow(self) -> None:
        """On a standby: look for the last snapshot from time to time."""
        while True:
            await self._run(find_last, "find")
            await asyncio.sleep(LOOK_S if self.last.logged_ms else CHECK_S)

    async def store(self, leadership: Leadership, database: Path) -> None:
        """On the leader: store a snapshot of its file when enough was appended, or the last one is old.

        Raises:
            JournalDamaged: The file is damaged.
        """
        loop = asyncio.get_running_loop()
        stored_bytes = leadership.appended_bytes
        while True:
            if not self.last.logged_ms:
                await self._run(find_last, "find")
            await asyncio.sleep(CHECK_S)
            added_bytes = leadership.appended_bytes - stored_bytes
            is_old = self.last.age_s(leadership.logged_ms) >= AGE_S_MAX
            if added_bytes < self._settings.snapshot_bytes and not is_old:
                continue
            began_s, began_bytes = loop.time(), leadership.appended_bytes
            if await self._run(lambda log: store_and_trim(database, log), "store"):
                stored_bytes = began_bytes
                LOGGER.info("stored a snapshot of position %d, in %.1f s", self.last.position, loop.time() - began_s)

    async def _run(self, work: Callable[[ReplicatedLog], LastSnapshot], verb: str) -> bool:
        """Run on a thread, with a log of its own: the other one is used by the journal's thread, or the standby's."""

        def run() -> None:
            with closing(open_log(self._settings.log, self._settings.shard)) as log:
                self.last = work(log)

        try:
            await asyncio.to_thread(run)
        except (FleetLogError, sqlite3.Error, OSError) as error:
            LOGGER.warning("could not %s a snapshot (%s); will be retried", verb, error)
            return False
        return True
