"""Prefect: a task that waits for a mark or a signal, and a loop that runs a flow whenever a mark has moved.

    @flow
    def invoices():
        caught_up("billing", "orders")
        ...

A task that waits is retried by Prefect when the daemon is away. A wait for a fixed position or signal may be repeated
as often as needed: what has happened stays true.
"""

import os
from collections.abc import Callable

from prefect import task  # type: ignore[import-not-found]
from prefect.variables import Variable  # type: ignore[import-not-found]
from purgatory_client import Client


def client() -> Client:
    return Client(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440"), name="prefect")


@task(retries=5, retry_delay_seconds=5)  # type: ignore[untyped-decorator]
def reached(mark: str, position: int, timeout_s: float = 3_600) -> int:
    """Wait until the mark is there. Fails with the reason if it is not in time."""
    with client() as waits:
        return waits.produce({mark: position}, timeout=timeout_s).raise_for_outcome().partitions[mark].reached_offset


@task(retries=5, retry_delay_seconds=5)  # type: ignore[untyped-decorator]
def signalled(key: str, timeout_s: float = 3_600) -> bytes:
    """Wait for a signal, and return its value. Fails if it was signalled as failed."""
    with client() as waits:
        return waits.signal([key], timeout=timeout_s).raise_for_outcome().partitions[key].signal_value


@task(retries=5, retry_delay_seconds=5)  # type: ignore[untyped-decorator]
def caught_up(group: str, topic: str, timeout_s: float = 3_600) -> None:
    """Wait until a Kafka consumer group has processed everything that was written before."""
    with client() as waits:
        waits.caught_up(group, [topic], timeout=timeout_s).raise_for_outcome()


def run_when_moved(mark: str, run: Callable[[int, int], object], every: int = 1, rounds: int | None = None) -> None:
    """Call a flow with the positions before and after, whenever the mark has moved. A variable keeps the position:
    after a restart nothing is repeated but the run that was interrupted.
    """
    name = "".join(one if one.isalnum() else "_" for one in mark).lower()
    while rounds is None or rounds > 0:
        position = int(Variable.get(name, default=0))
        with client() as waits:
            result = waits.produce({mark: position + every}, timeout=86_400)
        if result.satisfied:
            end = result.partitions[mark].reached_offset
            run(position, end)
            Variable.set(name, end, overwrite=True)
            rounds = None if rounds is None else rounds - 1
