"""Ready gates. A gate NAME is the session `ready/NAME`, whose one operation is the wait for its target.

The target is where the logs ended at the first request. The result of the wait is never acknowledged, so it stays in
the session, and the gate stays ready. Everything else follows: sessions survive a restart if there is a journal, belong
to an account, are limited in number, are listed by `purgatory ls`, and are dropped after their time to live without a
request.
"""

import json
import ssl
from collections.abc import Callable, Sequence
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode
from weakref import WeakKeyDictionary
from zlib import crc32

from google.rpc import code_pb2
from purgatory_client.errors import InvalidRequest
from purgatory_client.sources.source_names import kafka_group, kafka_topic
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from purgatory.engine.batches import OperationBatch, PartitionName
from purgatory.engine.codes import PRODUCE, SATISFIED
from purgatory.engine.views import PendingView
from purgatory.extension import Core, Extension, HttpParts
from purgatory.service.errors import BatchRejected, RpcError, from_refusal, invalid_argument, unavailable
from purgatory.service.host import Host
from purgatory.service.http import http_calls
from purgatory.service.http.server_sent_events import parameters_of
from purgatory.service.rpc.call import Call
from purgatory.service.rpc.source_calls import checked_topics
from purgatory.service.sessions.session import Session
from purgatory.service.sources.ends_asked import LogEnd
from purgatory.service.translate.operations import OperationRun
from purgatory.service.translate.sources import NAME_LENGTH_MAX
from purgatory.service.transport.outbound import NoAnswer, Outbound

SESSION_PREFIX: Final = "ready/"
NAMES_PER_TURN: Final = 4
"""Gates looked at before other tasks may run: up to 2 ms each, if they wait for 2,000 partitions."""
MARKS_BITS: Final = 32
"""The low bits of an operation's id, which are a checksum of the names of the gate's marks: the operation itself names
only those that have records.
"""
LOOKUP_S: Final = 5.0
"""How long a request waits for the source, seconds. It looks up the target also if its caller has given up before."""

ENDED_AT_ONCE: Final = "the wait for its target failed at once; the next request looks up another target"

StaleReason = Callable[[PartitionName], str]
"""Why a mark is stale; empty: it is not."""

GateState = dict[str, bool | int | float | str]
"""The state of a gate as JSON (docs/readiness.md); what is unknown is left out."""


class ReadyGates:
    def __init__(self, host: Host) -> None:
        self._host: Final = host
        self.is_open = False
        """Set once the journal is restored: a session opened before would be in its way."""
        self._first_seen: Final[WeakKeyDictionary[Session, tuple[int, int, int]]] = WeakKeyDictionary()
        """Operation, engine time in milliseconds, and progress when a request first saw it."""

    def elsewhere(self, names: Sequence[str], *, may_pass_on: bool) -> dict[str, list[str]]:
        """Return those of these gates that belong to other shards, by the URL of their shard.

        Raises:
            RpcError: The request would have to be passed on, and cannot be.
        """
        shards, found = self._host.sessions.shards, dict[str, list[str]]()
        for session_id in (SESSION_PREFIX + name for name in names):
            if not may_pass_on or not shards.urls:
                shards.check_session(session_id)
            elif shards.of(session_id) != shards.shard:
                url = shards.urls[shards.of(session_id)]
                found.setdefault(url, []).append(session_id.removeprefix(SESSION_PREFIX))
        return found

    async def states(self, names: Sequence[str], asked: Sequence[str], call: Call) -> list[GateState]:
        """Return the states of gates. A gate exists from the first request on.

        Args:
            names: Names of gates, local to the account.
            asked: Topics without partition numbers, as for `GetSourceEnds`.
            call: The request.

        Raises:
            RpcError: The request is invalid or not permitted, a limit is reached, or the daemon is starting.
        """
        topics = checked_topics(self._host, call, asked)
        if not all(names):
            raise invalid_argument("name", "is empty; give each gate a name, such as that of its pod")
        if not self.is_open:
            raise unavailable("the daemon is starting")
        gates: list[tuple[Session, GateState | None]] = []
        look = partial(self._known_state, marks=_checksum(topics), stale_reason=cache(self._stale_reason))
        for place, name in enumerate(names):
            if place % NAMES_PER_TURN == 0:
                await call.turn()
            session = self._open(name, call)
            gates.append((session, look(session)))
        without = [session for session, state in gates if state is None]
        reason = (await self._find_targets(without, topics, look, call) if without else "") or ENDED_AT_ONCE
        return [state or look(session) or {"ready": False, "reason": reason} for session, state in gates]

    def _open(self, name: str, call: Call) -> Session:
        session, _ = self._host.sessions.open(SESSION_PREFIX + name, self._host.time.now_ms(), call.account)
        if session.uncertain_after >= 0:
            # Restored after a crash. Nobody has read a result that the crash could have lost.
            session.resume(session.outbox.acknowledged_sequence)
            self._host.journal.changed(session)
        return session

    def _known_state(self, session: Session, marks: int, stale_reason: StaleReason) -> GateState | None:
        """The state of a gate that has a target; None if it has none, or none that can still be reached.

        Raises:
            RpcError: It waits for other marks: two callers would share one name.
        """
        if session.dropped:
            return {"ready": False, "reason": "its session was closed during this request"}
        now_ms, operation_id = self._host.time.now_ms(), session.owner.highest_operation_id
        _, results = session.outbox.take(1)
        session.outbox.put_back(results)
        view = None if results else self._host.engine.inspection.describe(session.owner, operation_id)
        if (view or results) and operation_id % (1 << MARKS_BITS) != marks:
            advice = f"choose another name, or make it new with `purgatory close {session.session_id}`"
            raise invalid_argument("name", f"belongs to a gate that waits for other marks; {advice}")
        if view is not None:
            return self._progress(session, view, now_ms, stale_reason)
        if not results:
            return {"ready": False, "reason": "its result is being written"} if session.outbox.unacknowledged else None
        ended = results[0].completions
        required = ended.required_offsets[results[0].item_start : results[0].item_stop]
        # An operation that requires no offset means that the logs had no records: see `_register`.
        if ended.outcomes[results[0].start] == SATISFIED or (len(required) and not any(required)):
            return {"ready": True, "lag": 0}
        # It was cancelled, or its history has ended: the log was truncated, the group was reset.
        self._host.acknowledge(session, session.outbox.last_sequence)
        return None

    def _progress(self, session: Session, view: PendingView, now_ms: int, stale_reason: StaleReason) -> GateState:
        target, reached, behind = 0, 0, []
        for item in view.items:
            required, mark = item.required_offset, item.reached_offset
            target += required
            reached += max(0, min(mark, required))
            if mark < required:
                behind.append(item.name)
        first = self._first_seen.get(session)
        if first is None or first[0] != view.operation_id:
            first = self._first_seen[session] = view.operation_id, now_ms, reached
        state: GateState = {"ready": False, "lag": target - reached}
        # Not by the engine's functions, which count in 64 bits: these are sums of offsets.
        waited_ms, moved = now_ms - first[1], reached - first[2]
        if waited_ms > 0 and moved > 0:
            state["pacePerSecond"] = round(moved * 1_000 / waited_ms, 3)
            state["estimatedRemainingMs"] = -(-(target - reached) * waited_ms // moved)
        reason = next(filter(None, map(stale_reason, behind)), "")
        return {**state, "reason": reason} if reason else state

    def _stale_reason(self, name: PartitionName) -> str:
        now_ms = self._host.listening.now_ms()
        stale = self._host.sources.stale(name, now_ms)
        return "" if stale is None else f"{name[0]}-{name[1]} has been stale for {stale.ms(now_ms)} ms: {stale.reason}"

    async def _find_targets(
        self, sessions: Sequence[Session], topics: Sequence[str], look: Callable[[Session], object], call: Call
    ) -> str:
        """Register in each session the wait for the present ends. Return why they are not known, or nothing. Raises
        `RpcError` if a wait is refused.
        """
        try:
            ends = await self._host.source_links.ends(topics, call.account.principal, limit_s=LOOKUP_S)
        except RpcError as refused:
            if refused.code != code_pb2.UNAVAILABLE:
                raise
            return refused.message
        for session in sessions:
            await call.turn()
            async with session.registering:
                if look(session) is None:  # otherwise another request was faster
                    self._register(session, topics, [end for end in ends if end.offset > 0])
        await self._host.journal.durable()  # a target that was answered must not become a later one
        return ""

    def _register(self, session: Session, topics: Sequence[str], ends: Sequence[LogEnd]) -> None:
        """Register the wait. If no log has records, it requires offset 0 and ends at once: the session then remembers
        that there was nothing to wait for.
        """
        timeout_ms = self._host.engine.limits.timeout_ms_max if ends else 0
        target = ends or [LogEnd((topics[0], 0), 0, None)]
        number = (session.owner.highest_operation_id >> MARKS_BITS) + 1
        batch = OperationBatch(
            [(number << MARKS_BITS) + _checksum(topics)],
            partitions=[end.name for end in target],
            item_indexes=list(range(len(target))),
            offsets=[end.offset for end in target],
            timeouts_ms=[timeout_ms],
            item_counts=[len(target)],
            leader_epochs=[-1 if end.leader_epoch is None else end.leader_epoch for end in target],
        )
        try:
            self._host.gate.check_batch(session, 1, len(target))
        except BatchRejected as rejected:
            raise from_refusal(rejected.refusal, "", rejected.retry_after_ms) from None
        receipt = self._host.registration(session).register([OperationRun(PRODUCE, batch)], [])
        if receipt.refused:
            self._host.acknowledge(session, session.outbox.last_sequence)
            raise from_refusal(receipt.refused[0][0], "")


def _checksum(topics: Sequence[str]) -> int:
    return crc32("\n".join(sorted(topics)).encode())


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
    given = ((name, http_calls.header_of(scope, name)) for name in (b"host", b"authorization"))
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
    """`GET /v1/ready?name=POD&group=billing&topics=orders`: 200 once a gate is ready, 503 before, with its state as
    JSON. `marks` in place of `group` and `topics` names marks of any source: `marks=pg/main/all`. Several names,
    separated by commas in `names`, are several gates on the same marks: the answer lists them, and is 200 once all are
    ready. With shards, any of them can be asked: requests for gates of another one are passed on to it.
    """

    name = "ready"

    def __init__(self, core: Core) -> None:
        self._gates: Final = ReadyGates(core.host)
        self._certificate_file: Final = core.settings.tls.certificate_file

    def routes(self, methods: http_calls.HttpMethods) -> HttpParts:
        return HttpParts(applications={"/v1/ready": http_calls.page(methods, "GetSourceEnds", self._answer)})

    async def _answer(self, scope: Scope, call: Call) -> Response:
        parameters = parameters_of(scope, "name", "names", "group", "topics", "marks")
        names, marks = _names(parameters), _marks(parameters)
        may_pass_on = http_calls.header_of(scope, PASSED_ON) is None and http_calls.certificate_of(scope) is None
        elsewhere = self._gates.elsewhere(names, may_pass_on=may_pass_on)
        own = list(set(names).difference(*elsewhere.values()))
        states = dict(zip(own, await self._gates.states(own, marks, call), strict=True))
        for url, asked in elsewhere.items():
            query = parameters | {"names" if "names" in parameters else "name": ",".join(asked)}
            found = await states_elsewhere(url, query, scope, self._certificate_file)
            states.update(zip(asked, found, strict=True))
        gates = [{"name": name, **states[name]} for name in names]
        is_ready = all(state["ready"] for state in states.values())
        content = {"ready": is_ready, "gates": gates} if "names" in parameters else gates[0]
        return JSONResponse(content, HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    def serving(self) -> None:
        self._gates.is_open = True
