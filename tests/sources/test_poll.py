"""The poll source against HTTP servers that move, hang, lie and go back."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from purgatory_client import Client
from purgatory_connectors.cli import open_source
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.poll.poll_source import HttpReader, PollSource, positions_of
from purgatory_connectors.publisher.observation import End
from purgatory_connectors.publisher.polled_source import Unreadable

from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory.testing import ConnectorContract, WatchedSystem
from tests.kafka.recording_publisher import RecordingPublisher
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually
from tests.kit.recorded import assert_recorded, cases_of
from tests.sources.publishing import Status, publishing, until_mark

ANSWERS = Path(__file__).with_name("answers.txt")

FAST = "poll_ms=5&idle_poll_ms=10"


@pytest.fixture
def status() -> Iterator[Status]:
    with Status() as page:
        yield page


class StatusPage(WatchedSystem):
    mark = ends = "poll/main/position"

    def __init__(self, status: Status) -> None:
        self._status, self._number = status, 0
        self.uri = f"poll+http://{status.address}/?end=&timeout_ms=200&{FAST}"
        self.begin_again()

    def write(self) -> int:
        self._number += 1
        self._status.say(self._number)
        return self._number

    def position(self) -> int:
        return self._number

    def stop(self) -> None:
        self._status.may_answer.clear()

    def start(self) -> None:
        self._status.may_answer.set()

    def begin_again(self) -> None:
        self._number = 0
        self._status.say(0)


@pytest.fixture(scope="module")
def system() -> Iterator[StatusPage]:
    with Status() as status:
        yield StatusPage(status)


@pytest.mark.slow
class TestContract(ConnectorContract): ...


async def test_new_wait_makes_an_idle_source_ask_at_once(shared_daemon: DaemonProcess, status: Status) -> None:
    """It then continues asking."""
    status.say(1)
    uri = f"poll+http://{status.address}/?name=idle&poll_ms=5&idle_poll_ms=3600000"
    async with publishing(shared_daemon, uri) as client:
        await until_mark(client, "poll/idle/position", lambda mark: mark.high_watermark == 1)
        assert len(status.requests) == 1
        status.say(2)
        assert (await client.produce({("poll/idle/position", 0): 2}, timeout=60)).satisfied
        pending = asyncio.create_task(client.produce({("poll/idle/position", 0): 3}, timeout=60))
        asked = len(status.requests) + 3
        await eventually(lambda: len(status.requests) > asked)
        status.say(3)
        assert (await pending).satisfied


class HeldSource(PollSource):
    """Counts its reads. After `hold`, each hangs, even when it is cancelled, until it is released."""

    def __init__(self) -> None:
        super().__init__(SourceUri.parse("poll+http://h/?name=x&poll_ms=600000&timeout_ms=50"))
        self.reads = 0
        self.released = asyncio.Event()
        self.released.set()

    async def read(self, target: str) -> dict[str, int]:
        self.reads += 1
        while not self.released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.released.wait()
        return {"position": 1}


class ConnectedPublisher(RecordingPublisher):
    daemons_connected = 1


async def test_the_time_is_up_although_the_read_cannot_be_cancelled() -> None:
    """Drivers wait for the server even to cancel a query. The source does not wait for that."""
    source = HeldSource()
    source.released.clear()
    with pytest.raises(Unreadable, match="it does not answer"):
        await source.asked("")
    source.released.set()
    assert await source.asked("") == {"position": 1}


async def test_demand_that_comes_and_goes_shortens_no_interval() -> None:
    source, publisher = HeldSource(), ConnectedPublisher()
    running = asyncio.create_task(source.run(publisher))
    await publisher.until(lambda: publisher.marks)
    for _ in range(20):
        publisher.want(("poll/x/position", 0))
        await asyncio.sleep(0.001)
        publisher.want()
        await asyncio.sleep(0.001)
    assert source.reads == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class SlowToEnd(HeldSource):
    """Its reads end some time after they were cancelled, as those of drivers that talk to the server once more."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    async def read(self, target: str) -> dict[str, int]:
        self.reads += 1
        never: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()
        try:
            return await never
        finally:
            await asyncio.sleep(0.01)
            self.ended.append("read")

    async def close(self) -> None:
        self.ended.append("closed")
        await super().close()


async def test_source_that_ends_closes_its_connections_after_the_last_read() -> None:
    """A read has its connection until it ends: it would give it back to a pool that is closed already."""
    source = SlowToEnd()
    running = asyncio.create_task(source.run(ConnectedPublisher()))
    await eventually(lambda: source.reads)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert source.ended == ["read", "closed"]


async def test_a_cancelled_request_leaves_its_pool(status: Status) -> None:
    """A pool may count a request that was cancelled in the middle as active for ever. It is not used again, not even by
    a request that begins before the cancelled one has ended: nothing would close its connection.
    """
    source = open_source(SourceUri.parse(f"poll+http://{status.address}/?timeout_ms=1000"))
    assert isinstance(source, PollSource)
    reader = source._reader
    assert isinstance(reader, HttpReader)
    assert await source.asked("") == {"position": 0}
    status.may_answer.clear()
    pool = reader._pool
    with pytest.raises(Unreadable):
        await source.asked("")
    status.may_answer.set()
    assert await source.asked("") == {"position": 0}
    assert reader._pool is not pool
    assert (len(pool.connections), len(reader._pool.connections)) == (0, 1)
    await source.close()


async def test_answer_without_a_position_is_unreadable_with_the_reason(status: Status) -> None:
    """As in answers.txt."""
    source = open_source(SourceUri.parse(f"poll+http://{status.address}/"))
    assert isinstance(source, PollSource)
    reasons = []
    for case in cases_of(ANSWERS):
        status.status, status.body = int(case[:3]), case[4:].encode()
        with pytest.raises(Unreadable) as refused:
            await source.asked("")
        reasons.append(str(refused.value).replace(status.address, "HOST"))
    await source.close()
    assert_recorded(ANSWERS, reasons)


def readings_of(*readings: object) -> list[tuple[str, int | None, bool]]:
    """The observations of a source that reads these values one after the other."""
    source = open_source(SourceUri.parse("poll+http://h/?name=x"))
    assert isinstance(source, PollSource)
    source.begin({})
    seen = [one for reading in readings for one in source.apply("", positions_of(reading), 0.0)]
    return [(one.topic, one.offset, one.is_set_back_to) for one in seen]


@given(st.lists(st.integers(0, 5) | st.none(), max_size=20))
@example([5, 3, 5])
@example([5, 3, 4])
@example([5, None, 6])
@example([5, 3, None, 4])
def test_lower_or_missing_reading_counts_once_it_was_so_twice(readings: list[int | None]) -> None:
    """Against a plain model, in which a mark that is gone is at -1."""
    mark, was_lower, expected = -1, False, []
    for reading in readings:
        position = -1 if reading is None else reading
        is_lower = position < mark
        if not is_lower or was_lower:
            if (position, mark) != (-1, -1):
                expected.append(("poll/x/position", reading, is_lower))
            mark, is_lower = position, False
        was_lower = is_lower
    assert readings_of(*readings) == expected


def test_several_positions_by_name() -> None:
    """An object or rows of two columns make a mark for each name; slashes are escaped, and names are limited."""
    assert positions_of({"a": 1, "b/c": Decimal(2), "d": None, "e": 3.0}) == {"a": 1, "b%2Fc": 2, "e": 3}
    wrong_ones: list[dict[str, object]] = [{"": 1}, {"x" * 141: 1}, {str(n): 1 for n in range(1_001)}, {"a": []}]
    for wrong in wrong_ones:
        with pytest.raises(Unreadable):
            positions_of(wrong)


@pytest.mark.parametrize("value", ["Bearer s3cret\n", "Bearer\ns3cret", "Bearer s3cr\u00e8t"])
async def test_a_header_that_cannot_be_sent(status: Status, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A line break at the end is dropped; other such values are refused at the start. No message shows the value."""
    monkeypatch.setenv("PURGATORY_POLL_HEADER_AUTHORIZATION", value)
    uri = SourceUri.parse(f"poll+http://{status.address}/a%2Fb/status/?x=y")
    if value.endswith("\n"):
        source = open_source(uri)
        assert isinstance(source, PollSource)
        assert await source.asked("") == {"position": 0}
        await source.close()
        assert status.requests == [("/a%2Fb/status/?x=y", "Bearer s3cret")]
        return
    with pytest.raises(SourceUriInvalid, match="'authorization' must be one line") as refused:
        open_source(uri)
    assert "s3c" not in str(refused.value)


async def test_name_without_an_end_has_nothing_to_wait_for(status: Status) -> None:
    """A name that has no position either is unknown: a wait for nothing would be satisfied at once. Without the option
    `end`, a request for ends names it.
    """
    status.say({"applied": {"orders": 3, "new": 0}, "head": {"orders": 5}})
    source = open_source(SourceUri.parse(f"poll+http://{status.address}/?pointer=/applied&end=/head"))
    assert isinstance(source, PollSource)
    assert await source.ends(["poll/main/orders", "poll/main/new"]) == [End("poll/main/orders", 0, 5)]
    with pytest.raises(SourceStale, match="poll/main/typo has neither a position nor an end"):
        await source.ends(["poll/main/orders", "poll/main/typo"])
    await source.close()
    with pytest.raises(SourceStale, match="add the option end="):
        await open_source(SourceUri.parse(f"poll+http://{status.address}/")).ends(["poll/main/position"])


def test_options_of_the_command_are_taken_as_they_are(shared_daemon: DaemonProcess, status: Status) -> None:
    """They may contain spaces and signs that mean something in an address."""
    status.say({"a & b": 7})
    command = [sys.executable, "-m", "purgatory_connectors", "poll", f"poll+http://{status.address}/", "-o", "name=cli"]
    command += ["-o", "pointer=/a & b", "--to", shared_daemon.address]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process, Client(shared_daemon.address) as client:
        try:
            assert client.produce({("poll/cli/position", 0): 7}, timeout=60).satisfied
        finally:
            process.terminate()
            assert process.wait(30) == 0
