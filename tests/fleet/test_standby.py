"""A standby: when it claims, and how much time it says has passed. With a log in memory and a clock set by hand."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from purgatory.journal import store as stores
from purgatory.journal.group import Moment
from purgatory.replicated_log.entry import Entry, Kind, pack_rows
from purgatory.replicated_log.errors import LogLost, LogRefused
from purgatory.replicated_log.leadership import Leadership
from purgatory.replicated_log.standby import END_S, Standby
from tests.fleet.log_contract import LogContract, MemoryLog, OpenShard
from tests.journal.kit import statements_of

SILENCE_S = 2.0
OTHER = b"o" * 16
LAST = Moment(0, 0, 0, "")


ORIGIN = Entry.origin()
CLAIM = Entry(
    Kind.CLAIM, 1, OTHER, address="first:7440", log_id=ORIGIN.log_id, previous_position=0, previous_writer=ORIGIN.writer
)


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.put(ORIGIN, CLAIM)
    return log


def group(number: int, engine_ms: int) -> Entry:
    return Entry(Kind.GROUP, 1, OTHER, number, engine_ms, pack_rows(statements_of(number))[0], log_id=ORIGIN.log_id)


def standby_of(log: MemoryLog, folder: Path, silence_s: float = SILENCE_S) -> Standby:
    return Standby(folder, log, silence_s, "second:7440", "second:7441", now_s=lambda: log.now_s)


def lead(log: MemoryLog, folder: Path, silence_s: float = SILENCE_S) -> Leadership:
    return standby_of(log, folder, silence_s).lead()


def test_time_that_passed_is_measured_from_the_arrival_of_the_last_group(log: MemoryLog, tmp_path: Path) -> None:
    log.on_read[5] = lambda: log.put(group(1, 5_000))
    leadership = lead(log, tmp_path)
    log.now_s += 3
    assert leadership.passed_ms(LAST) == pytest.approx((SILENCE_S + 3) * 1_000, abs=300)


def test_a_group_that_the_claim_finds_is_the_last_one(log: MemoryLog, tmp_path: Path) -> None:
    """A group that arrives just before the claim is applied, and no time has passed since: with the arrival of the
    group before it, waits would end too early.
    """
    log.put(group(1, 5_000))
    log.before_claim = [group(2, 6_900)]
    leadership = lead(log, tmp_path)
    assert [entry.kind for entry in log.entries[-2:]] == [Kind.GROUP, Kind.CLAIM]
    assert leadership.passed_ms(LAST) == 0


def test_time_before_a_standby_started_is_measured_by_the_log(log: MemoryLog, tmp_path: Path) -> None:
    log.put(group(1, 5_000))
    log.now_s += 60
    leadership = lead(log, tmp_path)
    assert leadership.passed_ms(LAST) == pytest.approx((60 + SILENCE_S) * 1_000, abs=300)


@pytest.mark.parametrize("silence_s", [0.6, SILENCE_S, 600.0])
def test_leader_is_confirmed_for_less_than_the_silence(log: MemoryLog, tmp_path: Path, silence_s: float) -> None:
    """However short the silence is, a leader stops answering reads before its standby may claim, and sends three
    heartbeats in that time.
    """
    leadership = lead(log, tmp_path, silence_s)
    assert leadership.confirmed_ms < silence_s * 1_000
    assert 3 * leadership.heartbeat_s < silence_s


def test_silence_counts_only_while_the_log_answers(log: MemoryLog, tmp_path: Path) -> None:
    log.put(group(1, 5_000))
    log.outages = 3
    began_s = log.now_s
    lead(log, tmp_path)
    assert log.now_s - began_s >= 3 * 0.5 + SILENCE_S


def test_standby_is_not_ready_without_an_answer_and_ends_with_its_log(log: MemoryLog, tmp_path: Path) -> None:
    standby, read, seen = standby_of(log, tmp_path), log.read, list[bool]()

    def read_until_deleted(start: int, wait_s: float) -> list[Entry]:
        seen.append(standby.is_caught_up)
        log.outages = len(seen) >= 5
        return read(start, wait_s)

    def check(shards: int | None) -> None:
        if seen:
            seen.append(standby.is_caught_up)
            raise LogRefused("the topic does not exist")

    log.read, log.check = read_until_deleted, check  # type: ignore[method-assign]
    with pytest.raises(LogRefused):
        standby.lead()
    assert seen[-3:] == [True, True, False]


def test_lag_is_the_time_since_everything_was_read(log: MemoryLog, tmp_path: Path) -> None:
    """While the log has entries that a standby cannot read, its lag rises; once they are read it falls again, and while
    nothing is appended it does not rise.
    """
    standby = standby_of(log, tmp_path)
    lags: list[float] = []
    entries: list[int] = []
    read = log.read

    def read_late(start: int, wait_s: float) -> list[Entry]:
        lags.append(standby.lag_s)
        entries.append(standby.lag_entries)
        if len(lags) == 5:
            log.put(group(1, 5_000))
        if 5 <= len(lags) < 45:
            log.now_s += wait_s
            return []
        return read(start, wait_s)

    log.read = read_late  # type: ignore[method-assign]
    standby.lead()
    assert max(lags) == pytest.approx(lags[44])
    assert lags[44] == pytest.approx(4, abs=END_S)
    assert (max(entries[2:]), entries[45]) == (1, 0)
    assert max(*lags[:5], *lags[46:]) <= END_S + 0.2


def test_standby_claims_at_once_after_a_resignation(log: MemoryLog, tmp_path: Path) -> None:
    log.put(Entry(Kind.RESIGNATION, 1, OTHER, 1, log_id=ORIGIN.log_id))
    began_s = log.now_s
    lead(log, tmp_path)
    assert log.now_s == began_s


def test_last_leader_claims_first_after_a_restart(log: MemoryLog, tmp_path: Path) -> None:
    """It waits for less than the silence: long enough to hear two heartbeats if its folder is only a copy."""
    leadership = lead(log, tmp_path)
    began_s, heartbeats = log.now_s, [began + leadership.heartbeat_s for began in (log.now_s, log.now_s + 0.5)]
    read = log.read

    def read_while_the_other_one_leads(start: int, wait_s: float) -> list[Entry]:
        if heartbeats and log.now_s >= heartbeats[0]:
            heartbeats.pop(0)
            leadership.heartbeat()
        return read(start, wait_s)

    log.read = read_while_the_other_one_leads  # type: ignore[method-assign]
    lead(log, tmp_path)
    assert 2 <= log.now_s - began_s < 2 + SILENCE_S / 2
    assert [entry.epoch for entry in log.entries if entry.kind is Kind.CLAIM] == [1, 2, 3]


@pytest.mark.parametrize("epoch", [1, 2])
def test_standby_ends_when_its_log_gets_another_history(log: MemoryLog, tmp_path: Path, epoch: int) -> None:
    first = group(1, 5_000)
    log.put(first, *(replace(first, number=number) for number in range(2, 5)))
    if epoch == 2:
        second = replace(CLAIM, epoch=2, writer=b"p" * 16, previous_position=1, previous_writer=OTHER)
        log.put(second, replace(first, epoch=2, writer=second.writer, number=5))
    third = replace(CLAIM, epoch=2, writer=b"q" * 16, previous_position=1, previous_writer=OTHER)

    def restore() -> None:
        del log.entries[3:]
        log.put(third, *(replace(first, epoch=2, writer=third.writer, number=number) for number in range(2, 12)))

    log.on_read[5] = restore
    with pytest.raises(LogLost):
        lead(log, tmp_path)
    assert log.entries[-1].writer == third.writer


def test_file_of_a_standby_is_maintained(log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "WAL_PAGES_MAX", 20)
    monkeypatch.setattr(stores, "WAL_PAGES_KEPT", 40)
    standby = standby_of(log, tmp_path)
    for number in range(1, 500):
        log.put(group(number, number))
    standby._read()
    assert (tmp_path / "journal.db-wal").stat().st_size < 200 * stores.PAGE_BYTES
    standby._replica.release()


@pytest.fixture
def open_shard() -> OpenShard:
    origin = MemoryLog(time.time(), 0.0)
    origin.create(2)
    shards = [MemoryLog(time.time(), 0.0) for _ in range(2)]
    for shard in shards:
        shard.put(origin.entries[0])
    return shards.__getitem__


class TestMemoryLog(LogContract): ...
