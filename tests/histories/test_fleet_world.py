"""Histories of a fleet's log, and faults planted in its rules, which they must notice."""

import pytest

from tests.histories.planted import PLANTED, planted_here
from tests.histories.worlds.fleet import run_seeds

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


@pytest.mark.parametrize("name", [name for name, planted in PLANTED.items() if planted.world == "fleet"])
def test_fault_planted_in_the_rules_breaks_a_promise(name: str) -> None:
    with planted_here(PLANTED[name]), pytest.raises(AssertionError, match=r"seed \d+: AssertionError"):
        run_seeds(range(HISTORIES))
