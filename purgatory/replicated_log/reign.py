"""Which entries of the log count (rules R1 to R4), decided by each reader alone and without I/O.

R0  The first entry is the origin, written by `purgatory fleet init`. It has the random id of the log. An entry with
    another id is void: it was written by a daemon that hung while the log was made again.
R1  A claim is valid if its epoch is the current one + 1. From there on its writer leads. A claim that arrives second
    is void. A claim names the valid claim before it, or the origin.
R2  Any other entry is valid if its epoch is the current one, its writer leads, and its number is the last valid one
    + 1.
R3  Void entries are skipped: a deposed leader's, a second copy, or one that cannot be decoded. These are not void but
    stop the reader, because its file and the log have different histories, or the log has lost entries: a number beyond
    the next one, an epoch whose claim is missing, a claim after another claim than the reader's, and an entry of the
    current epoch by another writer than that of its claim.
R4  A valid claim discards the parts of an unfinished group. A valid resignation ends the reign: nobody leads until the
    next claim.

All readers see the same entries in the same order, so they agree. That is all there is to an election.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from purgatory.replicated_log.entry import TABLES, Entry, Kind
from purgatory.replicated_log.errors import LogLost, LogRefused


class ReignState(NamedTuple):
    """The state of a reader after an entry, from which it can continue.

    Attributes:
        position: Position of the last entry read; -1: none.
        epoch: Epoch of the last valid claim; 0: none.
        number: Number of the last valid entry that is not a claim.
        writer: The leader; empty: there is none.
        log_id: The log's; empty: its origin has not been read.
        claim_position: Position of the claim of this epoch, or of the origin; -1: none.
        claim_writer: Its writer.
    """

    position: int = -1
    epoch: int = 0
    number: int = 0
    writer: bytes = b""
    log_id: bytes = b""
    claim_position: int = -1
    claim_writer: bytes = b""

    def ends_with(self, entry: Entry) -> bool:
        """Whether this is the state right after a valid entry. No other history has the same entry there."""
        number = 0 if self.position == self.claim_position else self.number
        ours = (self.position, self.log_id, self.epoch, self.claim_writer, number)
        return ours == (entry.position, entry.log_id, entry.epoch, entry.writer, entry.number)


class Reign:
    """Judges entries in the order of the log, for one reader."""

    def __init__(
        self, state: ReignState | None = None, unpacked: Callable[[Entry], Entry | None] = lambda entry: entry
    ) -> None:
        """Args:
        state: Continue after it; None: from the beginning of the log.
        unpacked: Decodes the content of a whole group; None: that is not possible, and the group is void.
        """
        self.state = state or ReignState()
        """After the last entry. Do not store it: the parts of an unfinished group would be missing after a restart."""
        self.resting = self.state
        """After the last entry that left no group unfinished. A file that includes all groups up to there stores it."""
        self.void_entries = 0
        """Number of void entries since the start: those of deposed leaders, and copies."""
        self._unpacked: Final = unpacked
        self._parts: Final[list[bytes]] = []

    def would_accept(self, entry: Entry) -> bool:
        """Whether the entry would be valid if it were the next one in the log, and can be decoded."""
        now = self.state
        if entry.kind is Kind.ORIGIN:
            return not now.log_id
        if entry.kind is Kind.UNREADABLE or entry.log_id != now.log_id:
            return False
        if entry.kind is Kind.CLAIM:
            return entry.epoch == now.epoch + 1
        return (entry.epoch, entry.writer, entry.number) == (now.epoch, now.writer, now.number + 1)

    def accept(self, entry: Entry, *, is_own: bool = False) -> Entry | None:
        """Judge the next entry.

        Args:
            entry: As read from the log, with its position.
            is_own: This process has written it, so it need not be decoded.

        Returns:
            None if the entry is void, otherwise the entry. The last part of a group is returned with the content of
            all parts. Those before it, with `more`, must not be applied.

        Raises:
            LogLost: Entries before this one are missing, or the reader's file belongs to another history.
            LogRefused: It is valid and has newer tables than this program.
        """
        self._check(entry)
        valid = entry if self.would_accept(entry) else None
        if valid is not None and entry.tables > TABLES:
            raise LogRefused(
                f"position {entry.position} of the log has version {entry.tables} of the journal's tables; this "
                f"program supports up to {TABLES}: upgrade it"
            )
        if valid is not None and entry.kind is Kind.GROUP and not entry.more:
            whole = replace(entry, content=b"".join((*self._parts, entry.content))) if self._parts else entry
            valid = whole if is_own else self._unpacked(whole)
        self.state = self._after(entry) if valid is not None else self.state._replace(position=entry.position)
        self.void_entries += valid is None
        if not self._parts:
            self.resting = self.state
        return valid

    def _check(self, entry: Entry) -> None:
        """Raise LogLost if the entry could only have been written after one that this reader has not seen."""
        now, at = self.state, f"position {entry.position}"
        if entry.position <= now.position:
            raise LogLost(f"the log has gone back: {at} follows position {now.position}")
        if entry.kind in {Kind.ORIGIN, Kind.UNREADABLE} or entry.log_id != now.log_id:
            return
        is_claim = entry.kind is Kind.CLAIM
        # Claims are written by daemons that have read the previous one, and other entries after their own claim.
        if entry.epoch > now.epoch + is_claim:
            raise LogLost(f"the log has lost the claim of epoch {now.epoch + 1}: {at} has epoch {entry.epoch}")
        previous = entry.previous_position, entry.previous_writer
        if is_claim and entry.epoch == now.epoch + 1 and previous != (now.claim_position, now.claim_writer):
            raise LogLost(
                f"{at} of the log is a claim after the one at position {previous[0]}, and the last one known here is "
                f"at position {now.claim_position}: the log has another history than this daemon's file"
            )
        if is_claim or entry.epoch < now.epoch:
            return
        if entry.writer != now.claim_writer:
            raise LogLost(
                f"{at} of the log has another writer than the claim of epoch {now.epoch} known here: the log has "
                "another history than this daemon's file"
            )
        if entry.number > now.number + 1:
            raise LogLost(f"the log has lost entries: number {now.number + 1} is missing, {at} has {entry.number}")

    def _after(self, entry: Entry) -> ReignState:
        """The state after a valid entry."""
        if entry.kind in {Kind.CLAIM, Kind.ORIGIN}:
            self._parts.clear()
            leader = entry.writer if entry.kind is Kind.CLAIM else b""
            number, at = self.state.number, entry.position
            return ReignState(at, entry.epoch, number, leader, entry.log_id, at, entry.writer)
        if entry.kind is Kind.GROUP and entry.more:
            self._parts.append(entry.content)
        else:
            self._parts.clear()  # joined, or the leader gave up a group that it had not finished
        leader = b"" if entry.kind is Kind.RESIGNATION else entry.writer
        return self.state._replace(position=entry.position, number=entry.number, writer=leader)
