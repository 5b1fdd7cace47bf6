"""What a daemon of a fleet shows of itself, as the leader or as a standby: the answer to `/fleet`, and metrics."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from purgatory.fleet.leadership import Leadership
from purgatory.fleet.snapshots import LastSnapshot
from purgatory.fleet.standby import Standby
from purgatory.service.listeners.listener import Listener

CATCHING_UP: Final = "catching up"
STANDING_BY: Final = "standing by"
LEADING: Final = "leading"
STATES: Final = (CATCHING_UP, STANDING_BY, LEADING)
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
    leader: str = ""
    lag_entries: int = 0
    lag_s: float = 0.0
    append_ms: float = 0.0

    def metrics(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "purgatory_fleet_state",
            "0: catching up with the log, 1: standing by, 2: leading.",
            STATES.index(self.state),
        )
        yield GaugeMetricFamily("purgatory_fleet_epoch", "Epoch of the last claim.", self.epoch)
        yield GaugeMetricFamily(
            "purgatory_fleet_lag_entries", "Entries of the log that a standby has not applied yet.", self.lag_entries
        )
        yield GaugeMetricFamily(
            "purgatory_fleet_lag_seconds",
            "A standby has applied all that was in the log this long ago. It asks once a second, so 1 is usual.",
            self.lag_s,
        )
        yield GaugeMetricFamily(
            "purgatory_fleet_append_seconds", "Duration of the leader's last append.", self.append_ms / 1_000
        )
        yield GaugeMetricFamily(
            "purgatory_fleet_snapshot_age_seconds",
            "Age of the last entry that the last snapshot includes, by the log's clock; without a snapshot, of the "
            "log's first entry.",
            self.snapshot_age_s,
        )
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
    return FleetView(
        STANDING_BY if standby.is_caught_up else CATCHING_UP,
        standby.epoch,
        standby.position,
        standby.void_entries,
        snapshot.position,
        snapshot.age_s(standby.logged_ms),
        standby.leader,
        standby.lag_entries,
        standby.lag_s,
    )


def view_of_leader(leadership: Leadership, snapshot: LastSnapshot) -> FleetView:
    return FleetView(
        LEADING,
        leadership.epoch,
        leadership.position,
        leadership.void_entries,
        snapshot.position,
        snapshot.age_s(leadership.logged_ms),
        append_ms=leadership.append_ms,
    )


class FleetMetrics(Listener, Collector):
    """Exports a view: as a listener on the leader, as a collector on a standby, which has no host."""

    def __init__(self, view: Callable[[], FleetView]) -> None:
        self._view: Final = view

    def metrics(self) -> Iterable[Metric]:
        return self._view().metrics()

    collect = metrics
