"""The plan of a simulated day, drawn from the seed before anything runs.

The same seed always plans the same actions at the same times. Their exact interleaving is not reproducible, because
sockets are real. Sizes and the mix differ between seeds (swarm testing), so that rare actions are frequent in some.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.engine import plain
from tests.histories.plan import one_owner
from tests.histories.swarm import EVENT_TYPES

SESSIONS_SPARE = 4
"""Sessions beyond those of the clients: one for the passer-by, and some that have not been left yet."""
PASSER_INTERVAL_MS = 4
INVALID = -5
"""The offset of an item that the daemon must refuse."""
RISING = {plain.LEADER_APPEND: 6, plain.HIGH_WATERMARK: 6, plain.LOG_START_OFFSET: 2, plain.KEY_SIGNALLED: 5}
"""The frequency of events that raise marks; others remove partitions, change leaders, fail storage."""
FAULTS = ("drop", "cut", "hold", "swallow", "refuse", "half_close_up", "half_close_down")


class Request(NamedTuple):
    """Waits of one client: a single one in its session or by a unary call, or a batch of one kind as columns."""

    operations: tuple[plain.Operation, ...]
    path: str
    cancel_after_ms: int | None = None


class Close(NamedTuple):
    """Close the client and replace it with a new one."""


class Step(NamedTuple):
    """An action of a client, at a time in milliseconds since the start of the day."""

    at_ms: int
    what: Request | Close


class Push(NamedTuple):
    """A batch of events. The advancer also signals the batch's number on its own key, to identify it."""

    at_ms: int
    number: int
    events: tuple[plain.Event, ...]


class PlannedFault(NamedTuple):
    """A fault of an actor's connection. `amount`: its duration in milliseconds, or the bytes still forwarded."""

    at_ms: int
    actor: int
    kind: str
    amount: int


class OperatorCancel(NamedTuple):
    """An operator cancels all operations on a partition, on a key, or in a client's session."""

    at_ms: int
    target: plain.Name | int


class Restart(NamedTuple):
    """The daemon ends (drained, or as if killed) and is replaced by a new one."""

    at_ms: int
    graceful: bool
    away_ms: int


@dataclass
class Plan:
    """A day: settings of the daemon and the clients, and lists of actions, each in order."""

    seed: int
    day_ms: int
    uvloop: bool
    ends_with_drain: bool
    heartbeat_interval_ms: int
    session_ttl_ms: int
    finished_ttl_ms: int
    unacknowledged_results_max: int
    operations_per_batch_max: int
    give_up_after: float | None
    faulty_listener: bool
    """Whether the daemon has a listener that raises in each of its hooks."""
    internal_size: int
    """The value of all internal sizes of daemon and clients; 0: their own."""
    steps: list[list[Step]]
    """For each client."""
    pushes: list[list[Push]]
    """For each advancer."""
    sessions_max: int = 10_000
    faults: list[PlannedFault] = field(default_factory=list)
    cancels: list[OperatorCancel] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    passers: list[int] = field(default_factory=list)
    """Times at which a client opens a session with a new id, and leaves without registering anything."""

    @property
    def requests(self) -> list[Request]:
        """The requests of all clients."""
        return [step.what for steps in self.steps for step in steps if isinstance(step.what, Request)]


def draw_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    plan = Plan(
        seed,
        day_ms=rng.choice((500, 900, 1_300)),
        uvloop=rng.random() < 0.5,
        ends_with_drain=rng.random() < 0.3,
        heartbeat_interval_ms=rng.choice((80, 150, 250)),
        session_ttl_ms=rng.choice((150, 400, 60_000, 60_000)),
        finished_ttl_ms=(1, 50, 5_000)[seed % 3],
        unacknowledged_results_max=rng.choice((1_000_000, 1_000_000, 1_000_000, 30)),
        operations_per_batch_max=rng.choice((100_000, 100_000, 7)),
        give_up_after=rng.choice((None, None, None, 0.25)),
        faulty_listener=seed % 7 == 3,
        internal_size=(0, 0, 2, 8, 0)[seed % 5],
        steps=[[] for _ in range(rng.randint(1, 6))],
        pushes=[[] for _ in range(rng.randint(1, 3))],
    )
    _draw_actions(plan, rng)
    _draw_faults(plan, rng)
    if rng.random() < 0.3:
        at_ms = rng.randint(plan.day_ms // 4, plan.day_ms)
        plan.restarts = [Restart(at_ms, rng.random() < 0.5, rng.choice((0, 100, 500)))]
    if seed % 2:  # each new session evicts a finished one while clients keep registering
        replaced = sum(isinstance(step.what, Close) for steps in plan.steps for step in steps)
        plan.sessions_max = len(plan.steps) + replaced + SESSIONS_SPARE
        plan.passers = list(range(0, plan.day_ms, PASSER_INTERVAL_MS))
    return plan


def _draw_actions(plan: Plan, rng: random.Random) -> None:
    """Waits and events by the clock of the day, as one history in which most waits are near the marks."""
    generator = one_owner(plan.seed, timeout_max_ms=rng.choice((100, 300, 900)))
    generator.swarm.nonsense = generator.swarm.stale = generator.swarm.timeout_min_ms = 0
    generator.swarm.failures /= 10  # a key that has failed once fails all later waits of the day
    generator.swarm.epochs = rng.choice((0.0, 0.0, 0.2))
    volatile = rng.choice((0.0, 0.02, 0.2))
    generator.event_table = rng.choices(EVENT_TYPES, [RISING.get(one, volatile) for one in EVENT_TYPES], k=1_024)
    cancelled, once = rng.choice((0.0, 0.1, 0.5)), rng.choice((0.0, 0.1))

    def operation(kind: int) -> plain.Operation:
        drawn = generator.operation(0, kind)
        if drawn.heartbeat_timeout_ms == 0:  # the client refuses it
            drawn = drawn._replace(heartbeat_timeout_ms=1)
        if rng.random() < 0.02:
            return drawn._replace(items=tuple(item._replace(offset=INVALID) for item in drawn.items))
        return drawn

    def action() -> list[Request | Close]:
        dice, kind = rng.random(), rng.choice(generator.swarm.kinds)
        after_ms = rng.choice((0, 1, 20, 300)) if rng.random() < cancelled else None
        if dice < 0.007:
            return [Close()]
        if dice < 0.12:
            return [Request(tuple(operation(kind) for _ in range(rng.choice((1, 5, 40)))), "columns", after_ms)]
        path = "unary" if rng.random() < once else "client"
        # Several at the same instant, so that the client can combine them.
        return [Request((operation(kind),), path, after_ms) for _ in range(rng.choice((1, 1, 4)))]

    for at_ms in sorted(rng.randint(0, plan.day_ms) for _ in range(rng.randint(60, 500))):
        if rng.random() < 0.5:
            pushes = rng.choice(plan.pushes)
            events = tuple(generator.event() for _ in range(rng.choice((1, 3, 10, 20))))
            pushes.append(Push(at_ms, len(pushes) + 1, events))
        else:
            steps = rng.choice(plan.steps)
            steps += [Step(at_ms, what) for what in action()]
    if rng.random() < 0.4:
        names = [*(sketch.name for sketch in generator.sketches), *generator.keys]
        targets: list[plain.Name | int] = [*range(len(plan.steps)), *names]
        times = sorted(rng.randint(0, plan.day_ms) for _ in range(rng.randint(1, 8)))
        plan.cancels = [OperatorCancel(at_ms, rng.choice(targets)) for at_ms in times]


def _draw_faults(plan: Plan, rng: random.Random) -> None:
    kinds = rng.sample(FAULTS, rng.randint(1, len(FAULTS)))
    for _ in range(rng.choice((0, 5, 15, 40))):
        kind = rng.choice(kinds)
        amount = rng.randint(0, 2_000) if kind == "cut" else rng.choice((5, 50, 200, 700))
        actor = rng.randrange(len(plan.steps) + len(plan.pushes))
        plan.faults.append(PlannedFault(rng.randint(0, plan.day_ms), actor, kind, amount))
    plan.faults.sort()
