"""Results and listings as server-sent events: numbered, resumable, kept up to date."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from google.protobuf.message import Message

from purgatory.service.http import server_sent_events
from purgatory.service.http.connect_codecs import json_text
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.http.http_serving import Event, EventReader, HttpCaller, serving_http
from tests.kit.eventually import eventually
from tests.kit.messages import register_batch, register_request, signal
from tests.kit.recorded import assert_recorded, cases_of

STREAMS = Path(__file__).with_name("streams.txt")

JSON_TEXT = "purgatory.service.http.server_sent_events.json_text"


@asynccontextmanager
async def events(caller: HttpCaller, path: str, **headers: str) -> AsyncIterator[EventReader]:
    async with caller.client.get(path, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield EventReader(response)


async def register_expired(caller: HttpCaller, *operation_ids: int) -> str:
    """Register operations that end at once; return the session's incarnation."""
    operations = [signal(operation_id, "k", timeout_ms=0) for operation_id in operation_ids]
    batch = register_batch(*operations)
    answer = await caller.served.stub.Register(wire.RegisterRequest(session_id="s", batch=batch))
    return str(answer.incarnation)


async def close_session(caller: HttpCaller) -> None:
    await caller.served.stub.CloseSession(wire.CloseSessionRequest(session_id="s"))


async def test_results_are_numbered_and_resumed() -> None:
    """Each result is sent once, with the session's incarnation and its sequence number. A client that reconnects with
    the last id acknowledges the results up to it. The first event describes the session.
    """
    async with serving_http() as caller:
        async with events(caller, "/v1/results?session=nigthly") as reader:
            mistyped = await reader.next()
            assert (mistyped.name, mistyped.data["resumed"], mistyped.data["pending"]) == ("opened", False, 0)
        incarnation = await register_expired(caller, 1, 2)
        await caller.served.stub.Register(register_request("s", signal(3, "k2")))
        async with events(caller, "/v1/results?session=s") as reader:
            opened = {"resumed": True, "pending": 1, "incarnation": incarnation}
            assert await reader.next() == Event("opened", f"{incarnation}-0", opened)
            first, second = await reader.next(), await reader.next()
            assert (first.number, second.number) == (f"{incarnation}-1", f"{incarnation}-2")
            assert first.data == {
                "operationId": "1",
                "kind": "OPERATION_KIND_SIGNAL",
                "outcome": "OUTCOME_EXPIRED",
                "partitions": [{"key": "k", "errorCode": 7, "requiredOffset": "1", "logStartOffset": "-1"}],
            }
            await register_expired(caller, 4)
            assert (await reader.next()).number == f"{incarnation}-3"
        session = caller.host.sessions.get("s", caller.host.sessions.accounts.nobody)
        assert session.outbox.unacknowledged == 3
        async with events(caller, "/v1/results?session=s", **{"Last-Event-ID": f"{incarnation}-2"}) as reader:
            assert await reader.next() == Event("opened", f"{incarnation}-2", opened)
            assert (await reader.next()).number == f"{incarnation}-3"
            assert session.outbox.unacknowledged == 1
        await eventually(lambda: caller.host.fair_queue.calls == 0, "who goes away leaves no call behind")
        assert session.stream is None


@pytest.mark.parametrize("cursor", ["{old}-3", "3", "none-3", "0123456789abcdef-3"])
async def test_an_id_of_another_incarnation_acknowledges_nothing(cursor: str) -> None:
    """The session was closed and created again: a client with an old id learns that it is not resumed, and gets all
    results of the new session.
    """
    async with serving_http() as caller:
        old = await register_expired(caller, 1, 2, 3)
        await close_session(caller)
        new = await register_expired(caller, 1, 2, 3, 4, 5)
        async with events(caller, "/v1/results?session=s", **{"Last-Event-ID": cursor.format(old=old)}) as reader:
            told = {"resumed": False, "pending": 0, "incarnation": new}
            assert await reader.next() == Event("opened", f"{new}-0", told)
            assert [(await reader.next()).number for _ in range(5)] == [f"{new}-{number}" for number in range(1, 6)]
        session = caller.host.sessions.get("s", caller.host.sessions.accounts.nobody)
        assert session.outbox.unacknowledged == 5


async def test_stream_that_lost_its_session_is_told_to_stop() -> None:
    """Its last event has an id for which the browser's automatic reconnect gets status 204: no stream is opened, and
    the stream that took the session over keeps it. An extension is an event of its own, which has no id.
    """
    async with (
        serving_http() as caller,
        events(caller, "/v1/results?session=s") as first,
        events(caller, "/v1/results?session=s") as second,
    ):
        assert (await first.next()).name == "opened"
        going_away = await first.next()
        assert (going_away.name, going_away.data) == ("going_away", {"reason": "REASON_TAKEN_OVER"})
        assert await first.response.content.read() == b""
        headers = {"Last-Event-ID": going_away.number}
        async with caller.client.get("/v1/results?session=s", headers=headers) as response:
            assert (response.status, await response.read()) == (204, b"")
        await register_expired(caller, 1)
        assert [(await second.next()).name for _ in range(2)] == ["opened", "message"]
        await caller.served.stub.Register(register_request("s", signal(2, "k")))
        await caller.served.stub.Extend(wire.ExtendRequest(session_id="s", operation_ids=[2], timeout_ms=600_000))
        assert await second.next() == Event("extended", "", {"operationIds": ["2"], "timeoutMs": "600000"})
        await close_session(caller)
        assert await second.next() == Event("going_away", "", {"reason": "REASON_SESSION_CLOSED"})
        assert await second.response.content.read() == b""


def partitions_of(event: Event) -> list[tuple[str, str]]:
    """(topic and partition, high watermark) of each partition of a listing."""
    assert event.name == "partitions"
    named = [(one["topicPartition"], one.get("highWatermark", "0")) for one in event.data["partitions"]]
    return [(f"{name['topic']}-{name.get('partition', 0)}", offset) for name, offset in named]


async def test_a_listing_stays_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent at once, and again only after a change; topics with another prefix are not included."""
    monkeypatch.setattr(server_sent_events, "WATCH_INTERVAL_S", 0.01)
    async with serving_http() as caller:
        await caller.served.high_watermark("orders", 5)
        await caller.served.high_watermark("bills", 5)
        async with events(caller, "/v1/watch?topic_prefix=ord") as reader:
            for offset in ("5", "6", "7"):
                assert partitions_of(await reader.next()) == [("orders-0", offset)]
                await caller.served.high_watermark("bills", int(offset) + 1)
                await caller.served.high_watermark("orders", int(offset) + 1)
        await eventually(lambda: caller.host.fair_queue.calls == 0, "who goes away leaves no call behind")
        assert caller.host.shares.budget.answers_bytes == 0


async def test_more_partitions_than_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page tells how to watch the next one. Together they cover all partitions, and each is updated separately."""
    monkeypatch.setattr(server_sent_events, "WATCH_INTERVAL_S", 0.01)
    async with serving_http() as caller:
        for number in range(150):
            await caller.served.high_watermark(f"t{number:03}", 5)
        async with events(caller, "/v1/watch?topic_prefix=t") as first:
            event = await first.next()
            token = quote(event.data["nextPageToken"])
            async with events(caller, f"/v1/watch?topic_prefix=t&page_token={token}") as second:
                rest = await second.next()
                assert "nextPageToken" not in rest.data
                assert partitions_of(event) + partitions_of(rest) == [(f"t{one:03}-0", "5") for one in range(150)]
                await caller.served.high_watermark("t149", 6)
                assert partitions_of(await second.next())[-1] == ("t149-0", "6")


async def test_one_listing_serves_all_who_watch_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is listed and encoded once, however many clients watch the same page; other pages are separate."""
    monkeypatch.setattr(server_sent_events, "WATCH_INTERVAL_S", 0.05)
    made: list[str] = []

    async def counted(message: Message) -> str:
        text = await json_text(message)
        made.append(text)
        return text

    monkeypatch.setattr(JSON_TEXT, counted)
    async with serving_http() as caller, AsyncExitStack() as leaving:
        await caller.served.high_watermark("orders", 1)
        watching = [await leaving.enter_async_context(events(caller, "/v1/watch")) for _ in range(20)]
        other = await leaving.enter_async_context(events(caller, "/v1/watch?page_size=7"))
        for offset in ("1", "2", "3", "4"):
            listings = [partitions_of(await reader.next()) for reader in (*watching, other)]
            assert listings == [[("orders-0", offset)]] * len(listings)
            watching.pop(0).response.close()
            await caller.served.high_watermark("orders", int(offset) + 1)
        assert made.count(made[0]) < 20


async def test_a_listing_outlives_the_watcher_whose_call_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    may_encode = asyncio.Event()
    encoding: list[Message] = []

    async def held_back(message: Message) -> str:
        encoding.append(message)
        await may_encode.wait()
        return await json_text(message)

    monkeypatch.setattr(JSON_TEXT, held_back)
    async with serving_http() as caller:
        await caller.served.high_watermark("orders", 1)
        first = asyncio.create_task(watched_once(caller))
        await eventually(lambda: bool(encoding), "the first one makes the listing")
        second = asyncio.create_task(watched_once(caller))
        await eventually(lambda: caller.host.fair_queue.calls == 2, "the second one watches too")
        assert len(encoding) == 1
        first.cancel()
        await eventually(lambda: len(encoding) == 2, "the other one makes the listing")
        may_encode.set()
        assert partitions_of(await second) == [("orders-0", "1")]


async def watched_once(caller: HttpCaller) -> Event:
    async with events(caller, "/v1/watch") as reader:
        return await reader.next()


async def test_request_that_cannot_be_served_is_an_error_and_acknowledges_nothing() -> None:
    """As in streams.txt."""
    async with serving_http() as caller:
        own = await register_expired(caller, 1, 2, 3)

        async def said(case: str) -> str:
            path, _, cursor = case.replace("OWN", own).partition(" ")
            async with caller.client.get(path, headers={"Last-Event-ID": cursor}) as response:
                error = await response.json()
            assert (response.status, error["code"]) == (400, "invalid_argument"), error
            assert caller.host.sessions.get("s").outbox.unacknowledged == 3
            return str(error["message"]).replace(own, "OWN")

        assert_recorded(STREAMS, [await said(case) for case in cases_of(STREAMS)])
        assert caller.host.fair_queue.calls == 0
