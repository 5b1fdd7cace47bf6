"""Which operations arrive when: a Poisson stream of a known number, split by kind, partition and session.

Each broker is a session that sends what arrived every `FLUSH_MS`, one message for each kind. Signals come from a
session of jobs; delete-records are unary waits, each a call of its own.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from purgatory.archive.vocabulary import NO_SESSION, Registrant
from purgatory.engine.codes import DELETE_RECORDS, FETCH, PRODUCE, SIGNAL
from purgatory_pipeline.generate.draw.topology import Flags, Floats, Ints, LeaderChange, Log, Topology
from purgatory_pipeline.generate.history_plan import BROKERS, RunPlan

FLUSH_MS: Final = 16
KIND_SHARES: Final = ((PRODUCE, 0.70), (FETCH, 0.245), (SIGNAL, 0.05), (DELETE_RECORDS, 0.005))
SIGNAL_KEYS: Final = 60
KEY_HOTNESS: Final = 1.0
SEVERAL_SHARE: Final = {PRODUCE: 0.04, FETCH: 0.15, SIGNAL: 0.25, DELETE_RECORDS: 0.0}
"""The share of each kind's operations that wait on several partitions or keys."""
SEVERAL_MAX: Final = 4

JOBS: Final = BROKERS
UNARY: Final = BROKERS + 1
REGISTRANTS: Final = [
    *(Registrant(broker, f"broker-{broker}", "brokers") for broker in range(1, BROKERS + 1)),
    Registrant(BROKERS + 1, "nightly-jobs", "jobs"),
    NO_SESSION,
]
"""Sessions by place; the last one is no session."""

WITHOUT_EPOCHS: Final = BROKERS - 1
"""The place of a session whose client is too old to send leader epochs."""


@dataclass(frozen=True)
class Arrivals:
    """Operations in the order of registration, and their items; `first_item` has one entry more."""

    time_ms: Ints
    session: Ints
    kind: Ints
    operation_id: Ints
    first_item: Ints
    item_operation: Ints
    item_place: Ints
    """Index of the partition, or of a signal's key."""
    item_log: Ints
    """-1: a signal's."""
    item_too_late: Flags
    """Sent to a leader that had resigned by then."""


def draw_arrivals(
    cluster: Topology, logs: list[Log], changes: list[LeaderChange], run: RunPlan, rng: np.random.Generator
) -> Arrivals:
    count = run.operations
    arrived_ms = np.sort(rng.random(count)) * run.life_ms
    kinds = np.array([kind for kind, _ in KIND_SHARES])
    kind = kinds[pick(np.array([share for _, share in KIND_SHARES]), rng.random(count))]
    drawn = rng.random(count)
    place = np.where(kind == SIGNAL, pick(key_load(), drawn), pick(cluster.load, drawn))
    log = place.copy()
    for change in changes:
        log[(place == change.partition) & (arrived_ms >= change.elected_ms)] = change.new_log
    log[kind == SIGNAL] = -1
    session = np.array([one.leader - 1 for one in logs])[log]
    session[kind == SIGNAL] = JOBS
    session[kind == DELETE_RECORDS] = UNARY
    time_ms = _flushed(arrived_ms, session)
    order = np.lexsort((kind, session, time_ms))
    time_ms, session, kind, place, log = (column[order] for column in (time_ms, session, kind, place, log))
    neighbours = _neighbours(cluster, changes)
    item_counts = _draw_item_counts(kind, place, neighbours, rng)
    first_item = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(item_counts)])
    operation = np.repeat(np.arange(count), item_counts)
    places = _spread(neighbours, kind, place, first_item, operation)
    item_log = np.where(log[operation] < 0, -1, np.where(item_counts[operation] > 1, places, log[operation]))
    ends_ms = np.array([one.end_ms for one in logs])
    return Arrivals(
        time_ms=time_ms,
        session=session,
        kind=kind,
        operation_id=_numbered(session),
        first_item=first_item,
        item_operation=operation,
        item_place=places,
        item_log=item_log,
        item_too_late=(item_log >= 0) & (time_ms[operation] >= ends_ms[item_log]),
    )


def pick(shares: Floats, drawn: Floats) -> Ints:
    """Draws places by their shares, given numbers drawn evenly from 0 to 1."""
    bounds = np.cumsum(shares / shares.sum())
    return np.asarray(np.searchsorted(bounds[:-1], drawn, side="right"), dtype=np.int64)


def key_load() -> Floats:
    """How often each signal key is named."""
    return np.asarray(1 / np.arange(1, SIGNAL_KEYS + 1) ** KEY_HOTNESS)


def _flushed(arrived_ms: Floats, session: Ints) -> Ints:
    """When the session sends what arrived: at its next turn, unary waits at once; never before 1 ms."""
    turn = np.where(session == UNARY, 1, FLUSH_MS)
    phase = np.where(session == UNARY, 0, session * FLUSH_MS // BROKERS)
    flushed = np.ceil((arrived_ms - phase) / turn) * turn + phase
    return np.maximum(1, flushed.astype(np.int64))


def _neighbours(cluster: Topology, changes: list[LeaderChange]) -> list[tuple[int, Ints]]:
    """For each kind, the groups of partitions that one operation may name: those with the same leader for the whole
    run.

        A produce writes to one topic, like a producer's batch; a fetch may read several.
    """
    steady = np.setdiff1d(np.arange(len(cluster.names)), [change.partition for change in changes])
    groups: list[tuple[int, Ints]] = []
    for leader in range(1, BROKERS + 1):
        led = steady[cluster.leader_of[steady] == leader]
        groups.append((FETCH, led))
        groups.extend((PRODUCE, led[cluster.topic_of[led] == topic]) for topic in range(len(cluster.topics)))
    return [(kind, partitions) for kind, partitions in groups if len(partitions)]


def _draw_item_counts(kind: Ints, place: Ints, neighbours: list[tuple[int, Ints]], rng: np.random.Generator) -> Ints:
    """One, or a few if there are enough neighbours."""
    shares = np.zeros(max(SEVERAL_SHARE) + 1)
    for one, share in SEVERAL_SHARE.items():
        shares[one] = share
    several = rng.random(len(kind)) < shares[kind]
    counts = np.where(several, rng.integers(2, SEVERAL_MAX + 1, len(kind)), 1)
    room = np.ones((max(SEVERAL_SHARE) + 1, int(place.max()) + 1), dtype=np.int64)
    room[SIGNAL] = SEVERAL_MAX
    for one, partitions in neighbours:
        room[one, partitions[partitions < room.shape[1]]] = len(partitions)
    return np.minimum(counts, room[kind, place])


def _spread(neighbours: list[tuple[int, Ints]], kind: Ints, place: Ints, first_item: Ints, operation: Ints) -> Ints:
    """The place of each item: the operation's own, then its neighbours in turn."""
    nth = np.arange(len(operation)) - first_item[operation]
    own = place[operation]
    places = np.where(kind[operation] == SIGNAL, (own + nth) % SIGNAL_KEYS, own)
    more = np.flatnonzero(nth > 0)
    for one, partitions in neighbours:
        rows = more[(kind[operation[more]] == one) & np.isin(own[more], partitions)]
        places[rows] = partitions[(np.searchsorted(partitions, own[rows]) + nth[rows]) % len(partitions)]
    return places


def _numbered(session: Ints) -> Ints:
    """Operation ids, rising from 1 in each session."""
    numbers = np.zeros(len(session), dtype=np.int64)
    for place in range(len(REGISTRANTS)):
        rows = np.flatnonzero(session == place)
        numbers[rows] = np.arange(1, len(rows) + 1)
    return numbers
