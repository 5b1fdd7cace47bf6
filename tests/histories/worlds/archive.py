"""A host with an archive, called without a network: sessions come and go, with waits and events of all kinds.

Some requests are invalid or repeated, the clock jumps, and the reaper runs late. Then the calls of the archive, on a
new engine, must end every operation in the same way.
"""

import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.operation_columns import columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.archive_listener import ArchiveListener, ArchiveSettings, writer_config
from purgatory.service.draining import drain
from purgatory.service.errors import BatchRejected, RpcError
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Completed, Listener
from purgatory.service.sessions.session import Session
from purgatory.service.settings import EngineSettings, HostSettings, LimitsSettings, SessionSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from tests.archive.archive_kit import Replay, Row, ThreadLink, rows_of, without
from tests.engine import plain
from tests.engine.adapter import ended_of, event_batch, operation_batch
from tests.histories.history import History
from tests.histories.plan import KEYS, PARTITIONS, Generator, one_owner
from tests.histories.tables import OF_OPERATIONS, Seen, features_of, features_of_end
from tests.kit.served_host import apply_events
from tests.kit.sizes import all_sizes

PATHS = ("host", "replay")
FAULTS = ("none", "stall", "stop")
FEATURES = tuple(OF_OPERATIONS)
STEPS: Final = 120
CLOSE_S: Final = 30.0
SESSION_TTL_MS: Final = 200


class Ends(Listener):
    """Notes the features that show in results."""

    def __init__(self, seen: Seen) -> None:
        self._seen: Final = seen

    def completed(self, event: Completed) -> None:
        for ended in ended_of(event.completions):
            self._seen.note(features_of_end(ended), *PATHS, "none")


class Life:
    """Performs random steps, with tight limits unless `roomy`. Events are sent by these principals.

    `end` shuts the host down and completes the archive.
    """

    def __init__(self, folder: Path, seed: int, *, roomy: bool = False, principals: Sequence[str] = ("",)) -> None:
        self._principals: Final = principals
        self._random: Final = random.Random(seed)
        self.clock: Final = ManualClock(self._random.randrange(1_000))
        engine_choices: dict[str, Any] = {
            "tick_ms": self._random.choice((1, 1, 7)),
            "strict_partitions": self._random.random() < 0.2 and not roomy,
            "replica_lag_time_max_ms": 100,
        }
        narrow = EngineLimits(
            pending_operations_max=self._random.choice((20, 1_000)), partitions_max=5, signal_keys_max=2
        )
        limits = EngineLimits() if roomy else narrow
        self.new_engine: Final[Callable[[int], Engine]] = lambda started_ms: Engine(
            limits, started_ms, **engine_choices
        )
        """Creates an engine with the same settings, for the given start time."""
        started_ms = self.clock.now_ms()
        archive_settings = ArchiveSettings(uri=str(folder))
        self._link: Final = ThreadLink(
            writer_config(archive_settings, EngineSettings(**engine_choices), limits, started_ms)
        )
        self._archive: Final = ArchiveListener(self._link, archive_settings, limits.timeout_ms_default)
        host_settings = HostSettings(
            limits=LimitsSettings(unacknowledged_results_max=200), session=SessionSettings(ttl_ms=SESSION_TTL_MS)
        )
        host_settings = HostSettings() if roomy else host_settings
        self.host: Final = Host(self.new_engine(started_ms), self.clock, host_settings)
        self.host.listeners.append(self._archive)
        self.seen: Final = Seen()
        self.host.listeners.append(Ends(self.seen))
        self._pauses: Final = [] if roomy else [self._pause]
        """A restored host counts a silence from its start, so what a pause leaves of one is not comparable there."""
        self._plan: Final = one_owner(seed, timeout_max_ms=300)
        self._drawn: Final[list[plain.Operation]] = []

    async def live(self, steps: int) -> None:
        deeds = [self._register] * 6 + [self._advance] * 5 + [self._pass_time] * 3
        rare = [self._cancel, self._extend, self._fail_stale, self._wait_unary, self._drop_sessions, *self._pauses]
        for _ in range(steps):
            deed = self._random.choice([*deeds, *rare])
            try:
                await deed()
            except (BatchRejected, RpcError):
                continue

    async def end(self) -> None:
        await drain(self.host, 0.0)
        self._register_some(self._session())  # refused and recorded as refused
        await self._link.start()  # until now all records were held in memory
        await self._archive.close(self.clock.now_ms(), CLOSE_S)
        for row in self._drawn:
            self.seen.note(features_of(row), *PATHS, "none")

    # Actions.

    def _session(self) -> Session:
        session, _ = self.host.sessions.open(self._random.choice("abc"), self.clock.now_ms())
        if self._random.random() < 0.8:
            self.host.acknowledge(session, session.outbox.last_sequence)
        return session

    async def _register(self) -> None:
        self._register_some(self._session())

    def _register_some(self, session: Session) -> None:
        self.host.registration(session).register([self._run() for _ in range(self._random.choice((1, 2)))], [])

    def _run(self, operations_max: int = 5) -> OperationRun:
        kind = self._random.choice(plain.KINDS)
        batch = drawn_operations(self._plan, self._random, kind, self._random.randint(1, operations_max), self._drawn)
        return OperationRun(kind, batch)

    async def _advance(self) -> None:
        batch = event_batch([self._plan.event() for _ in range(self._random.randint(0, 6))])
        if batch.types and self._random.random() < 0.05:
            self._random.choice((batch.types, batch.item_indexes))[0] = 99
        principal = self._principals[self._random.randrange(len(self._principals))]
        await apply_events(self.host, batch, self.host.shares.accounts.of(principal))

    async def _pass_time(self) -> None:
        self.clock.jump(self._random.choice((0, 1, 10, 100)))
        if self._random.random() < 0.8:
            self.host.reaper.turn()
        else:
            self._note_fault("stall")

    async def _pause(self) -> None:
        """The process is stopped, and nothing is read in that time."""
        self._note_fault("stop")
        self.host.listening.tick()
        self.clock.jump(self._random.choice((300, 1_000)))
        self.host.reaper.turn()

    def _note_fault(self, fault: str) -> None:
        """All pending operations of the sessions meet it."""
        describe = self.host.engine.inspection.describe
        for row in self._drawn:
            if any(describe(session.owner, row.operation_id) is not None for session in self.host.sessions):
                self.seen.note(features_of(row), fault)

    async def _cancel(self) -> None:
        session = self._session()
        how = self._random.randrange(4)
        if how == 0:
            ids = [self._plan.next_ids[0] - self._random.randint(1, 10) for _ in range(3)]
            self.host.cancel(session, [*ids, 2**64 - 1])
        elif how == 1:
            await self.host.cancel_session(session)
        elif how == 2:
            await self.host.cancel_waits(self._random.choice(PARTITIONS))
        else:
            await self.host.cancel_waits((self._random.choice(KEYS), -1))

    async def _extend(self) -> None:
        ids = [self._plan.next_ids[0] - self._random.randint(1, 10) for _ in range(3)]
        if any(self.host.extend(self._session(), ids, self._random.choice((1, 30, 300)))):
            self.seen.note(["extended"], *PATHS, "none")

    async def _fail_stale(self) -> None:
        """Some marks have been stale for some time, but only at this moment."""
        now_ms, waits = self.host.time.now_ms(), self.host.engine.stale_waits
        stale_ms = {
            name: self._random.choice((0, 5, 50))
            for name in self._random.sample(PARTITIONS, self._random.randrange(len(PARTITIONS)))
        }
        owner_id = self._session().owner.owner_id
        due = [slot for slot in waits.due(waits.slots(), stale_ms, now_ms) if waits.owner_id(slot) == owner_id]
        if due:
            ids = sorted(waits.operation_id(slot) for slot in due)
            self.host.fail_stale(owner_id, ids, set(stale_ms))

    async def _wait_unary(self) -> None:
        """A unary wait whose caller disconnects, immediately or in the next iteration of the loop."""
        with self.host.unary_wait(self.host.sessions.accounts.nobody) as (operation_id, _future):
            run = self._run(1)
            run.batch.operation_ids[0] = operation_id
            self.host.register_unary_wait(run, self.host.sessions.accounts.nobody)
            await asyncio.sleep(0)

    async def _drop_sessions(self) -> None:
        self.clock.jump(self._random.choice((1, SESSION_TTL_MS)))
        self.host.sessions.drop_expired(self.clock.now_ms())


def drawn_operations(
    plan: Generator, chance: random.Random, kind: int, count: int, drawn: list[plain.Operation] | None = None
) -> OperationBatch:
    """A batch as a caller sends it: sometimes sent again, or invalid. Its rows are added to `drawn`."""
    rows = [plan.operation(0, kind) for _ in range(count)]
    if chance.random() < 0.1:  # sent again, or invalid
        rows = [row._replace(operation_id=max(0, row.operation_id - 4)) for row in rows]
    if chance.random() < 0.1:
        rows[0] = rows[0]._replace(items=())
    if drawn is not None:
        drawn.extend(rows)
    batch = operation_batch(rows)
    if batch.item_indexes and chance.random() < 0.1:
        batch.item_indexes[0] = 99
    shorten(batch, ["timeouts_ms", *(column.batch_name for column in columns_of(kind))], chance)
    return batch


def shorten(batch: OperationBatch | EventBatch, names: Sequence[str], chance: random.Random) -> None:
    """Columns often have one value for all rows, or none: the default."""
    for name in names:
        del getattr(batch, name)[chance.choice((0, 1, 100_000, 100_000)) :]


def comparable(outcomes: list[Row]) -> list[Row]:
    """Sorted: a silence is noticed in one go with earlier deadlines, so the order in which a time ends them is free."""
    rows = without(outcomes, "at")
    for row in rows:
        if row["outcome"] in ("expired", "failed", "shutting_down"):
            row["call_number"] = 0  # nor is it fixed which of the clock's calls at that time ends which of them
    return sorted(rows, key=lambda row: (row["time_ms"], row["session_number"], row["operation_id"], row["item"]))


def run(history: History) -> None:
    """Live, and compare the outcomes, row by row, with those of the archive's calls on a new engine."""

    async def live(folder: Path) -> None:
        life = Life(folder, history.seed)
        if history.seed % 2 == 0:  # a silence moves timers, and then any slice of a call may end what is due
            life._plan.swarm.heartbeats = 0.0
        await life.live(STEPS)
        await life.end()
        history.seen.pairs.update(life.seen.pairs)

    # In half of the lives, calls are cut into slices all the time.
    with tempfile.TemporaryDirectory() as name, nullcontext() if history.seed % 2 else all_sizes(2):
        asyncio.run(live(Path(name)))
        outcomes = rows_of(Path(name), schema.OUTCOMES)
        history.figures.update(outcomes=len(outcomes))
        if comparable(Replay(Path(name)).outcomes) != comparable(outcomes):
            history.judge.complaints.append("a new engine ends operations in another way than the archive says")
