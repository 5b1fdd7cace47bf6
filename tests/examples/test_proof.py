"""The example's account of its waits: each is entered, and what does not agree with the daemon is noticed."""

import asyncio

import pytest

from examples.replicated_log.daemon_link import GIVEN_UP, WaitLedger
from examples.replicated_log.log_file import LogRecord
from examples.replicated_log.proof import Counters, check_counters, check_ledger, check_records, wait_table


def ledger_of(kind: str, outcomes: dict[str, list[float]], started: int) -> WaitLedger:
    """A ledger in which so many waits began, and these ended after so many milliseconds."""
    ledger = WaitLedger()
    ledger.started[kind] = started
    ledger.ended_ms[kind] = outcomes
    return ledger


async def test_every_wait_is_entered() -> None:
    """A wait is open until it ends; one whose caller goes away is given up."""
    ledger = WaitLedger()
    waiting = asyncio.create_task(ledger.entered("produce", asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    assert ledger.open_count == 1
    assert not check_ledger(ledger).holds
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (ledger.ended("produce", GIVEN_UP), ledger.open_count) == (1, 0)
    assert check_ledger(ledger).holds


def test_ledger_travels_as_json() -> None:
    """A ledger from another process adds to this one's, the open waits too."""
    ours = ledger_of("fetch/follower", {"expired": [5.0]}, started=1)
    ours.add_json(ledger_of("fetch/follower", {"expired": [6.0]}, started=2).to_json())
    assert ours.ended("fetch/follower", "expired") == 2
    assert ours.open_count == 1


@pytest.mark.parametrize(
    ("satisfied", "cancelled", "holds"), [(3, 1, True), (4, 0, True), (2, 2, False), (3, 0, False)]
)
def test_counters_must_agree_with_the_ledger(satisfied: int, cancelled: int, holds: bool) -> None:
    """Only a wait that was given up may count otherwise at the daemon."""
    ledger = ledger_of("fetch/follower", {"satisfied": [1.0] * 3, GIVEN_UP: [1.0]}, started=4)
    none = dict.fromkeys(("satisfied", "failed", "expired", "cancelled", "shutting_down"), 0)
    before = {"fetch": Counters(0, 0, none)}
    after = {"fetch": Counters(4, 0, {**none, "satisfied": satisfied, "cancelled": cancelled})}
    assert all(check.holds for check in check_counters(before, after, ledger, alone=True)) == holds


@pytest.mark.parametrize("got", [[b"a"], [b"a", b"c"], [b"a", b"b", b"b"], [b"b", b"a"]])
def test_other_records_than_sent_are_noticed(got: list[bytes]) -> None:
    """A missing, changed, additional or misplaced record fails the check."""
    records = [LogRecord(offset, payload) for offset, payload in enumerate(got)]
    assert not check_records("consumer", records, [b"a", b"b"], 0).holds


def test_table_has_a_line_for_each_kind_and_outcome() -> None:
    """Counts and times stand under their headings; percentiles are values that occurred, by the nearest rank."""
    times = [float(value) for value in range(100, 0, -1)]
    heading, line = wait_table(ledger_of("produce", {"satisfied": times}, started=100))
    assert heading.split() == ["wait", "outcome", "count", "p50", "ms", "p95", "ms", "p99", "ms", "max", "ms"]
    assert line.split() == ["produce", "satisfied", "100", "50.0", "95.0", "99.0", "100.0"]
    assert wait_table(ledger_of("produce", {"satisfied": [7.0]}, started=1))[1].split()[3:] == ["7.0"] * 4
