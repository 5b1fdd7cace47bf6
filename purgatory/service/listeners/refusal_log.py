"""Logs refusals caused by limits: at most one line per limit every few seconds, with a count."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from purgatory.clock import Clock
from purgatory.engine.batches import Refusal
from purgatory.engine.codes import RESOURCE_EXHAUSTED
from purgatory.service.listeners.listener import Listener

LOGGER: Final = logging.getLogger(__name__)

INTERVAL_MS: Final = 10_000
SUBJECTS_MAX: Final = 32
MESSAGE_LENGTH_MAX: Final = 300
INDEX: Final = re.compile(r"\[\d+\]")


class _Told:
    """Refusals for one reason since the last line about it."""

    def __init__(self) -> None:
        self.logged_ms: int | None = None
        self.count = 0
        self.message = ""


class RefusalLog(Listener):
    """Logs which limit has been reached, with an example. The number of lines does not grow with the number of
    refusals.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._told: Final[dict[str, _Told]] = {}

    def refused(self, refusals: Sequence[Refusal]) -> None:
        fields = Counter(refusal.field for refusal in refusals if refusal.code == RESOURCE_EXHAUSTED)
        if not fields:
            return
        message = next(refusal.message for refusal in refusals if refusal.code == RESOURCE_EXHAUSTED)
        for field, count in fields.items():
            # Without the index, or each item of a batch would be a limit of its own.
            subject = INDEX.sub("", field)
            if subject not in self._told and len(self._told) >= SUBJECTS_MAX:
                subject = ""
            told = self._told.setdefault(subject, _Told())
            told.count += count
            told.message = message
        self.tick()

    def call_refused(self, reason: str) -> None:
        # Not a limit of this daemon: the caller gave the call too little time.
        if reason == "deadline":
            return
        told = self._told.setdefault(reason, _Told())
        told.count += 1
        told.message = "calls were refused before they were read: see docs/security.md"
        self.tick()

    def tick(self) -> None:
        now_ms = self._clock.now_ms()
        for subject, told in self._told.items():
            if told.count and (told.logged_ms is None or now_ms - told.logged_ms >= INTERVAL_MS):
                what = f" ({subject})" if subject else ""
                LOGGER.warning(
                    "limit reached: %d refused%s since this was last logged: %s",
                    told.count,
                    what,
                    told.message[:MESSAGE_LENGTH_MAX],
                )
                told.logged_ms, told.count = now_ms, 0
