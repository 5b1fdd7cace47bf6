"""Redelivery of a dead letter, with its original webhook id."""

from typing import Final, Protocol

from purgatory.extensions.webhooks.webhook_poster import Attempt
from purgatory.v1 import result_pb2, webhook_pb2


class LetterOwner(Protocol):
    """Callbacks of a redelivery."""

    async def attempt(self, url: str, webhook_id: str, session_id: str, result: result_pb2.Result) -> Attempt: ...

    def resent(self, letter: webhook_pb2.DeadLetter, failed: tuple[int, str] | None) -> None: ...


class Redelivery:
    """A dead letter that is being sent again."""

    is_wanted = True

    def __init__(self, letter: webhook_pb2.DeadLetter, host: str, owner: LetterOwner) -> None:
        self._letter: Final = letter
        self.host: Final = host
        self.sender: Final = (letter.principal, "dead letters")
        self._owner: Final = owner

    async def attempt(self) -> Attempt:
        letter = self._letter
        return await self._owner.attempt(letter.callback_url, letter.webhook_id, letter.session_id, letter.result)

    def delivered(self) -> None:
        self._owner.resent(self._letter, None)

    def given_up(self, attempts: int, reason: str) -> None:
        self._owner.resent(self._letter, (attempts, reason))
