"""Streams as server-sent events, for clients without a Connect library. `curl -N` reads them too.

GET /v1/results?session=…        a session's results; Last-Event-ID acknowledges the results up to it
GET /v1/watch?topic_prefix=…     a page of partitions with the waits on them, sent again when it has changed
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qs

from google.protobuf.message import Message
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.service.access.account import Account
from purgatory.service.errors import RpcError, invalid_argument, quoted
from purgatory.service.http import http_calls
from purgatory.service.http.connect_codecs import MESSAGE_BYTES_MAX, json_of, json_text, off_loop
from purgatory.service.http.connect_errors import error_response, wrong_method
from purgatory.service.http.http_connection import CONNECTION

WATCH_INTERVAL_S: Final = 1.0
"""Minimum interval between two computations of a listing, however many clients watch it."""
SILENT_TIMES_MAX: Final = 10
"""After this many unchanged listings a comment is sent, so that both sides notice when the other is gone."""
TAKEN_OVER_ID: Final = "taken-over"
"""Id of the last event on a stream that lost its session to another one. A browser sends it when it reconnects, and 204
makes it stop: otherwise two tabs would take the session from each other forever.
"""
NO_INCARNATION: Final = "none"
"""Stands for the incarnation of an event id that names none. No session has it, so the id acknowledges nothing."""
SEQUENCE_MAX: Final = (1 << 63) - 1
PAGE_SIZE_MAX: Final = 1_000
DIGITS_MAX: Final = 20

HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
COMMENT: Final = b": still here\n\n"

Events = AsyncGenerator[bytes]
ListingKey = tuple[Account, str, int, str]
"""Account, topic prefix, page size and page token."""


class Listing(NamedTuple):
    """An encoded listing of partitions, and until when (loop time) it is sent to other clients that watch the same
    page.
    """

    event: bytes
    until_s: float


class ServerSentEvents:
    """Serves the streams with the methods of the service."""

    def __init__(self, methods: http_calls.HttpMethods) -> None:
        self._methods: Final = methods
        self._results: Final = methods.by_name["StreamResults"]
        # A watch is long-lived, although the call that it repeats is unary.
        self._partitions: Final = methods.by_name["ListPartitions"].as_stream()
        self._listings: Final[dict[ListingKey, asyncio.Task[Listing]]] = {}

    def applications(self) -> dict[str, ASGIApp]:
        return {"/v1/results": self._serve_results, "/v1/watch": partial(serve_events, self._watch_events)}

    async def _serve_results(self, scope: Scope, receive: Receive, send: Send) -> None:
        if http_calls.header_of(scope, b"last-event-id") == TAKEN_OVER_ID:
            await Response(status_code=HTTPStatus.NO_CONTENT)(scope, receive, send)
        else:
            await serve_events(self._result_events, scope, receive, send)

    async def _result_events(self, scope: Scope) -> Events:
        """Yield `opened`, then an event for each result. Event ids are the session's incarnation and the sequence
        number.
        """
        answers = http_calls.WrittenAnswers[Message | bytes]()
        decode = self._results.answer_type.FromString
        parameters = parameters_of(scope, "session", "last_sequence")
        if "last_sequence" in parameters:
            remedy = "send the id of the last event in the header Last-Event-ID, or call Acknowledge"
            raise invalid_argument("last_sequence", f"cannot be acknowledged in a URL: {remedy}")
        incarnation, sequence = _cursor(http_calls.header_of(scope, b"last-event-id") or "")
        request = self._results.request_type(
            session_id=parameters.get("session", ""), last_sequence=sequence, incarnation=incarnation
        )
        async with (
            http_calls.entered(self._methods, self._results, http_calls.HttpContext(scope, answers.write)) as call,
            aclosing(answers.of(partial(call.run, http_calls.already_decoded(request)))) as written,
        ):
            async for answer in written:
                message: Any = decode(answer) if isinstance(answer, bytes) else answer
                if message.HasField("opened"):
                    incarnation = message.opened.incarnation
                    yield _opened_event(message.opened, sequence)
                else:
                    yield await self._result_event(message, incarnation)

    async def _result_event(self, message: Any, incarnation: str) -> bytes:  # noqa: ANN401 - of the method's own type
        if message.HasField("heartbeat"):
            return COMMENT
        if message.HasField("going_away"):
            leaving = message.going_away
            event_id = TAKEN_OVER_ID if leaving.reason == leaving.REASON_TAKEN_OVER else ""
            return event_bytes(json_of(leaving), name="going_away", event_id=event_id)

        if message.HasField("extended"):
            return event_bytes(json_of(message.extended), name="extended")

        def events() -> bytes:
            numbered = enumerate(message.results.rows.results, message.results.first_sequence)
            return b"".join(
                event_bytes(json_of(result), event_id=f"{incarnation}-{sequence}") for sequence, result in numbered
            )

        return events() if message.ByteSize() <= MESSAGE_BYTES_MAX else await off_loop(events)

    async def _watch_events(self, scope: Scope) -> Events:
        """Yield a page of the listing, and again each time that it has changed."""
        parameters = parameters_of(scope, "topic_prefix", "page_size", "page_token")
        request: Any = self._partitions.request_type(
            topic_prefix=parameters.get("topic_prefix", ""),
            page_size=number_of(parameters.get("page_size", ""), "page_size", PAGE_SIZE_MAX),
            page_token=parameters.get("page_token", ""),
        )
        context = http_calls.HttpContext(scope)
        key: ListingKey | None = None
        told, same_times = b"", 0
        try:
            async with http_calls.entered(self._methods, self._partitions, context) as call:
                while True:
                    key = (call.check(), request.topic_prefix, request.page_size, request.page_token)
                    listing = await self._shared_listing(key, partial(_list_once, call, context, request))
                    if listing.event != told:
                        told, same_times = listing.event, 0
                        yield told
                    else:
                        same_times += 1
                        if same_times % SILENT_TIMES_MAX == 0:
                            yield COMMENT
                    await asyncio.sleep(max(0.0, listing.until_s - asyncio.get_running_loop().time()))
        finally:
            if key is not None:
                self._listings.pop(key, None)  # the next client that watches it computes it again

    async def _shared_listing(self, key: ListingKey, make: Callable[[], Coroutine[Any, Any, Listing]]) -> Listing:
        """Return the current listing. One of its watchers computes it, and stops when its own call ends."""
        while True:
            task = self._listings.get(key)
            if task is None or _is_outdated(task):
                task = self._listings[key] = asyncio.create_task(make(), name="listing for watchers")
                return await task
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                # If the call that computes the listing was cancelled, compute it here. If this one was, end it.
                if not task.cancelled() or cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
                    raise


async def _list_once(call: http_calls.HttpCall, context: http_calls.HttpContext, request: Message) -> Listing:
    try:
        answer = await call.run(http_calls.already_decoded(request))
        assert answer is not None, "a unary call has an answer"
        event = event_bytes(await json_text(answer), name="partitions")
    finally:
        context.done()
    return Listing(event, asyncio.get_running_loop().time() + WATCH_INTERVAL_S)


def _is_outdated(task: asyncio.Task[Listing]) -> bool:
    """Return whether the listing must be computed again, also because its computation failed."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return task.done()
    return task.result().until_s <= asyncio.get_running_loop().time()


def _opened_event(opened: Any, sequence: int) -> bytes:  # noqa: ANN401 - `SessionOpened`
    """The event's id acknowledges nothing new, but names the incarnation if the client reconnects before it has a
    result.
    """
    data = {"resumed": opened.resumed, "pending": opened.pending, "incarnation": opened.incarnation}
    event_id = f"{opened.incarnation}-{sequence if opened.resumed else 0}"
    return event_bytes(json.dumps(data), name="opened", event_id=event_id)


def _cursor(event_id: str) -> tuple[str, int]:
    """Parse an event id into incarnation and sequence number; empty and 0 if none was sent. Raises `RpcError`."""
    incarnation, _, sequence = event_id.rpartition("-")
    return incarnation or (event_id and NO_INCARNATION), number_of(sequence, "Last-Event-ID", SEQUENCE_MAX)


async def serve_events(events_of: Callable[[Scope], Events], scope: Scope, receive: Receive, send: Send) -> None:
    """Send the events until they end or the client disconnects."""
    if scope["method"] != "GET":
        await wrong_method(scope["path"], scope["method"], {"Allow": "GET"})(scope, receive, send)
        return
    serving = asyncio.current_task()
    assert serving is not None, "runs as a task"
    watching = asyncio.create_task(_cancel_when_gone(receive, serving), name="client of an event stream")
    try:
        await _send_events(events_of(scope), scope, receive, send)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _send_events(events: Events, scope: Scope, receive: Receive, send: Send) -> None:
    has_begun = False
    try:
        async with aclosing(events):
            async for data in events:
                # The status goes out with the first event, so a refusal before it can have a status of its own.
                if not has_begun:
                    kept_bytes = 2 * len(scope["query_string"])  # as parameters and in a request
                    scope["state"][CONNECTION].body_decoded(kept_bytes + http_calls.drop_head(scope))
                    await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": HEADERS})
                    has_begun = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
    except RpcError as refused:
        answer = error_response(refused)
        if not has_begun:
            await answer(scope, receive, send)
            return
        data = event_bytes(bytes(answer.body).decode(), name="refused")
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _cancel_when_gone(receive: Receive, serving: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    serving.cancel()


def event_bytes(data: str, *, name: str = "", event_id: str = "") -> bytes:
    """Encode one event; `data` has no line breaks."""
    named = f"event: {name}\n" if name else ""
    numbered = f"id: {event_id}\n" if event_id else ""
    return f"{named}{numbered}data: {data}\n\n".encode()


def parameters_of(scope: Scope, *names: str) -> dict[str, str]:
    """Parse the query parameters. Raises `RpcError` for one that is not among `names`, because it may be mistyped."""
    try:
        values = parse_qs(scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise invalid_argument("query", "is not UTF-8, escaped by %") from None
    for name, given in values.items():
        if name not in names or len(given) > 1:
            raise invalid_argument(quoted(name), f"is not one of {', '.join(names)}, each at most once")
    return {name: given[0] for name, given in values.items()}


def number_of(text: str, field: str, largest: int) -> int:
    """Parse a query parameter, 0 if it is empty. Raises `RpcError`."""
    if not text:
        return 0
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else -1
    if not 0 <= number <= largest:
        raise invalid_argument(field, f"not an integer from 0 to {largest}: {quoted(text)}")
    return number
