"""Rules by which readings become marks: scripts, and random histories of servers and of a group."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from purgatory_connectors.kafka.group_marks import GroupMarks, GroupMove
from purgatory_connectors.postgres.observations import LogPages
from purgatory_connectors.postgres.timelines import Timelines, forks_of, newest_identity
from purgatory_connectors.publisher.mark_rules import ALL, ANY, QUORUM, CountedReplica, derive

from tests.sources.scripted_marks import KafkaMarks, PostgresMarks, mark_scripts, played

SCRIPTS = mark_scripts()


@pytest.mark.parametrize("name", SCRIPTS)
def test_readings_move_marks_as_recorded(name: str) -> None:
    kind, script = SCRIPTS[name]
    assert played(kind, script).lines == script.lines


SERVERS = ("p", "r1", "r2", "r3")
LOOK_AT_ALL = [("look", name, 0) for name in SERVERS]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.sampled_from(SERVERS), st.integers(1, 30)),
        st.tuples(st.sampled_from(["look", "lose"]), st.sampled_from(SERVERS), st.just(0)),
        st.tuples(st.just("reset"), st.sampled_from(SERVERS[1:]), st.integers(0, 40)),
        st.tuples(st.just("restart source"), st.just("p"), st.just(0)),
    ),
    max_size=60,
)
GROWN = [("grow", "r1", 1), ("grow", "r2", 1)]
RESTART = ("restart source", "p", 0)


@settings(max_examples=300)
@given(STEPS)
@example([*LOOK_AT_ALL, RESTART, ("reset", "r2", 0), ("look", "r2", 0)])
@example([*LOOK_AT_ALL[:3], ("lose", "r1", 0), ("reset", "r1", 0), ("look", "r1", 0)])
@example([*GROWN, *LOOK_AT_ALL, RESTART, ("reset", "r2", 1), ("look", "r2", 0)])
def test_derived_marks_are_never_ahead_of_the_servers(steps: list[tuple[str, str, int]]) -> None:
    """A mark never exceeds its server's last reading, and `all` never exceeds any replica's."""
    real = dict.fromkeys(SERVERS, 1)
    seen: dict[str, int] = {}
    servers = PostgresMarks(*SERVERS)
    for step, name, amount in steps:
        match step:
            case "grow":
                real[name] += amount
            case "reset":
                real[name] = min(real[name], amount)
            case "lose":
                servers.play([name, "down"], {})
            case "look":
                servers.play([name, str(real[name])], {})
                seen[name] = real[name]
            case _:
                servers.play(["source", *SERVERS], {})
        list(servers.output())  # publishes what has changed
        for server, position in seen.items():
            assert servers.marks.get(server, position) == position
        ordered = sorted(seen.get(one, -1) for one in SERVERS[1:])
        for mark, highest in zip((ALL, QUORUM, ANY), ordered, strict=True):
            assert (servers.marks.get(mark) or -1) <= highest
            assert servers.stale() or servers.marks[mark] == highest


@given(st.lists(st.tuples(st.sampled_from(["commit", "read", "poll"]), st.integers(0, 20)), max_size=60))
def test_a_late_reader_and_polls_agree_with_the_log(steps: list[tuple[str, int]]) -> None:
    """Commits are written to a log, which is read with any delay, while polls return the newest commit. The mark always
    equals a commit at or after the read position, polls never cause a false reset, and once everything is read the mark
    is the newest commit.
    """
    log: list[int] = [5]
    marks = GroupMarks(1)
    marks.loaded(0, {}, 100, 0)
    position = 0
    mark = -1

    def apply(moves: list[GroupMove]) -> None:
        nonlocal mark
        for move in moves:
            assert move.position is not None
            assert move.position in log[max(position - 1, 0) :], f"{move} was not committed since {position}: {log}"
            assert move.is_set_back == (move.position < mark), f"{move} after {mark}"
            mark = move.position

    def read() -> None:
        nonlocal position
        position += 1
        moves = marks.committed(0, {KafkaMarks.NAME: log[position - 1]}, 0)
        apply(moves + marks.read_to(0, 100 + position, 0))

    for step, offset in steps:
        if step == "commit":
            log.append(offset)
        elif step == "read" and position < len(log):
            read()
        elif step == "poll":
            apply(marks.polled("billing", {KafkaMarks.NAME: log[-1]}, 100 + len(log), 0))
    while position < len(log):
        read()
    assert mark == log[-1]


@pytest.mark.parametrize(
    ("group", "code"), [("billing", 109829509), ("a", 97), ("größe", 98762257), ("polygenelubricants", 0)]
)
def test_partition_of_a_group_is_that_of_javas_hash(group: str, code: int) -> None:
    """The last group's hash is Java's lowest integer."""
    assert GroupMarks(50).partition_of(group) == code % 50


@pytest.mark.parametrize(
    ("kind", "quorum", "expected"),
    [(ANY, None, 30), (ALL, None, 10), (QUORUM, None, 20), (QUORUM, 1, 30), (QUORUM, 3, 10)],
)
def test_quorum_is_the_kth_replica_or_the_majority(kind: str, quorum: int | None, expected: int) -> None:
    members = [CountedReplica(f"r{position}", position, 0.0, "") for position in (10, 30, 20)]
    assert derive(kind, members, quorum)[:2] == (expected, "")


@pytest.mark.parametrize(
    ("position", "expected"),
    [(0, 0), (100, 100), (8191, 8191), (8192, 8216), (8193, 8193), (8216, 8216), (1 << 20, (1 << 20) + 40)],
)
def test_position_moves_past_the_header_of_a_page(position: int, expected: int) -> None:
    """It has 24 bytes, or 40 in the first page of a segment."""
    assert LogPages(8192, 1 << 20).past_header(position) == expected


def test_history_file_has_the_end_of_each_timeline() -> None:
    history = "1\t0/5000000\tno recovery target specified\n\n# a comment\n2\t1/A0\tbefore 2026-01-01\n"
    assert forks_of(history) == {1: 0x5000000, 2: 0x1000000A0}


def test_older_timelines_count_up_to_the_fork() -> None:
    """Positions on the newest timeline count in full, on its ancestors up to the fork, on unknown ones not at all."""
    lineage = Timelines(7, 3)
    lineage.learn_forks({1: 100, 2: 200})
    assert [lineage.shared(*one) for one in ((3, 999), (2, 150), (2, 250), (1, 250), (4, 1))] == [999, 150, 200, 100, 0]


def test_identity_of_a_break_never_comes_back() -> None:
    """And can be parsed again."""
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
