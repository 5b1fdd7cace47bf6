"""The base of all levels: they read a script line by line, and print the answer and the ends of each line."""

import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from purgatory.engine.calls import Call, Cancel, CancelAll, CancelName, Extend
from tests.engine import plain
from tests.scripts import language

STEP_MS: Final = 100
"""Time passes in steps of this length at every level, because a longer silence would be a pause of the daemon."""
STEPS_MAX: Final = 100
Refused = tuple[int, object]
"""The code of a refusal, and its field or error code."""


def steps_of(ms: int) -> list[int]:
    """A time in steps; one that needs too many passes at once."""
    if ms > STEP_MS * STEPS_MAX:
        return [ms]
    return [*[STEP_MS] * (ms // STEP_MS), *([ms % STEP_MS] if ms % STEP_MS or not ms else [])]


def counted(what: str, count: int) -> list[str]:
    return [f"{what}: {count}"] if count else []


def refused_texts(refusals: Sequence[Refused]) -> list[str]:
    """A line for each refusal, or for equal ones in a row."""
    alike = [(code, detail, len(list(some))) for (code, detail), some in itertools.groupby(refusals)]
    return [
        f"refused with code {code}: {detail}{f', {count} times' if count > 1 else ''}" for code, detail, count in alike
    ]


def not_pending(ids: Sequence[int]) -> list[str]:
    """The ids, or ranges of them."""
    ranges: list[list[int]] = []
    for number in ids:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return [f"not pending: {' '.join('..'.join(map(str, one)) for one in ranges)}"] if ids else []


class Changed(NamedTuple):
    """The effect of a call on operations: the ids that were not pending, and the number cancelled."""

    not_pending: Sequence[int]
    cancelled: int = 0


class Level:
    """Runs one script. A verb that is neither a wait nor an event is a method `do_VERB`."""

    # Differs between levels.

    def register(self, session: str, operations: list[plain.Operation]) -> Any:  # noqa: ANN401
        """Register a batch, and return the receipt, of the engine or of the wire."""
        raise NotImplementedError

    def apply(self, events: list[plain.Event]) -> tuple[list[Refused], int]:
        """Apply a batch of events. Returns what was refused, and how many changed nothing."""
        raise NotImplementedError

    def change(self, session: str, call: Call) -> Changed:
        """Cancel or extend operations: some or all of a session, or those on a name."""
        raise NotImplementedError

    def close_session(self, session: str) -> int:
        """Close a session, and return how many operations that cancelled."""
        raise NotImplementedError

    def pass_time(self, ms: int) -> None:
        """Move the clock, and end what is due."""
        raise NotImplementedError

    def marks(self, name: plain.Name) -> plain.PartitionMarks | None:
        raise NotImplementedError

    def ended(self) -> list[tuple[str, plain.Ended]]:
        """The session and the result of each operation that has ended since the last call."""
        raise NotImplementedError

    # Running a script.

    @classmethod
    def unsupported(cls, script: language.Script) -> str:
        """Return why this level cannot express the script; empty if it can."""
        verbs = {line.verb for line in script.lines} - {*language.WAITS, *language.EVENTS}
        unknown = sorted(verb for verb in verbs if not hasattr(cls, f"do_{verb.replace('-', '_')}"))
        return f"no call for {', '.join(unknown)}" if unknown else ""

    def run(self, script: language.Script) -> list[language.Line]:
        return [language.Line(line.text, self.play(line)) for line in script.lines]

    def play(self, line: language.Line) -> list[str]:
        output = self._call(line)
        return output + language.ended_texts(self.ended())

    def _call(self, line: language.Line) -> list[str]:
        parts = language.parts_of(line.text)
        if line.verb in language.WAITS:
            batches = [language.operations_of(part) for part in parts]
            receipt = self.register(batches[0][0], [operation for _, some in batches for operation in some])
            refused = refused_texts([(one.code, one.field) for one in receipt.refusals])
            return refused + counted("already known", receipt.already_known)
        if line.verb in language.EVENTS:
            refusals, unchanged = self.apply([event for part in parts for event in language.events_of(part)])
            return refused_texts(refusals) + counted("unchanged", unchanged)
        found: list[str] = getattr(self, f"do_{line.verb.replace('-', '_')}")(parts[0])
        return found

    def do_cancel(self, part: language.Words) -> list[str]:
        session, ids = language.ids_of(*part.words[1:])
        return not_pending(self.change(session, Cancel(ids)).not_pending)

    def do_extend(self, part: language.Words) -> list[str]:
        session, ids = language.ids_of(*part.words[1:])
        return not_pending(self.change(session, Extend(ids, int(part.options["timeout"]))).not_pending)

    def do_cancel_partition(self, part: language.Words) -> list[str]:
        return counted("cancelled", self.change("", CancelName(language.name_of(part.words[1]))).cancelled)

    def do_cancel_key(self, part: language.Words) -> list[str]:
        return counted("cancelled", self.change("", CancelName((part.words[1], -1))).cancelled)

    def do_cancel_all(self, part: language.Words) -> list[str]:
        self.change(part.words[1], CancelAll())
        return []

    def do_close(self, part: language.Words) -> list[str]:
        return counted("cancelled", self.close_session(part.words[1]))

    def do_pass(self, part: language.Words) -> list[str]:
        for ms in steps_of(int(part.words[1])):
            self.pass_time(ms)
        return []

    def do_marks(self, part: language.Words) -> list[str]:
        return language.marks_texts(self.marks(language.name_of(part.words[1])))
