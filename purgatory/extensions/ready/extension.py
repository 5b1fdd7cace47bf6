"""The extension of ready gates."""

import json
import ssl
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from google.protobuf.message import Message
from google.rpc import code_pb2
from purgatory_client.errors import InvalidRequest
from purgatory_client.sources.source_names import kafka_group, kafka_topic
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from purgatory.extension import Core, Extension, HttpParts
from purgatory.extensions.ready.ready_gates import LOOKUP_S, GateState, ReadyGates
from purgatory.service.errors import RpcError, invalid_argument
from purgatory.service.http.connect_errors import error_response, wrong_method
from purgatory.service.http.http_calls import (
    HttpContext,
    HttpMethods,
    already_decoded,
    certificate_of,
    entered,
    header_of,
)
from purgatory.service.http.server_sent_events import parameters_of
from purgatory.service.rpc.call import Call
from purgatory.service.translate.sources import NAME_LENGTH_MAX
from purgatory.service.transport.outbound import NoAnswer, Outbound

PASSED_ON: Final = b"purgatory-passed-on"
"""A header of requests that another shard has passed on. They are not passed on again."""
ANSWER_S: Final = LOOKUP_S + 2.0
ANSWER_BYTES_MAX: Final = 4_194_304
END: Final = "-----END CERTIFICATE-----"


async def states_elsewhere(
    url: str, query: dict[str, str], scope: Scope, certificate_file: Path | None
) -> list[GateState]:
    """Ask the shard at `url` with the token of a request. If it does not answer, its gates are not ready. Over TLS, it
    must have the same certificate as this daemon.

    Raises:
        RpcError: It refuses the request.
    """
    given = ((name, header_of(scope, name)) for name in (b"host", b"authorization"))
    headers = [(name, value.encode("latin-1")) for name, value in given if value is not None]
    try:
        outbound = Outbound(timeout_s=ANSWER_S, answer_bytes_max=ANSWER_BYTES_MAX, ssl_context=_trust(certificate_file))
        try:
            target = f"{url}/v1/ready?{urlencode(query)}"
            answer = json.loads((await outbound.exchange("GET", target, [*headers, (PASSED_ON, b"1")])).body)
        finally:
            await outbound.close()
        if "ready" not in answer:
            raise RpcError(code_pb2.Code.Value(answer["code"].upper()), answer["message"])
    except (NoAnswer, OSError, ValueError, LookupError, TypeError) as error:
        state: GateState = {"ready": False, "reason": f"its shard, at {url}, does not answer: {error}"}
        return [state] * len(query.get("names", "").split(","))
    return [{name: gate[name] for name in gate if name != "name"} for gate in answer.get("gates", [answer])]


def _trust(certificate_file: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if certificate_file is not None:  # read each time: it may have been renewed
        context.check_hostname = False  # the certificate itself is compared
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=certificate_file.read_text("ascii").partition(END)[0] + END)
    return context


NAMES_MAX: Final = 1_000


class ReadyPage:
    """The ASGI application. A request needs the permissions of `GetSourceEnds`, and is limited and counted like it.

    `GET /v1/ready?name=POD&group=billing&topics=orders`: 200 once a gate is ready, 503 before, with its state as JSON.
    `marks` in place of `group` and `topics` names marks of any source: `marks=pg/main/all`. Several names, separated by
    commas in `names`, are several gates on the same marks: the answer lists them, and is 200 once all are ready. With
    shards, any of them can be asked: requests for gates of another one are passed on to it.
    """

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
        async with entered(self._methods, method, HttpContext(scope)) as call:
            await call.run(already_decoded(None))
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


class ReadyExtension(Extension):
    """Serves `/v1/ready`."""

    name = "ready"

    def __init__(self, core: Core) -> None:
        self._gates = ReadyGates(core.host)
        self._certificate = core.settings.tls.certificate_file

    def routes(self, methods: HttpMethods) -> HttpParts:
        return HttpParts(applications={"/v1/ready": ReadyPage(self._gates, methods, self._certificate)})

    def serving(self) -> None:
        self._gates.is_open = True
