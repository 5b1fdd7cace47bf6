"""What monitors read: the metrics page for Prometheus, and probes.

`/healthz` reports whether the event loop answers, `/readyz` whether new work is accepted, `/leaderz` whether this is
the daemon that serves calls. The first two differ during shutdown, when the daemon must neither be restarted nor
receive new work. The last two differ on a standby of a fleet, which is ready for its task but serves no calls; load
balancers use `/leaderz`.
"""

import math
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

PROBES: Final = frozenset(("/healthz", "/readyz", "/leaderz"))
"""Answered without credentials: probes have none. The answers reveal nothing about operations."""

OPEN_METRICS: Final = "application/openmetrics-text"
INTERVAL_S: Final = 1.0
"""Metrics are computed at most this often."""


class MetricsPage:
    """Computes `/metrics` at most once in `INTERVAL_S`. It blocks the event loop for milliseconds, and four frequent
    scrapers would take most of the loop's time.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry: Final = registry
        self._computed: Final[dict[str, tuple[float, bytes]]] = {}
        """By format: time of the last computation (monotonic seconds), and the page."""

    def routes(self) -> list[BaseRoute]:
        return [Route("/metrics", self._answer)]

    async def _answer(self, request: Request) -> Response:
        # One of two formats: the library would compute a page for each version that a caller names.
        accepted = OPEN_METRICS if prefers_open_metrics(request.headers.get("Accept", "")) else ""
        encode, content_type = choose_encoder(accepted)
        now_s = time.monotonic()
        computed_s, page = self._computed.get(accepted, (-math.inf, b""))
        if now_s - computed_s >= INTERVAL_S:
            page = encode(self._registry)
            self._computed[accepted] = now_s, page
        return Response(page, headers={"Content-Type": content_type})


def prefers_open_metrics(accept: str) -> bool:
    """Return whether an Accept header gives OpenMetrics a weight above 0 that is not below that of the text format."""
    weights = {OPEN_METRICS: 0.0, "text/plain": 0.0}
    for media_range in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in media_range.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    return 0 < weights[OPEN_METRICS] >= weights["text/plain"]


def _weight(parameters: Sequence[str]) -> float:
    given = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    try:
        return float(given)
    except ValueError:
        return 0.0


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
