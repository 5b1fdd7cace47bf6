"""Log pages, timeline histories and derived marks. Without servers."""

from math import inf

import pytest
from purgatory_connectors.postgres.observations import LogPages
from purgatory_connectors.postgres.timelines import Timelines, forks_of, newest_identity
from purgatory_connectors.publisher.mark_rules import ALL, ANY, QUORUM, CountedReplica, derive

HISTORY = "1\t0/5000000\tno recovery target specified\n\n# a comment\n2\t1/A0\tbefore 2026-01-01\n"


@pytest.mark.parametrize(
    ("position", "expected"),
    [(0, 0), (100, 100), (8191, 8191), (8192, 8216), (8193, 8193), (8216, 8216), (1 << 20, (1 << 20) + 40)],
)
def test_past_header(position: int, expected: int) -> None:
    """A position at the start of a page moves past its header: 24 bytes, or 40 in the first page of a segment."""
    assert LogPages(8192, 1 << 20).past_header(position) == expected


def test_forks_of_a_history_file() -> None:
    """Each line of a history file has the end of a timeline; comments and empty lines are ignored."""
    assert forks_of(HISTORY) == {1: 0x5000000, 2: 0x1000000A0}


def test_older_timelines_count_up_to_the_fork() -> None:
    """Positions on the newest timeline count in full, on its ancestors up to the fork, on unknown ones not at all."""
    lineage = Timelines(7, 3)
    lineage.learn_forks({1: 100, 2: 200})
    assert [lineage.shared(*one) for one in ((3, 999), (2, 150), (2, 250), (1, 250), (4, 1))] == [999, 150, 200, 100, 0]
    assert lineage.left_behind(2) == "it is on timeline 2, which was left at 0/C8; the newest is 3"


@pytest.mark.parametrize(("forks", "expected"), [({1: 120}, 120), (None, 90), ({}, 0)])
def test_the_fork_of_a_switch(forks: dict[int, int] | None, expected: int) -> None:
    """The fork is read from the history; without one, it is the last position seen of the promoted server."""
    lineage = Timelines(7, 1)
    assert lineage.switch(2, forks, 90) == expected
    assert lineage.shared(1, 500) == expected


def test_an_identity_never_comes_back() -> None:
    """Each break has an identity of its own, which can be parsed again."""
    lineage = Timelines(7, 1)
    seen = [lineage.identity]
    for timeline in (1, 1, 2, 2, 5):
        if timeline > lineage.timeline:
            lineage.switch(timeline, None, 0)
        lineage.break_here()
        again = Timelines.of_identity(lineage.identity)
        assert again is not None
        assert again.identity == lineage.identity
        seen.append(lineage.identity)
    assert seen == ["7/1", "7/1.1", "7/1.2", "7/2", "7/2.1", "7/5"]
    assert Timelines.of_identity("7") is None
    assert newest_identity(["7/1.3", "", "7/2#4", "7/1#1", "none"]) == "7/2"


def test_a_clean_switch_keeps_the_identity() -> None:
    """After a switch without a break, marks are in the same lineage."""
    lineage = Timelines(7, 1)
    lineage.switch(2, {1: 100}, 0)
    assert lineage.identity == "7/1"


def members(*positions: int, stale: tuple[int, ...] = ()) -> list[CountedReplica]:
    """Replicas "r0", "r1" ... at these positions."""
    return [
        CountedReplica(f"r{index}", position, 10.0 - index, "down" if index in stale else "")
        for index, position in enumerate(positions)
    ]


@pytest.mark.parametrize(
    ("kind", "quorum", "expected"),
    [(ANY, None, 30), (ALL, None, 10), (QUORUM, None, 20), (QUORUM, 1, 30), (QUORUM, 3, 10)],
)
def test_derived_positions(kind: str, quorum: int | None, expected: int) -> None:
    """`any` is the maximum of the replicas, `all` the minimum, `quorum` the k-th; by default the majority."""
    assert derive(kind, members(10, 30, 20), quorum)[:2] == (expected, "")


def test_derived_marks_over_a_replica_that_cannot_be_seen() -> None:
    """`all` is stale and keeps its last value; `any` and a quorum continue while enough replicas are seen."""
    one_stale = members(10, 30, 20, stale=(1,))
    assert derive(ALL, one_stale, None) == (10, "r1: down", 8.0)
    assert derive(ANY, one_stale, None)[:2] == (30, "")
    assert derive(QUORUM, one_stale, None)[:2] == (20, "")
    two_stale = members(10, 30, 20, stale=(1, 2))
    assert derive(QUORUM, two_stale, None) == (20, "r1: down; r2: down", 9.0)
    assert derive(ANY, members(10, stale=(0,)), None)[1] == "r0: down"


def test_derived_marks_without_enough_replicas() -> None:
    """With zero replicas, or fewer than a quorum, there are no derived marks."""
    assert derive(ANY, [], None) == (-1, "there is no replica", inf)
    assert derive(QUORUM, members(10, 20), 3) == (-1, "a quorum is 3 replicas, and there are 2", inf)
