"""Appending to the log (rules A1 to A4), for all logs in one place. One entry is in flight at a time.

A1, A2  An entry counts once it is known to be in the log and everything before it has been read and judged. If the log
        reports the position after the last one read, there is nothing in between. Otherwise read up to the entry.
A3      Valid entries of others that are found on the way are applied, in order, before a claim succeeds.
A4      After an unknown outcome only the very same entry may be appended again: R2 skips the second copy. Another entry
        with its number could count in its place, after callers were told otherwise.
"""

import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from purgatory.fleet.entry import PART_BYTES_MAX, Entry, Kind
from purgatory.fleet.errors import CutOff, Fenced, LogLost, LogUnavailable
from purgatory.fleet.reign import Reign
from purgatory.fleet.replicated_log import Place, ReplicatedLog

CUT_OFF_S: Final = 2.0
"""Without an answer for this long, the log counts as cut off."""

READ_S: Final = 0.2
"""How long one read waits for the next entry."""

RETRY_S: Final = 0.05
"""Pause after an error of the log."""

WRITER_BYTES: Final = 16

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class End:
    """Request: `ReplicatedLog.end`."""


@dataclass(frozen=True, slots=True)
class Read:
    """Request: `ReplicatedLog.read`."""

    start: int


@dataclass(frozen=True, slots=True)
class Append:
    """Request: `ReplicatedLog.append`."""

    entry: Entry
    position: int


Steps = Generator[End | Read | Append, Any, _T]
"""Yields requests, receives their answers, returns a result. LogUnavailable is thrown into it."""


class AppendRules:
    """The rules without I/O. `LogWriter` executes the requests; the simulation delays, repeats and loses them."""

    def __init__(
        self, reign: Reign, writer: bytes, apply: Callable[[Entry], None], part_bytes_max: int = PART_BYTES_MAX
    ) -> None:
        self._reign: Final = reign
        self._writer: Final = writer
        self._apply: Final = apply
        self._part_bytes_max: Final = part_bytes_max
        self._is_open = True

    def catch_up(self) -> Steps[None]:
        """See `LogWriter.catch_up`."""
        end = yield End()
        while self._reign.state.position + 1 < end:
            for read in (yield Read(self._reign.state.position + 1)):
                self._take(read)

    def claim(self, moment_ms: int, address: str = "", http_address: str = "") -> Steps[Entry]:
        """See `LogWriter.claim`."""
        epoch = self._reign.state.epoch + 1
        claim = Entry(
            Kind.CLAIM, epoch, self._writer, moment_ms=moment_ms, address=address, http_address=http_address
        )
        return (yield from self._place(claim))

    def append(self, kind: Kind, moment_ms: int, content: bytes = b"") -> Steps[Entry]:
        """See `LogWriter.append`."""
        now = self._reign.state
        if now.writer != self._writer:
            raise Fenced("this daemon does not lead")
        entry = whole = Entry(kind, now.epoch, self._writer, now.number + 1, moment_ms, content)
        for part in whole.parts(self._part_bytes_max):
            entry = yield from self._place(part)
        return entry

    def _take(self, read: Entry) -> Entry | None:
        judged = self._reign.accept(read)
        if judged is not None:
            self._apply(judged)
        return judged

    def _place(self, entry: Entry) -> Steps[Entry]:
        """Append one entry until it is known whether it counts."""
        if not self._is_open:
            raise CutOff("the outcome of an earlier entry is unknown: restart this daemon")
        # Until the end: whatever leaves this function early, even the end of the generator, leaves the outcome unknown.
        self._is_open = False
        while self._reign.would_accept(entry):
            try:
                place: Place | None = yield Append(entry, self._reign.state.position + 1)
                if place is not None and place.position <= self._reign.state.position:
                    raise LogLost(
                        f"the log has gone back: an entry was appended at position {place.position}, after position "
                        f"{self._reign.state.position} had been read"
                    )
                if place is not None and place.position == self._reign.state.position + 1:
                    judged = self._reign.accept(entry.at(*place))
                else:
                    judged = yield from self._find(entry, place)
            except LogUnavailable:
                continue  # A4: the outcome is unknown, so the very same entry again
            if judged is not None:
                self._is_open = True
                return judged
        self._is_open = entry.kind is Kind.CLAIM  # a void claim can never become valid
        raise Fenced(f"another daemon leads, with epoch {self._reign.state.epoch}")

    def _find(self, entry: Entry, place: Place | None) -> Steps[Entry | None]:
        """Read up to where the entry is, or to the end of the log; returns the entry if it counts.

        What follows it is left for the next call.
        """
        last = place.position if place is not None else (yield End()) - 1
        while self._reign.state.position < last:
            for read in (yield Read(self._reign.state.position + 1)):
                if entry.is_copy_of(read):
                    judged = self._reign.accept(read)
                    if judged is not None:
                        return judged
                elif entry.kind is Kind.CLAIM:
                    self._take(read)
                # Not applied: the leader's file has a transaction open, and the daemon exits.
                elif self._reign.accept(read) is not None:
                    raise Fenced(f"another daemon leads, with epoch {self._reign.state.epoch}")
        return None


class LogWriter:
    """What a daemon does to the log. The journal's thread uses it."""

    def __init__(
        self,
        log: ReplicatedLog,
        reign: Reign,
        apply: Callable[[Entry], None],
        cut_off_s: float = CUT_OFF_S,
        rules: type[AppendRules] = AppendRules,
    ) -> None:
        """Args:
        log: The log.
        reign: What the daemon's file includes. After Fenced in `append`, and after CutOff, do not store it: the
            file does not include its entries.
        apply: Called with each valid entry of others, in order; `reign` is then at this entry. It must not raise.
        cut_off_s: How long an append may go without an answer.
        rules: For tests.
        """
        self.writer: Final = os.urandom(WRITER_BYTES)
        """Identifies this process in the log. Store it with the file, to recognise one's own reign after a restart."""
        self._log: Final = log
        self._rules: Final = rules(reign, self.writer, apply)
        self._cut_off_s: Final = cut_off_s

    def catch_up(self) -> None:
        """Read and apply everything up to the end of the log as of now.

        Raises:
            LogUnavailable: The log does not answer.
            LogTrimmed: Start from a snapshot first.
            FleetLogError: See `Reign.accept`.
        """
        self._run(self._rules.catch_up(), float("inf"))

    def claim(self, moment_ms: int, address: str = "", http_address: str = "") -> Entry:
        """Try to lead. Everything before the claim has been applied when this returns.

        Args:
            moment_ms: The engine's time.
            address: This daemon's gRPC address.
            http_address: Its HTTP address.

        Returns:
            The claim, with its place in the log.

        Raises:
            Fenced: Another claim came first. The daemon goes on as a standby, with the same reign.
            CutOff: The log does not answer; the daemon exits.
            FleetLogError: See `catch_up`.
        """
        return self._run(self._rules.claim(moment_ms, address, http_address), self._cut_off_s)

    def append(
        self, kind: Kind, moment_ms: int, content: bytes = b"", meanwhile: Callable[[], None] = lambda: None
    ) -> Entry:
        """Append a leader's entry. Once this returns, the entry counts and may be answered.

        Args:
            kind: Anything except a claim.
            moment_ms: The engine's time when the group was sealed.
            content: Rows of a group (`pack_rows`), of any size.
            meanwhile: Called exactly once while the entry is in flight. It must not raise: the entry's outcome would
                be lost.

        Returns:
            The entry, or its last part, with its place in the log.

        Raises:
            Fenced: Another daemon leads. This one exits.
            CutOff: The log does not answer. The entry may count all the same; the daemon exits.
            LogLost: The log has gone back. The daemon exits.
        """
        return self._run(self._rules.append(kind, moment_ms, content), self._cut_off_s, meanwhile)

    def _run(self, steps: Steps[_T], cut_off_s: float, meanwhile: Callable[[], None] = lambda: None) -> _T:
        """Execute requests until the result. An answer that brings nothing new does not extend the deadline."""
        left = [meanwhile]

        def once() -> None:
            while left:
                left.pop()()

        deadline = time.monotonic() + cut_off_s
        try:
            request = next(steps)
            while True:
                answer, error = None, LogUnavailable("no answer")
                try:
                    answer = self._execute(request, deadline, once)
                    is_answered = True
                except LogUnavailable as unavailable:
                    error, is_answered = unavailable, False
                if answer and not isinstance(request, End):
                    deadline = time.monotonic() + cut_off_s
                elif time.monotonic() >= deadline:
                    raise CutOff(f"the log has not answered for {cut_off_s:g} s: {error}") from error
                if is_answered:
                    request = steps.send(answer)
                else:
                    time.sleep(RETRY_S)
                    request = steps.throw(error)
        except StopIteration as ended:
            once()
            result: _T = ended.value
            return result
        finally:
            steps.close()

    def _execute(self, request: End | Read | Append, deadline: float, meanwhile: Callable[[], None]) -> object:
        if isinstance(request, End):
            return self._log.end()
        if isinstance(request, Read):
            return self._log.read(request.start, READ_S)
        timeout_s = max(0.0, deadline - time.monotonic())
        return self._log.append(request.entry, request.position, timeout_s, meanwhile)


