"""Draws the steps of a history: calls of the engine, and time that passes in between.

It keeps a rough sketch of each partition, so that most of its steps are nearly valid. It never reads the state of
engine or oracle: the steps of a history depend only on its seed.
A `Swarm` is the mix and the sizes of one history, all drawn from its seed, so that each seed tests something different.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from purgatory.engine import calls
from tests.engine import plain
from tests.engine.adapter import event_batch, registration

ALL = 100_000
"""A limit that nothing here reaches."""
PARTITIONS = [(topic, partition) for topic in ("orders", "clicks") for partition in range(3)]
KEYS = ["paid", "shipped", "closed"]
"""The names in worlds with a host: see `one_owner`."""


class Leave:
    """The owner is removed with its operations, and replaced by a new one. Not a call of an engine: two of them."""


class Step(NamedTuple):
    """Time passes, and then an owner makes a call. `rows` are what the call was made of, for oracle and reports:
    operations, events, or the stale marks of a `FailStale` and for how long each has been stale.
    """

    call: calls.Call | Leave | None
    """None: only time passes, and the reaper is not called."""
    owner: int = -1
    pass_ms: int = 0
    work_max: int = ALL
    rows: tuple[plain.Operation, ...] | tuple[plain.Event, ...] | tuple[tuple[plain.Name, int], ...] = ()

    @property
    def weight(self) -> int:
        """The number of things that are drawn, applied and compared one by one."""
        return max(1, len(self.rows), len(getattr(self.call, "operation_ids", ())))

    def __str__(self) -> str:
        """The call as source code, with rows in place of a batch."""
        if self.call is None:
            return f"pass {self.pass_ms} ms"
        names = ("operation_ids", "timeout_ms", "up_to_id", "name", "limit", "pause_ms")
        shown = {name: getattr(self.call, name) for name in names if hasattr(self.call, name)}
        shown |= {name: value for name, value in zip(self._fields[1:3], self[1:3], strict=True) if value not in (-1, 0)}
        texts = [f"{name}={value}" for name, value in shown.items()]
        texts += [f"rows={plain.brief(self.rows)}"] if self.rows else []
        return f"{type(self.call).__name__}({', '.join(texts)})"


def register(owner: int, operations: tuple[plain.Operation, ...]) -> Step:
    return Step(registration(operations), owner, rows=operations)


def apply(events: tuple[plain.Event, ...], work_max: int = ALL) -> Step:
    """A batch of events, in slices of this much work."""
    return Step(calls.Apply(event_batch(events)), work_max=work_max, rows=events)


def advance(ms: int, limit: int = ALL) -> Step:
    """Time passes, and the reaper ends up to `limit` operations."""
    return Step(calls.PassTime(limit), pass_ms=ms)


class Sketch:
    def __init__(self, name: plain.Name, says_positions: bool) -> None:
        self.name = name
        self.says_positions = says_positions
        self.epoch = 0
        self.log_end = 0
        self.position = 0
        self.segment = 0
        self.leader_id = 1


class Generator:
    def __init__(self, seed: int, faults: frozenset[str] = frozenset({"stall", "stop"})) -> None:
        self.rng = random.Random(seed)
        self.swarm = Swarm(self.rng)
        swarm = self.swarm
        for fault, name in (("stall", "sleep"), ("stop", "pause")):
            if fault not in faults:
                swarm.step_weights[name] = 0.0
        names = [("orders" if i < 5 else "audit", i) for i in range(swarm.partitions)]
        self.sketches = [Sketch(name, self.rng.random() < swarm.positions) for name in names]
        self.keys = [(f"key-{i}", -1) for i in range(swarm.keys)]
        self.next_ids = [1] * swarm.owners
        makers = [getattr(self, name) for name in swarm.step_weights]
        self.step_table = self.rng.choices(makers, list(swarm.step_weights.values()), k=1_024)
        weights = swarm.event_weights if sum(swarm.event_weights) > 0 else None
        self.event_table = self.rng.choices(EVENT_TYPES, weights, k=1_024)

    def below(self, limit: int) -> int:
        return int(self.rng.random() * limit)

    def next_step(self) -> Step:
        step: Step = self.step_table[self.rng.getrandbits(10)]()
        return step

    def steps(self, steps_max: int) -> Iterator[Step]:
        """Steps, until this many things have been drawn."""
        while steps_max > 0:
            step = self.next_step()
            steps_max -= step.weight
            yield step

    # Steps.

    def register(self) -> Step:
        owner = self.below(self.swarm.owners)
        kind = self.swarm.kinds[self.below(len(self.swarm.kinds))]
        count = 1 + self.below(self.swarm.batch_max)
        if self.rng.random() < 0.02:
            self.next_ids[owner] = max(1, self.next_ids[owner] - self.below(20))
        return register(owner, tuple([self.operation(owner, kind) for _ in range(count)]))

    def apply(self) -> Step:
        count = 1 if self.rng.random() < 0.7 else 1 + self.below(self.swarm.batch_max)
        return apply(tuple([self.event() for _ in range(count)]), self.swarm.slice_limit)

    def advance(self) -> Step:
        return advance(self.below(self.swarm.leap_max_ms + 1), self.swarm.reaper_limit)

    def sleep(self) -> Step:
        return Step(None, pass_ms=self.below(3 * self.swarm.leap_max_ms))

    def pause(self) -> Step:
        ms = self.below(3 * self.swarm.leap_max_ms)
        return Step(calls.Pause(ms), pass_ms=ms)

    def cancel(self) -> Step:
        owner = self.below(self.swarm.owners)
        return Step(calls.Cancel(self.recent_ids(owner)), owner)

    def extend(self) -> Step:
        owner = self.below(self.swarm.owners)
        return Step(calls.Extend(self.recent_ids(owner), 1 + self.below(self.swarm.timeout_max_ms)), owner)

    def recent_ids(self, owner: int) -> list[int]:
        newest = self.next_ids[owner]
        return sorted({max(1, newest - self.below(30)) for _ in range(1 + self.below(3))})

    def cancel_all(self) -> Step:
        return Step(calls.CancelAll(), self.below(self.swarm.owners))

    def cancel_name(self) -> Step:
        if self.rng.random() < 0.3:
            return Step(calls.CancelName(self.keys[self.below(len(self.keys))]))
        return Step(calls.CancelName(self.sketch().name))

    def fail_stale(self) -> Step:
        some = {self.sketch().name: self.below(2 * self.swarm.timeout_max_ms) for _ in range(1 + self.below(3))}
        return Step(calls.FailStale([], set(some)), rows=tuple(some.items()))

    def replace_owner(self) -> Step:
        owner = self.below(self.swarm.owners)
        self.next_ids[owner] = 1
        return Step(Leave(), owner)

    def shut_down(self) -> Step:
        return Step(calls.ShutDown(1 + self.below(4)))

    # Operations.

    def sketch(self) -> Sketch:
        return self.sketches[self.below(len(self.sketches))]

    def different(self, count: int, limit: int) -> list[int]:
        """`count` different integers in `0..limit - 1`, or all of them if there are fewer."""
        numbers = list(range(limit))
        for i in range(min(count, limit)):
            other = i + self.below(limit - i)
            numbers[i], numbers[other] = numbers[other], numbers[i]
        return numbers[:count]

    def near(self, mark: int, low: int, high: int) -> int:
        """An offset between `low` and `high` strides from a mark."""
        return max(0, mark + (low + self.below(high - low + 1)) * self.swarm.stride)

    def is_nonsense(self) -> bool:
        return self.rng.random() < self.swarm.nonsense

    def operation(self, owner: int, kind: int) -> plain.Operation:
        operation_id = self.next_ids[owner]
        self.next_ids[owner] = operation_id + 1 + (self.below(3) if self.rng.random() < 0.1 else 0)
        timeout_ms = self.swarm.timeout_min_ms + self.below(self.swarm.timeout_max_ms)
        count = 1 + self.below(self.swarm.items_max)
        if self.is_nonsense():
            timeout_ms = -1 - self.below(2)
        if kind == plain.SIGNAL:
            return self.signal_operation(operation_id, timeout_ms, count)
        if kind == plain.COMPOSITE:
            return self.composite_operation(operation_id, timeout_ms, count)
        chosen = [self.sketches[i] for i in self.different(count, len(self.sketches))]
        if self.is_nonsense():
            chosen.append(chosen[0])
        if kind == plain.FETCH:
            return self.fetch_operation(operation_id, timeout_ms, chosen)
        items = tuple([self.plain_item(kind, sketch) for sketch in chosen])
        return plain.Operation(kind, operation_id, timeout_ms, items, stale_timeout_ms=self.stale_timeout_ms())

    def plain_item(self, kind: int, sketch: Sketch) -> plain.Item:
        local_error = 10 if self.rng.random() < 0.02 else 0
        if kind == plain.PRODUCE:
            return plain.Item(sketch.name, self.near(sketch.log_end, -2, 6), self.epoch_of(sketch), local_error)
        offset = -1 if self.rng.random() < 0.2 else self.near(sketch.log_end, -6, 0)
        return plain.Item(sketch.name, -2 if self.is_nonsense() else offset, -1, local_error)

    def signal_operation(self, operation_id: int, timeout_ms: int, count: int) -> plain.Operation:
        chosen = [self.keys[i] for i in self.different(count, len(self.keys))]
        most = 5 if self.rng.random() < 0.5 else 50
        items = tuple([plain.Item(key, 1 + self.below(most)) for key in chosen])
        return plain.Operation(
            plain.SIGNAL,
            operation_id,
            timeout_ms,
            items,
            from_now=self.rng.random() < 0.5,
            any_key=self.rng.random() < 0.4,
            stale_timeout_ms=self.stale_timeout_ms(),
            heartbeat_timeout_ms=self.heartbeat_timeout_ms(),
        )

    def composite_operation(self, operation_id: int, timeout_ms: int, count: int) -> plain.Operation:
        """Terms on any partitions and keys, which may be the same ones, with and without a failure arm."""
        unless_count = 1 + self.below(2) if self.rng.random() < 0.5 else 0
        items = tuple([self.term() for _ in range(count + unless_count)])
        required_terms = self.below(count + 1)
        if self.is_nonsense():
            required_terms = count + 1 + self.below(2)
        if self.is_nonsense():
            unless_count = len(items) + self.below(2)
        return plain.Operation(
            plain.COMPOSITE,
            operation_id,
            timeout_ms,
            items,
            stale_timeout_ms=self.stale_timeout_ms(),
            required_terms=required_terms,
            unless_count=unless_count,
        )

    def term(self) -> plain.Item:
        if self.rng.random() < 0.4:
            most = 5 if self.rng.random() < 0.5 else 50
            count = 0 if self.is_nonsense() else 1 + self.below(most)
            return plain.Item(self.keys[self.below(len(self.keys))], count)
        sketch = self.sketch()
        return plain.Item(sketch.name, self.near(sketch.log_end, -2, 6))

    def fetch_operation(self, operation_id: int, timeout_ms: int, chosen: list[Sketch]) -> plain.Operation:
        replica_id = 1 + self.below(self.swarm.replica_ids) if self.rng.random() < 0.4 else -1
        items = tuple([self.fetch_item(sketch) for sketch in chosen])
        return plain.Operation(
            plain.FETCH,
            operation_id,
            timeout_ms,
            items,
            min_bytes=1 + self.below((1, 10, 100)[self.below(3)] * self.swarm.bytes_per_offset),
            replica_id=replica_id,
            isolation=1 + self.below(2),
            follower_reads=self.rng.random() < 0.3,
            stale_timeout_ms=self.stale_timeout_ms(),
        )

    def stale_timeout_ms(self) -> int:
        is_stale = self.swarm.stale > 0 and self.rng.random() < self.swarm.stale
        return self.below(self.swarm.timeout_max_ms) if is_stale else -1

    def heartbeat_timeout_ms(self) -> int:
        if self.rng.random() >= self.swarm.heartbeats:
            return -1
        return -2 if self.is_nonsense() else self.below(self.swarm.timeout_max_ms)

    def fetch_item(self, sketch: Sketch) -> plain.Item:
        offset = sketch.log_end if self.rng.random() < 0.6 else self.near(sketch.log_end, -5, 1)
        max_bytes = 1_048_576 if self.rng.random() < 0.67 else 1 + self.below(10 * self.swarm.bytes_per_offset)
        last_epoch = self.near_epoch(sketch) if self.rng.random() < self.swarm.epochs / 4 else -1
        throttled = self.rng.random() < 0.1
        return plain.Item(sketch.name, offset, self.epoch_of(sketch), 0, max_bytes, last_epoch, throttled)

    def near_epoch(self, sketch: Sketch) -> int:
        return max(0, sketch.epoch + (self.below(3) - 1 if self.rng.random() < 0.2 else 0))

    def epoch_of(self, sketch: Sketch) -> int:
        """An epoch as a caller might send it; often none."""
        return self.near_epoch(sketch) if self.rng.random() < self.swarm.epochs else -1

    # Events.

    def event(self) -> plain.Event:
        event_type = self.event_table[self.rng.getrandbits(10)]
        if event_type == plain.KEY_SIGNALLED:
            return self.signal_event()
        sketch = self.sketch()
        epoch = self.epoch_of(sketch)
        if event_type == plain.LEADER_APPEND:
            return self.append_event(sketch, epoch)
        if event_type in {plain.IN_SYNC_REPLICAS, plain.LEADERSHIP}:
            return self.set_event(event_type, sketch, epoch)
        offset = -1
        if event_type in {plain.FOLLOWER_PROGRESS, plain.HIGH_WATERMARK}:
            offset = sketch.log_end if self.rng.random() < 0.5 else self.near(sketch.log_end, -6, 1)
        elif event_type == plain.LAST_STABLE_OFFSET:
            offset = -1 if self.rng.random() < 0.4 else self.near(sketch.log_end, -6, 1)
        elif event_type in {plain.LOG_START_OFFSET, plain.TRUNCATION}:
            offset = self.near(sketch.log_end, -8, 1)
        if event_type == plain.TRUNCATION and offset < sketch.log_end:
            self.cut(sketch, offset)
        if self.is_nonsense():
            offset = -1
        replica_id = 1 + self.below(self.swarm.replica_ids)
        log_start = self.near(sketch.log_end, -8, 0) if self.rng.random() < 0.5 else -1
        flag = self.below(4) if event_type == plain.REPLICA_STATE else self.below(2)
        return plain.Event(event_type, sketch.name, offset, epoch, replica_id, log_start=log_start, flag=flag)

    def signal_event(self) -> plain.Event:
        """A signal, perhaps with a value or as a failure, or a heartbeat."""
        rng, key = self.rng, self.keys[self.below(len(self.keys))]
        if rng.random() < self.swarm.heartbeats / 2:
            return plain.Event(plain.KEY_SIGNALLED, key, 0)
        count = self.below(4) if self.is_nonsense() else 1 + self.below(2)
        value = 1 + self.below(5) if rng.random() < self.swarm.values else 0
        return plain.Event(plain.KEY_SIGNALLED, key, count, flag=int(rng.random() < self.swarm.failures), value=value)

    @staticmethod
    def cut(sketch: Sketch, offset: int) -> None:
        """After a truncation, the sketch starts a new segment there, whatever was before."""
        sketch.log_end = offset
        sketch.segment = offset
        sketch.position = 0

    def append_event(self, sketch: Sketch, epoch: int) -> plain.Event:
        """The log grows or rolls, or an outdated append arrives."""
        draw = self.rng.random()
        if draw < 0.05:
            return plain.Event(plain.LEADER_APPEND, sketch.name, self.near(sketch.log_end, -3, 0), epoch)
        if draw < 0.1 and sketch.says_positions:
            sketch.segment = sketch.log_end
            sketch.position = 0
        else:
            grown = 1 + self.below(3 * self.swarm.stride)
            sketch.log_end += grown
            sketch.position += grown * (1 + self.below(self.swarm.bytes_per_offset))
        if not sketch.says_positions or draw > 0.9:
            return plain.Event(plain.LEADER_APPEND, sketch.name, sketch.log_end, epoch)
        places = (sketch.position, sketch.segment)
        return plain.Event(plain.LEADER_APPEND, sketch.name, sketch.log_end, epoch, -1, *places)

    def set_event(self, event_type: int, sketch: Sketch, epoch: int) -> plain.Event:
        ids = range(1, self.swarm.replica_ids + 1)
        if event_type == plain.IN_SYNC_REPLICAS:
            return plain.Event(
                event_type,
                sketch.name,
                epoch=epoch,
                in_sync=self.members(sketch.leader_id, ids) if self.rng.random() < 0.7 else (),
                proposed=self.members(sketch.leader_id, ids) if self.rng.random() < 0.3 else (),
                leader_id=sketch.leader_id if self.rng.random() < 0.8 else -1,
                min_in_sync=1 + self.below(3) if self.rng.random() < 0.3 else -1,
            )
        draw = self.rng.random()
        sketch.epoch += 1 if draw < 0.7 else 0
        if self.rng.random() < 0.3:
            sketch.leader_id = 1 + self.below(self.swarm.replica_ids)
        return plain.Event(
            event_type,
            sketch.name,
            offset=self.near(sketch.log_end, -3, 0) if self.rng.random() < 0.3 else -1,
            epoch=-1 if self.is_nonsense() else max(0, sketch.epoch - (1 if draw > 0.95 else 0)),
            flag=1 if self.rng.random() < 0.75 else 0,
            replicas=self.members(sketch.leader_id, ids) if self.rng.random() < 0.3 else (),
            leader_id=sketch.leader_id if self.rng.random() < 0.8 else -1,
        )

    def members(self, leader_id: int, ids: range) -> tuple[int, ...]:
        return tuple(replica_id for replica_id in ids if replica_id == leader_id or self.rng.random() < 0.6)


def one_owner(seed: int, timeout_max_ms: int) -> Generator:
    generator = Generator(seed)
    generator.swarm.owners, generator.swarm.timeout_max_ms = 1, timeout_max_ms
    generator.sketches = [Sketch(name, says_positions=True) for name in PARTITIONS]
    generator.keys = [(key, -1) for key in KEYS]
    return generator


EVENT_TYPES = tuple(range(plain.LEADER_APPEND, plain.KEY_SIGNALLED + 1))
COMMON = {plain.LEADER_APPEND: 8.0, plain.FOLLOWER_PROGRESS: 8.0, plain.HIGH_WATERMARK: 3.0, plain.KEY_SIGNALLED: 3.0}


class Swarm:
    """Options of a run. Weights are the frequencies of steps, relative to the others of their table."""

    def __init__(self, rng: random.Random) -> None:
        tick_ms = rng.choice((1, 1, 1, 1, 2, 7, 20))
        wheel_size = rng.choice((20, 20, 20, 3, 5, 64))
        start_ms = rng.choice((0, 0, 7, 1_000, 86_400_000 * 30))
        lag_max_ms = rng.choice((1, 10, 100, 30_000))
        self.settings = plain.Settings(start_ms, tick_ms, wheel_size, rng.random() < 0.08, lag_max_ms)
        self.partitions = rng.choice((1, 1, 2, 3, 5, 9))
        self.keys = rng.choice((1, 2, 4))
        self.owners = rng.choice((1, 1, 2, 4))
        self.replica_ids = rng.choice((2, 3, 4))
        self.batch_max = rng.choice((1, 1, 2, 5, 12))
        self.items_max = rng.choice((1, 1, 2, 3, 6))
        self.stride = rng.choice((1, 3, 10))
        self.bytes_per_offset = rng.choice((1, 10, 100))
        self.positions = rng.choice((0.0, 0.5, 1.0))
        self.timeout_max_ms = rng.choice((3, 20, 100, 1_000, 50_000))
        self.timeout_min_ms = 0 if self.timeout_max_ms == 3 else 1  # 0: do not wait at all
        self.leap_max_ms = rng.choice((2, 10, 50, 2_000))
        self.reaper_limit = rng.choice((100_000, 100_000, 1, 5))
        self.slice_limit = rng.choice((100_000, 100_000, 1, 3))
        self.nonsense = rng.choice((0.0, 0.0, 0.01, 0.05))
        self.stale = rng.choice((0.0, 0.0, 0.1, 0.5))
        self.values = rng.choice((0.0, 0.2, 0.5))
        self.failures = rng.choice((0.0, 0.01, 0.03, 0.1))
        self.heartbeats = rng.choice((0.0, 0.0, 0.2, 0.6))
        self.epochs = rng.choice((0.0, 0.2, 0.8))
        has_high_watermarks = rng.choice((True, False))
        self.kinds = tuple(kind for kind in plain.KINDS if rng.random() < 0.6) or plain.KINDS
        self.event_weights = [self.event_weight(rng, event_type) for event_type in EVENT_TYPES]
        if not has_high_watermarks:  # then only the progress of followers raises them
            self.event_weights[EVENT_TYPES.index(plain.HIGH_WATERMARK)] = 0.0
        rare = (0.0, 0.002, 0.01)
        self.step_weights = {
            "register": rng.choice((0.3, 0.5, 0.7)),
            "apply": rng.choice((0.3, 0.6)),
            "advance": rng.choice((0.02, 0.1, 0.3)),
            "sleep": rng.choice((0.0, 0.05)),
            "cancel": rng.choice((0.0, 0.05, 0.2)),
            "cancel_all": rng.choice(rare),
            "cancel_name": rng.choice(rare),
            "replace_owner": rng.choice(rare),
            "shut_down": rng.choice(rare),
            "fail_stale": rng.choice((0.02, 0.1)) if self.stale else 0.0,
            "extend": rng.choice((0.0, 0.02, 0.1)),
            "pause": rng.choice((0.0, 0.05)) if self.heartbeats or self.stale else 0.0,
        }

    @staticmethod
    def event_weight(rng: random.Random, event_type: int) -> float:
        """Some events are common, some rare, and any may be absent from a run."""
        weight = COMMON.get(event_type, 1.0)
        if event_type in {plain.PARTITION_REMOVED, plain.STORAGE_FAILED}:
            weight = 0.2
        if event_type == plain.LEADERSHIP:
            weight = 0.5
        return weight * rng.choice((0.0, 0.3, 1.0, 1.0, 3.0))
