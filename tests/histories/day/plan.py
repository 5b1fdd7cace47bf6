"""The plan of a simulated day, drawn from the seed before anything runs.

The same seed always plans the same actions at the same times. Their exact interleaving is not reproducible, because
sockets are real. Sizes and the mix differ between seeds (swarm testing), so that rare actions are frequent in some.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from purgatory.engine import codes
from tests.engine import plain

LOGS = tuple(("log", number) for number in range(4))
"""Partitions whose marks only rise, for produce waits and fetches."""
VOLATILE = tuple(("volatile", number) for number in range(2))
"""Partitions that are removed, moved, led elsewhere or lose their storage, for produce waits and fetches."""
TRIMMED = tuple(("trimmed", number) for number in range(2))
"""Partitions whose high watermark is always `TOP` and whose log start rises, for delete-records waits."""
KEYS = ("build", "deploy", "index", "report")

TIMEOUT_MS_DEFAULT = 30_000
TOP = 1_000_000
"""The value of all marks at the end of the day."""
OFFSETS_A_DAY = 400
SESSIONS_SPARE = 4
"""Sessions beyond those of the clients: one for the passer-by, and some that have not been left yet."""
PASSER_INTERVAL_MS = 4
NEVER = 10**9
"""An offset or count that is never reached: such waits expire."""

FAULTS = ("drop", "cut", "hold", "swallow", "refuse", "half_close_up", "half_close_down")


class PlannedWait(NamedTuple):
    """One wait to request. `items`: names with offsets (fetch offsets, counts)."""

    kind: int
    items: tuple[tuple[tuple[str, int] | str, int], ...]
    timeout_ms: int | None
    cancel_after_ms: int | None = None
    once: bool = False
    min_bytes: int = 1
    replica_id: int = -1
    any_key: bool = False
    from_now: bool = False
    local_error_code: int = 0
    valid: bool = True
    required_terms: int = 0
    unless_count: int = 0
    """Composites: the last so many items are the failure arm."""

    def operation(self) -> plain.Operation:
        """What is registered, without an id."""
        items = [
            plain.Item((name, -1) if isinstance(name, str) else name, offset, local_error=self.local_error_code)
            for name, offset in self.items
        ]
        timeout_ms = TIMEOUT_MS_DEFAULT if self.timeout_ms is None else self.timeout_ms
        given = {name: getattr(self, name) for name in plain.Operation._fields if name in self._fields}
        return plain.Operation(**given | {"operation_id": 0, "timeout_ms": timeout_ms, "items": tuple(items)})


class Batch(NamedTuple):
    """Many waits of one kind in one call. All have a timeout."""

    operations: tuple[PlannedWait, ...]
    cancel_after_ms: int | None = None


class Close(NamedTuple):
    """Close the client and replace it with a new one."""


class Step(NamedTuple):
    """An action of an actor, at a time in milliseconds since the start of the day."""

    at_ms: int
    what: PlannedWait | Batch | Close


class EventPlan(NamedTuple):
    """One event. `flag`: is leader (leadership), moved (removal)."""

    type: int
    name: tuple[str, int] | str
    offset: int = 0
    epoch: int = -1
    flag: bool = False


class Push(NamedTuple):
    """A batch of events. The advancer also signals the batch's number on its own key, to identify it."""

    at_ms: int
    number: int
    events: tuple[EventPlan, ...]


class PlannedFault(NamedTuple):
    """A fault of an actor's connection. `amount`: its duration in milliseconds, or the bytes still forwarded."""

    at_ms: int
    actor: int
    kind: str
    amount: int


class OperatorCancel(NamedTuple):
    """An operator cancels all operations on a partition, on a key, or in a client's session."""

    at_ms: int
    target: tuple[str, int] | str | int


class Restart(NamedTuple):
    """The daemon ends (drained, or as if killed) and is replaced by a new one."""

    at_ms: int
    graceful: bool
    away_ms: int


class Passer(NamedTuple):
    """A client opens a session with a new id, and leaves without registering anything."""

    at_ms: int
    session_id: str


@dataclass
class Plan:
    """One day. Actors 0 to `clients` - 1 are clients; the following numbers are advancers."""

    seed: int
    clients: int = 0
    advancers: int = 0
    day_ms: int = 0
    uvloop: bool = False
    ends_with_drain: bool = False
    heartbeat_interval_ms: int = 200
    session_ttl_ms: int = 60_000
    finished_ttl_ms: int = 5_000
    sessions_max: int = 10_000
    unacknowledged_results_max: int = 1_000_000
    operations_per_batch_max: int = 100_000
    give_up_after: float | None = None
    faulty_listener: bool = False
    """Whether the daemon has a listener that raises in each of its hooks."""
    internal_size: int = 0
    """The value of all internal sizes of daemon and clients; 0: their own."""
    steps: list[list[Step]] = field(default_factory=list)
    pushes: list[list[Push]] = field(default_factory=list)
    faults: list[PlannedFault] = field(default_factory=list)
    cancels: list[OperatorCancel] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    passers: list[Passer] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return sum(
            len(step.what.operations) if isinstance(step.what, Batch) else isinstance(step.what, PlannedWait)
            for steps in self.steps
            for step in steps
        )

    def describe(self) -> str:
        """One line with the settings and the number of each kind of step."""
        counts = {name: len(value) for name, value in vars(self).items() if isinstance(value, list)}
        said = vars(self) | counts | {"steps": self.operations, "pushes": sum(map(len, self.pushes))}
        return ", ".join(f"{name}={value}" for name, value in said.items())


class Drawing:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._plan = Plan(seed)

    def draw(self) -> Plan:
        plan, rng = self._plan, self._random
        plan.clients = rng.randint(1, 6)
        plan.advancers = rng.randint(1, 3)
        plan.day_ms = rng.choice((500, 900, 1_300))
        plan.uvloop = rng.random() < 0.5
        plan.ends_with_drain = rng.random() < 0.3
        plan.heartbeat_interval_ms = rng.choice((80, 150, 250))
        plan.session_ttl_ms = rng.choice((150, 400, 60_000, 60_000))
        plan.finished_ttl_ms = (1, 50, 5_000)[plan.seed % 3]
        plan.unacknowledged_results_max = rng.choice((1_000_000, 1_000_000, 1_000_000, 30))
        plan.operations_per_batch_max = rng.choice((100_000, 100_000, 7))
        plan.give_up_after = rng.choice((None, None, None, 0.25))
        plan.faulty_listener = plan.seed % 7 == 3
        plan.internal_size = (0, 0, 2, 8, 0)[plan.seed % 5]
        kinds = rng.sample(codes.KINDS, rng.randint(1, 4))
        volatile = rng.random() < 0.6
        plan.steps = [self._client_steps(kinds, volatile) for _ in range(plan.clients)]
        plan.pushes = [self._advancer_pushes(number, volatile) for number in range(plan.advancers)]
        plan.faults = self._faults()
        plan.cancels = self._operator_cancels(kinds) if rng.random() < 0.4 else []
        if rng.random() < 0.3:
            at_ms = rng.randint(plan.day_ms // 4, plan.day_ms)
            plan.restarts = [Restart(at_ms, rng.random() < 0.5, rng.choice((0, 100, 500)))]
        if plan.seed % 2:
            self._fill_sessions()
        return plan

    def _fill_sessions(self) -> None:
        """Add enough passers-by that each new one evicts a finished session while clients keep registering."""
        plan = self._plan
        replaced = sum(isinstance(step.what, Close) for steps in plan.steps for step in steps)
        plan.sessions_max = plan.clients + replaced + SESSIONS_SPARE
        plan.passers = [Passer(at_ms, f"passer-{at_ms}") for at_ms in range(0, plan.day_ms, PASSER_INTERVAL_MS)]

    # Clients.

    def _client_steps(self, kinds: list[int], volatile: bool) -> list[Step]:
        rng, day_ms = self._random, self._plan.day_ms
        times = sorted(rng.randint(0, day_ms) for _ in range(rng.randint(10, 70)))
        cancelled = rng.choice((0.0, 0.1, 0.5))
        once = rng.choice((0.0, 0.1))
        steps: list[Step] = []
        for at_ms in times:
            dice = rng.random()
            if dice < 0.007:
                steps.append(Step(at_ms, Close()))
            elif dice < 0.12:
                steps.append(Step(at_ms, self._batch(rng.choice(kinds), volatile, cancelled)))
            else:
                # Several at the same instant, so that the client can combine them.
                for _ in range(rng.choice((1, 1, 4))):
                    operation = self._operation(rng.choice(kinds), volatile, cancelled, once)
                    steps.append(Step(at_ms, operation))
        return steps

    def _batch(self, kind: int, volatile: bool, cancelled: float) -> Batch:
        rng = self._random
        count = rng.choice((1, 5, 40))
        operations = tuple(self._operation(kind, volatile, 0.0, 0.0, in_batch=True) for _ in range(count))
        return Batch(operations, self._cancel_after_ms(cancelled))

    def _cancel_after_ms(self, share: float) -> int | None:
        return self._random.choice((0, 1, 20, 300)) if self._random.random() < share else None

    def _operation(
        self, kind: int, volatile: bool, cancelled: float, once: float, *, in_batch: bool = False
    ) -> PlannedWait:
        rng = self._random
        invalid = rng.random() < 0.02
        timeout_ms: int | None = rng.choice((0, 20, 150, 500, 1_200))
        reachable = rng.random() < 0.85
        if reachable and not in_batch and rng.random() < 0.1:
            timeout_ms = None
        items = self._items(kind, volatile, reachable, invalid)
        unless_count = rng.randrange(len(items)) if kind == codes.COMPOSITE else 0
        return PlannedWait(
            kind,
            items,
            timeout_ms,
            self._cancel_after_ms(cancelled),
            once=rng.random() < once,
            min_bytes=(rng.choice((1, 5, 50)) if reachable else NEVER) if kind == codes.FETCH else 1,
            replica_id=rng.choice((-1, 7)) if kind == codes.FETCH else -1,
            any_key=kind == codes.SIGNAL and reachable and rng.random() < 0.3,
            from_now=kind == codes.SIGNAL and rng.random() < 0.3,
            local_error_code=5 if kind == codes.PRODUCE and rng.random() < 0.03 else 0,
            valid=not invalid,
            required_terms=rng.randint(0, len(items) - unless_count) if kind == codes.COMPOSITE else 0,
            unless_count=unless_count,
        )

    def _items(
        self, kind: int, volatile: bool, reachable: bool, invalid: bool
    ) -> tuple[tuple[tuple[str, int] | str, int], ...]:
        rng = self._random
        names: list[tuple[str, int] | str]
        if kind == codes.SIGNAL:
            names = list(KEYS)
        elif kind == codes.DELETE_RECORDS:
            names = list(TRIMMED)
        elif kind == codes.COMPOSITE:
            names = [*LOGS, *VOLATILE, *KEYS] if volatile else [*LOGS, *KEYS]
        else:
            names = [*LOGS, *VOLATILE] if volatile else list(LOGS)
        chosen = rng.sample(names, min(len(names), rng.choice((1, 1, 1, 2, 3))))
        if invalid:
            return tuple((name, -5) for name in chosen)
        highest = {codes.SIGNAL: 60, codes.FETCH: rng.choice((0, OFFSETS_A_DAY))}.get(kind, OFFSETS_A_DAY)
        items = [(name, rng.randint(0 if kind == codes.FETCH else 1, highest)) for name in chosen]
        if kind == codes.COMPOSITE:
            items = [(name, rng.randint(1, 60) if isinstance(name, str) else offset) for name, offset in items]
        if not reachable and kind in {codes.PRODUCE, codes.SIGNAL}:
            items[-1] = (items[-1][0], NEVER)
        if kind == codes.DELETE_RECORDS and rng.random() < 0.1:
            items[0] = (items[0][0], -1)
        return tuple(items)

    # Events and faults.

    def _advancer_pushes(self, number: int, volatile: bool) -> list[Push]:
        rng, day_ms = self._random, self._plan.day_ms
        times = sorted(rng.randint(0, day_ms) for _ in range(rng.randint(5, 60)))
        return [
            Push(at_ms, place, self._events(at_ms, place * 10 + number, volatile))
            for place, at_ms in enumerate(times, start=1)
        ]

    def _events(self, at_ms: int, epoch: int, volatile: bool) -> tuple[EventPlan, ...]:
        rng = self._random
        events: list[EventPlan] = []
        about = at_ms * OFFSETS_A_DAY // self._plan.day_ms
        for _ in range(rng.choice((1, 3, 10))):
            offset = max(0, about + rng.randint(-20, 20))
            dice = rng.random()
            if dice < 0.2:
                events.append(EventPlan(codes.KEY_SIGNALLED, rng.choice(KEYS), rng.choice((1, 1, 3))))
            elif dice < 0.35:
                name = rng.choice(TRIMMED)
                events.append(EventPlan(codes.HIGH_WATERMARK, name, TOP))
                events.append(EventPlan(codes.LOG_START_OFFSET, name, offset))
            elif dice < 0.5 and volatile:
                events.append(self._upheaval(rng.choice(VOLATILE), epoch))
            else:
                name = rng.choice(LOGS + VOLATILE if volatile else LOGS)
                kind = codes.LEADER_APPEND if rng.random() < 0.3 else codes.HIGH_WATERMARK
                events.append(EventPlan(kind, name, offset))
        return tuple(events)

    def _upheaval(self, name: tuple[str, int], epoch: int) -> EventPlan:
        rng = self._random
        kind = rng.choice((codes.PARTITION_REMOVED, codes.STORAGE_FAILED, codes.STORAGE_ONLINE, codes.LEADERSHIP))
        if kind == codes.LEADERSHIP:
            return EventPlan(kind, name, epoch=epoch, flag=rng.random() < 0.7)
        return EventPlan(kind, name, flag=kind == codes.PARTITION_REMOVED and rng.random() < 0.5)

    def _faults(self) -> list[PlannedFault]:
        rng, plan = self._random, self._plan
        kinds = rng.sample(FAULTS, rng.randint(1, len(FAULTS)))
        count = rng.choice((0, 5, 15, 40))
        actors = plan.clients + plan.advancers
        faults = []
        for _ in range(count):
            kind = rng.choice(kinds)
            amount = rng.randint(0, 2_000) if kind == "cut" else rng.choice((5, 50, 200, 700))
            faults.append(PlannedFault(rng.randint(0, plan.day_ms), rng.randrange(actors), kind, amount))
        return sorted(faults, key=lambda fault: fault.at_ms)

    def _operator_cancels(self, kinds: list[int]) -> list[OperatorCancel]:
        rng, plan = self._random, self._plan
        targets: list[tuple[str, int] | str | int] = [*range(plan.clients)]
        if codes.SIGNAL in kinds:
            targets.extend(KEYS)
        if codes.DELETE_RECORDS in kinds:
            targets.extend(TRIMMED)
        targets.extend(LOGS)
        times = sorted(rng.randint(0, plan.day_ms) for _ in range(rng.randint(1, 8)))
        return [OperatorCancel(at_ms, rng.choice(targets)) for at_ms in times]


def draw_plan(seed: int) -> Plan:
    return Drawing(seed).draw()


def waking_events() -> list[EventPlan]:
    """Events at the end of the day that raise all marks to their final values."""
    events = []
    for name in VOLATILE:
        events.append(EventPlan(codes.STORAGE_ONLINE, name))
        events.append(EventPlan(codes.LEADERSHIP, name, epoch=100_000, flag=True))
    for name in LOGS + VOLATILE:
        events.append(EventPlan(codes.LEADER_APPEND, name, TOP))
        events.append(EventPlan(codes.HIGH_WATERMARK, name, TOP))
    for name in TRIMMED:
        events.append(EventPlan(codes.HIGH_WATERMARK, name, TOP))
        events.append(EventPlan(codes.LOG_START_OFFSET, name, TOP))
    events.extend(EventPlan(codes.KEY_SIGNALLED, key, 1_000) for key in KEYS)
    return events
