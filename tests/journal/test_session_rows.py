"""The rows of a session contain exactly the pending operations, in whatever order operations end or make progress."""

import random
import sys

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.snapshot.live_set import LiveSet
from purgatory.journal.session_rows import SessionRows

Rows = dict[int, tuple[list[int], bytes]]
"""Ids and bits of ended operations, by row number."""

STEPS = 40


def load(rows: Rows) -> SessionRows:
    """Build the object from existing rows, as after a restart."""
    rows_of_session = SessionRows()
    for number in sorted(rows):
        live = LiveSet(vec[i64](rows[number][0]), rows[number][1])
        (rows_of_session.add if rows_of_session.is_above_all(int(live.first)) else rows_of_session.add_moved)(
            number, live
        )
    return rows_of_session


@pytest.mark.parametrize("seed", range(20))
def test_rows_hold_exactly_what_waits(seed: int) -> None:
    """After each step of a random history, including restarts, the rows contain every pending operation exactly
    once.
    """
    chance = random.Random(seed)
    rows: Rows = {}
    rows_of_session = SessionRows()
    waiting: set[int] = set()
    last_id = last_row = 0
    for step in range(STEPS):
        ended = chance.sample(sorted(waiting), min(len(waiting), chance.randint(0, 6)))
        waiting.difference_update(ended)
        moved = sorted(chance.sample(sorted(waiting), min(len(waiting), chance.choice((0, 0, 1, 3)))))
        for ids in (ended, moved):
            for kept in rows_of_session.strike(vec[i64](ids)):
                rows[kept.registration] = (rows[kept.registration][0], kept.live.gone())
        rows = {number: row for number, row in rows.items() if LiveSet(vec[i64](row[0]), row[1]).left}
        new = [last_id + place for place in range(1, chance.randint(1, 6))]
        last_id += len(new)
        waits = [number for number in new if chance.random() < 0.8]
        for ids, add in ((waits, rows_of_session.add), (moved, rows_of_session.add_moved)):
            if ids:
                last_row += 1
                rows[last_row] = (ids, b"")
                add(last_row, LiveSet(vec[i64](ids), b""))
        waiting.update(waits)
        held = [number for ids, gone in rows.values() for number in LiveSet(vec[i64](ids), gone).remaining()]
        assert sorted(held) == sorted(waiting), f"step {step}"
        if chance.random() < 0.2:
            rows_of_session = load(rows)


def test_rosters_and_strikes_leave_nothing_behind() -> None:
    """Ids are released: a compiled function would keep a reference to an array of them that it gets from other code."""

    def work(times: int) -> int:
        for _ in range(times):
            rows_of_session = SessionRows()
            rows_of_session.add(1, LiveSet(vec[i64](range(1, 41)), b""))
            rows_of_session.strike(vec[i64](range(1, 31)))
        return sys.getallocatedblocks()

    before = work(100)
    assert work(2_000) - before < 1_000
