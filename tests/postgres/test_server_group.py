"""The marks computed from readings: lineages, replicas that join and leave, derived marks. Without servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st
from purgatory_connectors.postgres.observations import FoundReplica, ServerObservation
from purgatory_connectors.postgres.server_group import GroupSettings, ServerGroup

SYSTEM = 7


@dataclass
class Servers:
    """A cluster "p", "r1", "r2", and its marks as published."""

    settings: GroupSettings = field(default_factory=lambda: GroupSettings(("p", "r1", "r2")))
    published: dict[str, int] = field(default_factory=dict)
    identity: str = ""
    now: float = 100.0

    def __post_init__(self) -> None:
        self.group = ServerGroup(self.settings, self.published, self.identity, self.now)
        self.marks: dict[str, int | None] = dict(self.published)
        self.identities: dict[str, str] = {}
        self.set_back: list[str] = []

    def observe(
        self, name: str, position: int, *, timeline: int = 1, is_primary: bool | None = None, system: int = SYSTEM,
        forks: Mapping[int, int] | None = None, found: Mapping[str, int] | None = None,
        slots: Mapping[str, int] | None = None, invalidated_slots: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        primary = name == "p" if is_primary is None else is_primary
        rows = tuple(FoundReplica(*one) for one in (found or {}).items()) if primary else None
        self.now += 1
        observation = ServerObservation(system, timeline, primary, position, forks, found=rows, slots=slots)
        observation.invalidated_slots = invalidated_slots or {}
        self.group.observe(name, observation, self.now)
        self.apply_changes()

    def mark_stale(self, name: str, reason: str = "down") -> None:
        self.now += 1
        self.group.mark_stale(name, reason, self.now)
        self.apply_changes()

    def apply_changes(self) -> None:
        self.set_back = []
        for mark, position, identity, is_set_back in self.group.drain_changes():
            before = self.marks.get(mark)
            if position is not None and before is not None and position < before and not is_set_back:
                assert self.identities.get(mark, self.identity) != identity, (mark, position, before)
            self.marks[mark], self.identities[mark] = position, identity
            if is_set_back:
                self.set_back.append(mark)

    @property
    def stale(self) -> dict[str, str]:
        return {one.mark: one.reason for one in self.group.stale_marks()}

    def all_seen(self, p: int = 100, r1: int = 90, r2: int = 80) -> None:
        self.observe("p", p)
        self.observe("r1", r1)
        self.observe("r2", r2)


def test_marks_of_a_healthy_cluster() -> None:
    """Each server has its position; `any`, `all` and `quorum` are computed from the replicas only."""
    servers = Servers()
    servers.all_seen()
    assert servers.marks == {"p": 100, "r1": 90, "r2": 80, "any": 90, "all": 80, "quorum": 80}
    assert servers.stale == {}
    assert set(servers.identities.values()) == {"7/1"}


def test_nothing_is_derived_before_all_were_asked() -> None:
    """`all` is published only after each server was polled, so that none is missing."""
    servers = Servers()
    servers.observe("p", 100)
    servers.observe("r1", 90)
    assert "all" not in servers.marks
    assert "r2" in servers.stale["all"]
    servers.mark_stale("r2", "refused")
    assert "all" not in servers.marks
    assert servers.stale["all"] == "r2: refused"
    servers.observe("r2", 80)
    assert servers.marks["all"] == 80


def test_a_replica_that_cannot_be_seen() -> None:
    """An unseen replica keeps its mark and is stale, as is `all`; `any` continues. Later all of them recover."""
    servers = Servers()
    servers.all_seen()
    servers.mark_stale("r2", "it does not answer")
    servers.observe("r1", 120)
    assert servers.marks == {"p": 100, "r1": 120, "r2": 80, "any": 120, "all": 80, "quorum": 80}
    assert servers.stale["r2"] == "it does not answer"
    assert servers.stale["all"] == "r2: it does not answer"
    assert "any" not in servers.stale
    servers.observe("r2", 130)
    assert servers.marks["all"] == 120
    assert servers.stale == {}


def test_a_replica_that_replays_again_after_a_restart() -> None:
    """A restarted replica that moves back lowers its mark and `all`, within the same lineage."""
    servers = Servers()
    servers.all_seen()
    servers.observe("r2", 60)
    assert servers.set_back == ["all", "quorum", "r2"]
    assert (servers.marks["r2"], servers.marks["all"], servers.marks["any"]) == (60, 60, 90)


def test_a_promotion_is_a_break() -> None:
    """All marks begin a new lineage and are cut at the fork, including servers that have not followed yet."""
    servers = Servers()
    servers.all_seen(p=130, r1=100, r2=120)
    servers.mark_stale("p")
    servers.observe("r1", 105, timeline=2, is_primary=True, forks={1: 100})
    assert servers.marks == {"p": 100, "r1": 105, "r2": 100, "any": 100, "all": 100, "quorum": 100}
    assert set(servers.identities.values()) == {"7/2"}
    servers.observe("r2", 120)
    assert servers.stale["r2"] == "it is on timeline 1, which was left at 0/64; the newest is 2"
    assert servers.marks["r2"] == 100
    servers.observe("p", 130)
    assert servers.stale["p"] == "it is on timeline 1, which was left at 0/64; the newest is 2"
    servers.observe("r2", 110, timeline=2)
    assert servers.stale.keys() == {"p"}
    assert servers.marks["all"] == 110


def test_a_promotion_without_a_history() -> None:
    """If the history is not readable, marks are cut at the last position seen of the promoted server."""
    servers = Servers()
    servers.all_seen(p=130, r1=95, r2=120)
    servers.observe("r1", 105, timeline=2, is_primary=True)
    assert servers.marks["r2"] == 95


def test_a_lossless_promotion() -> None:
    """With `lossless_promotion`, a promotion is a break only if a position above the fork was seen."""
    settings = GroupSettings(("p", "r1", "r2"), lossless_promotion=True)
    for primary, identity in ((100, "7/1"), (101, "7/2")):
        servers = Servers(settings)
        servers.all_seen(p=primary, r1=100, r2=80)
        servers.observe("r1", 105, timeline=2, is_primary=True, forks={1: 100})
        assert servers.identities["r1"] == identity
        assert servers.marks["r2"] == 80


def test_an_end_that_was_given_away_counts_as_seen() -> None:
    """A promotion below an end that was returned to a client is a break."""
    servers = Servers(GroupSettings(("p", "r1", "r2"), lossless_promotion=True))
    servers.all_seen(p=100, r1=100, r2=100)
    servers.group.note_end(102)
    servers.observe("r1", 105, timeline=2, is_primary=True, forks={1: 101})
    assert servers.identities["r1"] == "7/2"


def test_a_server_that_changes_its_role() -> None:
    """A promoted replica leaves `any` and `all` without lowering them; a demoted primary joins later."""
    servers = Servers(GroupSettings(("p", "r1", "r2"), lossless_promotion=True))
    servers.all_seen(p=100, r1=100, r2=80)
    servers.mark_stale("p")
    servers.observe("r1", 100, timeline=2, is_primary=True, forks={1: 100})
    assert (servers.marks["any"], servers.marks["all"]) == (100, 80)
    servers.observe("r2", 110, timeline=2)
    assert (servers.marks["any"], servers.marks["all"]) == (110, 110)
    servers.observe("p", 90, timeline=2, is_primary=False)
    assert servers.marks["all"] == 110
    servers.observe("p", 115, timeline=2, is_primary=False)
    servers.observe("r2", 120, timeline=2)
    assert (servers.marks["any"], servers.marks["all"]) == (120, 115)


def test_another_system_is_never_fed() -> None:
    """A server of another system changes nothing, and is stale with both identifiers."""
    servers = Servers()
    servers.all_seen()
    servers.observe("r2", 5000, system=8)
    assert servers.marks["r2"] == 80
    assert servers.stale["r2"] == "another system answers at this address: its identifier is 8, not 7"
    servers.observe("p", 5000, system=8, timeline=9)
    assert servers.marks["p"] == 100
    assert set(servers.identities.values()) == {"7/1"}


def test_the_system_is_the_primarys() -> None:
    """The readings of a replica count only once the primary was seen, or all servers agree."""
    servers = Servers()
    servers.observe("r1", 5000, system=8)
    assert servers.marks == {}
    servers.observe("p", 100)
    assert servers.marks == {"p": 100}
    assert "another system" in servers.stale["r1"]
    alone = Servers()
    alone.mark_stale("p")
    alone.observe("r1", 90)
    alone.observe("r2", 80)
    assert (alone.marks["r1"], alone.marks["r2"]) == (90, 80)


def test_another_system_by_order() -> None:
    """If `system_identifier` names another system than before, marks restart at its servers' positions as a break."""
    servers = Servers(
        GroupSettings(("p", "r1"), system_id=8), published={"p": 100, "r1": 90, "all": 90, "any": 90}, identity="7/1"
    )
    servers.observe("p", 50, system=8)
    servers.observe("r1", 40, system=8)
    assert servers.marks == {"p": 50, "r1": 40, "any": 40, "all": 40, "quorum": 40}
    assert set(servers.identities.values()) == {"8/1"}


def test_two_primaries_on_one_timeline() -> None:
    """With two primaries on a timeline all marks are stale until one is gone; then a new lineage begins."""
    servers = Servers()
    servers.all_seen()
    servers.observe("r1", 200, timeline=2, is_primary=True, forks={1: 90})
    before = dict(servers.marks)
    servers.observe("r2", 300, timeline=2, is_primary=True, forks={1: 80})
    servers.observe("r1", 210, timeline=2, is_primary=True, forks={1: 90})
    assert servers.marks == before
    assert servers.stale["r1"] == "r1 and r2 are both primaries on timeline 2"
    servers.mark_stale("r1")
    servers.observe("r2", 310, timeline=2, is_primary=True, forks={1: 80})
    assert (servers.marks["r2"], servers.marks["r1"]) == (310, 0)
    assert set(servers.identities.values()) == {"7/2.1"}


def test_found_replicas() -> None:
    """Replicas listed by the primary have marks and count; listed servers are not counted twice."""
    servers = Servers(GroupSettings(("p",)))
    servers.observe("p", 100, found={"r1": 90, "r2": 80})
    assert servers.marks == {"p": 100, "r1": 90, "r2": 80, "any": 90, "all": 80, "quorum": 80}
    servers.observe("p", 110, found={"r1": 110})
    assert servers.stale["all"] == "r2: it is not connected to its primary p"
    assert (servers.marks["any"], servers.marks["all"]) == (110, 80)
    servers.mark_stale("p", "gone")
    assert servers.stale["r1"] == "its primary p is not available: gone"
    both = Servers()
    both.observe("p", 100, found={"r1": 50})
    assert "r1" not in both.marks


def test_a_found_replica_is_forgotten() -> None:
    """After a long absence, a found replica no longer counts and its mark is removed."""
    servers = Servers(GroupSettings(("p",), forget_after_s=10))
    servers.observe("p", 100, found={"r1": 90, "r2": 80})
    servers.observe("p", 110, found={"r1": 110})
    assert servers.marks["all"] == 80
    servers.now += 10
    servers.observe("p", 120, found={"r1": 120})
    assert (servers.marks["r2"], servers.marks["all"]) == (None, 120)


def test_a_new_replica_joins_when_it_has_caught_up() -> None:
    """A new replica that is far behind does not lower `all`; it counts once it has caught up with it."""
    servers = Servers(GroupSettings(("p",)))
    servers.observe("p", 100, found={"r1": 90})
    servers.observe("p", 100, found={"r1": 95, "new": 10})
    assert (servers.marks["new"], servers.marks["all"]) == (10, 95)
    servers.observe("p", 100, found={"r1": 100, "new": 97})
    servers.observe("p", 100, found={"r1": 110, "new": 105})
    assert servers.marks["all"] == 105


def test_slots() -> None:
    """The mark of a slot is its confirmed position; it never moves back, and is removed with the slot."""
    servers = Servers(GroupSettings(("p",)))
    servers.observe("p", 100, slots={"a": 50, "b": 60})
    assert servers.marks["slot:a"] == 50
    servers.observe("p", 100, slots={"a": 40})
    assert (servers.marks["slot:a"], servers.marks["slot:b"]) == (50, None)
    servers.mark_stale("p")
    assert servers.stale["slot:"] == "its primary is not available"


def test_an_invalidated_slot_is_stale() -> None:
    """A slot that can deliver nothing more keeps its mark and is stale with the reason until it is dropped."""
    servers = Servers(GroupSettings(("p",)))
    servers.observe("p", 100, slots={"a": 50, "b": 60})
    servers.observe("p", 200, slots={"a": -1, "b": 60}, invalidated_slots={"a": "wal_removed"})
    assert servers.marks["slot:a"] == 50
    assert servers.stale["slot:a"] == "the slot is invalidated (wal_removed): drop it and create it again"
    assert "slot:b" not in servers.stale
    servers.observe("p", 200, slots={"b": 60})
    assert servers.marks == servers.marks | {"slot:a": None}
    assert "slot:a" not in servers.stale


def test_a_restarted_source_knows_who_counted() -> None:
    """A restarted source learns the replicas from daemons: `all` waits for each, and only readings lower it."""
    published = {"p": 100, "r1": 90, "r2": 80, "found": 70, "any": 90, "all": 70, "quorum": 80}
    servers = Servers(published=published, identity="7/1")
    servers.observe("p", 120)
    servers.observe("r1", 120)
    servers.observe("r2", 120)
    assert (servers.marks["all"], servers.marks["any"]) == (70, 120)
    assert servers.stale["all"] == "found: it is not connected to its primary p"
    servers.observe("p", 120, found={"found": 110})
    assert servers.marks["all"] == 110


def test_a_promotion_while_the_source_was_away() -> None:
    """A restarted source detects a newer timeline as a break, at the history's fork or, without a history, at 0."""
    published = {"p": 130, "r1": 100, "r2": 120, "all": 100, "any": 120, "quorum": 100}
    for forks, expected in (({1: 110}, 110), (None, 0)):
        servers = Servers(published=published, identity="7/1")
        servers.observe("r1", 140, timeline=2, is_primary=True, forks=forks)
        assert (servers.marks["r1"], servers.marks["r2"]) == (140, expected)
        assert servers.identities["r2"] == "7/2"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.sampled_from(["p", "r1", "r2", "r3"]), st.integers(1, 30)),
        st.tuples(st.just("look"), st.sampled_from(["p", "r1", "r2", "r3"]), st.just(0)),
        st.tuples(st.just("lose"), st.sampled_from(["p", "r1", "r2", "r3"]), st.just(0)),
        st.tuples(st.just("reset"), st.sampled_from(["r1", "r2", "r3"]), st.integers(0, 40)),
        st.tuples(st.just("restart source"), st.just("p"), st.just(0)),
    ),
    max_size=60,
)


LOOK_AT_ALL = [("look", name, 0) for name in ("p", "r1", "r2", "r3")]


@settings(max_examples=300, deadline=None)
@given(STEPS)
@example([*LOOK_AT_ALL, ("restart source", "p", 0), ("reset", "r2", 0), ("look", "r2", 0)])
@example([*LOOK_AT_ALL[:3], ("lose", "r1", 0), ("reset", "r1", 0), ("look", "r1", 0)])
@example(
    [
        ("grow", "r1", 1),
        ("grow", "r2", 1),
        *LOOK_AT_ALL,
        ("restart source", "p", 0),
        ("reset", "r2", 1),
        ("look", "r2", 0),
    ]
)
def test_derived_marks_are_never_ahead_of_the_servers(steps: list[tuple[str, str, int]]) -> None:
    """A mark never exceeds its server's last reading, and `all` never exceeds any replica's."""
    names = ("p", "r1", "r2", "r3")
    real = dict.fromkeys(names, 1)
    seen: dict[str, int] = {}
    servers = Servers(GroupSettings(names))
    for step, name, amount in steps:
        if step == "grow":
            real[name] += amount
        elif step == "reset":
            real[name] = min(real[name], amount)
        elif step == "lose":
            servers.mark_stale(name)
        elif step == "look":
            servers.observe(name, real[name])
            seen[name] = real[name]
        else:
            published = {mark: position for mark, position in servers.marks.items() if position is not None}
            servers = Servers(GroupSettings(names), published, servers.identities.get("r1", "7/1"), servers.now)
        for server, position in seen.items():
            assert servers.marks.get(server, position) == position
        replicas = [seen.get(one, -1) for one in ("r1", "r2", "r3")]
        held = sorted(replicas)
        assert (servers.marks.get("all") or -1) <= held[0]
        assert (servers.marks.get("quorum") or -1) <= held[1]
        assert (servers.marks.get("any") or -1) <= held[2]
        if not servers.stale:
            assert [servers.marks[one] for one in ("all", "quorum", "any")] == held
