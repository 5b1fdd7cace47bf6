"""A simulated cluster under load: brokers, followers that fetch, and clients that wait.

Followers fetch independently of the waits, so the time at which a high watermark reaches an offset is the time that a
produce would have waited without a timeout: the truth with which the report's advice is compared.
"""

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final, cast

from bench.pipeline.history.plan import RunPlan, Topic
from purgatory import __version__
from purgatory.engine.batches import PartitionName, Receipt
from purgatory.engine.calls import Apply, Call, Cancel, PassTime, Register, ShutDown
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.archive_listener import ArchiveListener, ArchiveSettings
from purgatory.extensions.archive.files import ArchiveWriter, open_archive
from purgatory.extensions.archive.records import Record, row_record
from purgatory.extensions.archive.rows import make_rows, records_by_table
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.vocabulary import CallStamp, Registrant
from purgatory.extensions.archive.writer_link import WriterLink
from purgatory.service.listeners.listener import Called, Completed
from tests.engine import plain
from tests.engine.adapter import event_batch, operation_batch
from tests.engine.plain import FETCH, PRODUCE, READ_COMMITTED, READ_UNCOMMITTED, SIGNAL

LIMITS: Final = EngineLimits()
LATENESS_MS: Final = [*range(1, 5), *[0] * 76]
"""A turn of the reaper in twenty is late."""
ENDED_PER_CALL: Final = 2_000
"""The same as the daemon's reaper."""


class FileLink:
    """In place of the link to a writer process: writes what it is sent to the files of a run."""

    rows_waiting = 0
    is_up = True

    def __init__(self, run_id: str, out: str) -> None:
        self.run_id: Final = run_id
        # Files are moved to their places together at the end of the run: it is there as a whole, or not at all.
        self.writer: Final = ArchiveWriter(*open_archive(out), run_id, roll_s=math.inf, roll_bytes=2**40)

    def send(self, names: Sequence[PartitionName], records: Sequence[Record]) -> None:
        for table, some in records_by_table(records).items():
            self.writer.write(table, make_rows(table, some, names))


class PatientListener(ArchiveListener):
    """Sends rows when there are many, since no loop runs."""

    def _send_soon(self) -> None:
        pass


class Recorder:
    """One run of an engine. Calls must be made in order of time; `rng` draws how late the reaper is."""

    def __init__(self, run: RunPlan, out: str, registrants: list[Registrant], rng: random.Random) -> None:
        self._random: Final = rng
        self._lateness = 0
        self._engine: Final = Engine(LIMITS, 0)
        self._owners: Final = [self._engine.add_owner() for _ in registrants]
        self._sessions: Final[list[Any]] = [
            SimpleNamespace(number=number, session_id=name, account=SimpleNamespace(principal=principal))
            for number, name, principal in registrants
        ]
        self._now_ms = 0
        self._link: Final = FileLink(run.run_id, out)
        link = cast("WriterLink", self._link)
        self._listener: Final = PatientListener(
            link, ArchiveSettings(), LIMITS.timeout_ms_default, lambda: run.start_ms + self._now_ms
        )
        details = RunDetails(version=__version__, expired_per_slice=ENDED_PER_CALL, host="generated", pid=0)
        stamp = CallStamp(run.run_id, 0, 0, run.start_ms)
        self._link.send((), [row_record(schema.MARKERS, stamp, marker=schema.STARTED, detail=details.to_json())])

    def perform(self, call: Call, now_ms: int, registrant: int | None = None) -> None:
        """Make a call, of a registrant that is given by its index. No operation may be refused."""
        self._expire(now_ms)
        receipt = self._perform(call, registrant)
        if isinstance(call, Register):
            assert not receipt.refusals, f"refused: {receipt.refusals[0].field} {receipt.refusals[0].message}"
        if isinstance(call, Apply) and receipt.next_index < len(call.batch.types):
            self.perform(Apply(call.batch, receipt.next_index), now_ms)

    def shut_down(self, now_ms: int) -> None:
        """Ends the operations that are still pending and writes the files of the run."""
        self._expire(now_ms)
        while self._perform(ShutDown(ENDED_PER_CALL)).ended:
            pass
        self._listener.mark(schema.ENDED, now_ms)
        self._link.writer.roll()

    def _expire(self, until_ms: int) -> None:
        """Advances the clock as the daemon's reaper does, turn by turn."""
        while (next_ms := self._engine.next_expiration_ms()) >= 0:
            due_ms = max(next_ms + self._lateness, self._now_ms)
            if due_ms > until_ms:
                break
            self._now_ms = due_ms
            self._perform(PassTime(ENDED_PER_CALL))
            if not 0 <= self._engine.next_expiration_ms() <= due_ms:
                self._lateness = self._random.choice(LATENESS_MS)
        self._now_ms = until_ms

    def _perform(self, call: Call, registrant: int | None = None) -> Receipt:
        owner = None if registrant is None else self._owners[registrant]
        session = None if registrant is None else self._sessions[registrant]
        receipt = self._engine.perform(owner, call, self._now_ms, 1_000_000_000)
        self._listener.called(Called(session, "", call, receipt, self._now_ms))
        for completions in self._engine.take_completions():
            self._listener.completed(Completed(self._sessions[completions.owner_id], "", completions))
        self._listener.call_finished()
        return receipt


BROKERS: Final = 4
"""Replica ids 1 to 4. Each broker is a session; each partition has three replicas."""
JOBS: Final = BROKERS
REGISTRANTS: Final = [Registrant(broker, f"broker-{broker}", "brokers") for broker in range(1, BROKERS + 1)]
REGISTRANTS.append(Registrant(BROKERS + 1, "nightly-jobs", "jobs"))
WITHOUT_EPOCHS: Final = BROKERS - 1
"""The session of a client that does not send leader epochs."""

TICK_MS: Final = 4
"""At each tick one broker sends what has arrived, so each broker sends every 16 ms."""
DRAIN_MS: Final = 3_000
"""How long followers go on fetching after the last registration."""
KIND_SHARES: Final = {PRODUCE: 0.70, FETCH: 0.25, SIGNAL: 0.05}
SEVERAL_SHARE: Final = {PRODUCE: 0.04, FETCH: 0.15, SIGNAL: 0.25}
"""The share of operations that wait on 2 to 4 partitions or keys."""
TIMEOUTS_MS: Final = {FETCH: {500: 0.75, 100: 0.15, 5_000: 0.10}, SIGNAL: {10_000: 0.7, 1_000: 0.3}}
MIN_BYTES: Final = {1: 0.60, 10_000: 0.30, 250_000: 0.10}
KEYS: Final = [(f"job-{key:02d}/finished", -1) for key in range(60)]
KEY_WEIGHTS: Final = [1 / (key + 1) for key in range(len(KEYS))]
Wait = dict[str, Any]
"""An operation before it is registered: its `items` (partitions, or keys), their `offsets`, and further fields."""


class Partition:
    """Replicas and log of a partition, and the produces that wait for its high watermark."""

    def __init__(self, name: tuple[str, int], topic: Topic, place: int, weight: float, base: int) -> None:
        self.name: Final = name
        self.topic: Final = topic
        self.weight: Final = weight
        self.leader = place % BROKERS + 1
        self.followers = [replica for replica in range(1, BROKERS + 1) if replica != self.leader]
        del self.followers[place // BROKERS % 3]
        self.in_sync = {self.leader, *self.followers}
        self.away: set[int] = set()
        self.epoch = 0
        self.is_led = True
        self.is_steady = True
        self.base: Final = base
        self.end = self.high_watermark = base
        self.fetched = dict.fromkeys(self.followers, base)
        """The log end that each follower received by its last fetch, and reports with its next one."""
        self.reported = dict(self.fetched)
        """The same, as last reported."""
        self.waiting: deque[tuple[int, list[int]]] = deque()
        """Offsets, rising, and their produces: [registered at (ms), partitions that are not reached yet]."""

    def is_of(self, session: int) -> bool:
        return self.is_led and self.leader == session + 1

    def toggle_away(self, replica_id: int, _now_ms: int) -> None:
        """A replica stops fetching, or fetches again."""
        self.away ^= {replica_id}

    def event(self, event_type: int, **values: Any) -> plain.Event:  # noqa: ANN401 - of any field
        return plain.Event(event_type, self.name, epoch=self.epoch, **values)

    def leadership(self, offset: int = -1) -> plain.Event:
        replicas = tuple(sorted({self.leader, *self.followers}))
        flag = int(self.is_led)
        return self.event(plain.LEADERSHIP, offset=offset, flag=flag, replicas=replicas, leader_id=self.leader)

    def in_sync_replicas(self) -> plain.Event:
        in_sync = tuple(sorted(self.in_sync))
        return self.event(plain.IN_SYNC_REPLICAS, in_sync=in_sync, leader_id=self.leader, min_in_sync=2)

    def append_event(self) -> plain.Event:
        """The log end. Records of a topic have the same size, and the segment is never rolled."""
        size = (self.end - self.base) * self.topic.record_bytes
        return self.event(plain.LEADER_APPEND, offset=self.end, position=size, segment=self.base)

    def progress(self, replica_id: int, offset: int) -> plain.Event:
        return self.event(plain.FOLLOWER_PROGRESS, replica_id=replica_id, offset=offset)

    def first_events(self) -> list[plain.Event]:
        """The state at the start of a run: all replicas have the same log."""
        progress = [self.progress(replica, self.base) for replica in self.followers]
        return [self.leadership(), self.in_sync_replicas(), self.append_event(), *progress]


class Cluster:
    """Plays one run. `waits_ms` counts the produces that were reached by the time they needed."""

    def __init__(self, run: RunPlan, out: str) -> None:
        self.waits_ms: Final[Counter[int]] = Counter()
        self._run: Final = run
        self._random: Final = random.Random(run.seed)
        self._recorder: Final = Recorder(run, out, REGISTRANTS, self._random)
        self._partitions: Final = self._placed()
        self._cumulated: Final = list(accumulate(one.weight for one in self._partitions))
        self._led: Final[defaultdict[tuple[int, str], list[Partition]]] = defaultdict(list)
        for one in self._partitions:
            self._led[one.leader, one.topic.name].append(one)
        self._actions: Final[list[tuple[int, int, Callable[[int], None]]]] = []
        self._scheduled = 0
        times = sorted(self._random.uniform(0, run.life_ms) for _ in range(run.operations))
        kinds = self._random.choices(list(KIND_SHARES), list(KIND_SHARES.values()), k=run.operations)
        self._arrivals: Final = deque(zip(times, kinds, strict=True))
        self._buffers: Final[list[defaultdict[int, list[Wait]]]] = [defaultdict(list) for _ in REGISTRANTS]
        self._last_ids: Final = [0] * len(REGISTRANTS)

    def play(self) -> None:
        life_ms, recorder = self._run.life_ms, self._recorder
        self._apply([event for one in self._partitions for event in one.first_events()], 0)
        brokers = range(1, BROKERS + 1)
        for topic in self._run.plan.topics:
            for leader, follower in ((one, other) for one in brokers for other in brokers if one != other):
                self._fetch_later(leader, follower, topic, 0)
        self._plan_incidents()
        self._at(TICK_MS, self._tick)
        while self._actions[0][0] < life_ms + DRAIN_MS:
            now_ms, _, act = heapq.heappop(self._actions)
            act(now_ms)
        recorder.shut_down(life_ms + DRAIN_MS)

    def _apply(self, events: list[plain.Event], now_ms: int) -> None:
        self._recorder.perform(Apply(event_batch(events)), now_ms)

    def _at(self, at_ms: int, act: Callable[[int], None]) -> None:
        """Schedules an action, which gets the time. Those of the same millisecond run in the order of scheduling."""
        self._scheduled += 1
        heapq.heappush(self._actions, (at_ms, self._scheduled, act))

    def _by_chance(self, share: float) -> bool:
        return self._random.random() < share

    def _drawn(self, shares: dict[int, float]) -> int:
        return self._random.choices(list(shares), list(shares.values()))[0]

    def _placed(self) -> list[Partition]:
        placed: list[Partition] = []
        for topic in self._run.plan.topics:
            shares = [(nth + 1) ** -0.8 for nth in range(topic.partitions)]
            for nth, share in enumerate(shares):  # a Zipf law
                weight, base = topic.weight * share / sum(shares), self._random.randrange(1_000_000)
                placed.append(Partition((topic.name, nth), topic, len(placed), weight, base))
        return placed

    def _fetch_later(self, leader: int, follower: int, topic: Topic, now_ms: int) -> None:
        """Schedules a follower's next fetch from a leader, for all partitions of a topic."""
        slow_id, extra_ms, share = self._run.plan.slow
        interval_ms = topic.fetch_median_ms * self._run.slowdown
        interval_ms *= math.exp(topic.fetch_sigma * self._random.gauss(0, 1))
        if follower == slow_id and self._by_chance(share):
            interval_ms += extra_ms
        self._at(now_ms + max(1, round(interval_ms)), partial(self._fetch, leader, follower, topic))

    def _fetch(self, leader: int, follower: int, topic: Topic, now_ms: int) -> None:
        """Reports what the previous fetch received, and receives everything up to the log end."""
        events: list[plain.Event] = []
        reported: list[Partition] = []
        for one in self._led[leader, topic.name]:
            if not one.is_led or follower not in one.followers or follower in one.away:
                continue
            end = one.fetched[follower]
            if one.reported.get(follower) != end:
                one.reported[follower] = end
                reported.append(one)
                events.append(one.progress(follower, end))
                if follower not in one.in_sync and end >= one.high_watermark:
                    one.in_sync.add(follower)
                    events.append(one.event(plain.REPLICA_STATE, replica_id=follower))
                    events.append(one.in_sync_replicas())
            one.fetched[follower] = one.end
        if events:
            self._apply(events, now_ms)
        for one in reported:
            self._advance(one, now_ms)
        self._fetch_later(leader, follower, topic, now_ms)

    def _advance(self, one: Partition, now_ms: int) -> None:
        """Raises the high watermark to the lowest end of the in-sync followers."""
        ends = [one.reported.get(follower, -1) for follower in one.followers if follower in one.in_sync]
        one.high_watermark = max(one.high_watermark, min(ends))
        while one.waiting and one.waiting[0][0] <= one.high_watermark:
            self._reached(one.waiting.popleft()[1], now_ms)

    def _reached(self, produce: list[int], now_ms: int) -> None:
        produce[1] -= 1
        if produce[1] == 0:
            self.waits_ms[now_ms - produce[0]] += 1

    def _plan_incidents(self) -> None:
        """Two leaders that change, and two followers (not the slow one) that are away for a while."""
        rng, life_ms = self._random, self._run.life_ms
        chosen = rng.sample(self._partitions, 4)
        for one in chosen[:2]:
            one.is_steady = False
            resigned_ms = rng.randint(life_ms * 3 // 10, life_ms * 6 // 10)
            self._at(resigned_ms, partial(self._resign, one))
            self._at(resigned_ms + rng.randint(40, 400), partial(self._elect, one))
        for one in chosen[2:]:
            follower = rng.choice([replica for replica in one.followers if replica != self._run.plan.slow[0]])
            away_ms = rng.randint(life_ms * 2 // 10, life_ms * 5 // 10)
            fenced_ms = away_ms + rng.randint(100, 300)
            self._at(away_ms, partial(one.toggle_away, follower))
            self._at(fenced_ms, partial(self._fence, one, follower))
            self._at(fenced_ms + rng.randint(500, 3_000), partial(one.toggle_away, follower))

    def _resign(self, one: Partition, now_ms: int) -> None:
        """The leader resigns but appends once more, which is refused."""
        late_append = one.event(plain.LEADER_APPEND, offset=one.end + 1)
        one.epoch, one.is_led = one.epoch + 1, False
        one.waiting.clear()
        self._apply([one.leadership(), late_append], now_ms)

    def _elect(self, one: Partition, now_ms: int) -> None:
        """A follower leads; records that only the old leader had are truncated."""
        new, old = self._random.choice(one.followers), one.leader
        other = next(replica for replica in one.followers if replica != new)
        self._led[old, one.topic.name].remove(one)
        self._led[new, one.topic.name].append(one)
        one.leader, one.followers, one.is_led, one.end = new, [other, old], True, one.fetched[new]
        one.fetched = {other: min(one.fetched[other], one.fetched[new]), old: one.fetched[new]}
        one.reported = {}
        one.away.add(old)
        self._at(now_ms + self._random.randint(50, 300), partial(one.toggle_away, old))
        truncation = one.event(plain.TRUNCATION, offset=one.end)
        self._apply([truncation, one.leadership(one.end), one.in_sync_replicas()], now_ms)

    def _fence(self, one: Partition, follower: int, now_ms: int) -> None:
        """A follower that is away leaves the in-sync replicas; `_fetch` takes it back."""
        one.in_sync.discard(follower)
        fenced = one.event(plain.REPLICA_STATE, replica_id=follower, flag=2)
        self._apply([fenced, one.in_sync_replicas()], now_ms)
        self._advance(one, now_ms)

    def _tick(self, now_ms: int) -> None:
        """Takes what has arrived since the last tick, signals keys, and lets the sessions whose turn it is send."""
        signals = 0
        while self._arrivals and self._arrivals[0][0] < now_ms:
            _, kind = self._arrivals.popleft()
            signals += kind == SIGNAL
            session, wait = self._wait(kind)
            self._buffers[session][kind].append(wait)
        if signals:  # keys are signalled about as often as they are waited for
            keys = self._random.choices(KEYS, KEY_WEIGHTS, k=signals)
            self._apply([plain.Event(plain.KEY_SIGNALLED, key, 1) for key in keys], now_ms)
        turn = now_ms // TICK_MS % BROKERS
        for session in (turn,) if turn else (turn, JOBS):
            for kind, waits in sorted(self._buffers[session].items()):
                self._send(session, kind, waits, now_ms)
            self._buffers[session].clear()
        if self._arrivals or any(self._buffers):
            self._at(now_ms + TICK_MS, self._tick)

    def _wait(self, kind: int) -> tuple[int, Wait]:
        """Session, and partitions (of one leader for the whole run; of one topic, except for fetches) or keys."""
        first = self._random.choices(self._partitions, cum_weights=self._cumulated)[0]
        wait: Wait = {"timeout_ms": self._drawn(TIMEOUTS_MS.get(kind, first.topic.timeouts_ms))}
        more = self._random.randint(1, 3) if self._by_chance(SEVERAL_SHARE[kind]) else 0
        if kind == SIGNAL:
            key = self._random.choices(range(len(KEYS)), KEY_WEIGHTS)[0]
            keys = [KEYS[(key + nth) % len(KEYS)] for nth in range(1 + more)]
            flags = {"any_key": self._by_chance(0.5), "from_now": self._by_chance(0.8)}
            return JOBS, wait | flags | {"items": [plain.Item(key, 1) for key in keys]}
        near: list[Partition] = []
        if more and first.is_steady:
            topics = [topic.name for topic in self._run.plan.topics] if kind == FETCH else [first.topic.name]
            led = [one for name in topics for one in self._led[first.leader, name] if one.is_steady and one != first]
            near = self._random.sample(led, min(more, len(led)))
        return first.leader - 1, wait | {"items": [first, *near]}

    def _send(self, session: int, kind: int, waits: list[Wait], now_ms: int) -> None:
        """One message of a session: what its operations change is applied, then they are registered."""
        if kind == PRODUCE:
            self._append(session, waits, now_ms)
        elif kind == FETCH:
            self._read(waits)
        if kind != SIGNAL:
            for wait in waits:
                wait["items"] = [
                    plain.Item(
                        one.name, offset, -1 if session == WITHOUT_EPOCHS else one.epoch - (not one.is_of(session))
                    )
                    for one, offset in zip(wait["items"], wait.pop("offsets"), strict=True)
                ]
        ids = range(self._last_ids[session] + 1, self._last_ids[session] + 1 + len(waits))
        self._last_ids[session] += len(waits)
        operations = [
            plain.Operation(kind, number, **wait | {"items": tuple(wait["items"])})
            for number, wait in zip(ids, waits, strict=True)
        ]
        self._recorder.perform(Register(kind, operation_batch(operations)), now_ms, session)
        for operation_id in ids:
            if self._by_chance(0.004):
                after_ms = 1 + int(self._random.expovariate(1 / 60))
                self._at(now_ms + after_ms, partial(self._recorder.perform, Cancel([operation_id]), registrant=session))

    def _append(self, session: int, waits: list[Wait], now_ms: int) -> None:
        """Each produce writes a few records, and waits for the log end after them."""
        written: dict[tuple[str, int], Partition] = {}
        for wait in waits:
            produce = [now_ms, len(wait["items"])]
            wait["offsets"] = []
            for one in wait["items"]:
                if not one.is_of(session):  # sent to a leader that has resigned: never reached
                    wait["offsets"].append(one.high_watermark)
                elif self._by_chance(0.01):  # a retry of records that are written
                    wait["offsets"].append(one.high_watermark)
                    self._reached(produce, now_ms)
                else:
                    one.end += 1 + int(self._random.expovariate(1 / 3))
                    written[one.name] = one
                    wait["offsets"].append(one.end)
                    one.waiting.append((one.end, produce))
        if written:
            self._apply([one.append_event() for one in written.values()], now_ms)

    def _read(self, waits: list[Wait]) -> None:
        """Followers read at the log end; consumers at the high watermark, or a little behind it."""
        for wait in waits:
            is_follower, is_committed = self._by_chance(0.4), self._by_chance(0.2)
            behind = 0 if self._by_chance(0.65) else self._random.randrange(200)
            wait["replica_id"] = self._random.choice(wait["items"][0].followers) if is_follower else -1
            wait["min_bytes"] = 1 if is_follower else self._drawn(MIN_BYTES)
            wait["isolation"] = READ_COMMITTED if is_committed > is_follower else READ_UNCOMMITTED
            wait["offsets"] = [
                one.end if is_follower else max(one.base, one.high_watermark - behind) for one in wait["items"]
            ]
