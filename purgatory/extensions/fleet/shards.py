"""Shards: the calls that a daemon refuses because another one serves the session, or every one needs the event."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from zlib import crc32

from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2

from purgatory.service.errors import DOMAIN, RpcError, quoted
from purgatory.service.rpc.call import Call
from purgatory.service.rpc.handlers import SERVICE, Method, Requests
from purgatory.v1 import purgatory_service_pb2 as wire

GET_TOPOLOGY: Final = "GetTopology"
LISTING: Final = "ListOperations"
"""Names a session only as a filter."""

Check = Callable[[Any], None]
"""Raises `RpcError` for a request that this daemon must not serve."""


def shard_of(session_id: str, shards: int) -> int:
    return crc32(session_id.encode()) % shards


class Topology(NamedTuple):
    """The shards of a fleet, as one of its daemons sees them."""

    targets: tuple[str, ...] = ()
    """The gRPC target of each; none if there is one shard."""
    shard: int = 0
    """That of this daemon."""

    def message(self) -> wire.GetTopologyResponse:
        if len(self.targets) < 2:
            return wire.GetTopologyResponse(shards=1)
        return wire.GetTopologyResponse(shards=len(self.targets), targets=self.targets, shard=self.shard)

    async def get(self, _request: object, _call: Call) -> wire.GetTopologyResponse:
        """`GetTopology`."""
        return self.message()

    def checked(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """Return the service's calls, so that they refuse what is for other shards. With one shard: as they are."""
        if len(self.targets) < 2:
            return dict(methods)
        checks: dict[str, Check] = {
            "Session": self._check_opening,
            "Advance": self._check_events,
            "AdvanceStream": self._check_events,
        }
        for method in SERVICE.methods:
            if "session_id" in method.input_type.fields_by_name and method.name != LISTING:
                checks[method.name] = self._check_request
        streams = {method.name for method in SERVICE.methods if method.client_streaming}
        return dict(methods) | {
            name: partial(_stream if name in streams else _single, methods[name], check)
            for name, check in checks.items()
        }

    def _check_opening(self, request: wire.SessionRequest) -> None:
        if request.HasField("open"):
            self._check_session(request.open.session_id)

    def _check_request(self, request: Any) -> None:  # noqa: ANN401 - of any call that names a session
        if request.session_id:
            self._check_session(request.session_id)

    def _check_session(self, session_id: str) -> None:
        """One session must not exist in two shards."""
        shard = shard_of(session_id, len(self.targets))
        if shard == self.shard:
            return
        target = self.targets[shard]
        raise _refusal(
            f"session {quoted(session_id)} belongs to shard {shard}, at {target}; this is shard {self.shard}",
            "OTHER_SHARD",
            {"shard": str(shard), "target": target},
        )

    def _check_events(self, request: wire.AdvanceRequest | wire.AdvanceStreamRequest) -> None:
        if not request.all_shards:
            raise _refusal(
                f"this is shard {self.shard} of {len(self.targets)}, and waits at the others would miss these events: "
                "send them to every target of GetTopology, with all_shards",
                "ALL_SHARDS_NEEDED",
                {},
            )


async def _single(method: Method, check: Check, request: object, call: Call) -> Message | None:
    check(request)
    return await method(request, call)


def _stream(method: Method, check: Check, requests: Requests, call: Call) -> Awaitable[Message | None]:
    requests.check_each(check)
    return method(requests, call)


def _refusal(message: str, reason: str, metadata: dict[str, str]) -> RpcError:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    return RpcError(code_pb2.FAILED_PRECONDITION, message, info)
