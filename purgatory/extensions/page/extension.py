"""The page extension: the live page's files, and the streams that keep it current.

- GET /: the page
- GET /page/static/NAME: its scripts and its style
- GET /page/live/VIEW?...: a view as server-sent events, such as now or wheel
- GET /page/repeat/METHOD?request=...: a call of the service, repeated; its response is sent whenever it changes

A stream is treated like any other call: it needs the permission of the call that shows the same data, counts as a call
in flight, and takes a turn for each picture. Pictures that are the same for all viewers are computed once.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from itertools import islice
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Scope

from purgatory.extension import Core, Extension, HttpParts
from purgatory.extensions.page.daemon_views import DaemonViews
from purgatory.extensions.page.last_hour import SAMPLE_S, LastHour
from purgatory.extensions.page.page_fields import detailed_fields, ended_fields, matches, session_details
from purgatory.extensions.page.ranked_waits import RankedWaits, WaitsQuery
from purgatory.extensions.page.recent_ends import RecentEnds
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.errors import not_found, unavailable
from purgatory.service.host import Host
from purgatory.service.http.connect_codecs import Undecoded, json_text
from purgatory.service.http.http_calls import HttpCall, HttpContext, HttpMethod, HttpMethods, already_decoded, entered
from purgatory.service.http.server_sent_events import COMMENT, event_bytes, number_of, parameters_of, serve_events
from purgatory.service.listeners.listener import Listener
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.rpc.call import Call
from purgatory.service.visibility import may_see

FAST_S: Final = 0.5
SLOW_S: Final = 1.0
SILENT_S_MAX: Final = 10.0
"""Maximum time in seconds without sending, so that a viewer who has disconnected is detected."""
ID_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1
ENDS_SHOWN: Final = 100

WAITS_PARAMETERS: Final = ("search", "kind", "order", "names", "topic", "partition", "key")
REPEATED: Final = ("GetStatus", "GetPartition", "ListDeadLetters", "ListOperations", "ListPartitions")

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

Picture = Callable[[], dict[str, Any]]
Show = Callable[[dict[str, str], Account], dict[str, Any] | Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class View:
    """A view: the method whose permission it needs, its interval in seconds, its parameters, and how it is computed."""

    method: str
    interval_s: float
    parameters: tuple[str, ...]
    show: Show


class LivePage:
    def __init__(self, host: Host, metrics: Metrics, methods: HttpMethods, status_line: Callable[[], str]) -> None:
        self._host: Final = host
        self._methods: Final = methods
        self._run: Final = secrets.token_hex(8)
        self.ends: Final = RecentEnds(host.time.now_ms)
        """A listener for the host."""
        self._daemon: Final = DaemonViews(host, metrics, status_line)
        self.hour: Final = LastHour(host, metrics)
        self._ranked: Final = RankedWaits(host)
        self._pictures: Final[dict[Picture, tuple[float, dict[str, Any]]]] = {}
        """Shared pictures, each with the monotonic time (seconds) at which it was made."""

    def routes(self) -> list[BaseRoute]:
        return [Route("/", _file), Route("/page/static/{name}", _file)]

    def applications(self) -> dict[str, ASGIApp]:
        daemon = self._daemon
        views = {
            "now": View("GetStatus", FAST_S, (), partial(self._shared, daemon.now)),
            "wheel": View("GetStatus", SLOW_S / 2, (), partial(self._shared, daemon.wheel)),
            "waits": View("ListOperations", SLOW_S, WAITS_PARAMETERS, self._waits),
            "operation": View("GetOperation", SLOW_S / 2, ("session", "principal", "id"), self._operation),
            "ends": View("ListOperations", SLOW_S, ("outcome", "kind", "search"), self._recent),
            "sessions": View("ListOperations", SLOW_S, ("search",), lambda asked, who: daemon.sessions(who, asked)),
            "session": View("ListOperations", SLOW_S, ("session", "principal"), self._session),
            "hour": View("GetStatus", SAMPLE_S / 2, (), lambda _asked, _who: self.hour.picture()),
            "webhooks": View("ListOperations", SLOW_S, (), lambda _asked, who: daemon.webhooks(who)),
        }
        found: dict[str, ASGIApp] = {
            f"/page/live/{name}": partial(serve_events, partial(self._pictures_of, view))
            for name, view in views.items()
        }
        for name in REPEATED:
            method = self._methods.by_name[name].as_stream()
            found[f"/page/repeat/{name}"] = partial(serve_events, partial(self._answers_of, method))
        return found

    # Streams.

    async def _pictures_of(self, view: View, scope: Scope) -> AsyncGenerator[bytes]:
        parameters = parameters_of(scope, *view.parameters)

        text = ""

        async def serve(_asked: object, call: Call) -> None:
            nonlocal text
            with self._host.holds.of("page"):
                shown = view.show(parameters, call.account)
            text = json.dumps(shown if isinstance(shown, dict) else await shown, separators=(",", ":"))

        async def picture(call: HttpCall) -> str:
            await call.run(already_decoded(None))
            return text

        method = self._methods.by_name[view.method].as_stream(serve)
        followed = self._follow(view, parameters)

        try:
            async for data in self._repeat(method, scope, view.interval_s, picture):
                yield data
        finally:
            if followed is not None:
                self.ends.unfollow(followed)

    async def _answers_of(self, method: HttpMethod, scope: Scope) -> AsyncGenerator[bytes]:
        asked = parameters_of(scope, "request").get("request") or "{}"
        request = Undecoded(asked.encode(), method.request_type, is_json=True)

        async def picture(call: HttpCall) -> str:
            answer = await call.run(request.message)
            assert answer is not None, "a unary call has an answer"
            return await json_text(answer)

        async for data in self._repeat(method, scope, SLOW_S, picture):
            yield data

    async def _repeat(
        self, method: HttpMethod, scope: Scope, interval_s: float, picture: Callable[[HttpCall], Awaitable[str]]
    ) -> AsyncGenerator[bytes]:
        """Yield each picture that differs from the one before, until the daemon shuts down."""
        context = HttpContext(scope)
        told, told_s = "", time.monotonic()
        self.ends.viewers += 1
        try:
            async with entered(self._methods, method, context) as call:
                yield event_bytes(json.dumps({"run": self._run}), name="run")
                while not self._methods.is_ending:
                    data = await picture(call)
                    if data != told:
                        told, told_s = data, time.monotonic()
                        yield event_bytes(data)
                    elif time.monotonic() - told_s > SILENT_S_MAX:
                        told_s = time.monotonic()
                        yield COMMENT
                    context.done()
                    await asyncio.sleep(interval_s)
                raise unavailable("the daemon is shutting down")
        finally:
            self.ends.viewers -= 1
            if not self.ends.viewers:
                self._daemon.forget()
                self._pictures.clear()

    def _follow(self, view: View, parameters: dict[str, str]) -> tuple[str, str, int] | None:
        if view.method != "GetOperation":
            return None
        operation_id = number_of(parameters.get("id", ""), "id", ID_MAX)
        operation = parameters.get("principal", ""), parameters.get("session", ""), operation_id
        self.ends.follow(operation)
        return operation

    # Views.

    def _shared(self, show: Picture, _parameters: dict[str, str], _account: Account) -> dict[str, Any]:
        """A view that is the same for all viewers, computed at most once per interval."""
        made_s, picture = self._pictures.get(show, (0.0, {}))
        if time.monotonic() - made_s >= FAST_S * 0.8:
            picture = show()
            self._pictures[show] = time.monotonic(), picture
        return picture

    def _waits(self, parameters: dict[str, str], account: Account) -> Awaitable[dict[str, Any]]:
        partition = number_of(parameters.get("partition", ""), "partition", PARTITION_MAX)
        return self._ranked.show(account, WaitsQuery.of(parameters, partition))

    def _session(self, parameters: dict[str, str], account: Account) -> dict[str, Any]:
        """A session of the account; with the role admin on everything, of any account."""
        host, session_id = self._host, parameters.get("session", "")
        session = host.sessions.find(session_id, host.sessions.accounts.find(parameters.get("principal", "")))
        if session is None or not (session.account is account or ADMIN in account.grants.everywhere):
            raise not_found("session", session_id)
        return session_details(host, session, account)

    def _recent(self, parameters: dict[str, str], account: Account) -> dict[str, Any]:
        sees_all = ADMIN in account.grants.everywhere
        visible = (ended_fields(end) for end in self.ends if sees_all or end.principal == account.principal)
        return {"ends": list(islice((fields for fields in visible if matches(fields, parameters)), ENDS_SHOWN))}

    def _operation(self, parameters: dict[str, str], account: Account) -> dict[str, Any]:
        host, operation_id = self._host, number_of(parameters.get("id", ""), "id", ID_MAX)
        principal, session_id = parameters.get("principal", ""), parameters.get("session", "")
        owner: Account | None = host.sessions.accounts.find(principal)
        if session_id:
            session = host.sessions.find(session_id, owner)
            view = None if session is None else host.engine.inspection.describe(session.owner, operation_id)
        else:
            owner = host.unary_waits.account_of(operation_id)
            owned = None if owner is None else host.unary_waits.owner_of(owner)
            view = None if owned is None else host.engine.inspection.describe(owned, operation_id)
        if view is not None and may_see(account, owner, view):
            return {"state": "pending", **detailed_fields(host, view)}
        end = self.ends.outcome_of((principal, session_id, operation_id))
        if end is not None and (account.principal == principal or ADMIN in account.grants.everywhere):
            return {"state": "ended", **ended_fields(end)}
        raise not_found("operation", f"{session_id}/{operation_id}")


async def _file(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    folder = files("purgatory.extensions.page") / "static"
    media_type = MEDIA_TYPES.get("." + name.rpartition(".")[2])
    path = folder / name
    if media_type is None or "/" in name or "\\" in name or not path.is_file():
        return PlainTextResponse("file not found\n", HTTPStatus.NOT_FOUND, HEADERS)
    return Response(path.read_bytes(), headers={**HEADERS, "Content-Type": media_type})


class PageExtension(Extension):
    name = "page"

    def __init__(self, core: Core) -> None:
        self._core = core
        self._page: LivePage | None = None
        self._sampling: asyncio.Task[None] | None = None

    @property
    def listener(self) -> Listener | None:
        return None if self._page is None else self._page.ends

    def routes(self, methods: HttpMethods) -> HttpParts:
        core = self._core
        self._page = LivePage(core.host, core.metrics, methods, core.status_line)
        return HttpParts(self._page.routes(), self._page.applications())

    def start(self) -> None:
        if self._page is not None:
            self._sampling = asyncio.create_task(self._page.hour.run(), name="page samples")

    async def close(self, _grace_s: float) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
