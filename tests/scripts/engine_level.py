"""The level `engine`: engine and oracle side by side, with a clock of their own. It knows every verb, and records."""

from collections.abc import Callable
from typing import Final

from tests.engine import plain
from tests.engine.pair import Pair, demand
from tests.scripts.language import (
    EVENTS,
    WAITS,
    Line,
    Script,
    Words,
    ended_texts,
    events_of,
    ids_of,
    marks_texts,
    name_of,
    operations_of,
    parts_of,
    refused_text,
)

STEP_MS: Final = 100
"""Time passes in steps of this length at every level, because a longer silence would be a pause of the daemon."""
STEPS_MAX: Final = 100


def steps_of(ms: int) -> list[int]:
    """A time in steps; one that needs too many passes at once."""
    if ms > STEP_MS * STEPS_MAX:
        return [ms]
    return [*[STEP_MS] * (ms // STEP_MS), *([ms % STEP_MS] if ms % STEP_MS or not ms else [])]


class EngineLevel:
    """Runs one script. The sessions of the script are owners of the engine."""

    def __init__(self) -> None:
        self._pair = Pair()
        self._owners: dict[str, int] = {}
        self._ended: list[tuple[str, plain.Ended]] = []
        self._verbs: Final[dict[str, Callable[[Words], list[str]]]] = {
            "settings": self._settings,
            "cancel": self._cancel,
            "cancel-all": self._cancel_all,
            "cancel-partition": lambda part: self._cancel_name(name_of(part.words[1])),
            "cancel-key": lambda part: self._cancel_name((part.words[1], -1)),
            "close": self._close,
            "extend": self._extend,
            "stale": self._stale,
            "shut-down": lambda part: self._counted("shut down", self._pair.shut_down(int(part.words[1]))),
            "pass": self._pass,
            "jump": lambda part: self._advance([int(part.words[1])]),
            "late": self._late,
            "pause": self._pause,
            "marks": lambda part: marks_texts(self._pair.engine.marks(name_of(part.words[1]))),
            "counts": self._counts,
            "evaluations": self._evaluations,
        }

    def run(self, script: Script) -> list[Line]:
        """Run a script, and return its lines with their output."""
        lines = []
        for line in script.lines:
            output = self._run(line)
            lines.append(Line(line.text, output + ended_texts(self._ended)))
            self._ended = []
        self._pair.compare_everything()
        self._pair.heal()
        return lines

    def _run(self, line: Line) -> list[str]:
        parts = parts_of(line.text)
        if line.verb in WAITS:
            return self._register(parts)
        if line.verb in EVENTS:
            return self._apply([event for part in parts for event in events_of(part)])
        output = self._verbs[line.verb](parts[0])
        self._collect()
        return output

    def _owner(self, session: str) -> int:
        if session not in self._owners:
            self._owners[session] = self._pair.add_owner()
        return self._owners[session]

    def _collect(self) -> None:
        sessions = {owner: session for session, owner in self._owners.items()}
        self._ended += [(sessions[row.owner_id], row) for row in self._pair.last_ended]
        self._pair.last_ended = []

    def _register(self, parts: list[Words]) -> list[str]:
        batches = [operations_of(part) for part in parts]
        operations = [operation for _, some in batches for operation in some]
        receipt = self._pair.register(self._owner(batches[0][0]), operations)
        self._collect()
        output = [refused_text(one.code, one.field) for one in receipt.refusals]
        return output + self._counted("already known", receipt.already_known)

    def _apply(self, events: list[plain.Event]) -> list[str]:
        answers = self._pair.apply(events)
        self._collect()
        refused = [refused_text(answer.refused[0], answer.refused[1]) for answer in answers if answer.refused]
        return refused + self._counted("unchanged", sum(answer.unchanged for answer in answers))

    @staticmethod
    def _counted(what: str, count: int) -> list[str]:
        return [f"{what}: {count}"] if count else []

    def _cancel(self, part: Words) -> list[str]:
        return self._by_id(part.words[1:], self._pair.cancel)

    def _extend(self, part: Words) -> list[str]:
        timeout_ms = int(part.options["timeout"])
        return self._by_id(part.words[1:], lambda owner, ids: self._pair.extend(owner, ids, timeout_ms))

    def _by_id(self, words: list[str], call: Callable[[int, list[int]], list[bool]]) -> list[str]:
        sessions, numbers = zip(*map(ids_of, words), strict=True)
        ids = [number for some in numbers for number in some]
        answers = call(self._owner(sessions[0]), ids)
        missed = [str(number) for number, was_pending in zip(ids, answers, strict=True) if not was_pending]
        return [f"not pending: {' '.join(missed)}"] if missed else []

    def _cancel_all(self, part: Words) -> list[str]:
        self._pair.cancel_all(self._owner(part.words[1]))
        return []

    def _cancel_name(self, name: plain.Name) -> list[str]:
        had_waits = self._pair.engine.engine.inspection.has_waits(name)
        cancelled = self._pair.cancel_name(name)
        demand("waits on the name", had_waits, cancelled > 0)
        return self._counted("cancelled", cancelled)

    def _close(self, part: Words) -> list[str]:
        self._pair.remove_owner(self._owners.pop(part.words[1]))
        self._pair.last_ended = []
        return []

    def _stale(self, part: Words) -> list[str]:
        """`stale orders-0:100`: the mark has been stale for 100 ms."""
        marks = {name_of(name): int(ms) for name, _, ms in (word.partition(":") for word in part.words[1:])}
        return self._counted("failed", self._pair.fail_stale(marks))

    def _pass(self, part: Words) -> list[str]:
        return self._advance(steps_of(int(part.words[1])))

    def _advance(self, steps: list[int]) -> list[str]:
        engine = self._pair.engine.engine
        for ms in steps:
            self._pair.advance(ms)
            self._collect()
            while 0 <= engine.next_expiration_ms() <= self._pair.now_ms:
                self._pair.advance(0)
                self._collect()
        return []

    def _late(self, part: Words) -> list[str]:
        """Move the clock, and leave what is due to a later call."""
        self._pair.now_ms += int(part.words[1])
        return []

    def _pause(self, part: Words) -> list[str]:
        self._pair.pause(int(part.words[1]))
        return []

    def _settings(self, part: Words) -> list[str]:
        given = {name: int(value) for name, value in part.options.items()}
        strict = bool(given.pop("strict", 0))
        self._pair = Pair(plain.Settings(**given, strict=strict))
        return []

    def _counts(self, part: Words) -> list[str]:
        counts = self._pair.engine.counts(WAITS[part.words[1]])
        return [", ".join(f"{name} {count}" for name, count in counts._asdict().items() if count)]

    def _evaluations(self, part: Words) -> list[str]:
        return [str(self._pair.engine.engine.inspection.counts(WAITS[part.words[1]]).evaluations)]
