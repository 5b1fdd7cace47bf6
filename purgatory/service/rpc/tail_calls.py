"""The calls for observers: `TailResults`, and `ListHotNames`."""

import asyncio
import heapq
from typing import Final

from purgatory import sizes
from purgatory.service.access.roles import OBSERVE
from purgatory.service.errors import invalid_argument
from purgatory.service.host import Host
from purgatory.service.rpc.call import Call
from purgatory.service.translate.views import hot_names_response, is_known_kind, is_known_outcome
from purgatory.v1 import purgatory_service_pb2 as wire

NAMES_MAX: Final = 1_000
NAMES_DEFAULT: Final = 20

COALESCED_S: Final = 0.1
"""Operations that end within this time are sent in one message, seconds."""
SIGN_OF_LIFE_S: Final = 10.0


async def list_hot_names(host: Host, request: wire.ListHotNamesRequest, call: Call) -> wire.ListHotNamesResponse:
    """Return the names with the most watch entries among those that the caller may observe."""
    host.gate.check_answer(call.account)
    if request.limit < 0:
        raise invalid_argument("limit", f"must be 0 or greater, not {request.limit}")
    limit = min(request.limit, NAMES_MAX) if request.limit else NAMES_DEFAULT
    topics, keys = call.account.grants.on_topics(OBSERVE), call.account.grants.on_keys(OBSERVE)
    hottest: list[tuple[int, tuple[str, int]]] = []
    watched, place = host.holds.of("ListHotNames"), 0
    while place >= 0:
        if place:
            await call.turn()
        with watched:
            # Later slices return fewer names, because they must exceed the ones found so far.
            above = hottest[-1][0] if len(hottest) == limit else 0
            found, place = host.engine.inspection.hottest(place, sizes.HOT_NAMES_PER_SLICE, above)
            seen = [one for one in found if one[1][0] in (topics if one[1][1] >= 0 else keys)]
            hottest = heapq.nlargest(limit, hottest + seen)
    return hot_names_response(hottest)


async def tail_results(host: Host, request: wire.TailResultsRequest, call: Call) -> None:
    """Stream the results of ended operations until the caller disconnects."""
    if request.kind and not is_known_kind(request.kind):
        raise invalid_argument("kind", f"is not a known kind of operation: {request.kind}")
    for place, outcome in enumerate(request.outcomes):
        if not is_known_outcome(outcome):
            raise invalid_argument(f"outcomes[{place}]", f"is not an outcome of a wait: {outcome}")
    follower = host.tail.follow(call.account, request.outcomes, request.kind)
    try:
        while True:
            # Before each message: a stream may be open for days, and the role may have been withdrawn.
            call.recheck()
            operations, left_out = follower.take()
            while len(operations) > sizes.TAIL_ROWS_PER_MESSAGE:
                await call.context.write(wire.TailResultsResponse(operations=operations[: sizes.TAIL_ROWS_PER_MESSAGE]))
                del operations[: sizes.TAIL_ROWS_PER_MESSAGE]
            await call.context.write(wire.TailResultsResponse(operations=operations, left_out=left_out))
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_S):
                    await follower.woken.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(COALESCED_S)
    finally:
        host.tail.unfollow(follower)
