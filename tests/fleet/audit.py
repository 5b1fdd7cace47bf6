"""An independent audit of a log: which entries count, computed from the whole log without the code under test."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from purgatory.replicated_log.entry import Entry, Kind


class Counted(NamedTuple):
    """A group that counts, and the position of its last part."""

    position: int
    number: int
    writer: bytes
    content: bytes


def audit(log: Sequence[Entry]) -> list[Counted]:
    """The groups that count, in order. Raises AssertionError if the log contradicts itself.

    Reigns first: the first claim with epoch 1, then the first one after it with epoch 2, and so on. Each reign is then
    looked at alone.
    """
    starts: list[int] = []
    for index, entry in enumerate(log):
        if entry.kind is Kind.CLAIM and entry.epoch == len(starts) + 1:
            starts.append(index)
    groups: list[Counted] = []
    number = 0
    for epoch, (start, end) in enumerate(pairwise([*starts, len(log)]), 1):
        leader = log[start].writer
        parts: list[bytes] = []
        for entry in log[start + 1 : end]:
            is_leaders = entry.kind is not Kind.CLAIM and entry.epoch == epoch and entry.writer == leader
            if not is_leaders or entry.number <= number:
                continue
            assert entry.number == number + 1, f"numbers {number + 1} to {entry.number - 1} are missing"
            number += 1
            if entry.kind is Kind.RESIGNATION:
                break
            if entry.kind is Kind.GROUP:
                parts.append(entry.content)
                if not entry.more:
                    groups.append(Counted(entry.position, number, leader, b"".join(parts)))
                    parts.clear()
    return groups
