"""Rules by which readings become marks: scripts (`mark_scripts/*.txt`), and random histories of servers and of a group.

The scripts have readings of servers of PostgreSQL and Redis and of groups of Kafka, the publications of sources to a
daemon, and a mark's state in its table of sources. The verbs are in `play` of each class. Below each line are its
changes; `python -m tests.sources.test_mark_scripts` records them again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from purgatory_connectors.kafka.group_marks import NO_COMMIT, GroupMarks, GroupMove, UncertainOffset
from purgatory_connectors.kafka.offset_records import CommitName
from purgatory_connectors.postgres.observations import FoundReplica, LogPages, ServerObservation
from purgatory_connectors.postgres.server_group import GroupSettings, ServerGroup
from purgatory_connectors.postgres.timelines import Timelines, forks_of, newest_identity
from purgatory_connectors.publisher.mark_replicator import DaemonMark
from purgatory_connectors.publisher.mark_rules import ALL, ANY, QUORUM
from purgatory_connectors.publisher.observation import MarkName, Observation, StaleMarks
from purgatory_connectors.redis.replica_group import ReplicaGroup, ServerState

from purgatory.service.sources.source_table import LIVE, REFUSED, STALE, SourceStream, SourceTable, StaleIndex, Unseen
from tests.kit.recorded import assert_values_recorded
from tests.scripts.language import Script, parts_of, read_scripts, write_scripts
from tests.sources.test_mark_replicator import LineageWorld

FOLDER: Final = Path(__file__).with_name("mark_scripts")


class ServerMarks:
    """The published marks of a primary "p" and its replicas."""

    group: ServerGroup | ReplicaGroup

    def __init__(self) -> None:
        self.now = 100.0
        self.marks: dict[str, int | None] = {}
        self._identities: dict[str, str] = {}
        self._shown: dict[str, str] = {}
        self._primary: str | None = None

    @property
    def identity(self) -> str:
        """The newest one."""
        return list(self._identities.values())[-1] if self._identities else ""

    def published(self) -> dict[str, int]:
        return {mark: position for mark, position in self.marks.items() if position is not None}

    def show(self, changes: Iterable[Observation], stale: dict[str, str]) -> Iterator[str]:
        """Publish changes, and show these and the marks that have become stale or fresh."""
        moved: dict[str, list[str]] = {}
        for mark, _, position, identity, is_set_back in changes:
            before = self.marks.get(mark)
            if position is not None and before is not None and position < before and not is_set_back:
                assert self._identities[mark] != identity, (mark, position, before)
            self.marks[mark] = position
            self._identities.pop(mark, None)
            self._identities[mark] = identity
            how = "gone" if position is None else f"{identity} set back" if is_set_back else identity
            moved.setdefault(how, []).append(mark if position is None else f"{mark}={position}")
        yield from (f"{how}: {' '.join(sorted(marks))}" for how, marks in moved.items())
        reasons: dict[str, list[str]] = {}
        for mark, why in stale.items():
            if self._shown.get(mark) != why:
                reasons.setdefault(why, []).append(mark)
        yield from (f"stale {' '.join(sorted(marks))}: {why}" for why, marks in reasons.items())
        if fresh := self._shown.keys() - stale.keys():
            yield f"fresh: {' '.join(sorted(fresh))}"
        if self.group.primary != self._primary:
            yield f"primary: {self.group.primary or 'unknown'}"
        self._shown, self._primary = stale, self.group.primary


class PostgresMarks(ServerMarks):
    group: ServerGroup

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._restart(GroupSettings(names or ("p", "r1", "r2")))

    def _restart(self, settings: GroupSettings) -> None:
        """Start the source again with the marks that it has published."""
        self.group = ServerGroup(settings, self.published(), self.identity, self.now)

    def stale(self) -> dict[str, str]:
        return {f"{one.mark}*" if one.is_prefix else one.mark: one.reason for one in self.group.stale_marks()}

    def play(self, words: Sequence[str], options: Mapping[str, str]) -> None:
        self.now += 1
        match words:
            case ["source", *names]:
                flags = {"lossless", "alone"}
                settings = GroupSettings(
                    tuple(name for name in names if name not in flags),
                    finds_replicas="alone" not in names,
                    lossless_promotion="lossless" in names,
                    system_id=int(options["system"]) if "system" in options else None,
                    forget_after_s=float(options.get("forget", 3600)),
                )
                self._restart(settings)
            case ["seconds", count]:
                self.now += int(count)
            case ["end", position]:
                self.group.note_end(int(position))
            case [name, "down", *reason]:
                self.group.mark_stale(name, " ".join(reason) or "down", self.now)
            case [name, position, *role]:
                self._observe(name, int(position), "primary" in role or (name == "p" and not role), options)
            case _:
                raise ValueError(words)

    def _observe(self, name: str, position: int, is_primary: bool, options: Mapping[str, str]) -> None:
        system, timeline = int(options.get("system", 7)), int(options.get("timeline", 1))
        seen = ServerObservation(system, timeline, is_primary, position)
        if "forks" in options:
            seen.forks = {int(name): at for name, at in _pairs(options["forks"])}
        if is_primary:
            seen.found = tuple(FoundReplica(*one) for one in _pairs(options.get("found", "")))
        if "slots" in options:
            seen.slots = dict(_pairs(options["slots"]))
            seen.invalidated_slots = {slot: "wal_removed" for slot, at in seen.slots.items() if at < 0}
        self.group.observe(name, seen, self.now)

    def output(self) -> Iterator[str]:
        return self.show(self.group.drain_changes(), self.stale())


class RedisMarks(ServerMarks):
    group: ReplicaGroup

    def __init__(self) -> None:
        super().__init__()
        self._histories: list[str] = []
        self._changes: list[Observation] = []
        self._ages: list[str] = []
        self._restart(None)

    def _restart(self, quorum: int | None) -> None:
        self.group = ReplicaGroup(("p", "r1", "r2"), quorum, self.published(), self._histories, self.now)

    def play(self, words: Sequence[str], options: Mapping[str, str]) -> None:
        self.now += 1
        match words:
            case ["source"]:
                self._restart(int(options["quorum"]) if "quorum" in options else None)
            case ["ages"]:
                ages = {mark: self.now - seen_at for mark, (seen_at, _) in self.group.stale().items()}
                self._ages = [f"{mark} was last seen {age:.0f} s ago" for mark, age in ages.items()]
            case [name, "down"]:
                self._changes += self.group.mark_stale(name, "it does not answer", self.now)
            case [name, ("primary" | "replica") as role, history, position]:
                [(earlier, fork)] = _pairs(options.get("after", ":0"))
                state = ServerState(role == "primary", history, int(position), earlier, fork)
                self._changes += self.group.observe(name, state, self.now)
            case _:
                raise ValueError(words)

    def output(self) -> Iterator[str]:
        changes, self._changes = self._changes, []
        stale = {mark: why for mark, (_, why) in self.group.stale().items()}
        yield from self.show(changes, stale)
        if self.group.history not in {"", *self._histories[-1:]}:
            self._histories.append(self.group.history)
        yield from self._ages
        self._ages = []


class KafkaMarks:
    """The mark of one group, whose cluster has one partition of `__consumer_offsets`."""

    NAME: Final[CommitName] = ("billing", "orders", 0)

    def __init__(self) -> None:
        self.marks = GroupMarks(1)
        self._moves: list[GroupMove] = []
        self._doubts: list[UncertainOffset] = []
        self._now = 0

    def play(self, words: Sequence[str], options: Mapping[str, str]) -> None:
        self._now += 1
        verb, *rest = words
        offset = int(rest[0]) if rest and rest[0] not in {"none", "drained"} else None
        values = {} if offset is None else {self.NAME: offset}
        match verb:
            case "unread":
                self.marks = GroupMarks()
            case "published":
                self.marks.remember_published(values)
            case "loaded":
                moves, self._doubts = self.marks.loaded(0, values, 100, self._now)
                self._moves += moves
            case "committed":
                self._moves += self.marks.committed(0, {self.NAME: offset}, self._now)
            case "polled":
                self._moves += self.marks.polled("billing", values, None, self._now)
            case "proved":
                committed = NO_COMMIT if offset is None else offset
                self._moves += self.marks.prove(self.NAME, committed, int(rest[1]))
            case "settled":
                doubt = UncertainOffset(self.NAME, int(options["committed"]), int(options["published"]))
                self._moves += self.marks.settled(doubt, is_drained="drained" in rest, now=self._now)
            case "cut":
                assert offset is not None, words
                self._moves += self.marks.cut("orders", 0, offset, self._now)
            case _:
                raise ValueError(words)

    def output(self) -> Iterator[str]:
        moves, self._moves = self._moves, []
        doubts, self._doubts = self._doubts, []
        for _, offset, is_set_back in moves:
            yield "gone" if offset is None else f"set back to {offset}" if is_set_back else str(offset)
        yield from (f"uncertain: {one.committed} is committed, {one.published} published" for one in doubts)


class DaemonMarks:
    """The marks 0 and 1 of a daemon to which the sources 0 and 1 publish what they read in a model world."""

    def __init__(self) -> None:
        self._world = LineageWorld(2, 1, 2)
        self._shown: dict[MarkName, DaemonMark] = {}
        self._more: list[str] = []

    def play(self, words: Sequence[str], options: Mapping[str, str]) -> None:
        world, (verb, *rest) = self._world, words
        numbers = [int(word) for word in rest]
        match verb, numbers:
            case (("move" | "break"), [mark, offset]):
                world.move(("t/x", mark), offset, is_break=verb == "break")
            case "read", [source, mark, count]:
                world.sources[source].read(("t/x", mark), count)
            case "exchange", [source]:
                self._more = [] if world.sources[source].exchange(0) else ["nothing is due"]
            case "publish", [source]:
                while world.sources[source].exchange(0):
                    pass
            case "restart", [source]:
                world.restart(source)
            case "lower", [mark]:  # later readings return the first value again
                world.facts["t/x", mark][-1] = world.facts["t/x", mark][0]
            case "foreign", [mark]:
                world.daemons[0].marks["t/x", mark] = DaemonMark(int(options["epoch"]), int(options["offset"]))
                world.sources[0].connect(0)
            case "stale", _:
                stale = [StaleMarks("t/x", exact=True, partitions=numbers)] if numbers else []
                world.sources[0].replicator.set_health(world.now, sees=False, stale=stale)
            case "sees", []:
                world.sources[0].replicator.set_health(world.now, sees=True)
            case "seconds", [seconds]:
                world.pass_time(seconds)
            case "end", [source]:
                del world.sources[source]
                world.settle()
                assert all(len(lineages) == 1 for lineages in world.lineages_told().values())
            case _:
                raise ValueError(words)

    def output(self) -> Iterator[str]:
        marks = self._world.daemons[0].marks
        for name, mark in marks.items():
            if self._shown.get(name) != mark:
                yield f"{name[1]} is at {mark.offset} in epoch {mark.epoch}"
        self._shown = dict(marks)
        yield from self._more
        self._more = []


class SourceMarks:
    """The state of a mark that the sources of a table feed, as a daemon shows it."""

    def __init__(self) -> None:
        self._table = SourceTable()
        self._streams: dict[str, SourceStream] = {}
        self._now_ms = 0
        self._shown = "seen"

    def play(self, words: Sequence[str], _options: Mapping[str, str]) -> None:
        at_ms, *step = words
        self._now_ms, index = int(at_ms), StaleIndex()
        match step:
            case [name, "attaches"]:
                self._streams[name] = self._table.attach(name, "", ["k/"], self._now_ms)
            case [name, "detaches"]:
                self._table.detach(name, "", self._streams[name], self._now_ms)
            case [name, "sees" as state] | [name, "is", state]:
                state_now = {"sees": LIVE, "stale": STALE, "refused": REFUSED}[state]
                self._streams[name].report(state_now, "no broker", 0, index, self._now_ms)
            case [name, "has", "not", "seen", topic, "since", since_ms]:
                index.add("" if topic == "anything" else topic, False, [], Unseen(int(since_ms), ""))
                self._streams[name].report(STALE, "no broker", 0, index, self._now_ms)
            case _:
                assert step == ["passes"], words

    def output(self) -> Iterator[str]:
        stale = self._table.stale(("k/a", 0), self._now_ms)
        says = "seen" if stale is None else f"stale since {stale.since_ms}"
        if says != self._shown:
            yield says
        self._shown = says


WORLDS: Final = {
    "postgres": PostgresMarks, "redis": RedisMarks, "kafka": KafkaMarks, "daemon": DaemonMarks, "sources": SourceMarks,
}  # fmt: skip


def mark_scripts() -> dict[str, tuple[str, Script]]:
    """The kind and the script, by "kind: name"."""
    return {f"{kind}: {one.name}": (kind, one) for kind in WORLDS for one in read_scripts(FOLDER / f"{kind}.txt")}


def played(kind: str, script: Script) -> Script:
    """The script with the output that it gives now."""
    marks = WORLDS[kind]()
    lines = []
    for line in script.lines:
        for part in parts_of(line.text):
            marks.play(part.words, part.options)
        lines.append(line._replace(output=list(marks.output())))
    return script._replace(lines=lines)


def _pairs(text: str) -> list[tuple[str, int]]:
    """`a:1,b:2`."""
    pairs = (one.rpartition(":") for one in text.split(",") if one)
    return [(name, int(number)) for name, _, number in pairs]


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


RULES: Final = Path(__file__).with_name("mark_rules.txt")


def test_partitions_of_groups_pages_and_timelines_are_as_recorded() -> None:
    """As in mark_rules.txt."""

    def lineage() -> Timelines:
        found = Timelines(7, 3)
        found.learn_forks({1: 100, 2: 200})
        return found

    names = {"GroupMarks": GroupMarks, "LogPages": LogPages, "forks_of": forks_of, "lineage": lineage}
    assert_values_recorded(RULES, names)


def test_identity_of_a_break_never_comes_back() -> None:
    """It can also be parsed again."""
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


if __name__ == "__main__":
    for kind in WORLDS:
        path = FOLDER / f"{kind}.txt"
        write_scripts(path, [played(kind, script) for script in read_scripts(path)])
