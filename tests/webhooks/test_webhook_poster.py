"""One attempt against a real server: the address that was checked is the one that is connected to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.extensions.webhooks.callback_rules import CallbackRules
from purgatory.extensions.webhooks.signing import WebhookSigner
from purgatory.extensions.webhooks.webhook_poster import (
    ANSWER_BYTES_MAX,
    DELIVERED,
    NOT_ALLOWED,
    REFUSED,
    UNREACHABLE,
    WebhookPoster,
    retry_after_s,
)
from purgatory.service.transport.outbound import READ_BYTES
from tests.webhooks.receiver import DROP, HANG, SECRET, WebhookReceiver

BODY = '{"type":"operation.ended","data":{"result":{"operationId":"1"}}}'


def signed() -> list[tuple[bytes, bytes]]:
    """Headers signed now: receivers refuse signatures older than five minutes, and a test run takes longer."""
    return WebhookSigner([SECRET]).headers("id.1", BODY)


class ChangingNames:
    """A resolver that returns its answers one after the other, then repeats the last one."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        del host, port
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


MakePoster = Callable[..., WebhookPoster]


@asynccontextmanager
async def served_by(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """The URL of a server that handles each connection in this way."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://a.example:{server.sockets[0].getsockname()[1]}/"


@pytest.fixture
async def make_poster() -> AsyncIterator[MakePoster]:
    """Posters for a.example and loopback, closed at the end."""
    made: list[WebhookPoster] = []

    def make(names: ChangingNames, *, allow_private: bool = True, timeout_ms: int = 5_000) -> WebhookPoster:
        rules = CallbackRules(["a.example:*"], allow_http=True, allow_private=allow_private)
        context = ssl.create_default_context()
        made.append(WebhookPoster(rules, names, timeout_ms=timeout_ms, posts_max=4, ssl_context=context))
        return made[-1]

    yield make
    for poster in made:
        await poster.close()


async def test_name_is_resolved_once_for_a_connection_and_sent_as_host(make_poster: MakePoster) -> None:
    names = ChangingNames(["127.0.0.1"], ["192.0.2.1"])
    with WebhookReceiver() as receiver:
        attempt = await make_poster(names).post(f"http://a.example:{receiver.port}/", signed(), BODY.encode())
        assert (attempt.end, names.asked, len(receiver.received)) == (DELIVERED, 1, 1)


async def test_a_name_that_turns_private_is_not_connected_to(make_poster: MakePoster) -> None:
    names = ChangingNames(["127.0.0.1"])
    with WebhookReceiver() as receiver:
        poster = make_poster(names, allow_private=False)
        attempt = await poster.post(f"http://a.example:{receiver.port}/", signed(), BODY.encode())
        assert (attempt.end, names.asked, receiver.received) == (NOT_ALLOWED, 1, [])
    assert "127.0.0.1" in attempt.reason


async def test_next_address_is_tried_if_one_refuses_connections(make_poster: MakePoster) -> None:
    names = ChangingNames(["127.0.0.2", "127.0.0.1"])
    with WebhookReceiver() as receiver:
        attempt = await make_poster(names).post(f"http://a.example:{receiver.port}/", signed(), BODY.encode())
    assert attempt.end == DELIVERED


@pytest.mark.parametrize(
    ("answer", "end", "reason"),
    [
        (204, DELIVERED, ""),
        (500, REFUSED, "HTTP 500"),
        (302, REFUSED, "redirects are not followed"),
        (410, REFUSED, "HTTP 410"),
        (DROP, UNREACHABLE, "Protocol"),
        (HANG, UNREACHABLE, "no answer within"),
    ],
)
async def test_status_or_silence_ends_an_attempt(make_poster: MakePoster, answer: int, end: str, reason: str) -> None:
    with WebhookReceiver(lambda _received: answer) as receiver:
        poster = make_poster(ChangingNames(["127.0.0.1"]), timeout_ms=300 if answer == HANG else 5_000)
        attempt = await poster.post(f"http://a.example:{receiver.port}/", signed(), BODY.encode())
        receiver.wait_for(lambda all_: len(all_) == 1)
    assert attempt.end == end
    assert reason in attempt.reason
    assert attempt.is_final == (answer == 410)


async def test_name_without_an_address_ends_the_attempt(make_poster: MakePoster) -> None:
    class NoNames(ChangingNames):
        async def __call__(self, host: str, port: int) -> list[str]:
            raise OSError(host, port)

    attempt = await make_poster(NoNames([])).post("http://a.example:1/", signed(), b"{}")
    assert (attempt.end, "has no address" in attempt.reason) == (UNREACHABLE, True)


@pytest.mark.parametrize("status", [100, 102, 103, 199])
async def test_interim_responses_without_end(
    make_poster: MakePoster, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A receiver that streams interim responses is unreachable once they exceed the size limit, long before the
    deadline. The parser receives only small parts at a time, so that the event loop is free in between.
    """
    parts: list[int] = []
    receive_data = h11.Connection.receive_data

    def noted(connection: h11.Connection, data: bytes) -> None:
        parts.append(len(data))
        receive_data(connection, data)

    monkeypatch.setattr(h11.Connection, "receive_data", noted)
    interim = f"HTTP/1.1 {status} Wait\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(10_000):
                writer.write(interim * 100)
                await writer.drain()
        writer.close()

    async with served_by(serve) as url:
        poster = make_poster(ChangingNames(["127.0.0.1"]), timeout_ms=60_000)
        attempt = await poster.post(url, signed(), b"{}")
    assert (attempt.end, f"more than {ANSWER_BYTES_MAX} bytes" in attempt.reason) == (UNREACHABLE, True)
    assert sum(parts) <= ANSWER_BYTES_MAX + READ_BYTES
    assert max(parts) <= READ_BYTES


async def test_a_kept_connection_has_the_limit_for_each_answer(make_poster: MakePoster) -> None:
    body = b"x" * (ANSWER_BYTES_MAX // 2)
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"{}"):
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    async with served_by(serve) as url:
        poster = make_poster(ChangingNames(["127.0.0.1"]))
        for _ in range(5):
            attempt = await poster.post(url, signed(), b"{}")
            assert attempt.end == DELIVERED, attempt.reason
        assert len(connections) == 1
        await poster.close()


NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"120", 120),
        (b"0", 0),
        (b"3601", 3_600),
        (b"9" * 5_000, 3_600),
        (b"Wed, 25 Nov 2026 12:02:00 GMT", 120),
        (b"Wednesday, 25-Nov-26 12:02:00 GMT", 120),
        (b"Wed Nov 25 12:02:00 2026", 120),
        (b"Wed, 25 Nov 2026 13:02:00 +0100", 120),
        (b"Wed, 25 Nov 2026 11:00:00 GMT", 0),
        (b"Fri, 31 Dec 9999 23:59:59 GMT", 3_600),
        (b"", 0),
        (b"-5", 0),
        (b"1.5", 0),
        (b"soon", 0),
        (b"\xff", 0),
        (b"Wed, 99 Nov 2026 12:02:00 GMT", 0),
    ],
)
def test_when_a_receiver_asks_to_be_called_again(value: bytes, seconds: int) -> None:
    """A pause in seconds or as a date in any of HTTP's three formats, at most an hour; other values are ignored."""
    assert retry_after_s(value, NOON) == seconds


@given(st.binary(max_size=40) | st.text().map(lambda text: f"Wed, {text} GMT".encode()))
def test_any_value_is_a_pause_or_none(value: bytes) -> None:
    assert 0 <= retry_after_s(value, NOON) <= 3_600


async def test_a_date_after_which_to_try_again_is_honoured(make_poster: MakePoster) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 429 Slow\r\nRetry-After: {date}\r\ncontent-length: 0\r\n\r\n".encode())
        writer.close()

    async with served_by(serve) as url:
        attempt = await make_poster(ChangingNames(["127.0.0.1"])).post(url, signed(), b"{}")
    assert attempt.end == REFUSED
    assert 300 < attempt.retry_after_s <= 600


async def test_an_answer_without_end_is_not_read(make_poster: MakePoster) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"1000\r\n" + b"x" * 4_096 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            writer.close()

    async with served_by(serve) as url:
        attempt = await make_poster(ChangingNames(["127.0.0.1"])).post(url, signed(), b"{}")
    assert attempt.end == DELIVERED
