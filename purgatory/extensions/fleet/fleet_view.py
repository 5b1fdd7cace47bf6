"""The state of a daemon in a fleet: the answer to `/fleet`, one line of text for people, and metrics."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory.replicated_log.leadership import Leadership
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.snapshots import LastSnapshot
from purgatory.replicated_log.standby import Standby
from purgatory.service.listeners.listener import Listener

CATCHING_UP: Final = "catching up"
STANDING_BY: Final = "standing by"
LEADING: Final = "leading"
UNCONFIRMED: Final = "led until the log ceased to answer"
STATES: Final = {UNCONFIRMED: 0, CATCHING_UP: 0, STANDING_BY: 1, LEADING: 2}
LAG_USUAL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class FleetView:
    """The state of one daemon. `position` is that of the last entry that it has read; the other fields are described
    with the metrics.
    """

    state: str
    epoch: int
    position: int
    void_entries: int
    snapshot_position: int
    snapshot_age_s: float
    log: str = ""
    """The log's id."""
    leader: str = ""
    lag_entries: int = 0
    lag_s: float = 0.0
    append_ms: float = 0.0

    def metrics(self) -> Iterable[Metric]:
        for name, value, text in (
            (
                "state",
                STATES[self.state],
                "0: catching up with the log, or cut off from it, 1: standing by, 2: leading.",
            ),
            ("epoch", self.epoch, "Epoch of the last claim."),
            ("lag_entries", self.lag_entries, "Entries of the log that a standby has not applied yet."),
            (
                "lag_seconds",
                self.lag_s,
                "A standby has applied all that was in the log this long ago. It asks once a second, so 1 is usual.",
            ),
            ("append_seconds", self.append_ms / 1_000, "Duration of the leader's last append."),
            (
                "snapshot_age_seconds",
                self.snapshot_age_s,
                "Age of the last snapshot's content, by the log's clock; without one, of the log's first entry.",
            ),
        ):
            yield GaugeMetricFamily(f"purgatory_fleet_{name}", text, value)
        yield CounterMetricFamily(
            "purgatory_fleet_void_entries", "Entries of deposed leaders, and repeated ones.", self.void_entries
        )

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def describe(view: Mapping[str, Any]) -> str:
    """The answer of `/fleet` as one line."""
    parts = [view["state"], f"epoch {view['epoch']}", f"position {view['position']}"]
    if view["state"] == LEADING:
        parts.append(f"append {view['append_ms']:.1f} ms")
    elif view["lag_s"] > LAG_USUAL_S:
        parts.append(f"{view['lag_s']:.0f} s and {view['lag_entries']} entries behind")
    has_snapshot = view["snapshot_position"] >= 0
    parts.append(f"snapshot {view['snapshot_age_s'] / 60:.0f} min old" if has_snapshot else "no snapshot yet")
    return ", ".join(parts)


def view_of_standby(standby: Standby, snapshot: LastSnapshot) -> FleetView:
    state = STANDING_BY if standby.is_caught_up else CATCHING_UP
    own = {"leader": standby.leader, "lag_entries": standby.lag_entries, "lag_s": standby.lag_s}
    return _view(state, standby.reign, snapshot, standby.logged_ms, **own)


def view_of_leader(leadership: Leadership, snapshot: LastSnapshot, *, is_confirmed: bool) -> FleetView:
    """`is_confirmed`: otherwise another daemon may lead by now, as after a pause of this process."""
    state = LEADING if is_confirmed else UNCONFIRMED
    return _view(state, leadership.reign, snapshot, leadership.logged_ms, append_ms=leadership.append_ms)


def _view(state: str, reign: Reign, snapshot: LastSnapshot, logged_ms: int, **own: Any) -> FleetView:  # noqa: ANN401 - fields
    age_s, now = snapshot.age_s(logged_ms), reign.state
    log = now.log_id.hex()
    return FleetView(state, now.epoch, now.position, reign.void_entries, snapshot.position, age_s, log, **own)


def fleet_route(view: Callable[[], FleetView]) -> Route:
    async def fleet(_request: Request) -> Response:
        return JSONResponse(view().as_json())

    return Route("/fleet", fleet)


class FleetMetrics(Listener, Collector):
    """Exports a view: as a listener on the leader, as a collector on a standby, which has no host."""

    def __init__(self, view: Callable[[], FleetView]) -> None:
        self._view: Final = view

    def metrics(self) -> Iterable[Metric]:
        return self._view().metrics()

    collect = metrics
