"""Questions to one source about where logs end, or ended at a time, and their answers.

A caller gets an answer that the source began to determine after the call. Callers that ask for the same topics share an
answer only if its question was sent after all of them asked; the answer to an earlier question may be out of date for
them. Principals share no answers: their questions are asked in turn, and those of one do not delay those of another.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName

MayAdd = Callable[[str, int, int, int], bool]
"""Whether a principal may have one more of something, given its limit, and how many all and this principal have."""

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
    """The questions to one source. Of both maxima, a principal has a share."""

    def __init__(self, source_name: str, woken: asyncio.Event, may_add: MayAdd) -> None:
        self._source_name: Final = source_name
        self._woken: Final = woken
        self._may_add: Final = may_add
        self._waiting: Final[OrderedDict[str, dict[EndsQuestion, asyncio.Future[EndsAnswer]]]] = OrderedDict()
        """Questions to send, by principal; the first principal is next."""
        self._sent: Final[dict[int, tuple[asyncio.Future[EndsAnswer], asyncio.TimerHandle, EndsQuestion, str]]] = {}
        self._last_id = 0
        self._has_ended = False

    async def ask(self, question: EndsQuestion, principal: str) -> EndsAnswer:
        """Ask where topics end, for a principal. If there is no answer, the returned answer has an error."""
        if self._has_ended:
            return self._no_answer("has gone")
        own = self._waiting.get(principal, {})
        future = own.get(question)
        if future is None:
            waiting = sum(map(len, self._waiting.values()))
            if not self._may_add(principal, WAITING_MAX, waiting, len(own)):
                return self._no_answer(
                    f"has {waiting} unanswered questions, {len(own)} of them are yours; try again later"
                )
            future = self._waiting.setdefault(principal, own)[question] = asyncio.get_running_loop().create_future()
            self._woken.set()
        # The answer is shared, and any one of its callers may be cancelled.
        return await asyncio.shield(future)

    def take(self) -> list[tuple[int, EndsQuestion]]:
        """Return the questions to send now, with their ids."""
        taken = []
        loop = asyncio.get_running_loop()
        while (principal := self._next()) is not None:
            own = self._waiting.pop(principal)
            # Taken out when it is sent: a caller that asks from now on needs a new question, or it could get an end
            # that was read before its call.
            question = next(iter(own))
            future = own.pop(question)
            if own:
                self._waiting[principal] = own  # behind the others
            self._last_id += 1
            give_up: Callable[[int], None] = self._give_up
            timer = loop.call_later(ANSWER_S_MAX, give_up, self._last_id)
            self._sent[self._last_id] = future, timer, question, principal
            taken.append((self._last_id, question))
        return taken

    def _next(self) -> str | None:
        """The principal whose question can be sent next, if any."""
        for principal in self._waiting:
            own = sum(sent[-1] == principal for sent in self._sent.values())
            if self._may_add(principal, UNANSWERED_MAX, len(self._sent), own):
                return principal
        return None

    @property
    def has_unsent(self) -> bool:
        return self._next() is not None

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
            future, timer, *_ = sent
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
        for own in self._waiting.values():
            for future in own.values():
                future.set_result(gone)
        self._waiting.clear()

    def _give_up(self, ask_id: int) -> None:
        self._finish(ask_id, self._no_answer(f"has not answered for {ANSWER_S_MAX:g} s"))

    def _no_answer(self, why: str) -> EndsAnswer:
        return EndsAnswer([], f"the source {self._source_name} {why}")
