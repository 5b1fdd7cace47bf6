"""The account of a replay: whether the unchanged one is equal, and which part of the history took part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from purgatory_pipeline.archive.findings import some_runs
from purgatory_pipeline.replay.divide.scattering import IDLE_EVENTS
from purgatory_pipeline.replay.load.run_files import NEVER, RunContext
from purgatory_pipeline.replay.load.table_reader import REFUSED_EVENTS, REFUSED_REGISTRATIONS, UNREADABLE
from purgatory_pipeline.replay.play.policy_events import MARKS_KEPT, MARKS_LEFT_OUT
from purgatory_pipeline.replay.play.recorded_outcomes import (
    INCOMPLETE_OUTCOMES,
    OUTCOMES_READ,
    REPEATED_OUTCOMES,
    WITHOUT_REGISTRATION,
)
from purgatory_pipeline.replay.play.run_replay import (
    CLOCK_FALLS,
    INCOMPLETE_REGISTRATIONS,
    NOT_DUE,
    NOT_TAKEN,
    REGISTRATIONS_READ,
    REPEATED_ROWS,
)
from purgatory_pipeline.replay.policy import Policy
from purgatory_pipeline.replay.result_frames import UnchangedCheck, check_of, counts_of


@dataclass(frozen=True)
class ReplayAccount:
    """Totals: everything read either took part or is counted among what did not."""

    check: UnchangedCheck
    counts: dict[str, int]
    facts: tuple[RunContext, ...]
    policies: tuple[Policy, ...]

    @classmethod
    def of(cls, sums: pd.DataFrame, facts: Sequence[RunContext], policies: Sequence[Policy]) -> ReplayAccount:
        return cls(check_of(sums), counts_of(sums), tuple(facts), tuple(policies))

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def totals(self) -> list[str]:
        """In = out, for registrations and for outcomes."""
        check = self.check
        refused, read = self.count(REFUSED_REGISTRATIONS), self.count(REGISTRATIONS_READ)
        incomplete, replayed = self.count(INCOMPLETE_REGISTRATIONS), check.replayed
        outcomes, lost = self.count(OUTCOMES_READ), self.count(WITHOUT_REGISTRATION)
        twice, broken = self.count(REPEATED_OUTCOMES), self.count(INCOMPLETE_OUTCOMES)
        parts = {
            "registrations": {"replayed": replayed, "recorded as refused": refused, "incomplete": incomplete},
            "replayed": {
                "compared": check.compared,
                "without a recorded outcome": check.no_outcome,
                "ended after rows were lost": check.in_doubt,
            },
            "outcomes": {
                "of replayed operations": outcomes - lost - twice - broken,
                "without registration": lost,
                "repeated": twice,
                "incomplete": broken,
            },
        }
        totals = {"registrations": read + refused, "replayed": replayed, "outcomes": outcomes}
        return [
            f"{name}: {totals[name]:,} in = {' + '.join(f'{count:,} {what}' for what, count in counts.items())}"
            for name, counts in parts.items()
        ]

    @property
    def is_balanced(self) -> bool:
        """True: every registration that was read is counted in exactly one place."""
        return self.check.replayed + self.count(INCOMPLETE_REGISTRATIONS) == self.count(REGISTRATIONS_READ)

    def notes(self) -> list[str]:
        """What a reader must know before the figures, in sentences."""
        notes = []
        if self.check.different:
            notes.append(f"{self.check.different:,} operations did not end as recorded: do not rely on what follows")
        notes += [f"{self.count(name):,} {meaning}" for name, meaning in MEANINGS.items() if self.count(name)]
        notes += self._about_runs() + self._about_marks()
        if self.check.no_outcome:
            notes.append(
                f"{self.check.no_outcome:,} operations have no recorded outcome: their history ends, or it was lost"
            )
        return notes

    def _about_runs(self) -> list[str]:
        unknown = [facts.run_id for facts in self.facts if not facts.settings_known]
        gaps = [facts.run_id for facts in self.facts if facts.in_doubt_from < NEVER]
        notes = []
        if unknown:
            notes.append(f"{some_runs(unknown)}: the engine's settings are not recorded; replayed with the defaults")
        if gaps and self.check.in_doubt:
            notes.append(
                f"{some_runs(gaps)}: events are missing, or the run continued another one's marks; "
                f"{self.check.in_doubt:,} operations that ended after that are not compared"
            )
        return notes

    def _about_marks(self) -> list[str]:
        """What policies that move high watermarks did with pushed ones."""
        notes = []
        for place, policy in enumerate(self.policies):
            left_out, kept = self.count(f"{MARKS_LEFT_OUT} {place}"), self.count(f"{MARKS_KEPT} {place}")
            if left_out:
                notes.append(
                    f"{policy.label}: {left_out:,} pushed high watermarks left out: they follow from the replicas there"
                )
            if kept:
                notes.append(
                    f"{policy.label}: {kept:,} pushed high watermarks kept, of partitions whose in-sync set is not "
                    "known: no replica can matter there"
                )
        return notes


MEANINGS: Final = {
    NOT_DUE: "recorded expirations were not due in the replay",
    NOT_TAKEN: "registrations were refused by the engine in the replay",
    CLOCK_FALLS: "rows whose clock went back were moved to the latest instant before them",
    REPEATED_ROWS: "duplicate rows are counted once",
    REFUSED_EVENTS: "events are recorded as refused and are left out",
    UNREADABLE: "rows with a word that this version does not know are left out",
    IDLE_EVENTS: "events of partitions on which nothing waits are left out",
}
