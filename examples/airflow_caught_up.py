"""A deferrable Airflow operator: its task waits, in no worker, until everything written before a time is processed.

    CaughtUp(task_id="wait", wait={"group": "billing", "topics": ["orders"], "as_of": "{{ data_interval_end }}"})

The wait is one call of Airflow's triggerer. If that is restarted, the call is made again with the same time, so nothing
is lost. `wait` has the arguments of `AsyncClient.caught_up`; `timeout` is a day unless given, and Airflow's own
`execution_timeout` applies too. Without Airflow this module can be imported, and the trigger runs.
"""

import os
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from purgatory_client import AsyncClient

try:
    from airflow.sdk import BaseOperator  # type: ignore[import-not-found]
    from airflow.triggers.base import BaseTrigger, TriggerEvent  # type: ignore[import-not-found]
except ModuleNotFoundError:
    BaseOperator, BaseTrigger, TriggerEvent = object, object, str

DAY_S = 86_400


class CaughtUpTrigger(BaseTrigger):  # type: ignore[misc]
    """The wait itself. It fires with the name of the outcome."""

    def __init__(self, wait: dict[str, Any]) -> None:
        super().__init__()
        self.wait = wait

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.CaughtUpTrigger", {"wait": self.wait}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        wait = {"timeout": DAY_S, **self.wait, "as_of": datetime.fromisoformat(self.wait["as_of"])}
        async with AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")) as client:
            result = await client.caught_up(**wait)
        yield TriggerEvent(result.outcome.name)


class CaughtUp(BaseOperator):  # type: ignore[misc]
    """The task. It fails if the wait ends otherwise than satisfied; Airflow's retries then apply."""

    template_fields = ("wait",)

    def __init__(self, *, wait: dict[str, Any], **others: Any) -> None:  # noqa: ANN401 - those of every operator
        super().__init__(**others)
        self.wait = wait

    def execute(self, context: object) -> None:  # noqa: ARG002 - Airflow's name
        self.defer(trigger=CaughtUpTrigger(self.wait), method_name="resume")

    def resume(self, context: object, event: str) -> None:  # noqa: ARG002 - Airflow's name
        """Called in a worker when the trigger has fired."""
        if event != "SATISFIED":
            raise RuntimeError(f"the wait has ended otherwise: {event}")
