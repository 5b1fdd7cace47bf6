"""The waiters of the history check: sessions with many waits each, near the current values of all marks."""

import asyncio
import random
import time
from collections import Counter
from typing import Final

from purgatory_client import AsyncClient, batches
from purgatory_client.results import Outcome

from tests.kafka.history.history_judge import Answer
from tests.kafka.history.history_record import HistoryRecord

BATCH: Final = 2000
SESSIONS: Final = 6
NAMES_EPOCH: Final = 0.3
"""Share of the waits that name an epoch, as a client with a token does."""
NO_EPOCH: Final = -1


class HistoryWaiters:
    """`outcomes` counts results; `answers` contains every wait that was neither refused nor cancelled."""

    def __init__(self, client: AsyncClient, record: HistoryRecord, waits: int, seed: int) -> None:
        self.answers: Final[list[Answer]] = []
        self.outcomes: Final[Counter[Outcome]] = Counter()
        self._client: Final = client
        self._record: Final = record
        self._chance: Final = random.Random(seed)
        self._rounds: Final = iter(range(-(-waits // BATCH)))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as sessions:
            for _ in range(SESSIONS):
                sessions.create_task(self._session())

    async def _session(self) -> None:
        for number in self._rounds:
            await self._round(f"history-{number}")

    async def _round(self, session_id: str) -> None:
        chance, marks = self._chance, list(self._record.present)
        indexes = [chance.randrange(len(marks)) for _ in range(BATCH)]
        targets = [
            max(
                1,
                self._record.present_of(marks[index]) + chance.choice((chance.randint(-60, 0), chance.randint(1, 150))),
            )
            for index in indexes
        ]
        timeouts_ms = [chance.choice((chance.randint(100, 3000), chance.randint(7000, 12_000))) for _ in indexes]
        listed_s = time.monotonic()
        known = {(one.topic, one.partition): one.leader_epoch async for one in self._client.partitions(prefix="kafka/")}
        epochs = [known.get(marks[index], NO_EPOCH) if chance.random() < NAMES_EPOCH else NO_EPOCH for index in indexes]
        batch = batches.produce(marks, offsets=targets, indexes=indexes, timeouts_ms=timeouts_ms, leader_epochs=epochs)
        registered_s = time.monotonic()
        await self._client.register(session_id, 1, batch)
        accepted_s = time.monotonic()
        seen: set[int] = set()
        async for collected in self._client.results(session_id):
            answered_s, results = time.monotonic(), collected.results
            for place, operation_id in enumerate(collected.operation_ids):
                if operation_id in seen:
                    continue
                seen.add(operation_id)
                wait, stale_ms = operation_id - 1, results.stale_ms[place]
                stale_s = stale_ms / 1000 if stale_ms >= 0 else None
                outcome = Outcome(results.outcomes[place])
                is_over = outcome in (Outcome.SATISFIED, Outcome.EXPIRED)
                # Measured by the daemon, because its answer may have been delayed in transit.
                ended_s = accepted_s + results.waited_ms[place] / 1000 + 0.01
                self.outcomes[outcome] += 1
                self.answers.append(
                    Answer(
                        marks[indexes[wait]], targets[wait], registered_s, accepted_s, timeouts_ms[wait] / 1000,
                        min(answered_s, ended_s), outcome == Outcome.SATISFIED, stale_s,
                        0 if is_over else results.error_codes[place] or -outcome,
                        None if epochs[wait] == NO_EPOCH else listed_s,
                    )
                )  # fmt: skip
        assert len(seen) == BATCH, f"{session_id}: {BATCH - len(seen)} waits were never answered"
