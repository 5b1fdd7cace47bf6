"""Results that a callback did not take, as plain values (docs/webhooks.md)."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from purgatory.v1 import webhook_pb2
from purgatory_client.results import Outcome


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A result that the daemon has given up delivering. `attempts` and `last_error` are those of the last time."""

    webhook_id: str
    callback_url: str
    session_id: str
    operation_id: int
    outcome: Outcome
    attempts: int
    last_error: str
    given_up_time: datetime


class ResentLetters(NamedTuple):
    """How many letters are being sent again, and which of the ids that were named are not dead letters (any more)."""

    resent: int
    unknown_ids: tuple[str, ...] = ()


def dead_letter(message: webhook_pb2.DeadLetter) -> DeadLetter:
    return DeadLetter(
        webhook_id=message.webhook_id,
        callback_url=message.callback_url,
        session_id=message.session_id,
        operation_id=message.result.operation_id,
        outcome=Outcome(message.result.outcome),
        attempts=message.attempts,
        last_error=message.last_error,
        given_up_time=message.given_up_time.ToDatetime(tzinfo=UTC),
    )
