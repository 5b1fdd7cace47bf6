"""A standby: follows the log into its own file, and claims when the leader is silent or has resigned.

Silence counts only while the log can be read. Otherwise every daemon would claim after each interruption of the log.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from purgatory.journal.continued_time import boot_ms
from purgatory.journal.crash_points import AFTER_CLAIM, CrashPoints
from purgatory.replicated_log.entry import Entry, Kind, unpacked
from purgatory.replicated_log.errors import Fenced, LogRefused, LogTrimmed, LogUnavailable
from purgatory.replicated_log.leadership import HEARTBEAT_S_MAX, Leadership, exit_to_be_restarted
from purgatory.replicated_log.log_writer import LogWriter
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.replica import Replica
from purgatory.replicated_log.replicated_log import ReplicatedLog
from purgatory.replicated_log.snapshots import load_snapshot

LOGGER: Final = logging.getLogger(__name__)

READ_S: Final = 0.1
"""How long one read waits for the next entry."""

END_S: Final = 1.0
"""How often the log is asked for its end."""

RETRY_S: Final = 0.5
"""Pause after an error of the log."""

PATIENCE: Final = 3
"""Silences after which to claim although something seems to follow that cannot be read."""

GROUPS_PER_MAINTENANCE: Final = 32

NEW_LOG: Final = (
    "Restore the log, or make a new one from the daemon's folder that has most (`purgatory fleet leave DIR`, then "
    "`purgatory fleet init LOG --from DIR`)"
)


class Stopped(Exception):
    """`stop` was called."""


class Standby:
    """One standby. `lead` runs on a thread of its own; other threads may read the attributes and call `stop`."""

    def __init__(
        self,
        folder: Path,
        log: ReplicatedLog,
        silence_s: float,
        address: str,
        http_address: str,
        shards: int = 1,
        now_s: Callable[[], float] = lambda: boot_ms() / 1_000,  # which cannot be set
    ) -> None:
        """Args:
            folder: Where the file is.
            silence_s: Time without an entry after which to claim.
            address: gRPC address of this daemon, for people.
            http_address: Its HTTP address.
            shards: The number of shards that the log must have.
            now_s: A clock that cannot be set.

        Raises:
            JournalError: The folder cannot be used.
        """
        self.is_caught_up = False
        self.logged_ms = 0
        """When the last entry read was appended, by the log's clock; 0: none yet."""
        self._log: Final = log
        self._shards: Final = shards
        self._now_s: Final = now_s
        self._silence_s: Final = silence_s
        self._addresses: Final = (address, http_address)
        self._stopping: Final = threading.Event()
        self._crash: Final = CrashPoints.from_environment()
        self._replica: Final = Replica(folder)
        self._groups = 0
        self._end = 0
        """The log's end when it was last asked for, at `_asked_s`."""
        self._asked_s = self._at_end_s = now_s()
        """`_at_end_s`: everything that was in the log then has been read."""
        self._is_live = False
        """Whether entries are read soon after they are appended."""
        self._heard_s = 0.0
        """Time of the last valid entry."""
        self._group_heard_s: float | None = None
        """Time at which the last group arrived; None: while catching up, so later than it was appended."""
        self._begin()

    @property
    def leader(self) -> str:
        """The leader's addresses; empty: there is no leader."""
        return self._replica.place.leader

    @property
    def lag_entries(self) -> int:
        """Entries of the log that have not been read yet, as far as is known."""
        return max(0, self._end - self._position - 1)

    @property
    def lag_s(self) -> float:
        """Everything that was in the log this many seconds ago has been read. About `END_S` if all is well; it also
        rises while the log does not answer.
        """
        return max(0.0, self._now_s() - self._at_end_s)

    def stop(self) -> None:
        """Let `lead` raise `Stopped`."""
        self._stopping.set()

    def lead(self) -> Leadership:
        """Return once this daemon leads. The file is then closed, and its folder unlocked.

        Raises:
            Stopped: `stop` was called.
            CutOff: It is not known whether this daemon leads.
            FleetLogError: The log is not usable, and a person has to act.
        """
        try:
            while True:
                try:
                    if not self.is_caught_up:
                        self._log.check(self._shards)
                    if self._position < 0:
                        self._load_snapshot()  # quicker than reading the log, and it may be its beginning
                    self._catch_up()
                    self._follow()
                    return self._claim()
                except Fenced as error:
                    LOGGER.info("another daemon was first: %s", error)
                except LogTrimmed as trimmed:
                    before = self._position
                    if not self._load_snapshot() or self._position <= before:
                        raise LogRefused(f"{trimmed}, and no snapshot leads there. {NEW_LOG}") from None
                except LogUnavailable as error:
                    LOGGER.warning("the log does not answer: %s", error)
                    self.is_caught_up = False  # not ready, and the log is checked again: it may have been deleted
                    if self._stopping.wait(RETRY_S):
                        raise Stopped from None
                except (sqlite3.Error, OSError) as error:
                    exit_to_be_restarted(f"cannot write the standby's file ({error})")
        finally:
            self._replica.release()

    # Inside.

    @property
    def _position(self) -> int:
        return self.reign.state.position

    def _begin(self) -> None:
        self.reign = Reign(self._replica.place.state, unpacked)
        """Who leads, as far as the log has been read."""
        self._writer = LogWriter(self._log, self.reign, self._apply)

    def _catch_up(self) -> None:
        self._is_live = False
        self._writer.check_history(self._replica.place.state)
        self._ask_end()
        while self.lag_entries:
            self._read()
        if not self.reign.state.log_id:
            raise LogRefused("the log has no beginning: create it with `purgatory fleet init`")
        self._is_live = True
        self._at_end_s, self._heard_s = self._asked_s, self._now_s()
        if not self.is_caught_up:
            now = self.reign.state
            LOGGER.info("standing by: caught up with the log at position %d, epoch %d", now.position, now.epoch)
        self.is_caught_up = True

    def _load_snapshot(self) -> bool:
        """Replace the file by the last snapshot. Return False if there is none."""
        if not load_snapshot(self._log, self._replica):
            return False
        LOGGER.info("loaded the snapshot of position %d", self._replica.place.position)
        self._begin()
        return True

    def _follow(self) -> None:
        """Return when it is time to claim."""
        while not self._must_claim():
            if self._now_s() - self._asked_s >= END_S:
                self._ask_end()
            if self._read():
                self._heard_s = self._now_s()
            if not self.lag_entries:
                self._at_end_s = self._asked_s

    def _ask_end(self) -> None:
        asked_s = self._now_s()
        self._end, self._asked_s = self._log.end(), asked_s

    def _read(self) -> bool:
        """Apply the next entries. Return whether one of them was valid."""
        if self._stopping.is_set():
            raise Stopped
        entries = self._writer.follow(READ_S)
        self.logged_ms = entries[-1].logged_ms if entries else self.logged_ms
        return bool(entries)

    def _must_claim(self) -> bool:
        writer = self.reign.state.writer
        if not writer:
            return True
        silent_s, silence_s = self._now_s() - self._heard_s, self._silence_s
        if writer == self._replica.place.own_writer:
            # This daemon led before it was restarted. Otherwise its folder is a copy of one whose daemon still leads.
            silence_s = min(silence_s / 2, 2 * HEARTBEAT_S_MAX)
        if silent_s < silence_s:
            return False
        # The end is asked for: a Kafka client that has lost its broker reads nothing, without an error. But it need not
        # be a position that an entry can have, if something else has written to the topic.
        return self._log.end() == self._position + 1 or silent_s >= PATIENCE * self._silence_s

    def _claim(self) -> Leadership:
        self._replica.check_writable()  # a leader with a full disk would be none
        self._writer.check_history(self._replica.place.state)
        claim = self._writer.claim(self._replica.moment_ms, *self._addresses)
        claimed_s = self._now_s()
        self._crash.reached(AFTER_CLAIM)
        elapsed_ms, folder = self._elapsed_ms(claim, claimed_s), self._replica.directory.path
        started_ms = self._replica.moment_ms
        leadership = Leadership(folder, self.reign, self._writer, started_ms, elapsed_ms, self._silence_s)
        try:
            self._replica.note_lead(claim, self.reign.state)
        except sqlite3.Error:
            leadership.resign()
            raise
        LOGGER.info("leading, epoch %d, from position %d", claim.epoch, claim.position)
        return leadership

    def _elapsed_ms(self, claim: Entry, claimed_s: float) -> Callable[[], int]:
        """Return the function that returns the time since the last group: never more than has passed.

        By this machine's clock, if it saw the group arrive. Otherwise by the log's, the only one that saw both. Not by
        the daemons' wall clocks, because those of two machines differ.
        """
        logged_ms = self._replica.place.logged_ms
        if self._group_heard_s is not None:
            since_s, before_ms = self._group_heard_s, 0
        else:
            since_s, before_ms = claimed_s, max(0, claim.logged_ms - logged_ms) if logged_ms else 0
        return lambda: before_ms + int((self._now_s() - since_s) * 1_000)

    def _apply(self, entry: Entry) -> None:
        if entry.more:
            return
        self._replica.apply(entry, self.reign.resting)
        if entry.kind is Kind.GROUP:
            # Here, because a claim also finds groups: with the time of an earlier one, too much would have passed.
            self._group_heard_s = self._now_s() if self._is_live else None
        self._groups += 1
        if self._groups % GROUPS_PER_MAINTENANCE == 0:
            self._replica.maintain(idle=False)
