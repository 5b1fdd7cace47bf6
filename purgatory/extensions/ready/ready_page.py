"""`GET /v1/ready?name=POD&group=billing&topics=orders`: 200 once a gate is ready, 503 before, with its state as JSON.

`marks` in place of `group` and `topics` names marks of any source: `marks=pg/main/all`. Several names, separated by
commas in `names`, are several gates on the same marks: the answer lists them, and is 200 once all are ready. With
shards, any of them can be asked: requests for gates of another one are passed on to it.
"""

from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

from google.protobuf.message import Message
from purgatory_client.base_errors import InvalidRequest
from purgatory_client.sources.source_names import kafka_group, kafka_topic
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from purgatory.extensions.ready.gates_elsewhere import PASSED_ON, states_elsewhere
from purgatory.extensions.ready.ready_gates import GateState, ReadyGates
from purgatory.service.errors import RpcError, invalid_argument
from purgatory.service.http.connect_errors import error_response, wrong_method
from purgatory.service.http.http_calls import HttpCall, HttpMethods, already_decoded
from purgatory.service.http.http_context import HttpContext, certificate_of, header_of
from purgatory.service.http.server_sent_events import parameters_of
from purgatory.service.rpc.call import Call
from purgatory.service.translate.sources import NAME_LENGTH_MAX

NAMES_MAX: Final = 1_000


class ReadyPage:
    """The ASGI application. A request needs the permissions of `GetSourceEnds`, and is limited and counted like it."""

    def __init__(self, gates: ReadyGates, methods: HttpMethods, certificate_file: Path | None) -> None:
        self._gates: Final = gates
        self._certificate_file: Final = certificate_file
        self._methods: Final = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response
        if scope["method"] not in {"GET", "HEAD"}:
            answer = wrong_method(scope["path"], scope["method"], {"Allow": "GET, HEAD"})
        else:
            try:
                answer = await self._answer(scope)
            except RpcError as refused:
                answer = error_response(refused)
            answer.headers["Cache-Control"] = "no-store"
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        parameters = parameters_of(scope, "name", "names", "group", "topics", "marks")
        names, marks, states = _names(parameters), _marks(parameters), dict[str, GateState]()
        may_pass_on = header_of(scope, PASSED_ON) is None and certificate_of(scope) is None
        elsewhere = self._gates.elsewhere(names, may_pass_on=may_pass_on)
        own = list(set(names).difference(*elsewhere.values()))

        async def look(_asked: object, call: Call) -> Message | None:
            states.update(zip(own, await self._gates.states(own, marks, call), strict=True))
            for url, asked in elsewhere.items():
                query = parameters | {"names" if "names" in parameters else "name": ",".join(asked)}
                found = await states_elsewhere(url, query, scope, self._certificate_file)
                states.update(zip(asked, found, strict=True))
            return None

        method = replace(self._methods.by_name["GetSourceEnds"], serve=look)
        call, context = HttpCall(self._methods, method), HttpContext(scope)
        try:
            await call.enter(context)
            await call.run(already_decoded(None))
        finally:
            context.done()
            call.leave()
        gates = [{"name": name, **states[name]} for name in names]
        is_ready = all(state["ready"] for state in states.values())
        content = {"ready": is_ready, "gates": gates} if "names" in parameters else gates[0]
        return JSONResponse(content, HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)


def _names(parameters: dict[str, str]) -> list[str]:
    if ("name" in parameters) == ("names" in parameters):
        raise invalid_argument("name", "give either name or names")
    names = parameters["names"].split(",") if "names" in parameters else [parameters["name"]]
    if len(names) > NAMES_MAX:
        raise invalid_argument("names", f"{len(names)} names given; at most {NAMES_MAX} are allowed")
    return names


def _marks(parameters: dict[str, str]) -> list[str]:
    if ("topics" in parameters) == ("marks" in parameters):
        raise invalid_argument("topics", "give either topics or marks")
    group = parameters.get("group")
    # It becomes part of each name, and there may be thousands.
    if group is not None and len(group) > NAME_LENGTH_MAX:
        raise invalid_argument("group", f"has {len(group)} characters; at most {NAME_LENGTH_MAX} are allowed")
    if "marks" in parameters:
        if group is not None:
            raise invalid_argument("group", "needs topics; marks are complete names")
        return parameters["marks"].split(",")
    topics = parameters["topics"].split(",")
    try:
        return [kafka_topic(one) if group is None else kafka_group(group, one) for one in topics]
    except InvalidRequest as error:
        raise invalid_argument(error.field, error.message) from None
