"""The age of a group's position against the times at which its records were really written, on real brokers."""

import random
import time
from asyncio import to_thread
from typing import Any

from tests.kafka.clients import ClusterClients
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import eventually
from tests.ready.gate_kit import send
from tests.sources.publishing import publishing

INTERVAL_MS = 1_000


class Billing:
    """A group on partition 0 of a topic of the same name."""

    def __init__(self, clients: ClusterClients, topic: str) -> None:
        self.clients, self.topic = clients, topic
        self.written: list[tuple[float, float]] = []
        """For each record: not written before, and acknowledged."""
        self.start = 0
        """The records below this offset were deleted."""
        self.errors_ms: list[float] = []

    async def write(self, count: int) -> None:
        begun = time.monotonic()
        await to_thread(self.clients.produce, self.topic, count)
        self.written += [(begun, time.monotonic())] * count

    async def commit(self, position: int) -> None:
        await to_thread(self.clients.commit, self.topic, {(self.topic, 0): position})

    async def row(self, daemon: DaemonProcess) -> dict[str, Any]:
        """Ask for the group, and compare the age of its position with the truth."""
        known, begun = len(self.written), time.monotonic()
        _, answer = await send("GET", daemon.http_address, f"group={self.topic}", page="lag")
        row: dict[str, Any] = next((row for row in answer["partitions"] if row["partition"] == 0), {})
        if row.get("lag"):
            earliest, latest = self.written[row["position"]]
            least_ms, most_ms = 1_000 * (begun - latest), 1_000 * (time.monotonic() - earliest)
            assert 0 <= row["ageMs"] <= most_ms + row.get("ageErrorMs", 0)
            if not row["isAtLeast"]:
                self.errors_ms.append(max(0.0, least_ms - row["ageMs"], row["ageMs"] - most_ms))
                assert self.errors_ms[-1] <= row["ageErrorMs"]
        elif "lag" in row:
            assert max(row["position"], self.start) >= known, "caught up while behind"
        return row

    async def until(self, daemon: DaemonProcess, lag: int, *, is_at_least: bool = False) -> None:
        async def is_found() -> bool:
            return (await self.row(daemon)).items() >= {"lag": lag, "isAtLeast": is_at_least}.items()

        await eventually(is_found, f"a lag of {lag}")


async def test_ages_over_restart_and_retention(clients: ClusterClients, topic: str, start_daemon: StartDaemon) -> None:
    """The error is at most one interval for 99 of 100 answers. A restarted daemon knows a bound. Deleted records count
    until none is left, and a group that has only aborted records and a transaction's marker to read has caught up.
    """
    billing, chance, position = Billing(clients, topic), random.Random(1), 0
    flags = ("--lag-groups", topic, "--lag-poll-ms", str(INTERVAL_MS))
    uri = f"kafka://{clients.bootstrap}?topics={topic}"
    await billing.commit(0)
    daemon = start_daemon(*flags)
    async with publishing(daemon, uri):
        await billing.until(daemon, 0)
        begun = time.monotonic()
        while time.monotonic() - begun < 12.0:
            if chance.random() < 0.2:
                await billing.write(chance.randrange(1, 60))
            step = 10_000 if chance.random() < 0.03 else chance.choice([0, 1, 3, 10])
            position = min(len(billing.written), position + step)
            await billing.commit(position)
            await billing.row(daemon)
    assert sorted(billing.errors_ms)[len(billing.errors_ms) * 99 // 100] <= INTERVAL_MS
    await billing.write(5)
    await billing.commit(end := len(billing.written) - 5)
    daemon.kill()
    daemon = start_daemon(*flags)
    async with publishing(daemon, uri):
        await billing.until(daemon, 5, is_at_least=True)
        await billing.write(8)
        await billing.commit(end + 5)
        for billing.start in (end + 9, end + 13):
            await billing.until(daemon, 8)
            await to_thread(clients.delete_records, topic, billing.start)
        await billing.until(daemon, 0)
        await billing.write(1)
        await billing.commit(end + 14)
        begun = time.monotonic()
        with clients.transaction(topic, 3, name=topic) as producer:
            billing.written += [(begun, time.monotonic())] * 4  # with the marker
            await billing.until(daemon, 3)
            await to_thread(producer.abort_transaction, 30)
        await billing.until(daemon, 0)
