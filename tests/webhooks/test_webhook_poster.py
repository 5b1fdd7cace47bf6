"""One attempt against a real server: the address that is checked is the one that is connected to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable

import pytest

from purgatory.service.webhooks.callback_rules import CallbackRules
from purgatory.service.webhooks.webhook_form import WebhookSigner
from purgatory.service.webhooks.webhook_poster import DELIVERED, NOT_ALLOWED, REFUSED, UNREACHABLE, WebhookPoster
from tests.webhooks.receiver import DROP, HANG, SECRET, WebhookReceiver

BODY = '{"type":"operation.ended","data":{"result":{"operationId":"1"}}}'


def signed() -> list[tuple[bytes, bytes]]:
    """Headers signed now: a receiver refuses a signature of five minutes ago, and a suite runs for longer."""
    return WebhookSigner([SECRET]).headers("id.1", BODY)


class ChangingNames:
    """A resolver whose answers come one after the other; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        del host, port
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


MakePoster = Callable[..., WebhookPoster]


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


async def test_a_name_is_resolved_once_for_a_connection(make_poster: MakePoster) -> None:
    """The name means the receiver at the first question, and would mean another address at a second one: none is asked,
    and the host header is still the name.
    """
    names = ChangingNames(["127.0.0.1"], ["192.0.2.1"])
    with WebhookReceiver() as receiver:
        attempt = await make_poster(names).post(f"http://a.example:{receiver.port}/", signed(), BODY.encode())
        assert (attempt.end, names.asked, len(receiver.received)) == (DELIVERED, 1, 1)


async def test_a_name_that_turns_private_is_not_connected_to(make_poster: MakePoster) -> None:
    """A name that was public when it was named and means this machine by now: nothing arrives there."""
    names = ChangingNames(["127.0.0.1"])
    with WebhookReceiver() as receiver:
        poster = make_poster(names, allow_private=False)
        attempt = await poster.post(f"http://a.example:{receiver.port}/", signed(), BODY.encode())
        assert (attempt.end, names.asked, receiver.received) == (NOT_ALLOWED, 1, [])
    assert "127.0.0.1" in attempt.reason


async def test_the_next_address_is_tried(make_poster: MakePoster) -> None:
    """An address at which nobody listens is followed by the next one."""
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
async def test_what_becomes_of_an_attempt(make_poster: MakePoster, answer: int, end: str, reason: str) -> None:
    """2xx is delivered and any other answer refused; 410 is final; no answer at all is a host that is unreachable."""
    with WebhookReceiver(lambda _received: answer) as receiver:
        poster = make_poster(ChangingNames(["127.0.0.1"]), timeout_ms=300 if answer == HANG else 5_000)
        attempt = await poster.post(f"http://a.example:{receiver.port}/", signed(), BODY.encode())
        assert len(receiver.received) == 1
    assert attempt.end == end
    assert reason in attempt.reason
    assert attempt.is_final == (answer == 410)


async def test_a_name_that_nobody_knows(make_poster: MakePoster) -> None:
    """A resolver's error is one of the attempt."""

    class NoNames(ChangingNames):
        async def __call__(self, host: str, port: int) -> list[str]:
            raise OSError(host, port)

    attempt = await make_poster(NoNames([])).post("http://a.example:1/", signed(), b"{}")
    assert (attempt.end, "has no address" in attempt.reason) == (UNREACHABLE, True)


async def test_an_answer_without_end_is_not_read(make_poster: MakePoster) -> None:
    """A receiver that answers 200 and then sends for ever: it is delivered, and the rest is not waited for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"1000\r\n" + b"x" * 4_096 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        attempt = await make_poster(ChangingNames(["127.0.0.1"])).post(f"http://a.example:{port}/", signed(), b"{}")
    assert attempt.end == DELIVERED
