"""Histories of a fleet's log, and mutants of the rules, which they must notice."""

from dataclasses import replace

import pytest

from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import LogLost
from purgatory.replicated_log.log_writer import AppendRules, End, Steps
from purgatory.replicated_log.reign import Reign, ReignState
from purgatory.replicated_log.replicated_log import Place
from tests.histories.worlds.fleet import Rules, run_seeds

HISTORIES = 4_000


@pytest.mark.slow
def test_histories_keep_the_promises() -> None:
    """Nothing acknowledged is lost or counted twice, one daemon leads per position, and all readers agree.

    `make fleet-sim` runs a million histories.
    """
    counts = run_seeds(range(HISTORIES))
    # Otherwise the scheduler would test nothing.
    assert counts["reigns"] > HISTORIES
    assert counts["acknowledged"] > HISTORIES
    for fault in ("void", "late", "lost", "answer lost", "repeated", "no position", "kills", "fenced", "refused"):
        assert counts[fault] > HISTORIES / 10, fault
    assert min(counts["foreign"], counts["restored"]) > HISTORIES / 20


def test_a_history_follows_from_its_seed() -> None:
    assert run_seeds(range(50)) == run_seeds(range(50))


class AnyNumber(Reign):
    """R2 without the number."""

    def would_accept(self, entry: Entry) -> bool:
        return super().would_accept(replace(entry, number=self.state.number + 1))


class AnyClaim(Reign):
    """R1 without the epoch: a claim that arrives second counts too."""

    def would_accept(self, entry: Entry) -> bool:
        return super().would_accept(entry) or (entry.kind is Kind.CLAIM and entry.epoch == self.state.epoch)


class KeepsParts(Reign):
    """Without R4."""

    def _discard_parts(self) -> None:
        """Keep them."""


class ReignsOn(Reign):
    """R4 without the end of a reign by resignation."""

    def accept(self, entry: Entry, *, is_own: bool = False) -> Entry | None:
        before, judged = self.state, super().accept(entry, is_own=is_own)
        if judged is not None and judged.kind is Kind.RESIGNATION:
            self.state = self.resting = replace(self.state, writer=before.writer, number=before.number)
        return judged


class TrustsTheReport(AppendRules):
    """Without A1: the entry counts because it is in the log."""

    def _find(self, entry: Entry, place: Place | None) -> Steps[Entry | None]:
        if place is not None:
            return self._reign.accept(entry.at(*place), is_own=True)
        return (yield from super()._find(entry, place))


class SkipsOthers(AppendRules):
    """Without A3: what a claimant finds on the way is not applied."""

    def _find(self, entry: Entry, place: Place | None) -> Steps[Entry | None]:
        apply, self._apply = self._apply, lambda _: None  # type: ignore[misc]
        try:
            return (yield from super()._find(entry, place))
        finally:
            self._apply = apply  # type: ignore[misc]


class TrustsTheFolder(AppendRules):
    """Without the check that the log still has what the file has."""

    def check_history(self, known: ReignState) -> Steps[None]:
        yield from ()


class TrustsThePosition(AppendRules):
    """Compares the position only: a log that has become longer again is not noticed."""

    def check_history(self, known: ReignState) -> Steps[None]:
        if (yield End()) <= known.position:
            raise LogLost("the log has gone back")


@pytest.mark.parametrize(
    "rules",
    [
        Rules(reign=AnyNumber),
        Rules(reign=AnyClaim),
        Rules(reign=KeepsParts),
        Rules(reign=ReignsOn),
        Rules(append=TrustsTheReport),
        Rules(append=SkipsOthers),
        Rules(append=TrustsTheFolder),
        Rules(append=TrustsThePosition),
    ],
    ids=lambda rules: (rules.append if rules.reign is Reign else rules.reign).__name__,
)
def test_mutants_are_noticed(rules: Rules) -> None:
    """A history breaks a promise once a rule is missing."""
    with pytest.raises(AssertionError, match=r"seed \d+: AssertionError"):
        run_seeds(range(HISTORIES), rules)
