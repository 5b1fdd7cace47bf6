"""What lasts, as server-sent events: for those who have no library for Connect. `curl -N` reads them too.

GET /v1/results?session=…        a session's results; Last-Event-ID acknowledges what was seen
GET /v1/watch?topic_prefix=…     partitions and what waits on them, sent again when they have changed
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from google.protobuf.message import Message
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.service.http.connect_codecs import MESSAGE_BYTES_MAX, json_of, json_text, off_loop
from purgatory.service.http.connect_errors import error_fields, http_status, retry_after
from purgatory.service.http.http_calls import HttpCall, HttpMethods
from purgatory.service.http.http_context import HttpContext, header_of
from purgatory.service.http.written_answers import WrittenAnswers
from purgatory.service.rpc.statuses import CallRefused, invalid_argument, quoted

WATCH_INTERVAL_S: Final = 1.0
"""A listing is made again at most this often."""
SILENT_TIMES_MAX: Final = 10
"""A watcher hears something at least after so many listings that are the same: whoever went away is noticed."""
REFUSED_WITHIN_S: Final = 0.1
"""A call that is refused nearly always is by then, and is answered by a status. Later it takes an event."""
SEQUENCE_MAX: Final = (1 << 63) - 1
PAGE_SIZE_MAX: Final = 1_000
DIGITS_MAX: Final = 20

HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
COMMENT: Final = b": still here\n\n"

Events = AsyncGenerator[bytes]


class ServerSentEvents:
    """The streams, over the methods of the service."""

    def __init__(self, methods: HttpMethods) -> None:
        self._methods: Final = methods
        self._results: Final = methods.by_name["StreamResults"]
        # Lasts, whatever the call is that it repeats.
        self._partitions: Final = replace(methods.by_name["ListPartitions"], is_unary=False)

    def applications(self) -> dict[str, ASGIApp]:
        return {
            "/v1/results": partial(serve_events, self._result_events),
            "/v1/watch": partial(serve_events, self._watch_events),
        }

    async def _result_events(self, scope: Scope) -> Events:
        """An event for each result, numbered by its sequence number."""
        call, answers = HttpCall(self._methods, self._results), WrittenAnswers[Message | bytes | None]()
        parameters = parameters_of(scope, "session", "last_sequence")
        last = header_of(scope, b"last-event-id") or parameters.get("last_sequence", "")
        request = self._results.request_type(
            session_id=parameters.get("session", ""), last_sequence=_number(last, "last_sequence", SEQUENCE_MAX)
        )
        beginning = asyncio.get_running_loop().call_later(REFUSED_WITHIN_S, answers.offer, None)
        try:
            await call.enter(HttpContext(scope, answers.write))
            async with aclosing(answers.of(partial(call.run, _known(request)))) as written:
                async for answer in written:
                    beginning.cancel()
                    yield COMMENT if answer is None else await self._result_event(answer)
        finally:
            beginning.cancel()
            call.leave()

    async def _result_event(self, answer: Message | bytes) -> bytes:
        message: Any = self._results.answer_type.FromString(answer) if isinstance(answer, bytes) else answer
        if message.HasField("heartbeat"):
            return COMMENT
        if message.HasField("going_away"):
            return event_bytes(json_of(message.going_away), name="going_away")

        def events() -> bytes:
            batch = message.results
            numbered = enumerate(batch.rows.results, batch.first_sequence)
            return b"".join(event_bytes(json_of(result), event_id=sequence) for sequence, result in numbered)

        return events() if message.ByteSize() <= MESSAGE_BYTES_MAX else await off_loop(events)

    async def _watch_events(self, scope: Scope) -> Events:
        """The listing, and again each time that it has become another."""
        call = HttpCall(self._methods, self._partitions)
        parameters = parameters_of(scope, "topic_prefix", "page_size")
        request: Any = self._partitions.request_type(
            topic_prefix=parameters.get("topic_prefix", ""),
            page_size=_number(parameters.get("page_size", ""), "page_size", PAGE_SIZE_MAX),
        )
        context = HttpContext(scope, _write_nothing)
        told, same_times = None, 0
        try:
            await call.enter(context)
            while True:
                answer = await call.run(_known(request))
                assert answer is not None, "a unary call has an answer"
                if answer != told:
                    told, same_times = answer, 0
                    yield event_bytes(await json_text(answer), name="partitions")
                else:
                    same_times += 1
                    if same_times % SILENT_TIMES_MAX == 0:
                        yield COMMENT
                context.done()
                await asyncio.sleep(WATCH_INTERVAL_S)
        finally:
            context.done()
            call.leave()


async def serve_events(events_of: Callable[[Scope], Events], scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the events, until they end or the client goes away."""
    if scope["method"] != "GET":
        refused = PlainTextResponse("GET only\n", HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET"})
        await refused(scope, receive, send)
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
                if not has_begun:
                    await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": HEADERS})
                    has_begun = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
    except CallRefused as refused:
        after_s = retry_after(refused)
        headers = None if after_s is None else {"Retry-After": str(after_s)}
        answer = JSONResponse(error_fields(refused), http_status(refused), headers)
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


async def _write_nothing(_answer: Message | bytes) -> None:
    raise AssertionError("a unary call writes nothing")


def _known(request: Message) -> Callable[[], Any]:
    async def decode() -> Message:
        return request

    return decode


def event_bytes(data: str, *, name: str = "", event_id: int | None = None) -> bytes:
    """One event; `data` has no line breaks."""
    named = f"event: {name}\n" if name else ""
    numbered = "" if event_id is None else f"id: {event_id}\n"
    return f"{named}{numbered}data: {data}\n\n".encode()


def parameters_of(scope: Scope, *names: str) -> dict[str, str]:
    """What the address asks for. Raises `CallRefused` for what it does not know, which may be mistyped."""
    try:
        values = parse_qs(scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise invalid_argument("query", "is not UTF-8, escaped by %") from None
    for name, given in values.items():
        if name not in names or len(given) > 1:
            raise invalid_argument(quoted(name), f"is not one of {', '.join(names)}, each at most once")
    return {name: given[0] for name, given in values.items()}


def _number(text: str, field: str, largest: int) -> int:
    if not text:
        return 0
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else -1
    if not 0 <= number <= largest:
        raise invalid_argument(field, f"is no number from 0 to {largest}: {quoted(text)}")
    return number
