"""A host's calls in its archive: numbers, gaps, refusals, disk failures, crashes."""

from pathlib import Path

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch, Receipt, Refusal
from purgatory.engine.calls import Apply, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive import layout, schema
from purgatory.service.budget.garbage import PauseWatch
from purgatory.service.errors import BatchRejected, RpcError
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Called
from purgatory.service.metrics.exposition import HostCollector
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.settings import HostSettings
from tests.archive.archive_kit import AT_MS, ArchivedHost, failing_disk, produces
from tests.kit.eventually import eventually
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events

HOUR_MS = 3_600_000


async def test_every_call_has_its_number_and_outcomes_that_of_the_call_that_ended_them(tmp_path: Path) -> None:
    kept = ArchivedHost(tmp_path)
    kept.register(produces(1, 2), produces(3, 2, timeout_ms=50))
    kept.clock.jump(60)
    kept.host.reaper.turn()
    kept.host.reaper.turn()  # nothing expires: not a call
    kept.host.cancel(kept.session, [1, 2**64 - 1])
    await apply_events(kept.host, mark_batch(10))
    kept.register(produces(1))  # already known: not a call
    await kept.start_and_close()
    numbers = {table: [row["call_number"] for row in kept.rows(table)] for table in schema.TABLES}
    assert numbers == {
        schema.REGISTRATIONS: [1, 1, 2, 2],
        schema.OUTCOMES: [3, 3, 4, 5],
        schema.CALLS: [4],
        schema.EVENTS: [5],
        schema.MARKERS: [5],
    }
    assert [row["outcome"] for row in kept.rows(schema.OUTCOMES)] == ["expired", "expired", "cancelled", "satisfied"]
    assert {row["time_ms"] for row in kept.rows(schema.REGISTRATIONS)} == {1_000}
    assert {row["time_ms"] for row in kept.rows(schema.OUTCOMES)} == {1_060}
    [cancel] = kept.rows(schema.CALLS)
    assert (cancel["operation_ids"], cancel["ended"], cancel["session_number"]) == ([1, 2**63 - 1], 1, 1)


async def test_ids_of_a_refused_batch_are_refused_in_history_too(tmp_path: Path) -> None:
    """Sent again after a later batch was accepted: one refused row each, and none for operations already known."""
    kept = ArchivedHost(tmp_path)
    kept.session.refused_ids.add([1, 2], 0)
    kept.register(produces(3))
    kept.register(produces(1, 4))
    await kept.start_and_close()
    rows = [(row["operation_id"], row["refusal_code"]) for row in kept.rows(schema.REGISTRATIONS)]
    assert sorted(rows) == [(1, 3), (2, 3), (3, 0), (4, 0)]


async def test_what_is_refused_before_the_engine_is_history_too(tmp_path: Path) -> None:
    kept = ArchivedHost(tmp_path)
    kept.register(produces(1, 2))
    kept.host.gate.draining = True
    kept.register(produces(2, 2))
    await kept.start_and_close()
    refusals = [(row["operation_id"], row["refusal_code"]) for row in kept.rows(schema.REGISTRATIONS)]
    assert refusals == [(1, 0), (2, 0), (3, codes.UNAVAILABLE)]


async def test_what_does_not_fit_is_one_gap_with_a_marker(tmp_path: Path) -> None:
    """Whole calls are dropped until half of the queue is free; kept and dropped rows add up to the total."""
    kept = ArchivedHost(tmp_path, rows_max=10)
    kept.fill(calls=5, each=4)  # 8 rows fit, then no more
    kept.keep_by_hand(1)  # 4 rows wait: half of the queue is free
    kept.register(produces(100, 2))
    await kept.start_and_close()
    assert [row["call_number"] for row in kept.rows(schema.REGISTRATIONS)] == [1] * 4 + [2] * 4 + [6] * 2
    assert kept.dropped() == [(schema.REGISTRATIONS, 12, 3, 5)]
    assert [row["marker"] for row in kept.rows(schema.MARKERS)] == [schema.DROPPED, schema.ENDED]
    assert kept.listener.rows_dropped(schema.REGISTRATIONS) == 12


async def test_a_gap_takes_no_memory_and_is_reported_at_the_end(tmp_path: Path) -> None:
    kept = ArchivedHost(tmp_path, rows_max=4)
    kept.fill(each=4)
    for number in range(100):
        await apply_events(kept.host, mark_batch(1, "clicks", number))
    assert [record.stamp.call_number for record in kept.listener._records] == [1]
    assert list(kept.listener._names) == [("orders", 0)]
    kept.fill(each=4)
    await apply_events(kept.host, mark_batch(10))  # ends all operations: 8 outcomes
    await kept.start_and_close()
    gap = {schema.REGISTRATIONS: 4, schema.OUTCOMES: 8, schema.EVENTS: 101}
    assert kept.dropped() == [(table, rows, 2, 103) for table, rows in gap.items()]
    assert len(kept.rows(schema.REGISTRATIONS)) == 4


async def test_a_call_that_is_larger_than_the_room_is_kept_when_it_is_alone(tmp_path: Path) -> None:
    kept = ArchivedHost(tmp_path, rows_max=2)
    kept.fill(each=5)
    await kept.start_and_close()
    assert len(kept.rows(schema.REGISTRATIONS)) == 5


async def test_strict_refuses_rather_than_drops(tmp_path: Path) -> None:
    """With a full queue nothing is admitted, but ends are recorded. Once it is half empty, work is admitted again."""
    kept = ArchivedHost(tmp_path, rows_max=8, strict=True)
    assert kept.register(produces(1, 8)).accepted == 8
    answer = kept.register(produces(9, 2))
    assert [refusal.code for refusal, _ in answer.refused] == [codes.UNAVAILABLE] * 2
    with pytest.raises(BatchRejected) as refused:
        await apply_events(kept.host, mark_batch(10))
    assert refused.value.refusal.code == codes.UNAVAILABLE
    with pytest.raises(RpcError, match="archive"), kept.host.unary_wait(kept.host.sessions.accounts.nobody):
        pass
    assert await kept.host.cancel_session(kept.session) == 8
    await kept.start()
    await eventually(lambda: kept.listener.reason_to_refuse() is None, "there is room again")
    assert kept.register(produces(11, 1)).accepted == 1
    assert await kept.close()
    assert [row["operation_id"] for row in kept.rows(schema.REGISTRATIONS)] == [*range(1, 9), 11]
    assert len(kept.rows(schema.OUTCOMES)) == 8
    assert [row["marker"] for row in kept.rows(schema.MARKERS)] == [schema.ENDED]


async def test_history_waits_for_a_disk_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged once and counted each time. Rows that fit into the queue are kept; others have a marker."""
    caplog.set_level("INFO")
    kept = ArchivedHost(tmp_path, rows_max=10)
    with failing_disk(tmp_path):
        await kept.start()
        kept.fill(each=4)
        await eventually(lambda: kept.link.statistics.errors > 3, "the disk was tried several times")
        assert [record.levelname for record in caplog.records if "cannot write" in record.message] == ["ERROR"]
        kept.fill(calls=10, each=4)
    await eventually(lambda: kept.listener.rows_waiting == 0, "the disk has followed")
    kept.fill(each=1)
    assert await kept.close()
    assert [record.levelname for record in caplog.records if "written again" in record.message] == ["INFO"]
    dropped = sum(rows for _, rows, _, _ in kept.dropped())
    assert dropped > 0
    assert len(kept.rows(schema.REGISTRATIONS)) + dropped == 4 + 40 + 1
    assert kept.link.statistics.rows_kept[schema.REGISTRATIONS] == len(kept.rows(schema.REGISTRATIONS))
    assert kept.listener.rows_dropped(schema.REGISTRATIONS) == dropped


async def test_an_end_that_cannot_be_written_is_a_crash(tmp_path: Path) -> None:
    kept = ArchivedHost(tmp_path)
    kept.fill(each=4)
    await kept.start()
    await eventually(lambda: kept.run.state.call_number == 1, "the first call is in its place")
    with failing_disk(tmp_path):
        kept.fill(each=4)
        assert not await kept.close()
    assert kept.rows(schema.MARKERS) == []
    assert kept.run.state.call_number == 1


async def test_a_crashed_run_is_marked_by_the_next(tmp_path: Path) -> None:
    crashed = ArchivedHost(tmp_path, run_id="run-a")
    crashed.fill(calls=2, each=3)
    crashed.keep_by_hand(1)
    leftover = tmp_path / layout.unfinished_path(schema.OUTCOMES, "run-a", 7)
    leftover.write_bytes(b"PAR1 and no end")
    crashed.run.release()  # as the end of its process does
    for run_id in ("run-b", "run-c"):
        following = ArchivedHost(tmp_path, run_id=run_id)
        await following.start_and_close()
    assert not leftover.exists()
    assert list((tmp_path / layout.WRITING).iterdir()) == []
    [crashed_marker] = following.markers(schema.CRASHED)
    assert (crashed_marker["run_id"], crashed_marker["call_number"], crashed_marker["time_ms"]) == ("run-a", 1, 1_000)
    assert '"found_by": "run-b"' in crashed_marker["detail"]
    assert [row["call_number"] for row in following.rows(schema.REGISTRATIONS)] == [1, 1, 1]


async def test_files_part_at_the_hour_between_two_calls(tmp_path: Path) -> None:
    kept = ArchivedHost(tmp_path, wall_ms=lambda: AT_MS + 3 * HOUR_MS if kept.clock.now_ms() > 1_000 else AT_MS)
    kept.fill(each=2)
    kept.clock.jump(59_999)
    kept.fill(each=1)
    kept.clock.jump(1)
    kept.fill(calls=2, each=3)
    await kept.start_and_close()
    folders = sorted(path.parent.name for path in (tmp_path / schema.REGISTRATIONS).rglob("*.parquet"))
    assert folders == ["hour=01", "hour=04"]
    assert [row["at"].hour for row in kept.rows(schema.REGISTRATIONS)] == [1, 1, 1, 4, 4, 4, 4, 4, 4]


async def test_rows_that_cannot_be_made_or_packed_are_lost_and_reported(tmp_path: Path) -> None:
    """A name that is not valid text loses the rows built together with it, and a number that does not fit into a column
    those of its call, but neither the call nor others.
    """
    kept = ArchivedHost(tmp_path)
    kept.fill(each=2)
    bad_name, bad_number = OperationBatch([7], partitions=[("\udc00", 0)]), mark_batch(2**70)
    refused, applied = Receipt(), Receipt()
    refused.refusals.append(Refusal(0, codes.INVALID_ARGUMENT, "", ""))
    applied.next_index = 1
    for call, receipt in ((Register(codes.PRODUCE, bad_name), refused), (Apply(bad_number), applied)):
        kept.listener.called(Called(None, "", call, receipt, kept.clock.now_ms()))
        kept.listener.call_finished()
    kept.keep_by_hand(2)
    await apply_events(kept.host, mark_batch(10))
    await kept.start_and_close()
    assert kept.rows(schema.REGISTRATIONS) == []
    assert len(kept.rows(schema.OUTCOMES)) == 2
    assert kept.dropped() == [(schema.REGISTRATIONS, 3, 1, 2), (schema.EVENTS, 1, 3, 3)]
    assert [kept.listener.rows_dropped(table) for table in (schema.REGISTRATIONS, schema.EVENTS)] == [3, 1]
    assert kept.listener.rows_waiting == 0


async def test_a_call_that_was_interrupted_is_kept(tmp_path: Path) -> None:
    """A call that the host never finished is recorded together with the next one, in order."""
    kept = ArchivedHost(tmp_path)
    kept.fill(each=1)
    call = Apply(mark_batch(1, "clicks", 7))
    kept.listener.called(Called(None, "", call, kept.host.engine.perform(None, call, 1_000), 1_000))
    kept.listener._send_late()  # during the call: its names must be kept
    await apply_events(kept.host, mark_batch(2))
    await kept.start_and_close()
    events = [(row["call_number"], row["topic"], row["partition"]) for row in kept.rows(schema.EVENTS)]
    assert events == [(2, "clicks", 7), (3, "orders", 0)]


async def test_metrics_show_the_archive(tmp_path: Path) -> None:
    def samples(host: Host) -> dict[str, float]:
        families = HostCollector(host, Metrics(), PauseWatch()).collect()
        return {
            " ".join((sample.name, *sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
            if "archive" in sample.name
        }

    kept = ArchivedHost(tmp_path, rows_max=4)
    kept.fill(calls=2, each=4)
    assert kept.listener.rows_waiting == 4
    await kept.start()
    assert "purgatory_archive_queue_rows" in samples(kept.host)
    assert await kept.close()
    shown = samples(kept.host)
    assert shown.pop("purgatory_archive_bytes_total") > 0
    assert {name: value for name, value in shown.items() if value} == {
        "purgatory_archive_rows_total registrations": 4,
        "purgatory_archive_rows_total markers": 2,
        "purgatory_archive_dropped_rows_total registrations": 4,
        "purgatory_archive_files_total": 2,
    }
    assert samples(Host(Engine(EngineLimits(), 0), kept.clock, HostSettings())) == {}
