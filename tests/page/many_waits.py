"""Waits of every kind for the page to show, and marks that reach some of them."""

from typing import Final

from purgatory_client import batches, events
from purgatory_client.blocking import Client

SESSION: Final = "checkout"
HOT_TOPIC: Final = "orders"
PARTITIONS: Final = 24
HOSTILE_KEY: Final = '<img src="http://nowhere.invalid/x.png" onerror="alert(1)">\u202e\u0007\x1b[31mred\u200b'
HOSTILE_TOPIC: Final = '"><script>alert(2)</script>\u2066${alert(3)}' + "w" * 60
"""`HOSTILE_KEY` and this contain HTML, terminal colours, and characters that change the direction of text."""
WAITS: Final = 1_000
CROWD: Final = 200_000
CROWD_PARTITIONS: Final = 100
PER_BATCH: Final = 20_000
HOUR_MS: Final = 3_600_000
NEVER: Final = 1 << 40
URGENT: Final = 5
URGENT_SESSION: Final = "3f2a90cc81b74d6e9a55e01b7c64d8f0"


def register_waits(client: Client, *, count: int = WAITS) -> None:
    """Register `count` waits in one session, a quarter of each kind, for minutes to hours. Some have hostile names."""
    each, last = count // 4, count // 4 - 1
    numbers = range(each)
    made = [
        batches.produce(
            [*((HOT_TOPIC, partition) for partition in range(PARTITIONS)), (HOSTILE_TOPIC, 0)],
            indexes=[*(skewed(number) for number in numbers[:last]), PARTITIONS],
            offsets=[10_000 + 4 * number for number in numbers],
            timeouts_ms=[900_000 + number * 7_000 for number in numbers],
        ),
        batches.fetch(
            [("payments", partition) for partition in range(8)],
            indexes=[number % 8 for number in numbers],
            offsets=[500] * each,
            min_bytes=[1_000_000] * each,
            timeouts_ms=[600_000 + number * 1_000 for number in numbers],
        ),
        batches.delete_records(
            [("audit", partition) for partition in range(3)],
            indexes=[number % 3 for number in numbers],
            offsets=[900] * each,
            timeouts_ms=[600_000 + number * 60_000 for number in numbers],
        ),
        batches.signal(
            [*(f"nightly-{number}" for number in range(40)), HOSTILE_KEY],
            indexes=[*(number % 40 for number in numbers[:last]), 40],
            timeouts_ms=[7_200_000 + number * 1_000 for number in numbers],
        ),
    ]
    for place, batch in enumerate(made):
        client.register(SESSION, 1 + place * each, batch)


def register_crowd(client: Client, count: int = CROWD) -> None:
    """Register `count` waits for one to forty hours, evenly over the logarithm of the time, and five of ten minutes."""
    names = [("orders", partition) for partition in range(CROWD_PARTITIONS)]
    for first in range(0, count, PER_BATCH):
        timeouts_ms = [int(HOUR_MS * 40 ** (number / count)) for number in range(first, first + PER_BATCH)]
        indexes = [number % CROWD_PARTITIONS for number in range(PER_BATCH)]
        batch = batches.produce(names, indexes=indexes, offsets=[NEVER] * PER_BATCH, timeouts_ms=timeouts_ms)
        client.register("crowd", first + 1, batch)
    urgent = batches.produce(
        [("Urgent-Refunds", 0)], indexes=[0] * URGENT, offsets=[NEVER] * URGENT, timeouts_ms=[600_000] * URGENT
    )
    client.register(URGENT_SESSION, 1, urgent)


def skewed(number: int) -> int:
    """A skewed distribution: a few partitions have most of the waits."""
    return number % PARTITIONS if number % 3 == 0 else number % 3


def tell_marks(client: Client, step: int = 0) -> None:
    """Push the marks of the partitions, further ahead with a larger `step`. One replica of orders lags behind."""
    told = []
    for partition in range(PARTITIONS):
        name = (HOT_TOPIC, partition)
        end = 9_000 + partition * 10 + step * 20
        if step == 0:
            told.append(events.leadership(name, is_leader=True, leader_epoch=3, leader_id=1, replica_ids=[1, 2, 3]))
            told.append(events.in_sync_replicas(name, [1, 2, 3], leader_id=1, min_in_sync_replicas=2))
        told.append(events.log_end_offset(name, end + 2_000))
        told.append(events.follower_progress(name, 2, end + 1_900))
        told.append(events.follower_progress(name, 3, end))
    client.advance_many(told).raise_for_refusals()
