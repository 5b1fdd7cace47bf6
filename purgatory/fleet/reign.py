"""Which entries of the log count (rules R1 to R4), decided by each reader alone and without I/O.

R1  A claim is valid if its epoch is the current one + 1. From there on its writer leads. A claim that arrives second
    is void.
R2  Any other entry is valid if its epoch is the current one, its writer leads, and its number is the last valid one
    + 1.
R3  Void entries are skipped: a deposed leader's, or a second copy. A number beyond the next one means that the log has
    lost entries.
R4  A valid claim discards the parts of an unfinished group. A valid resignation ends the reign: nobody leads until the
    next claim.

All readers see the same entries in the same order, so they agree. That is all there is to an election.
"""

from dataclasses import dataclass, replace
from typing import Final

from purgatory.fleet.entry import TABLES, Entry, Kind
from purgatory.fleet.errors import EntryTooNew, LogLost


@dataclass(frozen=True, slots=True)
class ReignState:
    """The state of a reader after an entry, from which it can continue.

    Attributes:
        position: Position of the last entry read; -1: none.
        epoch: Epoch of the last valid claim; 0: none.
        number: Number of the last valid entry that is not a claim.
        writer: The leader; empty: there is none.
    """

    position: int = -1
    epoch: int = 0
    number: int = 0
    writer: bytes = b""


class Reign:
    """Judges entries in the order of the log, for one reader."""

    def __init__(self, state: ReignState | None = None) -> None:
        """Continue after this state; None: from the beginning of the log."""
        self.state = state or ReignState()
        """After the last entry. Do not store it: the parts of an unfinished group would be missing after a restart."""
        self.resting = self.state
        """After the last entry that left no group unfinished. A file that includes all groups up to there stores it."""
        self.void_entries = 0
        """Number of void entries since the start: those of deposed leaders, and copies."""
        self._parts: Final[list[bytes]] = []

    def would_accept(self, entry: Entry) -> bool:
        """Whether the entry would be valid if it were the next one in the log."""
        now = self.state
        if entry.kind is Kind.CLAIM:
            return entry.epoch == now.epoch + 1
        return (entry.epoch, entry.writer, entry.number) == (now.epoch, now.writer, now.number + 1)

    def accept(self, entry: Entry) -> Entry | None:
        """Judge the next entry.

        Args:
            entry: As read from the log, with its position.

        Returns:
            None if the entry is void, otherwise the entry. The last part of a group is returned with the content of
            all parts. Those before it, with `more`, must not be applied.

        Raises:
            LogLost: Entries before this one are missing.
            EntryTooNew: It is valid and has newer tables than this program.
        """
        self._check(entry)
        is_valid = self.would_accept(entry)
        if is_valid and entry.tables > TABLES:
            raise EntryTooNew(
                f"position {entry.position} of the log has version {entry.tables} of the journal's tables; this "
                f"program supports up to {TABLES}: upgrade it"
            )
        if not is_valid:
            self.void_entries += 1
            self.state = replace(self.state, position=entry.position)
        elif entry.kind is Kind.CLAIM:
            self._discard_parts()
            self.state = ReignState(entry.position, entry.epoch, self.state.number, entry.writer)
        else:
            leader = b"" if entry.kind is Kind.RESIGNATION else entry.writer
            self.state = ReignState(entry.position, entry.epoch, entry.number, leader)
            entry = self._join(entry)
        if not self._parts:
            self.resting = self.state
        return entry if is_valid else None

    def _check(self, entry: Entry) -> None:
        """Raise LogLost if the entry could only have been written after one that this reader has not seen."""
        now, at = self.state, f"position {entry.position}"
        if entry.position <= now.position:
            raise LogLost(f"the log has gone back: {at} follows position {now.position}")
        is_claim = entry.kind is Kind.CLAIM
        # Claims are written by daemons that have read the previous one, and other entries after their own claim.
        if entry.epoch > now.epoch + is_claim:
            raise LogLost(f"the log has lost the claim of epoch {now.epoch + 1}: {at} has epoch {entry.epoch}")
        is_leaders = not is_claim and (entry.epoch, entry.writer) == (now.epoch, now.writer)
        if is_leaders and entry.number > now.number + 1:
            raise LogLost(f"the log has lost entries: number {now.number + 1} is missing, {at} has {entry.number}")

    def _discard_parts(self) -> None:
        self._parts.clear()

    def _join(self, entry: Entry) -> Entry:
        if entry.kind is not Kind.GROUP:
            self._discard_parts()  # the leader gave up a group that it had not finished
        elif entry.more:
            self._parts.append(entry.content)
        elif self._parts:
            entry = replace(entry, content=b"".join((*self._parts, entry.content)))
            self._parts.clear()
        return entry
