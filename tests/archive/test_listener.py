"""A host's calls in its archive: numbers, gaps, refusals, disk failures, crashes.

The writer process and the link to it: sending never blocks, order is kept, losses are reported, and only the daemon
ends the process.
"""

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch, Receipt, Refusal
from purgatory.engine.calls import Apply, CancelName, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive import extension, layout, schema, vocabulary, writer_link
from purgatory.extensions.archive.records import row_record
from purgatory.extensions.archive.vocabulary import CallStamp, CannotArchive
from purgatory.extensions.archive.writer_link import WriterLink
from purgatory.extensions.archive.writer_process import NICENESS, LineOutput, serve
from purgatory.extensions.archive.writer_protocol import WriterConfig, decode_frame, encode_frame, read_frame
from purgatory.service.budget.garbage import PauseWatch
from purgatory.service.errors import BatchRejected, RpcError
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Called
from purgatory.service.metrics.exposition import HostCollector
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.settings import HostSettings
from purgatory.testing import daemon_in_process
from tests.archive.archive_kit import AT_MS, CLOSE_S, NOWHERE, RUN, ArchivedHost, ThreadLink, failing_disk, produces
from tests.kit.daemon import run_to_end
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import mark_batch
from tests.kit.post_server import PostServer, reply
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


class NotingProcess:
    """A fake writer process: records what it receives once `may_read` is set, and dies after `dies_after` frames."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.may_read = threading.Event()
        self.config: WriterConfig | None = None
        self.rows: list[tuple[int, dict[str, Any]]] = []
        """Received calls: number and values."""
        self._dies_after = dies_after

    def serve(self, frames: BinaryIO, output: LineOutput) -> bool:
        first = read_frame(frames)
        assert first is not None, "the configuration comes first"
        self.config = decode_frame(first)
        assert self.config is not None, "a configuration"
        output.report(self.config.statistics)
        self.may_read.wait(CLOSE_S)
        while len(self.rows) != self._dies_after and (frame := read_frame(frames)) is not None:
            for record in decode_frame(frame)[1]:
                self.rows.append((record.stamp.call_number, record.extra))
        return self._dies_after is None


async def linked(*processes: NotingProcess) -> ThreadLink:
    link = ThreadLink(NOWHERE, *(process.serve for process in processes))
    await link.start()
    return link


def send(link: ThreadLink, number: int, size: int = 0) -> None:
    """Send a call with this number, in a frame of at least this size."""
    stamp = CallStamp(RUN, number, 5, 6)
    record = row_record(vocabulary.CALLS, stamp, call=vocabulary.CALL_NAMES[CancelName], topic="k" * size, ended=number)
    link.send((), [record])


def nothing() -> None:
    """Everything was sent already."""


async def test_a_full_pipe_is_not_waited_for() -> None:
    process = NotingProcess()
    link = await linked(process)
    for number in range(1, 101):
        send(link, number, size=50_000)  # nothing is read yet: if this blocked, it would block forever
    process.may_read.set()
    await eventually(lambda: len(process.rows) == 100, "all that waited has been read")
    for number in range(101, 111):
        send(link, number)
    assert await link.close(CLOSE_S, nothing)
    assert [number for number, _ in process.rows] == list(range(1, 111))
    assert {len(row["topic"]) for _, row in process.rows[:100]} == {50_000}


async def test_what_waited_for_a_process_that_died_is_recorded_as_lost() -> None:
    """The pipe was full when the process died: each call is either counted in a marker or sent to the next process."""

    def dies_at_once(frames: BinaryIO, output: LineOutput) -> bool:
        output.write({"unusable": "no room"})
        return read_frame(frames) is None

    first, second = NotingProcess(dies_after=1), NotingProcess()
    second.may_read.set()
    link = ThreadLink(NOWHERE, first.serve, dies_at_once, second.serve)
    await link.start()
    for number in range(1, 201):
        send(link, number, size=50_000)
    first.may_read.set()
    await eventually(lambda: bool(second.rows), "another one goes on, after one that could not open the archive")
    assert second.config is not None
    assert second.config.is_continued
    send(link, 201)
    assert await link.close(CLOSE_S, nothing)
    (first_lost, marker), *others = second.rows
    assert (first_lost, marker["marker"], marker["table"]) == (1, vocabulary.DROPPED, vocabulary.CALLS)
    assert (marker["last_call_number"], marker["rows"]) == (200, 200)
    assert [number for number, _ in others] == [201]
    assert (link.errors, link.rows_lost[vocabulary.CALLS]) == (2, 200)


async def test_an_end_that_takes_too_long_is_given_up() -> None:
    process = NotingProcess()
    link = await linked(process)
    send(link, 1)
    closing = link.close(0.01, nothing)
    timer = threading.Timer(0.1, process.may_read.set)  # the thread in place of a process cannot be killed
    timer.start()
    assert not await closing
    timer.join()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere niceness belongs to a process")
@pytest.mark.parametrize("low_priority", [True, False])
def test_rows_and_files_are_made_at_the_priority_asked_for(tmp_path: Path, low_priority: bool) -> None:
    """On Linux, niceness belongs to a thread. With `strict`, the writer has the daemon's own niceness."""
    config = NOWHERE._replace(place=str(tmp_path), low_priority=low_priority)
    niceness: list[int] = []

    def run() -> None:
        assert serve(io.BytesIO(encode_frame(config)), LineOutput(io.BytesIO()))
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness == [min(19, before + NICENESS) if low_priority else before]


@pytest.mark.parametrize("kept", [0, 3, 9, 20, -1])
def test_a_frame_that_was_cut_is_the_end(kept: int) -> None:
    whole = encode_frame(["first", {"a": 1}])
    second = encode_frame(["second"])
    stream = io.BytesIO(whole + second[: kept if kept >= 0 else len(second) - 1])
    frame = read_frame(stream)
    assert frame is not None
    assert decode_frame(frame) == ["first", {"a": 1}]
    assert read_frame(stream) is None


# An object store that stops responding must not delay the start or the end of the daemon for long.

CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"
}  # fmt: skip
LISTING: Final = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
UPLOAD: Final = b"<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"


class Store(PostServer):
    """The parts of S3 that writing an archive needs. Stops responding once `silent` is set."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self.silent = threading.Event()
        self.loses_objects = False
        """Whether objects that were written are reported as not found."""
        self.uri = f"s3://bucket/a?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=x"

    def _respond(self, request: BaseHTTPRequestHandler, _body: bytes) -> None:
        if self.silent.is_set():
            self.ending.wait(PATIENCE_S)
        body = LISTING if request.command == "GET" else UPLOAD if "uploads" in request.path else b""
        is_lost = self.loses_objects and request.command == "HEAD" and request.path.count("/") > 1
        with contextlib.suppress(ConnectionError):
            reply(request, 404 if is_lost else 200, body, etag='"tag"')


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as started:
        yield started


async def test_a_store_that_does_not_answer_at_the_start(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(writer_link, "OPEN_S", 0.5)
    store.silent.set()
    link = WriterLink(NOWHERE._replace(place=store.uri))
    with pytest.raises(CannotArchive, match=r"did not answer within 0\.5 s"):
        await link.start()
    assert link._process.returncode is not None


def test_a_store_that_falls_silent_does_not_keep_the_daemon(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the history is lost, which is logged. The daemon ends long before the store's client gives up."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(extension, "CLOSE_S_MIN", 0.5)
    with daemon_in_process("--archive-uri", store.uri, "--shutdown-grace-ms", "100"):
        store.silent.set()
    assert "the end of the history could not be written" in caplog.text


@pytest.mark.slow  # starts a daemon that loads the store's client
def test_what_the_stores_client_prints_is_not_taken_for_the_protocol(store: Store, tmp_path: Path) -> None:
    """The client logs to standard output, also the channel to the daemon. Startup still fails with one line."""
    store.loses_objects = True
    ended = run_to_end(
        tmp_path,
        ["--archive-uri", store.uri, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"],
        CREDENTIALS,
    )
    assert ended.returncode == 1
    assert "cannot write an archive to" in ended.stderr
    assert "Traceback" not in ended.stderr
