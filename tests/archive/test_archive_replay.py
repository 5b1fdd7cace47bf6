"""The archive contains all calls and results of a host: replayed on a new engine, every operation ends the same way."""

from collections import Counter
from pathlib import Path

import pytest

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.extensions.archive import schema
from purgatory.service.translate.operations import OperationRun
from tests.archive.archive_replay import Replay, rows_of, without
from tests.histories.history import run_history
from tests.histories.worlds.archive import Life
from tests.kit.served_host import apply_events


@pytest.mark.parametrize("seed", range(8))
def test_a_fresh_engine_ends_everything_the_same_way(seed: int) -> None:
    assert run_history("archive", seed).complaints == []


@pytest.mark.slow  # thousands of operations, one row at a time
async def test_herds_in_slices_end_in_the_same_order(tmp_path: Path) -> None:
    """Thousands of operations expire, are satisfied by one batch, or end with the daemon, in one call per slice."""
    life = Life(tmp_path, seed=1, roomy=True)
    session, _ = life.host.sessions.open("herd", life.clock.now_ms())
    herd = sizes.EXPIRED_PER_SLICE * 2 + 500

    def register(first_id: int, topic: str) -> None:
        ids = list(range(first_id, first_id + herd))
        places = [number % 3 for number in ids]
        partitions = [(topic, place) for place in range(3)]
        batch = OperationBatch(ids, partitions=partitions, item_indexes=places, offsets=[5], timeouts_ms=[1_000])
        life.host.registration(session).register([OperationRun(codes.PRODUCE, batch)], [])

    for number, topic in enumerate(("expire", "satisfy", "remain")):
        register(number * herd + 1, topic)
        if topic == "expire":
            life.clock.jump(1_100)
            for _ in range(3):
                life.host.reaper.turn()
        elif topic == "satisfy":
            names = [("satisfy", place) for place in range(3)]
            await apply_events(
                life.host, EventBatch([codes.HIGH_WATERMARK] * 3, partitions=names, item_indexes=[0, 1, 2], offsets=[5])
            )
    await life.end()
    outcomes = rows_of(tmp_path, schema.OUTCOMES)
    calls = Counter((row["outcome"], row["call_number"]) for row in outcomes)
    assert Counter(outcome for outcome, _ in calls) == {"expired": 3, "satisfied": 2, "shutting_down": 3}
    assert without(Replay(tmp_path).outcomes, "at") == without(outcomes, "at")
