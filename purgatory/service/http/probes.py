"""Probes: `/healthz` reports whether the event loop answers, `/readyz` whether new work is accepted, `/leaderz` whether
this is the daemon that serves calls.

The first two differ during shutdown, when the daemon must neither be restarted nor receive new work. The last two
differ on a standby of a fleet, which is ready for its task but serves no calls; load balancers use `/leaderz`.
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

PROBES: Final = frozenset(("/healthz", "/readyz", "/leaderz"))
"""Answered without credentials: probes have none. The answers reveal nothing about operations."""


def probe_routes(
    is_ready: Callable[[], bool],
    details: Callable[[], Sequence[str]] = tuple,
    why_not_leading: Callable[[], str] | None = None,
) -> list[BaseRoute]:
    """All functions are called for each probe. `details` are lines that follow "ready"; they do not change the status:
    a daemon with a stale connector still serves all other waits. With `why_not_leading`, this daemon does not lead.
    """

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        if not is_ready():
            return PlainTextResponse("not ready\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("".join(f"{line}\n" for line in ("ready", *details())))

    async def leaderz(_request: Request) -> Response:
        if why_not_leading is None and is_ready():
            return PlainTextResponse("leading\n")
        reason = "not ready" if why_not_leading is None else why_not_leading()
        return PlainTextResponse(f"{reason}\n", HTTPStatus.SERVICE_UNAVAILABLE)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/leaderz", leaderz)]
