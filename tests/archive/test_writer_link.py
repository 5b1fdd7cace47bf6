"""The writer process and the link to it: sending never blocks, order is kept, losses are reported, and only the daemon
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

from purgatory.engine.calls import CancelName
from purgatory.extensions.archive import extension, vocabulary, writer_link
from purgatory.extensions.archive.records import row_record
from purgatory.extensions.archive.vocabulary import CallStamp, CannotArchive
from purgatory.extensions.archive.writer_link import WriterLink
from purgatory.extensions.archive.writer_process import NICENESS, LineOutput, serve
from purgatory.extensions.archive.writer_protocol import WriterConfig, decode_frame, encode_frame, read_frame
from purgatory.testing import daemon_in_process
from tests.archive.archive_kit import CLOSE_S, NOWHERE, RUN, ThreadLink
from tests.kit.daemon import run_to_end
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.post_server import PostServer, reply


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
        self._ending: Final = threading.Event()

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        super().__exit__(*error)

    def _respond(self, request: BaseHTTPRequestHandler, _body: bytes) -> None:
        if self.silent.is_set():
            self._ending.wait(PATIENCE_S)
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
