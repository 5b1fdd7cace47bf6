"""Whether the daemon lives and takes work.

Liveness (`/healthz`) means that the event loop answers, readiness (`/readyz`) that new work is accepted. They differ
while the daemon shuts down: it must not be restarted then, and not be sent more work.
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

PROBES: Final = frozenset(("/healthz", "/readyz"))
"""Answered without any credential: what probes a daemon has none, and learns nothing but yes or no."""


def probe_routes(is_ready: Callable[[], bool], source_states: Callable[[], Sequence[str]] = tuple) -> list[BaseRoute]:
    """`is_ready` is called at each probe; `source_states` says how each source fares that the daemon runs itself."""

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        if not is_ready():
            return PlainTextResponse("not ready\n", HTTPStatus.SERVICE_UNAVAILABLE)
        # A source that cannot see does not make the daemon unready: what else is waited for is served as ever.
        states = "".join(f"source {number}: {state}\n" for number, state in enumerate(source_states(), 1))
        return PlainTextResponse(f"ready\n{states}")

    return [Route("/healthz", healthz), Route("/readyz", readyz)]
