"""Daemons of a shard over a log in memory, under a scheduler that interrupts them between any two steps.

The scheduler loses, delays, repeats and reorders entries on their way to the log, and answers on their way back; it
stops, kills and restarts daemons, restores the log from a backup, and starts a daemon on the folder of another fleet.
Everything follows from the seed. `make fleet-sim` runs many.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Final

from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import Fenced, LogLost, LogUnavailable
from purgatory.replicated_log.log_writer import Append, AppendRules, End, Read
from purgatory.replicated_log.reign import Reign, ReignState
from purgatory.replicated_log.replicated_log import Place
from tests.fleet.audit import audit
from tests.histories.history import History

PATHS = ()
FAULTS = ("kill", "stop", "handover", "failover")
FEATURES = ()
"""All of them in every history: a fleet's log has neither operations nor paths to cross them with."""
HISTORIES: Final = 1_000
"""Histories of one seed of the machine: each takes a millisecond."""

PART_BYTES: Final = 4
STEPS_MAX: Final = 120
IDLE: Final = object()
"""Yielded where a daemon can be interrupted without using the log."""

Life = Generator[Any, Any, None]


class MemoryLog:
    """A log as Kafka (appends at its end, positions may have gaps) or PostgreSQL (appends at one position only)."""

    def __init__(self, chance: random.Random, log_id: bytes, *, is_exclusive: bool) -> None:
        self.is_exclusive: Final = is_exclusive
        self.entries: Final = [Entry(Kind.ORIGIN, 0, log_id, log_id=log_id, position=0)]
        self._chance: Final = chance

    def end(self) -> int:
        return self.entries[-1].position + 1 if self.entries else 0

    def append(self, entry: Entry, position: int) -> Place | None:
        end = self.end()
        if self.is_exclusive and position != end:
            assert position < end, "appended after a gap"
            return None
        if not self.is_exclusive and self._chance.random() < 0.05:
            end += 1
        self.entries.append(entry.at(end, len(self.entries)))
        return Place(end, len(self.entries) - 1)

    def read(self, start: int) -> list[Entry]:
        first = len(self.entries)
        while first and self.entries[first - 1].position >= start:
            first -= 1
        return self.entries[first : first + self._chance.randrange(5)]


class Daemon:
    """One daemon: its file, which survives, and its present life."""

    def __init__(self, history: "LogHistory") -> None:
        self._history: Final = history
        self.state = ReignState()
        self.groups: list[bytes] = []
        """The file: the groups up to `state`."""
        self.must_not_lead = False
        """Whether its file belongs to another history than the log."""
        self.stopped = 0
        """Turns that it still sleeps."""
        self.answer: Callable[[], object] | None = None
        """Gives the answer that is on its way back, or raises."""
        self.start()

    def start(self) -> None:
        self.answer = None
        self.life = self._live()
        self.request = next(self.life)

    def resume(self, answer: Callable[[], object]) -> None:
        """Give the answer to the pending request; the daemon then runs up to its next one."""
        self.answer = None
        try:
            value = answer()
        except LogUnavailable:
            self._run(lambda: self.life.throw(LogUnavailable("no answer")))
        else:
            self._run(lambda: self.life.send(value))

    def _run(self, step: Callable[[], object]) -> None:
        try:
            self.request = step()
        except StopIteration:  # it has exited; its supervisor restarts it
            self.start()
        except LogLost:
            assert self.must_not_lead, "a daemon with the log's history is refused"
            self._history.counts["refused"] += 1
            self.start()

    def _live(self) -> Life:
        history, chance = self._history, self._history.chance
        reign = self.reign = Reign(self.state)
        writer = history.new_writer()

        def apply(entry: Entry) -> None:
            if entry.more:
                return
            if entry.kind is Kind.GROUP:
                self.groups.append(entry.content)
            self.state = reign.resting

        rules = AppendRules(reign, writer, apply, PART_BYTES)
        while True:
            try:
                yield from rules.check_history(self.state)
                end = yield End()
                while reign.state.position + 1 < end:
                    for entry in (yield Read(reign.state.position + 1)):
                        rules.judge(entry)
                while chance.random() < 0.6:
                    for entry in (yield Read(reign.state.position + 1)):
                        judged = reign.accept(entry)
                        if judged is not None:
                            apply(judged)
            except LogUnavailable:
                continue
            try:
                yield from rules.check_history(self.state)
                claim = yield from rules.claim(0)
            except LogUnavailable:
                continue
            except Fenced:
                history.counts["fenced"] += 1
                continue
            history.check_leader(self, claim)
            try:
                yield from self._lead(rules, reign)
            except Fenced:
                history.counts["fenced"] += 1
            return

    def _lead(self, rules: AppendRules, reign: Reign) -> Life:
        history, chance = self._history, self._history.chance
        while chance.random() < 0.85:
            if chance.random() < 0.2:
                yield from rules.append(Kind.HEARTBEAT, 0)
                continue
            content = history.new_group()
            entry = yield from rules.append(Kind.GROUP, 0, content)
            yield IDLE  # before its commit
            self.groups.append(content)
            self.state = reign.resting
            yield IDLE  # before its answers
            assert content not in history.acknowledged
            history.acknowledged[content] = entry.position
        yield from rules.append(Kind.RESIGNATION, 0)
        history.counts["resignations"] += 1


class LogHistory:
    """One history. `run` raises AssertionError if a promise is broken."""

    def __init__(self, seed: int) -> None:
        self.chance: Final = random.Random(seed)
        self.counts: Final[Counter[str]] = Counter()
        self.log: Final = MemoryLog(self.chance, b"log", is_exclusive=self.chance.random() < 0.4)
        self.acknowledged: dict[bytes, int] = {}
        """Groups whose callers have an answer, and where they are in the log."""
        self._attempted: Final[set[bytes]] = set()
        self._writers = 0
        self._in_flight: Final[list[Append]] = []
        self._faults: Final = self.chance.choice((0.05, 0.3, 0.6))
        self._daemons: Final = [Daemon(self) for _ in range(self.chance.choice((2, 2, 3)))]

    # Used by daemons.

    def new_writer(self) -> bytes:
        self._writers += 1
        return self._writers.to_bytes(2, "big")

    def new_group(self) -> bytes:
        content = len(self._attempted).to_bytes(PART_BYTES, "big") * self.chance.choice((1, 1, 2, 3))
        self._attempted.add(content)
        return content

    def check_leader(self, daemon: Daemon, claim: Entry) -> None:
        """A new leader has everything that was acknowledged before its claim.

        If the answer to its claim was delayed, another daemon may lead by now, and have acknowledged more.
        """
        self.counts["reigns"] += 1
        assert not daemon.must_not_lead, f"a daemon with another history leads, epoch {claim.epoch}"
        before = {content for content, position in self.acknowledged.items() if position < claim.position}
        missing = before - set(daemon.groups)
        assert not missing, f"the leader of epoch {claim.epoch} lacks {len(missing)} acknowledged groups"

    # The scheduler.

    def run(self) -> Counter[str]:
        chance = self.chance
        steps = chance.randrange(20, STEPS_MAX)
        restored_at = chance.randrange(3 * steps)
        if chance.random() < 0.2:
            self._give_foreign_folder(chance.choice(self._daemons))
        for step in range(steps):
            if step == restored_at:
                self._restore()
            if chance.random() < 0.01:
                self.log.append(Entry(Kind.UNREADABLE, 0, b""), self.log.end())
            if self._in_flight and chance.random() < 0.2:
                late = self._in_flight.pop(chance.randrange(len(self._in_flight)))
                self.log.append(late.entry, min(late.position, self.log.end()))
                self.counts["late"] += 1
            daemon = chance.choice(self._daemons)
            if daemon.stopped:
                daemon.stopped -= 1
            elif chance.random() < 0.02:
                daemon.stopped = chance.randrange(1, 12)
            elif chance.random() < 0.1 * self._faults:
                self.counts["kills"] += 1
                daemon.life.close()
                daemon.start()
            else:
                self._turn(daemon)
        self._check()
        return self.counts

    def _give_foreign_folder(self, daemon: Daemon) -> None:
        """A daemon starts with the file of another fleet, whose history looks much the same."""
        log_id = b"log" if self.chance.random() < 0.5 else b"other"
        position = number = 0
        epoch = self.chance.randrange(1, 4)
        for _ in range(epoch):
            writer, groups = self.new_writer(), self.chance.randrange(3)
            claim_position, number = position + 1, number + groups
            position = claim_position + groups
        state = ReignState(position, epoch, number, writer, log_id, claim_position, writer)
        daemon.life.close()
        daemon.state, daemon.must_not_lead = state, True
        daemon.start()
        self.counts["foreign"] += 1

    def _restore(self) -> None:
        """All daemons end, the newest entries are deleted, and the daemons are started again."""
        end = self.chance.choice(self.log.entries).position + 1
        self.log.entries[:] = [entry for entry in self.log.entries if entry.position < end]
        self._in_flight.clear()
        self.acknowledged = {group: at for group, at in self.acknowledged.items() if at < end}
        for daemon in self._daemons:
            daemon.life.close()
            daemon.must_not_lead |= daemon.state.position >= end
            daemon.start()
        self.counts["restored"] += 1

    def _turn(self, daemon: Daemon) -> None:
        request = daemon.request
        if daemon.answer is not None:
            daemon.resume(daemon.answer)
        elif request is IDLE:
            daemon.resume(lambda: None)
        elif isinstance(request, Append):
            daemon.answer = self._append(request)
            if self.chance.random() < 0.7:  # otherwise it is on its way for some turns
                daemon.resume(daemon.answer)
        elif self.chance.random() < 0.1 * self._faults:
            daemon.resume(_unavailable)
        elif isinstance(request, Read):
            entries = self.log.read(request.start)
            daemon.resume(lambda: entries)
        else:
            assert isinstance(request, End)
            end = self.log.end()
            read = daemon.reign.state.position + 1
            if self.chance.random() < 0.1 and not self.log.is_exclusive and read < end:
                end = self.chance.randrange(read, end) + 1  # a broker that has not received everything
            daemon.resume(lambda: end)

    def _append(self, request: Append) -> Callable[[], object]:
        """Send an entry on its way; returns the way back."""
        log, chance = self.log, self.chance
        if chance.random() > self._faults:
            place = log.append(request.entry, request.position)
            return lambda: place
        fault = chance.choice(("lost", "late", "answer lost", "no position", "repeated", "repeated late"))
        self.counts[fault] += 1
        if fault == "lost":
            return _unavailable
        if fault == "late":
            self._in_flight.append(request)
            return _unavailable
        place = log.append(request.entry, request.position)
        if fault == "answer lost":
            return _unavailable
        if fault == "no position":
            return lambda: None
        if fault == "repeated late":
            self._in_flight.append(request)
        elif not log.is_exclusive:
            second = log.append(request.entry, request.position)
            place = chance.choice((place, second))
        return lambda: place

    # The promises.

    def _check(self) -> None:
        counted = audit(self.log.entries)
        contents = [group.content for group in counted]
        assert len(set(contents)) == len(contents), "a group counts twice"
        assert set(contents) <= self._attempted, "a group counts that no leader wrote"
        assert self.acknowledged.keys() <= set(contents), "an acknowledged group is lost"
        reader = Reign()
        judged = [reader.accept(entry) for entry in self.log.entries]
        read = [one.content for one in judged if one is not None and one.kind is Kind.GROUP and not one.more]
        assert read == contents, "a reader disagrees with the audit"
        for daemon in self._daemons:
            if daemon.must_not_lead:
                continue
            position = daemon.state.position
            included = [group.content for group in counted if group.position <= position]
            assert daemon.groups == included, "a daemon's file is not the log up to its position"
        self.counts["acknowledged"] += len(self.acknowledged)
        self.counts["void"] += reader.void_entries
        self.counts["entries"] += len(self.log.entries)
        for daemon in self._daemons:
            daemon.life.close()


def _unavailable() -> object:
    raise LogUnavailable("no answer")


def run_seeds(seeds: range) -> Counter[str]:
    """Run a history for each seed. Raises AssertionError with the seed of the first one that breaks a promise."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            counts += LogHistory(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return counts


def run(history: History) -> None:
    history.figures.update(run_seeds(range(history.seed * HISTORIES, (history.seed + 1) * HISTORIES)))
