"""One attempt against a real server: the address that was checked is the one that is connected to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

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
    Attempt,
    WebhookPoster,
    retry_after_s,
)
from purgatory.service.transport.outbound import READ_BYTES
from tests.kit.recorded import assert_recorded, cases_of
from tests.webhooks.receiver import DROP, HANG, SECRET, WebhookReceiver

BODY = '{"type":"operation.ended","data":{"result":{"operationId":"1"}}}'


def signed() -> list[tuple[bytes, bytes]]:
    """Headers signed now: receivers refuse signatures older than five minutes, and a test run takes longer."""
    return WebhookSigner([SECRET]).headers("id.1", BODY)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def served_by(serve: Serve) -> AsyncIterator[str]:
    """The URL of a server that handles each connection in this way, until the clients have closed them."""
    serving: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.ensure_future(serve(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://a.example:{server.sockets[0].getsockname()[1]}/"
        await asyncio.gather(*serving)


@asynccontextmanager
async def poster(
    *resolved: list[str], allow_private: bool = True, timeout_ms: int = 5_000
) -> AsyncIterator[tuple[WebhookPoster, list[str]]]:
    """A poster for a.example, which has these addresses at the first look-up, at the second, …, and the list of
    names looked up. An empty list of addresses: the name is not known.
    """
    asked: list[str] = []

    async def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        found = resolved[min(len(asked), len(resolved)) - 1]
        if not found:
            raise OSError("no such name")
        return found

    rules = CallbackRules(["a.example:*"], allow_http=True, allow_private=allow_private)
    made = WebhookPoster(rules, resolve, timeout_ms=timeout_ms, posts_max=4, ssl_context=ssl.create_default_context())
    yield made, asked
    await made.close()


async def posted(url: str, *resolved: list[str], **options: Any) -> tuple[Attempt, list[str]]:  # noqa: ANN401
    """One attempt, and the names that were looked up."""
    async with poster(*resolved or (["127.0.0.1"],), **options) as (made, asked):
        return await made.post(url, signed(), BODY.encode()), asked


ATTEMPTS = Path(__file__).with_name("attempts.txt")


async def test_attempts_end_as_recorded() -> None:
    """As in attempts.txt. The addresses of a name are looked up once and tried in turn; a status or silence ends an
    attempt.
    """

    async def ending(case: str) -> str:
        given = eval(case, {"DROP": DROP, "HANG": HANG})
        status, addresses = given.pop("answer", 204), given.pop("addresses", ())
        with WebhookReceiver(lambda _received: status) as receiver:
            attempt, asked = await posted(f"http://a.example:{receiver.port}/", *addresses, **given)
            is_sent = attempt.end != NOT_ALLOWED and "has no address" not in attempt.reason
            receiver.wait_for(lambda all_: len(all_) == is_sent)
        assert asked == ["a.example"]
        how = f"{attempt.end}{' for good' if attempt.is_final else ''}{'' if is_sent else ', nothing was sent'}"
        return f"{how}: {attempt.reason}" if attempt.reason else how

    assert_recorded(ATTEMPTS, [await ending(case) for case in cases_of(ATTEMPTS)])


def writing(head: bytes, part: bytes = b"") -> Serve:
    """Answer with a head and then parts until the client closes the connection; without a part, close it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        with suppress(ConnectionError):
            while part:
                writer.write(part)
                await writer.drain()
        writer.close()

    return serve


@pytest.mark.parametrize("status", [100, 102, 103, 199])
async def test_interim_responses_without_end(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """A receiver that streams interim responses is unreachable once they exceed the size limit, long before the
    deadline. The parser receives only small parts at a time, so that the event loop is free in between.
    """
    parts: list[int] = []
    receive_data = h11.Connection.receive_data

    def noted(connection: h11.Connection, data: bytes) -> None:
        parts.append(len(data))
        receive_data(connection, data)

    monkeypatch.setattr(h11.Connection, "receive_data", noted)
    async with served_by(writing(b"", f"HTTP/1.1 {status} Wait\r\n\r\n".encode() * 100)) as url:
        attempt, _ = await posted(url, timeout_ms=60_000)
    assert (attempt.end, f"more than {ANSWER_BYTES_MAX} bytes" in attempt.reason) == (UNREACHABLE, True)
    assert sum(parts) <= ANSWER_BYTES_MAX + READ_BYTES
    assert max(parts) <= READ_BYTES


async def test_an_answer_without_end_is_not_read() -> None:
    chunks = writing(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4_096 + b"\r\n")
    async with served_by(chunks) as url:
        assert (await posted(url))[0].end == DELIVERED


async def test_a_date_after_which_to_try_again_is_honoured() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    head = f"HTTP/1.1 429 Slow\r\nRetry-After: {date}\r\ncontent-length: 0\r\n\r\n"
    async with served_by(writing(head.encode())) as url:
        attempt, _ = await posted(url)
    assert attempt.end == REFUSED
    assert 300 < attempt.retry_after_s <= 600


async def test_a_kept_connection_has_the_limit_for_each_answer() -> None:
    body = b"x" * (ANSWER_BYTES_MAX // 2)
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(BODY.encode()):
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    async with served_by(serve) as url, poster(["127.0.0.1"]) as (made, _):
        for _ in range(5):
            attempt = await made.post(url, signed(), BODY.encode())
            assert attempt.end == DELIVERED, attempt.reason
        assert len(connections) == 1


RETRY_AFTER = Path(__file__).with_name("retry_after.txt")
NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def test_when_a_receiver_asks_to_be_called_again() -> None:
    """A pause in seconds or as a date in any of HTTP's three formats, at most an hour; other values are ignored."""
    values = (case.strip('"').encode() for case in cases_of(RETRY_AFTER))
    assert_recorded(RETRY_AFTER, (f"{retry_after_s(value, NOON)}" for value in values))


@given(st.binary(max_size=40) | st.text().map(lambda text: f"Wed, {text} GMT".encode()))
def test_any_value_is_a_pause_or_none(value: bytes) -> None:
    assert 0 <= retry_after_s(value, NOON) <= 3_600
