"""Marks of groups without brokers: which value counts, compared with a simple model of a log and its late reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_connectors.kafka.group_marks import NO_COMMIT, GroupMarks, MarkMove, UncertainOffset
from purgatory_connectors.kafka.offset_records import CommitName

NAME: CommitName = ("billing", "orders", 0)


def loaded(values: dict[CommitName, int] | None = None, told: dict[CommitName, int] | None = None) -> GroupMarks:
    """Marks of a cluster whose `__consumer_offsets` has one partition, read to position 100."""
    marks = GroupMarks(1)
    marks.remember_published(told or {})
    marks.loaded(0, values or {}, 100, 0)
    return marks


def test_forward_and_back() -> None:
    """A lower commit is a reset, an equal one changes nothing, and a tombstone removes the mark."""
    marks = loaded({NAME: 5})
    assert marks.committed(0, {NAME: 9}, 1) == [MarkMove(NAME, 9)]
    assert marks.committed(0, {NAME: 9}, 2) == []
    assert marks.committed(0, {NAME: 4}, 3) == [MarkMove(NAME, 4, is_set_back=True)]
    assert marks.committed(0, {NAME: None}, 4) == [MarkMove(NAME, None)]
    assert marks.committed(0, {NAME: None}, 5) == []


def test_a_proved_mark_is_no_measure_for_steps_back() -> None:
    """After a raise from 5 to 8, commits of 6 and 8 change nothing, and 5 after 6 is a reset."""
    marks = loaded({NAME: 5})
    assert marks.prove(NAME, 5, 8) == [MarkMove(NAME, 8)]
    assert marks.committed(0, {NAME: 6}, 1) == []
    assert marks.committed(0, {NAME: 5}, 2) == [MarkMove(NAME, 5, is_set_back=True)]


def test_a_proof_for_another_commit_proves_nothing() -> None:
    """A proof that starts at 5 does not apply once the group was reset to 3."""
    marks = loaded({NAME: 5})
    marks.committed(0, {NAME: 3}, 1)
    assert marks.prove(NAME, 5, 8) == []


def test_a_group_without_a_commit_can_be_proved_to_have_nothing_to_read() -> None:
    """Its first commit below the proved mark is not a reset, and polls without an offset do not remove the mark."""
    marks = loaded()
    assert marks.prove(NAME, NO_COMMIT, 3) == [MarkMove(NAME, 3)]
    assert [marks.polled("billing", {}, None, 1), marks.polled("billing", {}, None, 2)] == [[], []]
    assert marks.committed(0, {NAME: 1}, 3) == []
    assert marks.committed(0, {NAME: 4}, 4) == [MarkMove(NAME, 4)]


@pytest.mark.parametrize("is_drained", [True, False])
def test_doubts(is_drained: bool) -> None:
    """If a daemon has 9 and the topic has 5, nothing is published until that is settled."""
    marks = GroupMarks(1)
    marks.remember_published({NAME: 9})
    assert marks.loaded(0, {NAME: 5}, 10, 0) == ([], [UncertainOffset(NAME, 5, 9)])
    settled = marks.settled(UncertainOffset(NAME, 5, 9), is_drained=is_drained, now=1)
    assert settled == ([] if is_drained else [MarkMove(NAME, 5, is_set_back=True)])
    assert marks.committed(0, {NAME: 7}, 2) == ([] if is_drained else [MarkMove(NAME, 7)])


def test_commits_settle_a_doubt() -> None:
    """A commit above the daemon's mark settles the uncertainty, and the later result changes nothing."""
    marks = loaded({NAME: 5}, told={NAME: 9})
    assert marks.committed(0, {NAME: 7}, 1) == []
    assert marks.committed(0, {NAME: 10}, 2) == [MarkMove(NAME, 10)]
    assert marks.settled(UncertainOffset(NAME, 5, 9), is_drained=False, now=3) == []


def test_what_daemons_have_and_the_topic_has_not_is_gone() -> None:
    """A group that was deleted while no source ran is gone."""
    marks = GroupMarks(1)
    marks.remember_published({NAME: 9})
    assert marks.loaded(0, {}, 10, 0) == ([MarkMove(NAME, None)], [])


def test_a_cut_takes_marks_back_and_the_same_commit_is_not_believed_again() -> None:
    """The commit of 25 belongs to lost records; the consumer may repeat it once before it notices the truncation."""
    marks = loaded({NAME: 25})
    assert marks.cut("orders", 0, 10, 1) == [MarkMove(NAME, 10, is_set_back=True)]
    assert marks.committed(0, {NAME: 25}, 2) == []
    assert marks.committed(0, {NAME: 12}, 3) == [MarkMove(NAME, 12)]
    assert marks.cut("orders", 0, 30, 4) == []


def test_polls_step_back_only_when_they_say_so_twice() -> None:
    """Without the topic, a step back needs two polls, because a coordinator that has just moved may be behind."""
    marks = GroupMarks()
    assert marks.polled("billing", {NAME: 7}, None, 0) == [MarkMove(NAME, 7)]
    assert marks.polled("billing", {NAME: 3}, None, 1) == []
    assert marks.polled("billing", {NAME: 7}, None, 2) == []
    assert marks.polled("billing", {}, None, 3) == []
    assert marks.polled("billing", {}, None, 4) == [MarkMove(NAME, None)]


@given(st.lists(st.tuples(st.sampled_from(["commit", "read", "poll"]), st.integers(0, 20)), max_size=60))
def test_a_late_reader_and_polls_agree_with_the_log(steps: list[tuple[str, int]]) -> None:
    """Commits are written to a log, which is read with any delay, while polls return the newest commit. The mark always
    equals a commit at or after the read position, polls never cause a false reset, and once everything is read the mark
    is the newest commit.
    """
    log: list[int] = [5]
    marks = loaded()
    position = 0
    mark = -1

    def apply(moves: list[MarkMove]) -> None:
        nonlocal mark
        for move in moves:
            assert move.offset is not None
            assert move.offset in log[max(position - 1, 0) :], f"{move} was not committed since {position}: {log}"
            assert move.is_set_back == (move.offset < mark), f"{move} after {mark}"
            mark = move.offset

    def read() -> None:
        nonlocal position
        position += 1
        moves = marks.committed(0, {NAME: log[position - 1]}, 0)
        apply(moves + marks.read_to(0, 100 + position, 0))

    for step, offset in steps:
        if step == "commit":
            log.append(offset)
        elif step == "read" and position < len(log):
            read()
        elif step == "poll":
            apply(marks.polled("billing", {NAME: log[-1]}, 100 + len(log), 0))
    while position < len(log):
        read()
    assert mark == log[-1]


def test_java_hash_places_groups() -> None:
    """The hash matches Kafka's; the last group's hash is Java's lowest integer."""
    marks = GroupMarks(50)
    assert [marks.partition_of(group) for group in ("billing", "a", "größe", "polygenelubricants")] == [
        abs(-109829509) % 50, 97 % 50, 98762257 % 50, 0,
    ]  # fmt: skip


def test_a_group_that_goes_on_below_its_old_mark_was_set_back() -> None:
    """Commits during the check of a group that was reset while no source ran do not leave it uncertain."""
    marks = loaded({NAME: 50}, {NAME: 90})
    assert marks.committed(0, {NAME: 60}, 1) == []
    assert marks.settled(UncertainOffset(NAME, 50, 90), is_drained=False, now=2) == [
        MarkMove(NAME, 60, is_set_back=True)
    ]
    assert marks.committed(0, {NAME: 70}, 3) == [MarkMove(NAME, 70)]


def test_a_raised_mark_stays_though_the_group_goes_on_below_it() -> None:
    """A proof from the first committed offset also holds for later commits."""
    marks = loaded({NAME: 50}, {NAME: 90})
    assert marks.committed(0, {NAME: 60}, 1) == []
    assert marks.settled(UncertainOffset(NAME, 50, 90), is_drained=True, now=2) == []
    assert marks.get(NAME) == (60, 90, 1)
