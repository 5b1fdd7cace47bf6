"""The metrics page for Prometheus."""

import math
import time
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

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
