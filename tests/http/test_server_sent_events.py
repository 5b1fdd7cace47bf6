"""Results and listings as server-sent events: numbered, resumed, kept up to date."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from purgatory.service.http import server_sent_events
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.http.http_serving import HttpCaller, serving_http
from tests.service.serving import PATIENCE_S, eventually, signal


@dataclass(frozen=True)
class Event:
    """One event as a browser sees it."""

    name: str
    number: str
    data: object


class EventReader:
    """Reads events, passing comments over."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> Event:
        fields: dict[str, str] = {}
        while True:
            line = (await asyncio.wait_for(self.response.content.readline(), PATIENCE_S)).decode()
            assert line, "the stream has ended"
            if line == "\n" and fields:
                return Event(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"]))
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value


@asynccontextmanager
async def events(caller: HttpCaller, path: str, **headers: str) -> AsyncIterator[EventReader]:
    async with caller.client.get(path, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield EventReader(response)


async def register_expired(caller: HttpCaller, *operation_ids: int) -> None:
    """Operations that end at once."""
    operations = [signal(operation_id, "k", timeout_ms=0) for operation_id in operation_ids]
    batch = wire.RegisterBatch(rows=operation_pb2.OperationRows(operations=operations))
    await caller.served.stub.Register(wire.RegisterRequest(session_id="s", batch=batch))


async def test_results_are_numbered_and_resumed() -> None:
    """Each result once, with its sequence number; who comes back says what it has seen, which is acknowledged."""
    async with serving_http() as caller:
        await register_expired(caller, 1, 2)
        async with events(caller, "/v1/results?session=s") as reader:
            first, second = await reader.next(), await reader.next()
            assert (first.number, second.number) == ("1", "2")
            assert first.data == {
                "operationId": "1",
                "kind": "OPERATION_KIND_SIGNAL",
                "outcome": "OUTCOME_EXPIRED",
                "partitions": [{"key": "k", "errorCode": 7, "requiredOffset": "1", "logStartOffset": "-1"}],
            }
            await register_expired(caller, 3)
            assert (await reader.next()).number == "3"
        session = caller.host.sessions.get("s", caller.host.sessions.accounts.nobody)
        assert session.outbox.unacknowledged == 3
        async with events(caller, "/v1/results?session=s", **{"Last-Event-ID": "2"}) as reader:
            assert (await reader.next()).number == "3"
            assert session.outbox.unacknowledged == 1
        async with events(caller, "/v1/results?session=s&last_sequence=3") as reader:
            await register_expired(caller, 4)
            assert (await reader.next()).number == "4"
        await eventually(lambda: caller.host.fair_queue.calls == 0, "who goes away leaves no call behind")
        assert session.stream is None


async def test_a_stream_that_waits_has_begun() -> None:
    """A browser hears at once that it is connected, though there is nothing to tell."""
    async with serving_http() as caller, events(caller, "/v1/results?session=s") as reader:
        assert (await reader.response.content.readline()).startswith(b":")


async def test_what_ends_a_stream_of_results_is_told() -> None:
    """Another stream of the same session, or its end."""
    async with (
        serving_http() as caller,
        events(caller, "/v1/results?session=s") as first,
        events(caller, "/v1/results?session=s") as second,
    ):
        assert (await first.next()) == Event("going_away", "", {"reason": "REASON_TAKEN_OVER"})
        await caller.served.stub.CloseSession(wire.CloseSessionRequest(session_id="s"))
        assert (await second.next()).data == {"reason": "REASON_SESSION_CLOSED"}
        assert await second.response.content.read() == b""


async def test_a_listing_stays_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent at once, and again when it has changed, not otherwise; topics that begin otherwise are not in it."""
    monkeypatch.setattr(server_sent_events, "WATCH_INTERVAL_S", 0.01)
    async with serving_http() as caller:
        await caller.served.high_watermark("orders", 5)
        await caller.served.high_watermark("bills", 5)
        async with events(caller, "/v1/watch?topic_prefix=ord") as reader:
            for offset in ("5", "6", "7"):
                event = await reader.next()
                assert event.name == "partitions"
                assert isinstance(event.data, dict)
                assert [one["highWatermark"] for one in event.data["partitions"]] == [offset]
                await caller.served.high_watermark("bills", int(offset) + 1)
                await caller.served.high_watermark("orders", int(offset) + 1)
        await eventually(lambda: caller.host.fair_queue.calls == 0, "who goes away leaves no call behind")
        assert caller.host.shares.budget.answers_bytes == 0


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/results", 400, "invalid_argument"),
        (f"/v1/results?session={'x' * 129}", 400, "invalid_argument"),
        ("/v1/results?session=s&last_sequence=x", 400, "invalid_argument"),
        ("/v1/results?session=s&last_sequence=99999999999999999999", 400, "invalid_argument"),
        ("/v1/results?session=s&sesion=s", 400, "invalid_argument"),
        ("/v1/results?session=s&session=t", 400, "invalid_argument"),
        ("/v1/results?session=%ff", 400, "invalid_argument"),
        ("/v1/watch?page_size=5000", 400, "invalid_argument"),
    ],
)
async def test_what_cannot_be_served_is_an_error(path: str, status: int, code: str) -> None:
    """With the status, code and details of the same error by Connect; nothing is left behind."""
    async with serving_http() as caller:
        async with caller.client.get(path) as response:
            assert (response.status, (await response.json())["code"]) == (status, code)
        async with caller.client.post(path) as response:
            assert response.status == 405
        assert caller.host.fair_queue.calls == 0
