"""The level `engine`: engine and oracle side by side, with a clock of their own. It knows every verb, and records.

After `limits` or `account`, which the oracle does not know, the engine is alone.
"""

from typing import Final

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import Receipt
from purgatory.engine.calls import Apply, Call, CancelName, PassTime, Pause, ShutDown
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.waiting.tables import Owner
from purgatory.engine.waiting.wakeups import UNLIMITED
from purgatory.service.settings import EngineLimitsSettings
from tests.engine import plain
from tests.engine.adapter import event_batch, registration
from tests.engine.pair import Pair, demand
from tests.scripts.language import WAITS, Line, Script, Words, name_of, parts_of
from tests.scripts.level import Changed, Level, Refused, counted

NOBODY: Final = -1


class EngineLevel(Level):
    """The sessions of the script are owners of the engine."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.owners: dict[str, int] = {}
        self.accounts: Final[dict[str, AccountUsage]] = {}
        self._account: AccountUsage | None = None
        self._is_full = False
        self._receipt = Receipt()
        """The receipt of the last registration or batch of events."""
        self._ended: list[tuple[str, plain.Ended]] = []

    @classmethod
    def unsupported(cls, script: Script) -> str:
        limits = [part for line in script.lines if line.verb == "limits" for part in parts_of(line.text)]
        if any(part.options.keys() - EngineLimitsSettings.model_fields.keys() for part in limits):
            return "limits of a host"
        return super().unsupported(script)

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
        return self.pair.engine

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
            self.owners[session] = self.pair.add_owner(self._account)
        return self.owners[session]

    def engine_owner(self, session: str = "a") -> Owner:
        return self.pair.owners[self.owner(session)]

    def register(self, session: str, operations: list[plain.Operation]) -> Receipt:
        self._receipt = self.pair.perform(self.owner(session), registration(operations), operations)
        return self._receipt

    def apply(self, events: list[plain.Event]) -> tuple[list[Refused], int]:
        call = Apply(event_batch(events), 0, self._account, self._is_full)
        self._receipt = self.pair.perform(NOBODY, call, events)
        return [(one.code, one.error_code) for one in self._receipt.refusals], self._receipt.unchanged

    def change(self, session: str, call: Call) -> Changed:
        if not isinstance(call, CancelName):
            receipt = self.pair.perform(self.owner(session), call)
            answers = zip(getattr(call, "operation_ids", []), receipt.were_pending, strict=True)
            return Changed([number for number, was_pending in answers if not was_pending])
        had_waits = self.engine.inspection.has_waits(call.name)
        cancelled = self.pair.perform(NOBODY, call).ended
        demand("waits on the name", had_waits, cancelled > 0)
        return Changed([], cancelled)

    def close_session(self, session: str) -> int:
        pending = self.engine.pending
        self.pair.remove_owner(self.owners.pop(session))
        return pending - self.engine.pending

    def pass_time(self, ms: int) -> None:
        self.pair.now_ms += ms
        self.pair.perform(NOBODY, PassTime(UNLIMITED))
        self._collect()
        while 0 <= self.engine.next_expiration_ms() <= self.pair.now_ms:
            self.pair.perform(NOBODY, PassTime(UNLIMITED))
            self._collect()

    def marks(self, name: plain.Name) -> plain.PartitionMarks | None:
        return self.pair.marks(name)

    # Verbs of this level only, and `limits`.

    def do_jump(self, part: Words) -> list[str]:
        """One large step of the clock."""
        self.pass_time(int(part.words[1]))
        return []

    def do_late(self, part: Words) -> list[str]:
        """Move the clock, and leave what is due to a later call."""
        self.pair.now_ms += int(part.words[1])
        return []

    def do_pause(self, part: Words) -> list[str]:
        self.pair.perform(NOBODY, Pause(int(part.words[1])))
        return []

    def do_stale(self, part: Words) -> list[str]:
        """`stale orders-0:100`: the mark has been stale for 100 ms."""
        marks = {name_of(name): int(ms) for name, _, ms in (word.partition(":") for word in part.words[1:])}
        return counted("failed", self.pair.fail_stale(marks))

    def do_shut_down(self, part: Words) -> list[str]:
        return counted("shut down", self.pair.perform(NOBODY, ShutDown(int(part.words[1]))).ended)

    def do_settings(self, part: Words) -> list[str]:
        given = {name: int(value) for name, value in part.options.items()}
        strict = bool(given.pop("strict", 0))
        self.pair = Pair(plain.Settings(**given, strict=strict))
        return []

    def do_limits(self, part: Words) -> list[str]:
        self.pair = Pair(limits=EngineLimits(**{name: int(value) for name, value in part.options.items()}))
        return []

    def do_account(self, part: Words) -> list[str]:
        """`account ann keys_max=1`: the sessions that follow, and the events, are of this account, with this share."""
        assert not self.pair.has_oracle, "the oracle knows no accounts: set limits first"
        name = part.words[1]
        self._account = self.accounts.setdefault(name, AccountUsage(name))
        for limit, value in part.options.items():
            setattr(self._account, limit, int(value))
        return []

    def do_refuse_events(self, part: Words) -> list[str]:
        """`refuse-events ann`: events of the account are refused now for reasons of the daemon."""
        self.engine.note_refused_events(self.accounts[part.words[1]], self.pair.now_ms)
        return []

    def do_memory(self, part: Words) -> list[str]:
        """`memory short` or `memory free`: whether events may create anything."""
        self._is_full = part.words[1] == "short"
        return []

    def do_counts(self, part: Words) -> list[str]:
        counts = self.pair.counts(WAITS[part.words[1]])
        return [", ".join(f"{name} {count}" for name, count in counts._asdict().items() if count)]

    def do_evaluations(self, part: Words) -> list[str]:
        return [str(self.engine.inspection.counts(WAITS[part.words[1]]).evaluations)]

    def do_details(self, _: Words) -> list[str]:
        """Field and message of each refusal of the last line with operations or events."""
        return [f"{one.field}: {one.message}" for one in self._receipt.refusals]

    def do_keys(self, _: Words) -> list[str]:
        """The number of signal keys that the engine knows."""
        return [str(self.engine.inspection.signal_key_count)]

    def known(self, account: str) -> list[str]:
        """The keys of an account, in the order in which they are forgotten."""
        return [key for key, _, _, _, name in self.engine.snapshots.save_keys() if name == account]

    def do_known(self, part: Words) -> list[str]:
        return [" ".join(self.known(part.words[1])) or "none"]
