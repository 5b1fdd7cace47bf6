"""Where logs end, asked of one source, and answered.

Whoever asks gets an answer that the source began to look for afterwards. So those who ask for the same topics share an
answer if it was asked for after they came; what was asked for before is not theirs.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName

UNANSWERED_MAX: Final = 16
"""Questions that one source is asked at a time."""
WAITING_MAX: Final = 1_000
"""Different questions that wait until it has answered some."""
ANSWER_S_MAX: Final = 30.0


class LogEnd(NamedTuple):
    """Where a partition ends. `leader_epoch` None: unknown."""

    name: PartitionName
    offset: int
    leader_epoch: int | None


class EndsAnswer(NamedTuple):
    """The ends of all partitions of the topics that were asked for; or why there is no answer."""

    ends: list[LogEnd]
    error: str = ""


class EndsAsked:
    """The questions to one source."""

    def __init__(self, source_name: str, woken: asyncio.Event) -> None:
        self._source_name: Final = source_name
        self._woken: Final = woken
        self._waiting: Final[dict[frozenset[str], asyncio.Future[EndsAnswer]]] = {}
        self._sent: Final[dict[int, tuple[asyncio.Future[EndsAnswer], asyncio.TimerHandle]]] = {}
        self._last_id = 0
        self._has_ended = False

    async def ask(self, topics: frozenset[str]) -> EndsAnswer:
        """Asks where topics end now. Answers with an error where there is no other answer."""
        if self._has_ended:
            return self._no_answer("has gone")
        future = self._waiting.get(topics)
        if future is None:
            if len(self._waiting) >= WAITING_MAX:
                return self._no_answer(f"has {WAITING_MAX} questions to answer, the most allowed")
            future = self._waiting[topics] = asyncio.get_running_loop().create_future()
            self._woken.set()
        # One of those who share an answer may go away.
        return await asyncio.shield(future)

    def take(self) -> list[tuple[int, frozenset[str]]]:
        """The questions to be sent now, with their ids."""
        taken = []
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._sent) < UNANSWERED_MAX:
            topics = next(iter(self._waiting))
            future = self._waiting.pop(topics)
            self._last_id += 1
            give_up: Callable[[int], None] = self._give_up
            self._sent[self._last_id] = future, loop.call_later(ANSWER_S_MAX, give_up, self._last_id)
            taken.append((self._last_id, topics))
        return taken

    @property
    def has_unsent(self) -> bool:
        return bool(self._waiting) and len(self._sent) < UNANSWERED_MAX

    def answer(self, ask_id: int, answer: EndsAnswer) -> None:
        """The source has answered. An id that is not known (any more) means nothing."""
        sent = self._sent.pop(ask_id, None)
        if sent is not None:
            future, timer = sent
            timer.cancel()
            future.set_result(answer)
            self._woken.set()

    def end(self) -> None:
        """The stream has ended: nothing will be answered any more."""
        self._has_ended = True
        gone = self._no_answer("has gone")
        for ask_id in list(self._sent):
            self.answer(ask_id, gone)
        for future in self._waiting.values():
            future.set_result(gone)
        self._waiting.clear()

    def _give_up(self, ask_id: int) -> None:
        self.answer(ask_id, self._no_answer(f"has not answered for {ANSWER_S_MAX:g} s"))

    def _no_answer(self, why: str) -> EndsAnswer:
        return EndsAnswer([], f"the source {self._source_name} {why}")
