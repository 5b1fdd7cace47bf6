"""The fleet extension: stands by until this process leads, and then shows the log that it is alive."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from google.rpc import code_pb2

from purgatory.extension import Core, Extension, HttpParts, StartupError, own_settings
from purgatory.extensions.fleet import fleet_view
from purgatory.extensions.fleet.settings import FleetSettings, WithFleet
from purgatory.extensions.fleet.standby_site import GET_TOPOLOGY, StandbySite
from purgatory.extensions.fleet.supervisor import Supervisor, end_with_stdin
from purgatory.journal.directory import DATABASE
from purgatory.journal.errors import JournalDamaged
from purgatory.replicated_log.errors import CutOff, FleetLogError
from purgatory.replicated_log.leadership import EXIT_REPLACED, Leadership
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.replica import is_copy
from purgatory.replicated_log.replicated_log import ReplicatedLog
from purgatory.replicated_log.snapshots import LastSnapshot, find_last, store_and_trim
from purgatory.replicated_log.standby import Standby
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.errors import RpcError, unavailable
from purgatory.service.http.http_calls import HttpMethods
from purgatory.service.listeners.listener import Listener
from purgatory.service.rpc.call import Call, Context, Identify
from purgatory.service.rpc.handlers import Method
from purgatory.service.settings import Settings
from purgatory.service.translate.shards import Shards
from purgatory.source_uri import SourceUri
from purgatory.v1.purgatory_service_pb2 import GetTopologyResponse, HandOverRequest, HandOverResponse

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


EVERYTHING: Final = "all topics and keys"
SHARD_NOTE: Final = "shard"
"""A file in the folder of a journal, if there are shards."""


class FleetExtension(Extension):
    """Does nothing unless `fleet.log` or `fleet.targets` is set."""

    name = "fleet"
    settings = WithFleet
    needed_for = "fleet.log fleet.targets"

    @classmethod
    async def stand_by(cls, settings: Settings) -> Leadership | None:
        """Follow the log until this process leads. The daemon's addresses are served meanwhile. With `--shards`, run
        the daemons instead.
        """
        own = own_settings(settings, WithFleet)
        fleet = own.fleet
        if own.shards > 1:
            await Supervisor(settings, fleet, own.shards).run()
        if fleet.ends_with_stdin:
            end_with_stdin()
        if settings.journal.dir is not None:
            _check_folder(settings.journal.dir, fleet)
        return await cls._follow(settings, fleet) if fleet.log else None

    @classmethod
    async def _follow(cls, settings: Settings, fleet: FleetSettings) -> Leadership:
        for source in getattr(settings, "source", ()):
            command = f"purgatory-source {SourceUri.parse(source).kind} URI --to HOST:PORT,HOST:PORT"
            raise StartupError(
                f"fleet.log and source: run `{command}` with the addresses of all daemons, as a process of its own, "
                "which follows the leader"
            )
        if settings.journal.dir is None:
            raise StartupError("fleet.log needs journal.dir (--data-dir), for a copy of the log")
        if settings.journal.mode != "sync":
            raise StartupError("fleet.log needs journal.mode sync: async answers could be lost with the leader")
        try:
            log = open_log(fleet.log, fleet.shard)
        except FleetLogError as error:
            raise StartupError(str(error)) from None
        address = fleet.address or settings.grpc.address
        shards = max(1, len(fleet.shard_targets))
        standby = Standby(settings.journal.dir, log, fleet.silence_ms / 1_000, address, settings.http.address, shards)
        snapshots = SnapshotTask(fleet)
        topology = Shards(fleet.shard_targets, shard=fleet.shard).topology()
        site = StandbySite(settings, lambda: fleet_view.view_of_standby(standby, snapshots.last), topology)
        leading = asyncio.create_task(asyncio.to_thread(standby.lead), name="standby")
        following = asyncio.create_task(snapshots.follow(), name="fleet snapshots")
        try:
            await site.start()
            leadership = await asyncio.shield(leading)
        except CutOff as error:
            Leadership.exit(str(error))
        except FleetLogError as error:
            raise StartupError(str(error)) from None
        finally:
            # Also if this task is cancelled: the thread must end before the process does.
            standby.stop()
            following.cancel()
            await asyncio.gather(leading, following, return_exceptions=True)
            await site.stop()
        return leadership

    @classmethod
    def shards(cls, settings: Settings) -> Shards:
        fleet = own_settings(settings, WithFleet).fleet
        return Shards(fleet.shard_targets, fleet.urls.split(), fleet.shard)

    def __init__(self, core: Core) -> None:
        self._core: Final = core
        self._settings: Final = own_settings(core.settings, WithFleet).fleet
        self._shards: Final = core.host.sessions.shards
        takeover = core.takeover
        assert takeover is None or isinstance(takeover, Leadership), f"taken over by another extension: {takeover}"
        self._leadership: Final = takeover
        self._is_restored = False
        self._snapshots: Final = SnapshotTask(self._settings)
        self._tasks: Final[list[asyncio.Task[None]]] = []

    @property
    def listener(self) -> Listener | None:
        return None if self._leadership is None else fleet_view.FleetMetrics(self._view)

    def _view(self) -> fleet_view.FleetView:
        assert self._leadership is not None, "only the leader has a view of it"
        return fleet_view.view_of_leader(
            self._leadership, self._snapshots.last, is_confirmed=self._core.host.journal.is_confirmed
        )

    def status_line(self) -> str:
        parts = []
        if self._shards.are_several:
            parts.append(f"shard {self._shards.shard} of {len(self._shards.targets)}")
        if self._leadership is not None:
            parts.append(fleet_view.describe(self._view().as_json()))
        return ", ".join(parts)

    def identify(self, identify: Identify) -> Identify:
        """Refuse calls while it is not certain that this daemon leads; its state could be old."""
        host = self._core.host

        def for_method(method: str) -> Callable[[Context], Account]:
            account_of = identify(method)

            def account_if_leading(context: Context) -> Account:
                if not host.journal.is_confirmed:
                    raise unavailable("the log does not answer; another daemon may lead")
                return account_of(context)

            return account_of if method == GET_TOPOLOGY else account_if_leading

        return identify if self._leadership is None else for_method

    def calls(self) -> Mapping[str, Method]:
        return {GET_TOPOLOGY: self._get_topology, "HandOver": self._hand_over}

    async def _get_topology(self, _request: object, _call: Call) -> GetTopologyResponse:
        return self._shards.topology()

    async def _hand_over(self, _request: HandOverRequest, call: Call) -> HandOverResponse:
        """Answer, then end as at SIGTERM, but be started again."""
        account, audit = call.account, self._core.host.sessions.accounts.audit
        if ADMIN not in account.grants.everywhere:
            raise audit.denied(account.principal, ADMIN, EVERYTHING)
        if self._leadership is None:
            raise RpcError(code_pb2.FAILED_PRECONDITION, "no other daemon can lead: fleet.log is not set")
        if account.principal:
            audit.acted("handed over", account.principal)
        # Once the answer has been sent.
        on_end: Any = lambda _context: self._core.end("HandOver", EXIT_REPLACED)  # noqa: E731 - as in `held_answer`
        call.context.add_done_callback(on_end)
        return HandOverResponse()

    def routes(self, _methods: HttpMethods) -> HttpParts:
        return HttpParts() if self._leadership is None else HttpParts([fleet_view.fleet_route(self._view)])

    async def open(self) -> None:
        if self._leadership is not None:
            self._tasks.append(asyncio.create_task(self._beat(self._leadership), name="fleet heartbeat"))

    def start(self) -> None:
        self._is_restored = True

    def serving(self) -> None:
        folder = self._core.settings.journal.dir
        if self._leadership is not None and folder is not None:
            storing = self._store_snapshots(self._leadership, folder / DATABASE)
            self._tasks.append(asyncio.create_task(storing, name="fleet snapshots"))

    async def close(self, _grace_s: float) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _beat(self, leadership: Leadership) -> None:
        """Append something every `heartbeat_s`. On the event loop: if that hangs, the heartbeat must stop."""
        while True:
            if self._is_restored:
                self._core.host.journal.heartbeat()
            else:
                await asyncio.to_thread(leadership.heartbeat)
            await asyncio.sleep(leadership.heartbeat_s)

    async def _store_snapshots(self, leadership: Leadership, database: Path) -> None:
        try:
            await self._snapshots.store(leadership, database)
        except JournalDamaged as error:
            LOGGER.critical("this daemon's file is damaged (%s); handing over", error.what)
            self._core.end("damaged file", EXIT_REPLACED)  # the file is discarded by the next start


def _check_folder(folder: Path, fleet: FleetSettings) -> None:
    """Note in a folder to which shard it belongs. Raises `StartupError` if that is another one: its sessions would be
    looked for elsewhere.
    """
    if not fleet.log and is_copy(folder):
        raise StartupError(f"{folder} is a copy of a fleet's log: set fleet.log, or run `purgatory fleet leave`")
    if (folder / "0").is_dir():
        raise StartupError(f"{folder} has the journals of shards: start with --shards")
    note, shards = folder / SHARD_NOTE, len(fleet.shard_targets)
    alone = "a single daemon"
    try:
        was = note.read_text("utf-8") if note.exists() else alone
        now = f"shard {fleet.shard} of {shards}" if shards > 1 else alone
        if was != now and (was != alone or (folder / DATABASE).exists()):
            raise StartupError(f"{folder} is the journal of {was}, and not of {now}; use another folder")
        if was != now:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with note.open("w", encoding="utf-8") as written:
                written.write(now)
                written.flush()
                os.fsync(written.fileno())
    except OSError as error:
        raise StartupError(f"cannot use {folder} as data folder: {error.strerror or error}") from None
