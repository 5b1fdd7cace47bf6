"""Dead letters, results that could not be delivered to their callbacks, as plain values (docs/webhooks.md)."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from purgatory.v1 import webhook_pb2
from purgatory_client.results import Outcome


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A result whose delivery the daemon has given up. `attempts` and `last_error` describe the last series of
    attempts.
    """

    webhook_id: str
    callback_url: str
    session_id: str
    operation_id: int
    outcome: Outcome
    attempts: int
    last_error: str
    given_up_time: datetime


class ResentLetters(NamedTuple):
    """The number of dead letters being sent again, and the given ids that are not (or no longer) dead letters."""

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
