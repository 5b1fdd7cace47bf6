"""Questions to one source about where logs end, or ended at a time, and their answers.

A caller gets an answer that the source began to determine after the call. Callers that ask for the same topics share an
answer only if its question was sent after all of them asked; the answer to an earlier question may be out of date for
them.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName

UNANSWERED_MAX: Final = 16
"""Maximum number of unanswered questions sent to one source."""
WAITING_MAX: Final = 1_000
"""Maximum number of distinct questions that wait until the source has answered some."""
ANSWER_S_MAX: Final = 30.0


class LogEnd(NamedTuple):
    """The end of a partition. `leader_epoch` is None if unknown."""

    name: PartitionName
    offset: int
    leader_epoch: int | None


class EndsQuestion(NamedTuple):
    """Where topics end, or ended at a time, milliseconds since the epoch."""

    topics: frozenset[str]
    as_of_ms: int | None = None


class EndsAnswer(NamedTuple):
    """The ends of all partitions of the requested topics, or the reason why they are unavailable."""

    ends: list[LogEnd]
    error: str = ""
    as_of_ms: int | None = None
    """The time of the question. None: the source has not looked it up."""
    is_impossible: bool = False
    """The source will never answer such a question."""


class EndsAsked:
    """The questions to one source."""

    def __init__(self, source_name: str, woken: asyncio.Event) -> None:
        self._source_name: Final = source_name
        self._woken: Final = woken
        self._waiting: Final[dict[EndsQuestion, asyncio.Future[EndsAnswer]]] = {}
        self._sent: Final[dict[int, tuple[asyncio.Future[EndsAnswer], asyncio.TimerHandle, EndsQuestion]]] = {}
        self._last_id = 0
        self._has_ended = False

    async def ask(self, question: EndsQuestion) -> EndsAnswer:
        """Ask where topics end. If there is no answer, the returned answer has an error."""
        if self._has_ended:
            return self._no_answer("has gone")
        future = self._waiting.get(question)
        if future is None:
            if len(self._waiting) >= WAITING_MAX:
                return self._no_answer(f"has {WAITING_MAX} unanswered questions, which is the limit")
            future = self._waiting[question] = asyncio.get_running_loop().create_future()
            self._woken.set()
        # The answer is shared, and any one of its callers may be cancelled.
        return await asyncio.shield(future)

    def take(self) -> list[tuple[int, EndsQuestion]]:
        """Return the questions to send now, with their ids."""
        taken = []
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._sent) < UNANSWERED_MAX:
            question = next(iter(self._waiting))
            # Taken out when it is sent: a caller that asks from now on needs a new question, or it could get an end
            # that was read before its call.
            future = self._waiting.pop(question)
            self._last_id += 1
            give_up: Callable[[int], None] = self._give_up
            self._sent[self._last_id] = future, loop.call_later(ANSWER_S_MAX, give_up, self._last_id), question
            taken.append((self._last_id, question))
        return taken

    @property
    def has_unsent(self) -> bool:
        return bool(self._waiting) and len(self._sent) < UNANSWERED_MAX

    def answer(self, ask_id: int, answer: EndsAnswer) -> None:
        """Record an answer of the source. Ids that are unknown, or no longer known, are ignored."""
        as_of_ms = self._sent[ask_id][2].as_of_ms if ask_id in self._sent else None
        if as_of_ms is not None and answer.as_of_ms != as_of_ms:
            # The present ends, of a source that does not know the field, would be a wrong answer.
            error = answer.error or f"the source {self._source_name} cannot look up where its logs ended at a time"
            answer = EndsAnswer([], error, is_impossible=True)
        self._finish(ask_id, answer)

    def _finish(self, ask_id: int, answer: EndsAnswer) -> None:
        sent = self._sent.pop(ask_id, None)
        if sent is not None:
            future, timer, _ = sent
            timer.cancel()
            # Never done before: callers wait through a shield, so none of them can cancel it.
            future.set_result(answer)
            self._woken.set()

    def end(self) -> None:
        """The stream has ended: fail all questions, since no more answers will arrive."""
        self._has_ended = True
        gone = self._no_answer("has gone")
        for ask_id in list(self._sent):
            self._finish(ask_id, gone)
        # Without their timers, which begin when a question is sent.
        for future in self._waiting.values():
            future.set_result(gone)
        self._waiting.clear()

    def _give_up(self, ask_id: int) -> None:
        self._finish(ask_id, self._no_answer(f"has not answered for {ANSWER_S_MAX:g} s"))

    def _no_answer(self, why: str) -> EndsAnswer:
        return EndsAnswer([], f"the source {self._source_name} {why}")
