"""Marks of a primary and its replicas, computed without servers."""

from purgatory_connectors.publisher.observation import Observation
from purgatory_connectors.redis.replica_group import ReplicaGroup, ServerState


def primary(history: str, position: int, earlier: str = "", fork: int = 0) -> ServerState:
    return ServerState(True, history, position, earlier, fork)


def replica(history: str, position: int) -> ServerState:
    return ServerState(False, history, position)


def group(
    quorum: int | None = None, published: dict[str, int] | None = None, histories: tuple[str, ...] = ()
) -> ReplicaGroup:
    return ReplicaGroup(("p", "r1", "r2"), quorum, published or {}, histories, 0.0)


def positions(changes: list[Observation]) -> dict[str, int | None]:
    return {one.topic: one.offset for one in changes}


def reasons(of: ReplicaGroup) -> dict[str, str]:
    return {mark: reason for mark, (_, reason) in of.stale().items()}


def test_any_all_and_quorum() -> None:
    """The primary does not count; `quorum` is the k-th highest replica."""
    marks = group(quorum=1)
    assert positions(marks.observe("p", primary("a", 90), 1.0)) == {"p": 90}
    assert positions(marks.observe("r1", replica("a", 80), 2.0)) == {"r1": 80, "any": 80, "quorum": 80}
    assert positions(marks.observe("r2", replica("a", 70), 3.0)) == {"r2": 70, "all": 70}
    assert marks.stale() == {}
    assert marks.primary == "p"


def test_an_unseen_primary_is_no_replica() -> None:
    """While the primary is unknown or cannot be seen, its position does not raise `any`, and replicas go on."""
    marks = group(published={"p": 90, "any": 50})
    assert positions(marks.observe("r1", replica("a", 60), 1.0)) == {}
    assert reasons(marks)["any"] == "no primary is known yet"
    marks.observe("p", primary("a", 95), 2.0)
    assert positions(marks.observe("r1", replica("a", 60), 2.0)) == {"r1": 60, "any": 60}
    marks.observe("r2", replica("a", 40), 2.0)
    assert positions(marks.mark_stale("p", "it does not answer", 3.0)) == {}
    assert reasons(marks) == {"p": "it does not answer"}
    assert positions(marks.observe("r2", replica("a", 61), 4.0)) == {"r2": 61, "any": 61, "all": 60, "quorum": 60}


def test_a_promotion_cuts_all_marks_at_its_fork() -> None:
    """A promotion gives each mark the new history and lowers it to the fork, also of an unseen server."""
    marks = group()
    for name, state in (("p", primary("a", 90)), ("r1", replica("a", 80)), ("r2", replica("a", 70))):
        marks.observe(name, state, 1.0)
    marks.mark_stale("p", "it does not answer", 2.0)
    changes = marks.observe("r1", primary("b", 85, "a", 80), 3.0)
    assert positions(changes) == {"p": 80, "r1": 85, "r2": 70, "any": 80, "all": 70, "quorum": 70}
    assert {(one.identity, one.is_set_back_to) for one in changes} == {("b", False)}
    assert "ended by a promotion" in reasons(marks)["r2"]
    assert positions(marks.observe("r2", replica("b", 85), 4.0)) == {"r2": 85, "any": 85, "all": 80, "quorum": 80}
    marks.observe("p", primary("a", 99), 5.0)
    assert "ended by a promotion" in reasons(marks)["p"]
    assert marks.primary == "r1"
    assert positions(marks.observe("p", replica("b", 86), 6.0)) == {"p": 86, "any": 86, "all": 85, "quorum": 85}


def test_a_history_that_nobody_continues_starts_at_zero() -> None:
    """A primary that lost its data has a new history without a fork: the other marks are lowered to 0."""
    marks = group()
    marks.observe("p", primary("a", 90), 1.0)
    marks.observe("r1", replica("a", 90), 1.0)
    marks.mark_stale("r2", "it does not answer", 1.0)
    assert positions(marks.observe("p", primary("c", 3), 2.0)) == {"p": 3, "r1": 0, "any": 0}


def test_two_primaries() -> None:
    """Of two primaries, the one that continues the other counts. If none does, no mark moves until one has gone."""
    marks = group()
    marks.observe("p", primary("a", 90), 1.0)
    marks.observe("r1", primary("b", 85, "a", 80), 2.0)
    assert (marks.primary, marks.history) == ("r1", "b")
    marks.observe("r2", primary("z", 500), 3.0)
    assert "two servers are primaries" in reasons(marks)["r1"]
    assert marks.primary is None
    assert positions(marks.observe("r1", primary("b", 99, "a", 80), 4.0)) == {}
    marks.mark_stale("r2", "it does not answer", 5.0)
    assert positions(marks.observe("r1", primary("b", 99, "a", 80), 6.0)) == {"r1": 99}
    marks.observe("r2", primary("z", 500), 7.0)
    changes = marks.mark_stale("r1", "it does not answer", 8.0)
    assert positions(changes) == {"p": 0, "r1": 0, "any": 0, "all": 0, "quorum": 0}
    assert {one.identity for one in changes} == {"z"}


def test_an_earlier_run_is_continued() -> None:
    """A restarted source knows which histories have ended, and breaks its marks if the last one has ended since."""
    marks = group(published={"p": 90, "r1": 80, "any": 80}, histories=("o", "a"))
    marks.observe("r2", primary("o", 900), 1.0)
    assert "ended by a promotion" in reasons(marks)["r2"]
    assert positions(marks.observe("r1", primary("b", 75, "a", 70), 2.0)) == {"p": 70, "r1": 75, "any": 70}


def test_an_unrelated_primary_that_answers_first() -> None:
    """After a restart, a primary of another history waits for the answers of the others: it may not replace the known
    one because it was faster. If the known one does not answer, it does.
    """
    marks = group(published={"p": 90, "any": 80}, histories=("a",))
    assert positions(marks.observe("r2", primary("z", 500), 1.0)) == {}
    assert reasons(marks)["r2"] == "it follows another history than the last known primary"
    marks.observe("r1", replica("a", 80), 1.0)
    marks.observe("p", primary("a", 95), 1.0)
    assert (marks.history, marks.primary) == ("a", None)
    marks.mark_stale("r2", "it does not answer", 2.0)
    assert positions(marks.observe("p", primary("a", 96), 2.0)) == {"p": 96}
    other = group(published={"p": 90, "any": 80}, histories=("a",))
    other.observe("r2", primary("z", 500), 1.0)
    other.mark_stale("r1", "it does not answer", 2.0)
    assert positions(other.mark_stale("p", "it does not answer", 2.0)) == {"p": 0, "any": 0}
    assert positions(other.observe("r2", primary("z", 501), 3.0)) == {"r2": 501}


def test_stale_marks_age_while_their_servers_answer() -> None:
    """The age of a mark that cannot move grows: of a server whose history has ended, of `quorum` with too few replicas,
    and of `any` while no primary was seen.
    """
    marks = group(quorum=3)
    marks.observe("r1", replica("a", 80), 0.5)
    assert marks.stale()["any"] == (0.0, "no primary is known yet")
    for name, state in (("p", primary("a", 90)), ("r1", replica("a", 80)), ("r2", replica("a", 70))):
        marks.observe(name, state, 1.0)
    assert marks.stale()["quorum"] == (0.0, "a quorum is 3 replicas, and there are 2")
    marks.observe("r1", primary("b", 85, "a", 80), 2.0)
    for now in (3.0, 9.0):
        marks.observe("p", primary("a", 95), now)
    assert marks.stale()["p"][0] == 1.0
    marks.observe("p", replica("b", 85), 10.0)
    marks.mark_stale("p", "it does not answer", 11.0)
    assert marks.stale()["p"][0] == 10.0


def test_a_replica_that_moves_back() -> None:
    """A replica that was restored from an older file sets back its own mark and those derived from it."""
    marks = group()
    marks.observe("p", primary("a", 90), 1.0)
    marks.observe("r1", replica("a", 80), 1.0)
    marks.observe("r2", replica("a", 80), 1.0)
    changes = marks.observe("r1", replica("a", 30), 2.0)
    assert [(one.topic, one.offset, one.is_set_back_to) for one in changes] == [
        ("r1", 30, True), ("all", 30, True), ("quorum", 30, True)
    ]  # fmt: skip
