"""The example's frames and accounts: each request gets its own answer once, each wait ends once, sums are checked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from examples.replicated_log.log_records import LogRecord
from examples.replicated_log.proof import Counters, check_counters, check_ledger, check_records, percentile, wait_table
from examples.replicated_log.wait_ledger import GIVEN_UP, WaitEndedTwice, WaitLedger
from examples.replicated_log.wire import LOOPBACK, Connection, Message, WireError, encode_message, read_message

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Connect = Callable[[Peer], Awaitable[Connection]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects to a peer that behaves as the test says."""
    opened: list[tuple[asyncio.Server, Connection]] = []

    async def connect_to(peer: Peer) -> Connection:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await peer(reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, LOOPBACK, 0)
        opened.append((server, await Connection.open(server.sockets[0].getsockname()[1])))
        return opened[-1][1]

    yield connect_to
    for server, connection in opened:
        await connection.close()
        server.close()
        await server.wait_closed()


async def test_answers_out_of_order_find_their_requests(connect: Connect) -> None:
    """Three requests answered in reverse order each get their own answer, bodies with any bytes included."""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = [await read_message(reader) for _ in range(3)]
        for request in reversed(requests):
            assert request is not None
            writer.write(encode_message(Message({"id": request.header["id"]}, request.body)))
        await reader.read()

    connection = await connect(peer)
    bodies = [b"", b"\x00\xff\n", b"x" * 100_000]
    answers = await asyncio.gather(*(connection.call("echo", body) for body in bodies))
    assert [answer.body for answer in answers] == bodies


async def test_second_answer_ends_the_connection(connect: Connect) -> None:
    """An answer to a request that has had its answer fails everything that is still open."""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_message(reader)
        assert request is not None
        await read_message(reader)
        writer.write(encode_message(Message({"id": request.header["id"]})) * 2)
        await reader.read()

    connection = await connect(peer)
    first, second = connection.send("one"), connection.send("two")
    await first
    with pytest.raises(WireError, match="second"):
        await second


async def test_lost_connection_fails_open_requests(connect: Connect) -> None:
    """When the peer goes, open and later requests fail instead of waiting for ever."""

    async def peer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await read_message(reader)

    connection = await connect(peer)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await connection.call("anything")


@pytest.mark.parametrize(
    "data", [b"\xff" * 8, b"\x00\x00\x00\x02\x00\x00\x00\x00{]", b"\x00\x00\x00\x01\x00\x00\x00\x007"]
)
async def test_unreadable_frame_is_refused(data: bytes) -> None:
    """A frame that is too big, no JSON or no object is an error, not a guess."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    with pytest.raises(WireError):
        await read_message(reader)


def test_wait_that_ends_twice_raises() -> None:
    """The ledger lets a wait end once, and says when one has not ended."""
    ledger = WaitLedger()
    first, _ = ledger.start("produce"), ledger.start("produce")
    ledger.end(first, "satisfied", 1.0)
    assert not check_ledger(ledger).holds
    with pytest.raises(WaitEndedTwice):
        ledger.end(first, "expired", 2.0)


def test_ledger_travels_as_json() -> None:
    """A ledger from another process adds to this one's, the open waits too."""
    ours, theirs = WaitLedger(), WaitLedger()
    ours.end(ours.start("fetch/follower"), "expired", 5.0)
    theirs.end(theirs.start("fetch/follower"), "expired", 6.0)
    theirs.start("produce")
    ours.add_json(theirs.to_json())
    assert ours.ended("fetch/follower", "expired") == 2
    assert (ours.started["produce"], ours.open_count) == (1, 1)


@pytest.mark.parametrize(
    ("satisfied", "cancelled", "holds"), [(3, 1, True), (4, 0, True), (2, 2, False), (3, 0, False)]
)
def test_counters_must_agree_with_the_ledger(satisfied: int, cancelled: int, holds: bool) -> None:
    """Only a wait that was given up may count otherwise at the daemon."""
    ledger = WaitLedger()
    for outcome in ("satisfied", "satisfied", "satisfied", GIVEN_UP):
        ledger.end(ledger.start("fetch/follower"), outcome, 1.0)
    none = dict.fromkeys(("satisfied", "failed", "expired", "cancelled", "shutting_down"), 0)
    before = {"fetch": Counters(0, 0, none)}
    after = {"fetch": Counters(4, 0, {**none, "satisfied": satisfied, "cancelled": cancelled})}
    assert all(check.holds for check in check_counters(before, after, ledger, alone=True)) == holds


@pytest.mark.parametrize("got", [[b"a"], [b"a", b"c"], [b"a", b"b", b"b"], [b"b", b"a"]])
def test_other_records_than_sent_are_noticed(got: list[bytes]) -> None:
    """A missing, changed, additional or misplaced record fails the check."""
    records = [LogRecord(offset, payload) for offset, payload in enumerate(got)]
    assert not check_records("consumer", records, [b"a", b"b"], 0).holds


def test_percentiles_are_values_that_occurred() -> None:
    """The nearest rank: of 1 to 100 the 95th is 95; of one value each is that value."""
    assert [percentile(list(map(float, range(1, 101))), percent) for percent in (50, 95, 99)] == [50, 95, 99]
    assert percentile([7.0], 50) == 7


def test_table_has_a_line_for_each_kind_and_outcome() -> None:
    """Counts and times stand under their headings."""
    ledger = WaitLedger()
    for waited_ms in (1.0, 2.0):
        ledger.end(ledger.start("produce"), "satisfied", waited_ms)
    heading, _, line = wait_table(ledger)
    assert heading.split() == ["wait", "outcome", "count", "p50", "ms", "p95", "ms", "p99", "ms", "max", "ms"]
    assert line.split() == ["produce", "satisfied", "2", "1.0", "2.0", "2.0", "2.0"]
