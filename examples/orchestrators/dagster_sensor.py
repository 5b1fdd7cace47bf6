"""Dagster: a sensor that requests a run whenever a mark has moved, and asks the daemon once for each evaluation.

    defs = Definitions(jobs=[invoices], sensors=[mark_sensor("kafka/billing/orders-3", invoices, every=1000)])

The evaluation waits for up to 20 s, within the minute that Dagster allows, so a run is requested as soon as the mark is
there, not at the next interval. The cursor is the position, and the run's key names it: an evaluation that is repeated
after a crash requests no second run.
"""

import os
from collections.abc import Iterator
from typing import Any, Final

import dagster  # type: ignore[import-not-found]
from purgatory_client import Client

HOLD_S: Final = 20.0


def mark_sensor(mark: str, job: Any, every: int = 1, hold_s: float = HOLD_S) -> dagster.SensorDefinition:  # noqa: ANN401 - any job
    """A sensor named after the mark."""
    name = "".join(one if one.isalnum() else "_" for one in mark)

    @dagster.sensor(  # type: ignore[untyped-decorator]
        name=name, job=job, minimum_interval_seconds=1, default_status=dagster.DefaultSensorStatus.RUNNING
    )
    def moved(context: dagster.SensorEvaluationContext) -> Iterator[dagster.RunRequest | dagster.SkipReason]:
        position = int(context.cursor or 0)
        with Client(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440"), name="dagster") as client:
            result = client.produce({mark: position + every}, timeout=hold_s)
        reached = result.partitions[mark].reached_offset
        if not result.satisfied:
            yield dagster.SkipReason(f"{mark} is at {reached}, the next run begins at {position + every}")
            return
        context.update_cursor(str(reached))
        yield dagster.RunRequest(
            run_key=f"{mark}@{reached}", tags={"purgatory/from": str(position), "purgatory/to": str(reached)}
        )

    return moved
