"""Appending to the log (rules A1 to A4), for all logs in one place. One entry is in flight at a time.

A1, A2  An entry counts once it is known to be in the log and everything before it has been read and judged. If the log
        reports the position after the last one read, there is nothing in between. Otherwise read up to the entry.
A3      Valid entries of others that are found on the way are applied, in order, before a claim succeeds.
A4      After an unknown outcome only the very same entry may be appended again: R2 skips the second copy. Another entry
        with its number could count in its place, after callers have had another answer.
"""

import math
import os
import time
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeVar

from purgatory.journal.sql_schema import OLDEST
from purgatory.replicated_log.entry import PART_BYTES_MAX, Entry, Kind
from purgatory.replicated_log.errors import CutOff, Fenced, LogLost, LogUnavailable
from purgatory.replicated_log.reign import Reign, ReignState
from purgatory.replicated_log.replicated_log import Place, ReplicatedLog

CUT_OFF_S: Final = 2.0
READ_S: Final = 0.2
"""How long one read waits for the next entry."""
READS_MAX: Final = 10
"""Attempts to read an entry that must be there."""
RETRY_S: Final = 0.05
"""Pause after an error of the log."""

_T = TypeVar("_T")


class End(NamedTuple):
    """Request: `ReplicatedLog.end`."""


class Read(NamedTuple):
    """Request: `ReplicatedLog.read`."""

    start: int


class Append(NamedTuple):
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

    def claim(self, moment_ms: int, address: str = "", http_address: str = "") -> Steps[Entry]:
        now = self._reign.state
        claim = Entry(
            Kind.CLAIM, now.epoch + 1, self._writer, 0, moment_ms, address=address, http_address=http_address,
            log_id=now.log_id, previous_position=now.claim_position, previous_writer=now.claim_writer,
        )  # fmt: skip
        return (yield from self._place(claim))

    def check_history(self, known: ReignState) -> Steps[None]:
        """Check that the log still has what a file in the state `known` has. Nothing may be appended before that."""
        if known.position < 0:
            return
        end, last = (yield End()), self._reign.state.position
        if end <= last:
            raise LogLost(f"the log has gone back: it ends at position {end}, before position {last + 1}")
        for _ in range(READS_MAX):
            for entry in (yield Read(known.position)):
                if known.ends_with(entry):
                    return
                raise LogLost(
                    f"position {known.position} of the log has another entry than this daemon's file: the file belongs "
                    "to another log, or this one was made again, or restored from a backup"
                )
        raise LogUnavailable(f"the log does not return position {known.position}")

    def append(self, kind: Kind, moment_ms: int, content: bytes = b"", tables: int = OLDEST) -> Steps[Entry]:
        now = self._reign.state
        if now.writer != self._writer:
            raise Fenced("this daemon does not lead")
        whole = Entry(
            kind, now.epoch, self._writer, now.number + 1, moment_ms, content, log_id=now.log_id, tables=tables
        )
        entry = whole
        for part in whole.parts(self._part_bytes_max):
            entry = yield from self._place(part)
        return entry

    def judge(self, read: Entry) -> Entry | None:
        judged = self._reign.accept(read)
        if judged is not None:
            self._apply(judged)
        return judged

    def _place(self, entry: Entry) -> Steps[Entry]:
        """Append one entry until it is known whether it counts."""
        if not self._is_open:
            raise CutOff("the outcome of an earlier entry is unknown: restart this daemon")
        # Until the end. Any other way out of this function, even the end of the generator, leaves the outcome unknown.
        self._is_open = False
        while self._reign.would_accept(entry):
            last = self._reign.state.position
            try:
                place: Place | None = yield Append(entry, last + 1)
                if place is not None and place.position <= last:
                    raise LogLost(f"the log has gone back: position {place.position} was appended after {last}")
                if place is not None and place.position == last + 1:
                    judged = self._reign.accept(entry.at(*place), is_own=True)
                else:
                    judged = yield from self._find(entry, place)
            except LogUnavailable:
                continue  # A4
            if judged is not None:
                self._is_open = True
                return judged
        self._is_open = entry.kind is Kind.CLAIM  # a void claim can never become valid
        raise Fenced(f"another daemon leads, with epoch {self._reign.state.epoch}")

    def _find(self, entry: Entry, place: Place | None) -> Steps[Entry | None]:
        """Read up to where the entry is, or to the end of the log; returns the entry if it counts.

        Later entries are left for the next call.
        """
        last = place.position if place is not None else (yield End()) - 1
        while self._reign.state.position < last:
            for read in (yield Read(self._reign.state.position + 1)):
                if entry.at(read.position, read.logged_ms) == read:
                    judged = self._reign.accept(read, is_own=True)
                    if judged is not None:
                        return judged
                elif entry.kind is Kind.CLAIM:
                    self.judge(read)
                # Not applied: the leader's file has a transaction open, and the daemon exits.
                elif self._reign.accept(read) is not None:
                    raise Fenced(f"another daemon leads, with epoch {self._reign.state.epoch}")
        return None


class LogWriter:
    """All that a daemon does to the log of its shard, by one thread at a time."""

    def __init__(
        self, log: ReplicatedLog, reign: Reign, apply: Callable[[Entry], None], cut_off_s: float = CUT_OFF_S
    ) -> None:
        """Args:
        log: The log.
        reign: What the daemon's file includes. After Fenced in `append`, and after CutOff, do not store it: the
            file lacks its entries.
        apply: Called with each valid entry of others, in order; `reign` is then at this entry. Parts with `more`
            are included; see `Reign.accept`.
        cut_off_s: How long an append may go without an answer.
        """
        self.writer: Final = os.urandom(16)
        """Identifies this process in the log. Store it, to recognise the reign as one's own after a restart."""
        self._log: Final = log
        self._rules: Final = AppendRules(reign, self.writer, apply)
        self._reign: Final = reign
        self._cut_off_s: Final = cut_off_s

    def follow(self, wait_s: float) -> list[Entry]:
        """Read and apply the next entries, after waiting for the first one at most `wait_s`.

        Returns:
            The valid ones, already applied. None within `wait_s` is silence only if `ReplicatedLog.end` confirms it:
            Kafka does not report a broker that is away.

        Raises:
            LogUnavailable: The log does not answer.
            LogTrimmed: Start from a snapshot first.
            LogLost, LogRefused: See `Reign.accept`.
        """
        judged = [self._rules.judge(read) for read in self._log.read(self._reign.state.position + 1, wait_s)]
        return [entry for entry in judged if entry is not None]

    def check_history(self, known: ReignState) -> None:
        """See `AppendRules.check_history`. Raises LogLost, LogUnavailable, LogTrimmed: start from a snapshot first."""
        self._run(self._rules.check_history(known), math.inf)

    def claim(self, moment_ms: int, address: str = "", http_address: str = "") -> Entry:
        """Try to lead; return the claim with its place in the log. Everything before it has been applied then.

        Raises:
            Fenced: Another claim came first. Everything up to it has been applied; the daemon remains a standby.
            CutOff: The log does not answer, and the claim may count all the same; the daemon exits.
            FleetLogError: See `follow`.
        """
        return self._run(self._rules.claim(moment_ms, address, http_address), self._cut_off_s)

    def append(self, kind: Kind, moment_ms: int, content: bytes = b"") -> Entry:
        """`begin` and `finish` at once."""
        return self.begin(kind, moment_ms, content).finish()

    def begin(self, kind: Kind, moment_ms: int, content: bytes = b"", tables: int = OLDEST) -> "PendingAppend":
        """Send a leader's entry to the log: any kind except a claim, with rows of any size (`pack_rows`). The caller
        must `finish` it before the next one. Raises as `PendingAppend.finish`.
        """
        return PendingAppend(self._requests(self._rules.append(kind, moment_ms, content, tables), self._cut_off_s))

    def _run(self, steps: Steps[_T], cut_off_s: float) -> _T:
        return _result(self._requests(steps, cut_off_s))

    def _requests(self, steps: Steps[_T], cut_off_s: float) -> Generator[None, None, _T]:
        """Execute requests until the result; yields whenever an entry is on its way.

        An answer that brings nothing new does not extend the deadline.
        """
        answer: object = None
        error: LogUnavailable | None = None
        deadline = time.monotonic() + cut_off_s
        try:
            while True:
                request = steps.send(answer) if error is None else steps.throw(error)
                answer, error = None, None
                try:
                    if isinstance(request, Append):
                        self._log.begin(*request)
                        yield
                        answer = self._log.finish(max(0.0, deadline - time.monotonic()))
                    elif isinstance(request, Read):
                        answer = self._log.read(request.start, READ_S)
                    else:
                        answer = self._log.end()
                except LogUnavailable as unavailable:
                    error = unavailable
                    time.sleep(RETRY_S)
                if answer and not isinstance(request, End):
                    deadline = time.monotonic() + cut_off_s
                elif time.monotonic() >= deadline:
                    raise CutOff(f"no answer for {cut_off_s:g} s: {error or 'the entry is not found'}") from error
        except StopIteration as ended:
            result: _T = ended.value
            return result
        finally:
            steps.close()


class PendingAppend:
    """A leader's entry that is on its way."""

    def __init__(self, requests: Generator[None, None, Entry]) -> None:
        self._requests: Final = requests
        next(requests)

    def finish(self) -> Entry:
        """Return the entry, or its last part, with its place in the log. It counts then, and may be answered.

        Raises:
            Fenced: Another daemon leads. This one exits.
            CutOff: The log does not answer, and the entry may count all the same; the daemon exits.
            LogLost: The log has gone back. The daemon exits.
        """
        return _result(self._requests)


def _result(requests: Generator[None, None, _T]) -> _T:
    while True:
        try:
            next(requests)
        except StopIteration as ended:
            result: _T = ended.value
            return result
