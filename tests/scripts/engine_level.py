"""The level `engine`: engine and oracle side by side, with a clock of their own. It knows every verb, and records."""

from purgatory.engine.batches import Receipt
from purgatory.engine.calls import Cancel, CancelAll, CancelName, Extend, Pause
from purgatory.engine.engine import Engine
from purgatory.engine.waiting.tables import Owner
from tests.engine import plain
from tests.engine.pair import Pair, demand
from tests.scripts.language import WAITS, Line, Script, Words, name_of
from tests.scripts.level import Level, Refused, counted


class EngineLevel(Level):
    """The sessions of the script are owners of the engine."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.owners: dict[str, int] = {}
        self._ended: list[tuple[str, plain.Ended]] = []

    @classmethod
    def played(cls, *lines: str) -> "EngineLevel":
        """A level after these lines, for a test that then looks into its engine."""
        level = cls()
        for line in lines:
            level.answer(line)
        return level

    def answer(self, line: str) -> list[str]:
        return self.play(Line(line, []))

    @property
    def engine(self) -> Engine:
        return self.pair.engine.engine

    def run(self, script: Script) -> list[Line]:
        lines = super().run(script)
        self.pair.compare_everything()
        self.pair.heal()
        return lines

    def ended(self) -> list[tuple[str, plain.Ended]]:
        self._collect()
        found, self._ended = self._ended, []
        return found

    def _collect(self) -> None:
        sessions = {owner: session for session, owner in self.owners.items()}
        self._ended += [(sessions[row.owner_id], row) for row in self.pair.last_ended]
        self.pair.last_ended = []

    def owner(self, session: str) -> int:
        if session not in self.owners:
            self.owners[session] = self.pair.add_owner()
        return self.owners[session]

    def engine_owner(self, session: str = "a") -> Owner:
        return self.pair.engine.owners[self.owner(session)]

    def register(self, session: str, operations: list[plain.Operation]) -> Receipt:
        return self.pair.register(self.owner(session), operations)

    def apply(self, events: list[plain.Event]) -> tuple[list[Refused], int]:
        answers = self.pair.apply(events)
        refusals: list[Refused] = [(one.refused[0], one.refused[1]) for one in answers if one.refused]
        return refusals, sum(answer.unchanged for answer in answers)

    def cancel(self, session: str, ids: list[int]) -> list[int]:
        answers = self.pair.perform(self.owner(session), Cancel(ids)).were_pending
        return [number for number, was_pending in zip(ids, answers, strict=True) if not was_pending]

    def extend(self, session: str, ids: list[int], timeout_ms: int) -> list[int]:
        answers = self.pair.perform(self.owner(session), Extend(ids, timeout_ms)).were_pending
        return [number for number, was_pending in zip(ids, answers, strict=True) if not was_pending]

    def cancel_name(self, name: plain.Name) -> int:
        had_waits = self.engine.inspection.has_waits(name)
        cancelled = self.pair.perform(-1, CancelName(name)).ended
        demand("waits on the name", had_waits, cancelled > 0)
        return cancelled

    def cancel_session(self, session: str) -> None:
        self.pair.perform(self.owner(session), CancelAll())

    def close_session(self, session: str) -> int:
        pending = self.engine.pending
        self.pair.remove_owner(self.owners.pop(session))
        return pending - self.engine.pending

    def pass_time(self, ms: int) -> None:
        self.pair.advance(ms)
        self._collect()
        while 0 <= self.engine.next_expiration_ms() <= self.pair.now_ms:
            self.pair.advance(0)
            self._collect()

    def marks(self, name: plain.Name) -> plain.PartitionMarks | None:
        return self.pair.engine.marks(name)

    # Verbs of this level only.

    def do_jump(self, part: Words) -> list[str]:
        """One large step of the clock."""
        self.pass_time(int(part.words[1]))
        return []

    def do_late(self, part: Words) -> list[str]:
        """Move the clock, and leave what is due to a later call."""
        self.pair.now_ms += int(part.words[1])
        return []

    def do_pause(self, part: Words) -> list[str]:
        self.pair.perform(-1, Pause(int(part.words[1])))
        return []

    def do_stale(self, part: Words) -> list[str]:
        """`stale orders-0:100`: the mark has been stale for 100 ms."""
        marks = {name_of(name): int(ms) for name, _, ms in (word.partition(":") for word in part.words[1:])}
        return counted("failed", self.pair.fail_stale(marks))

    def do_shut_down(self, part: Words) -> list[str]:
        return counted("shut down", self.pair.shut_down(int(part.words[1])))

    def do_settings(self, part: Words) -> list[str]:
        given = {name: int(value) for name, value in part.options.items()}
        strict = bool(given.pop("strict", 0))
        self.pair = Pair(plain.Settings(**given, strict=strict))
        return []

    def do_counts(self, part: Words) -> list[str]:
        counts = self.pair.engine.counts(WAITS[part.words[1]])
        return [", ".join(f"{name} {count}" for name, count in counts._asdict().items() if count)]

    def do_evaluations(self, part: Words) -> list[str]:
        return [str(self.engine.inspection.counts(WAITS[part.words[1]]).evaluations)]

    def do_details(self, _: Words) -> list[str]:
        """Field and message of each refusal of the last line with operations or events."""
        return [f"{one.field}: {one.message}" for one in self.pair.engine.last_refusals]

    def do_keys(self, _: Words) -> list[str]:
        """The number of signal keys that the engine knows."""
        return [str(self.engine.inspection.signal_key_count)]
