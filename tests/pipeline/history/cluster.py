"""A simulated cluster under load: brokers, followers that fetch, and clients that wait.

Followers fetch independently of the waits, so the time at which a high watermark reaches an offset is the time that a
produce would have waited without a timeout: the truth with which the report's advice is compared.
"""

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, Final

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.codes import FETCH, PRODUCE, READ_COMMITTED, READ_UNCOMMITTED, SIGNAL
from purgatory.extensions.archive.vocabulary import Registrant
from tests.pipeline.history.partition import BROKERS, Partition, event_batch
from tests.pipeline.history.plan import RunPlan, Topic
from tests.pipeline.history.recorder import Recorder

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
KEYS: Final = [f"job-{key:02d}/finished" for key in range(60)]
KEY_WEIGHTS: Final = [1 / (key + 1) for key in range(len(KEYS))]
Wait = dict[str, Any]
"""An operation before it is registered: its `items` (partitions, or indexes of keys) and the columns of its batch."""


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
        """The partitions by leader and topic."""
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
        recorder.apply(event_batch([event for one in self._partitions for event in one.first_events()]), 0)
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
        events: list[dict[str, Any]] = []
        reported: list[Partition] = []
        for one in self._led[leader, topic.name]:
            if not one.is_led or follower not in one.followers or follower in one.away:
                continue
            end = one.fetched[follower]
            if one.reported.get(follower) != end:
                one.reported[follower] = end
                reported.append(one)
                events.append(one.event(codes.FOLLOWER_PROGRESS, replica_ids=follower, offsets=end))
                if follower not in one.in_sync and end >= one.high_watermark:
                    one.in_sync.add(follower)
                    events.append(one.event(codes.REPLICA_STATE, replica_ids=follower, flags=0))
                    events.append(one.in_sync_replicas())
            one.fetched[follower] = one.end
        if events:
            self._recorder.apply(event_batch(events), now_ms)
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
        late_append = one.event(codes.LEADER_APPEND, offsets=one.end + 1)
        one.epoch, one.is_led = one.epoch + 1, False
        one.waiting.clear()
        self._recorder.apply(event_batch([one.leadership(), late_append]), now_ms)

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
        truncation = one.event(codes.TRUNCATION, offsets=one.end)
        leadership = one.leadership() | {"offsets": one.end}
        self._recorder.apply(event_batch([truncation, leadership, one.in_sync_replicas()]), now_ms)

    def _fence(self, one: Partition, follower: int, now_ms: int) -> None:
        """A follower that is away leaves the in-sync replicas; `_fetch` takes it back."""
        one.in_sync.discard(follower)
        state = one.event(codes.REPLICA_STATE, replica_ids=follower, flags=2)  # fenced
        self._recorder.apply(event_batch([state, one.in_sync_replicas()]), now_ms)
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
            keys = self._random.choices(range(len(KEYS)), KEY_WEIGHTS, k=signals)
            batch = EventBatch([codes.KEY_SIGNALLED] * signals, keys=KEYS, item_indexes=keys, offsets=[1])
            self._recorder.apply(batch, now_ms)
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
        wait = {"timeouts_ms": self._drawn(TIMEOUTS_MS.get(kind, first.topic.timeouts_ms))}
        more = self._random.randint(1, 3) if self._by_chance(SEVERAL_SHARE[kind]) else 0
        if kind == SIGNAL:
            key = self._random.choices(range(len(KEYS)), KEY_WEIGHTS)[0]
            keys = [(key + nth) % len(KEYS) for nth in range(1 + more)]
            flags = {"any_key": self._by_chance(0.5), "from_now": self._by_chance(0.8)}
            return JOBS, wait | flags | {"items": keys, "offsets": [1] * len(keys)}
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
        items = [item for wait in waits for item in wait["items"]]
        columns: dict[str, Any] = {
            "item_counts": [len(wait["items"]) for wait in waits],
            "offsets": [offset for wait in waits for offset in wait["offsets"]],
            **{name: [wait[name] for wait in waits] for name in set(waits[0]) - {"items", "offsets"}},
        }
        if kind == SIGNAL:
            columns |= {"keys": KEYS, "item_indexes": items}
        else:
            names = list(dict.fromkeys(one.name for one in items))
            columns |= {"partitions": names, "item_indexes": [names.index(one.name) for one in items]}
            if session != WITHOUT_EPOCHS:
                columns["leader_epochs"] = [one.epoch - (not one.is_of(session)) for one in items]
        first_id = self._last_ids[session] + 1
        self._last_ids[session] += len(waits)
        ids = list(range(first_id, first_id + len(waits)))
        self._recorder.register(session, kind, OperationBatch(ids, **columns), now_ms)
        for operation_id in ids:
            if self._by_chance(0.004):
                after_ms = 1 + int(self._random.expovariate(1 / 60))
                self._at(now_ms + after_ms, partial(self._recorder.cancel, session, operation_id))

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
            self._recorder.apply(event_batch([one.append_event() for one in written.values()]), now_ms)

    def _read(self, waits: list[Wait]) -> None:
        """Followers read at the log end; consumers at the high watermark, or a little behind it."""
        for wait in waits:
            is_follower, is_committed = self._by_chance(0.4), self._by_chance(0.2)
            behind = 0 if self._by_chance(0.65) else self._random.randrange(200)
            wait["replica_ids"] = self._random.choice(wait["items"][0].followers) if is_follower else -1
            wait["min_bytes"] = 1 if is_follower else self._drawn(MIN_BYTES)
            wait["isolation_levels"] = READ_COMMITTED if is_committed > is_follower else READ_UNCOMMITTED
            wait["offsets"] = [
                one.end if is_follower else max(one.base, one.high_watermark - behind) for one in wait["items"]
            ]
