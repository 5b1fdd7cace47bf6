"""The account of a replay: whether the unchanged one is equal, and which part of the history took part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

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

SHOWN: Final = 3


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
        incomplete = self.count(INCOMPLETE_REGISTRATIONS)
        replayed = check.compared + check.no_outcome + check.in_doubt
        ended = self.count(OUTCOMES_READ)
        lost = self.count(WITHOUT_REGISTRATION)
        twice, broken = self.count(REPEATED_OUTCOMES), self.count(INCOMPLETE_OUTCOMES)
        known = ended - lost - twice - broken
        return [
            _sum("registrations", read + refused, replayed=replayed, refused_in_life=refused, incomplete=incomplete),
            _sum(
                "replayed",
                replayed,
                compared=check.compared,
                without_an_outcome_in_life=check.no_outcome,
                ended_after_rows_were_lost=check.in_doubt,
            ),
            _sum(
                "outcomes",
                ended,
                of_replayed_operations=known,
                without_registration=lost,
                repeated=twice,
                incomplete=broken,
            ),
        ]

    @property
    def is_balanced(self) -> bool:
        """True: every registration that was read is counted in exactly one place."""
        check = self.check
        replayed = check.compared + check.no_outcome + check.in_doubt
        return replayed + self.count(INCOMPLETE_REGISTRATIONS) == self.count(REGISTRATIONS_READ)

    def notes(self) -> list[str]:
        """What a reader must know before the figures, in sentences."""
        notes = []
        if self.check.different:
            notes.append(
                f"{self.check.different:,} operations did not end as in life: what follows is as doubtful as that"
            )
        notes += [f"{self.count(name):,} {meaning}" for name, meaning in MEANINGS.items() if self.count(name)]
        notes += self._about_runs() + self._about_marks()
        if self.check.no_outcome:
            notes.append(
                f"{self.check.no_outcome:,} operations have no outcome in life: their history ends, or it was lost"
            )
        return notes

    def _about_runs(self) -> list[str]:
        unknown = [facts.run_id for facts in self.facts if not facts.settings_known]
        gaps = [facts.run_id for facts in self.facts if facts.in_doubt_from < NEVER]
        notes = []
        if unknown:
            notes.append(f"{_some(unknown)}: the engine's settings are not there; replayed with the usual ones")
        if gaps and self.check.in_doubt:
            notes.append(
                f"{_some(gaps)}: events are missing, or the run went on with the marks of one before; "
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
                    f"{policy.label}: {left_out:,} pushed high watermarks left out; they follow from the replicas there"
                )
            if kept:
                notes.append(
                    f"{policy.label}: {kept:,} pushed high watermarks kept, of partitions whose in-sync set was not "
                    "told: no replica can matter there"
                )
        return notes


MEANINGS: Final = {
    NOT_DUE: "expirations of life were not due in the replay",
    NOT_TAKEN: "registrations were not taken again by the engine",
    CLOCK_FALLS: "rows whose clock went back were moved to the latest instant before them",
    REPEATED_ROWS: "rows were there twice and count once",
    REFUSED_EVENTS: "events were refused in life and are not told again",
    UNREADABLE: "rows had a word that this version does not know and are left out",
    IDLE_EVENTS: "events of partitions on which nothing waits are left out",
}


def _sum(what: str, total: int, **parts: int) -> str:
    """A total and its parts."""
    told = " + ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in parts.items())
    return f"{what}: {total:,} in = {told}"


def _some(run_ids: Sequence[str]) -> str:
    more = f" and {len(run_ids) - SHOWN:,} more" if len(run_ids) > SHOWN else ""
    return ", ".join(run_ids[:SHOWN]) + more
