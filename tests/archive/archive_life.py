"""A random life of a host with an archive: sessions come and go, with waits of all kinds and events of all types.

Some requests are invalid or repeated, the clock jumps, and the reaper runs late. There is neither a network nor a real
clock.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, ReplicaSets
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.operation_columns import OPERATION, OperationColumn, columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive.archive_listener import ArchiveListener, ArchiveSettings, writer_config
from purgatory.service.draining import drain
from purgatory.service.errors import BatchRejected, RpcError
from purgatory.service.host import Host
from purgatory.service.sessions.session import Session
from purgatory.service.settings import EngineSettings, HostSettings, LimitsSettings, SessionSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from tests.archive.archive_kit import ThreadLink
from tests.kit.served_host import apply_events

PARTITIONS: Final = [(topic, partition) for topic in ("orders", "clicks") for partition in range(3)]
KEYS: Final = ["paid", "shipped", "closed"]
CLOSE_S: Final = 30.0
SESSION_TTL_MS: Final = 200
COLUMN_CHOICES: Final[dict[str, tuple[int, ...]]] = {
    "leader_epoch": (-1, 0, 1, 2),
    "local_error_code": (0, 0, 0, 6),
    "min_bytes": (1, 50, 500),
    "replica_id": (-1, 2, 3),
    "isolation_level": (0, 1, 2),
    "follower_reads": (False, True),
    "partition_max_bytes": (1_000, 20),
    "last_fetched_epoch": (-1, 0, 1),
    "throttled": (False, True),
    "any_key": (False, True),
    "from_now": (False, True),
    "stale_timeout_ms": (-1, -1, 0, 5, 50),
    "heartbeat_timeout_ms": (-1, -1, 0, 5, 50),
    "required_terms": (0, 0, 1, 2),
    "unless_count": (0, 0, 1),
}
"""Possible values of each column of a drawn operation, except its offset; some values are refused."""


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
            "wheel_size": self._random.choice((2, 5, 20)),
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
        self._pauses: Final = [] if roomy else [self._pause]
        """A restored host counts a silence from its start, so what a pause leaves of one is not comparable there."""
        self._last_id = 0
        self._marks: Final = dict.fromkeys(PARTITIONS, 0)
        self._epochs: Final = dict.fromkeys(PARTITIONS, 0)

    def twin(self, host: Host, clock: ManualClock) -> Life:
        """The same life with another host; it draws the same random choices as this one."""
        twin = copy.copy(self)
        changed = {"host": host, "clock": clock, "_random": random.Random(), "_marks": dict(self._marks)}
        twin.__dict__.update(changed, _epochs=dict(self._epochs))
        twin._random.setstate(self._random.getstate())
        return twin

    async def live(self, steps: int) -> None:
        """Perform random steps."""
        deeds = [self._register] * 6 + [self._advance] * 5 + [self._pass_time] * 3
        rare = [self._cancel, self._extend, self._fail_stale, self._wait_unary, self._drop_sessions, *self._pauses]
        for _ in range(steps):
            deed = self._random.choice([*deeds, *rare])
            try:
                await deed()
            except (BatchRejected, RpcError):
                continue

    async def end(self) -> None:
        """Shut down and complete the archive."""
        await drain(self.host, 0.0)
        self._register_some(self._session())  # refused and recorded as refused
        await self._link.start()  # until now all records were held in memory
        await self._archive.close(self.clock.now_ms(), CLOSE_S)

    # Actions.

    def _session(self) -> Session:
        session, _ = self.host.sessions.open(self._random.choice("abc"), self.clock.now_ms())
        if self._random.random() < 0.8:
            self.host.acknowledge(session, session.outbox.last_sequence)
        return session

    async def _register(self) -> None:
        self._register_some(self._session())

    def _register_some(self, session: Session) -> None:
        self.host.registration(session).register(
            [self._run(self._random.randint(1, 5)) for _ in range(self._random.choice((1, 2)))], []
        )

    def _run(self, operations: int) -> OperationRun:
        kind = self._random.choice(codes.KINDS)
        ids = list(range(self._last_id + 1, self._last_id + operations + 1))
        if self._random.random() < 0.1:  # sent again, or invalid
            ids = [max(0, operation_id - 4) for operation_id in ids]
        self._last_id = max(self._last_id, *ids)
        partitions = [] if kind == codes.SIGNAL else PARTITIONS
        keys = KEYS if kind in (codes.SIGNAL, codes.COMPOSITE) else []
        names = [*partitions, *keys]
        counts = [self._random.choice((1, 1, 1, 2, 3)) for _ in ids]
        if self._random.random() < 0.1:
            counts[0] = 0
        places = [place for count in counts for place in self._random.sample(range(len(names)), count)]
        if places and self._random.random() < 0.1:
            places[0] = 99
        offsets = [self._offset(kind, place) for place in places]
        batch = OperationBatch(
            ids,
            partitions=partitions,
            keys=keys,
            timeouts_ms=self._random.choice(([], [40], [self._random.randint(0, 300) for _ in ids])),
            item_counts=counts,
            item_indexes=places,
            offsets=offsets,
            **{
                column.batch_name: self._column(column, len(ids), len(places))
                for column in columns_of(kind)
                if column.name in COLUMN_CHOICES
            },
        )
        return OperationRun(kind, batch)

    def _offset(self, kind: int, place: int) -> int:
        if kind == codes.SIGNAL or (kind == codes.COMPOSITE and place >= len(PARTITIONS)):
            return self._random.randint(0, 4)
        return self._marks[PARTITIONS[place % len(PARTITIONS)]] + self._random.randint(-5, 20)

    def _column(self, column: OperationColumn, operations: int, items: int) -> list[Any]:
        """One value for each row, one for all rows, or none."""
        choices = COLUMN_CHOICES[column.name]
        rows = operations if column.level == OPERATION else items
        return self._random.choice(([], [choices[0]], self._random.choices(choices, k=rows)))

    async def _advance(self) -> None:
        batch = EventBatch(
            [], partitions=list(PARTITIONS), keys=list(KEYS), item_indexes=[], offsets=[], leader_epochs=[],
            replica_ids=[], byte_positions=[], segment_base_offsets=[], log_start_offsets=[], flags=[], replica_sets=[],
            values=[],
        )  # fmt: skip
        for _ in range(self._random.randint(0, 6)):
            self._add_event(batch)
        principal = self._principals[self._random.randrange(len(self._principals))]
        await apply_events(self.host, batch, self.host.shares.accounts.of(principal))

    def _add_event(self, batch: EventBatch) -> None:
        event_type = self._random.choice((*codes.EVENT_NAMES, *(codes.HIGH_WATERMARK, codes.LEADER_APPEND) * 4, 99))
        is_key = event_type == codes.KEY_SIGNALLED
        place = self._random.randrange(len(KEYS) if is_key else len(PARTITIONS))
        name = PARTITIONS[place]
        if event_type == codes.LEADERSHIP:
            self._epochs[name] += 1
        self._marks[name] += self._random.randint(0, 6)
        offset = self._random.randint(0, 3) if is_key else self._marks[name] - self._random.choice((0, 0, 0, 3))
        batch.types.append(event_type)
        batch.item_indexes.append(99 if self._random.random() < 0.02 else place)
        batch.offsets.append(offset)
        batch.leader_epochs.append(self._random.choice((-1, self._epochs[name], self._epochs[name] - 1)))
        if event_type == codes.LEADERSHIP:
            batch.leader_epochs[-1] = self._epochs[name]
        batch.replica_ids.append(self._random.choice((2, 3)))
        batch.byte_positions.append(self._marks[name] * 10)
        batch.segment_base_offsets.append(0)
        batch.log_start_offsets.append(self._random.choice((-1, 0)))
        batch.flags.append(self._random.choice((0, 0, 0, 1) if is_key else (0, 1)))
        batch.values.append(self._random.choice((b"", b"done", b"lost")))
        has_sets = event_type in (codes.LEADERSHIP, codes.IN_SYNC_REPLICAS)
        in_sync = self._random.choice(([1, 2, 3], [1, 2], [1]))
        sets = ReplicaSets(replicas=[1, 2, 3], in_sync=in_sync, leader_id=1, min_in_sync_replicas=2)
        batch.replica_sets.append(sets if has_sets else None)

    async def _pass_time(self) -> None:
        self.clock.jump(self._random.choice((0, 1, 10, 100)))
        if self._random.random() < 0.8:
            self.host.reaper.turn()

    async def _pause(self) -> None:
        """The process is stopped, and nothing is read in that time."""
        self.host.listening.tick()
        self.clock.jump(self._random.choice((300, 1_000)))
        self.host.reaper.turn()

    async def _cancel(self) -> None:
        session = self._session()
        how = self._random.randrange(4)
        if how == 0:
            ids = [self._last_id - self._random.randrange(10) for _ in range(3)]
            self.host.cancel(session, [*ids, 2**64 - 1])
        elif how == 1:
            await self.host.cancel_session(session)
        elif how == 2:
            await self.host.cancel_waits(self._random.choice(PARTITIONS))
        else:
            await self.host.cancel_waits((self._random.choice(KEYS), -1))

    async def _extend(self) -> None:
        ids = [self._last_id - self._random.randrange(10) for _ in range(3)]
        self.host.extend(self._session(), ids, self._random.choice((1, 30, 300)))

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
