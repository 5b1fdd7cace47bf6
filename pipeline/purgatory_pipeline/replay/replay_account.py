"""The account of a replay: whether the unchanged one is equal, and which part of the history took part."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pandas as pd

from purgatory_pipeline.archive.accounting import counted, some_runs
from purgatory_pipeline.engine_rows.arrow_chunks import REFUSED_EVENTS, REFUSED_REGISTRATIONS, UNREADABLE
from purgatory_pipeline.replay import open_operations, run_replay
from purgatory_pipeline.replay.policy import BASELINE, Policy
from purgatory_pipeline.replay.replay_sums import COUNTER, DIFFERENT, EQUAL, IN_DOUBT, NO_OUTCOME
from purgatory_pipeline.replay.replay_task import IDLE_EVENTS
from purgatory_pipeline.replay.run_files import NEVER, RunContext


class ReplayAccount:
    """Everything read either took part or is counted among what did not. `sums` are those of all `policies`.

    The first policy must be the unchanged one. Every registered operation counts in exactly one of `equal`,
    `different`, `no_outcome` (none was recorded) and `in_doubt` (rows were lost before it ended).
    """

    def __init__(self, sums: pd.DataFrame, facts: Sequence[RunContext], policies: Sequence[Policy]) -> None:
        self.policies: Final = policies
        self._facts: Final = facts
        verdicts = sums[sums["player"] == 0].groupby("verdict")["operations"].sum()
        self.equal, self.different, self.no_outcome, self.in_doubt = (
            int(verdicts.get(verdict, 0)) for verdict in (EQUAL, DIFFERENT, NO_OUTCOME, IN_DOUBT)
        )
        self.compared: Final = self.equal + self.different
        """Operations with both ends known, and everything they depend on."""
        self.replayed: Final = self.compared + self.no_outcome + self.in_doubt
        moved = sums[(sums["verdict"] == DIFFERENT) & (sums["before"] != sums["replayed"])]
        baseline = policies.index(BASELINE) if BASELINE in policies else -1
        self._late: Final = int(moved[moved["player"] == baseline]["operations"].sum())
        """Operations whose outcome rests on an expiration that was late."""
        counted = sums[sums["player"] == COUNTER]
        self._counts: Final[Counter[str]] = Counter(counted.set_index("name")["operations"].astype(int).to_dict())

    def sentence(self) -> str:
        """The first line of the command's output."""
        if not self.compared:
            return "unchanged policy: nothing could be compared"
        share = 100 * self.equal / self.compared
        percentage = "100 %" if not self.different else f"{min(share, 99.9999):.4f} %"
        return f"unchanged policy: {percentage} of {self.compared:,} outcomes equal"

    def totals(self) -> list[str]:
        """In = out, for registrations and for outcomes."""
        count = self._counts
        refused, incomplete = count[REFUSED_REGISTRATIONS], count[run_replay.INCOMPLETE_REGISTRATIONS]
        outcomes, lost = count[open_operations.OUTCOMES_READ], count[open_operations.WITHOUT_REGISTRATION]
        twice, broken = count[open_operations.REPEATED_OUTCOMES], count[open_operations.INCOMPLETE_OUTCOMES]
        sums = {
            "registrations": {"replayed": self.replayed, "recorded as refused": refused, "incomplete": incomplete},
            "replayed": {
                "compared": self.compared,
                "without a recorded outcome": self.no_outcome,
                "ended after rows were lost": self.in_doubt,
            },
            "outcomes": {
                "of replayed operations": outcomes - lost - twice - broken,
                "without registration": lost,
                "repeated": twice,
                "incomplete": broken,
            },
        }
        totals = (count[run_replay.REGISTRATIONS_READ] + refused, self.replayed, outcomes)
        return [
            f"{name}: {total:,} in = {' + '.join(f'{number:,} {what}' for what, number in parts.items())}"
            for total, (name, parts) in zip(totals, sums.items(), strict=True)
        ]

    @property
    def is_balanced(self) -> bool:
        """True: every registration that was read is counted in exactly one place."""
        return (
            self.replayed + self._counts[run_replay.INCOMPLETE_REGISTRATIONS]
            == self._counts[run_replay.REGISTRATIONS_READ]
        )

    def notes(self) -> list[str]:
        """Caveats about the figures, as sentences."""
        notes = []
        if self.different:
            ended = counted(self.different, "operations did not end as recorded")
            notes.append(f"{ended}: do not rely on the figures below")
        notes += [counted(self._counts[name], meaning) for name, meaning in MEANINGS.items() if self._counts[name]]
        unknown = [facts.run_id for facts in self._facts if not facts.settings_known]
        if unknown:
            notes.append(f"{some_runs(unknown)}: the engine's settings are not recorded; replayed with the defaults")
        gaps = [facts.run_id for facts in self._facts if facts.in_doubt_from < NEVER]
        if gaps and self.in_doubt:
            notes.append(
                f"{some_runs(gaps)}: events are missing, or marks of an earlier run are not known; "
                f"{counted(self.in_doubt, 'operations')} that ended after that cannot be compared"
            )
        if self._late:
            late = "operations would end differently if no expiration were late, as in the lines below"
            notes.append(counted(self._late, late))
        for place, policy in enumerate(self.policies):
            for name, reason in PUSHED.items():
                if count := self._counts[f"{name} {place}"]:
                    notes.append(f"{policy.label}: {counted(count, name)}{reason}")
        if self.no_outcome:
            notes.append(counted(self.no_outcome, "operations without a recorded outcome: not there yet, or lost"))
        return notes


PUSHED: Final = {
    run_replay.MARKS_LEFT_OUT: ": they follow from the replicas there",
    run_replay.MARKS_KEPT: ", of partitions whose in-sync set is not known: no replica can matter there",
}
"""How pushed high watermarks were treated under policies that move them, and why."""

MEANINGS: Final = {
    run_replay.NOT_DUE: "recorded expirations not due in the replay",
    run_replay.NOT_TAKEN: "registrations refused by the engine in the replay",
    run_replay.CLOCK_FALLS: "rows whose clock went back, moved to the latest instant before",
    run_replay.REPEATED_ROWS: "duplicate rows, counted once",
    REFUSED_EVENTS: "events recorded as refused, left out",
    UNREADABLE: "rows with a word that this version does not know, left out",
    IDLE_EVENTS: "events of partitions on which nothing waits, left out",
}
