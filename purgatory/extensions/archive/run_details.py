"""Settings of a run, stored in its STARTED marker, and the marks with which it continues a journal, in MARKS markers:
enough to build an engine that behaves like the run's own.
"""

import json
import os
import secrets
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Final

from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.snapshots import Snapshots

LIMIT_NAMES: Final = tuple(one.name for one in fields(EngineLimits) if one.name != "signal_values_bytes_max")
"""Names of the `EngineLimits` fields that are stored."""


def wall_ms() -> int:
    """Wall-clock milliseconds since 1970 in UTC. It may jump, even backwards; never derive an order from it."""
    return int(time.time() * 1_000)


def new_run_id() -> str:
    """A unique run id. It begins with the time (UTC), so runs sort chronologically."""
    now = datetime.fromtimestamp(wall_ms() / 1_000, UTC)
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class RunDetails:
    """Purgatory's version, host and process of a run, and the settings of its engine.

    - `limits`: the `EngineLimits` that differ from the defaults, by name.
    - `expired_per_slice`: the limit of `PassTime` and `ShutDown`.
    - `journal`: operations that are pending at the end of the run are still pending in the daemon's next run.
    - `continued`: this is such a next run. It began with operations that its own rows do not contain, and with the
      marks and keys of its MARKS markers.

    The engine's initial clock is the marker's `time_ms`.
    """

    version: str
    tick_ms: int = 1
    strict_partitions: bool = False
    replica_lag_time_max_ms: int = 30_000
    expired_per_slice: int = 2_000
    limits: dict[str, int] = field(default_factory=dict)
    journal: bool = False
    continued: bool = False
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, detail: str) -> "RunDetails":
        """Parse a marker's `detail`, or raise ValueError. Fields added by newer versions are ignored."""
        values = json.loads(detail)
        if not isinstance(values, dict) or "version" not in values:
            raise ValueError(f"not the details of a run: {detail[:80]!r}")
        known = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
        limits = known.get("limits", {})
        known["limits"] = {name: limits[name] for name in LIMIT_NAMES if limits.get(name) is not None}
        return cls(**known)

    def engine_limits(self) -> EngineLimits:
        return EngineLimits(**self.limits)

    def make_engine(self, now_ms: int, marks: Iterable[str] = ()) -> Engine:
        """An engine with the run's settings. `now_ms`: `time_ms` of the STARTED marker. `marks`: see `saved_marks`."""
        engine = Engine(
            self.engine_limits(),
            now_ms,
            tick_ms=self.tick_ms,
            strict_partitions=self.strict_partitions,
            replica_lag_time_max_ms=self.replica_lag_time_max_ms,
        )
        for part in marks:
            partitions, keys = json.loads(part)
            for topic, number, state in partitions:
                engine.snapshots.restore_partition((topic, number), b64decode(state))
            for key, count, failed in keys:
                engine.snapshots.restore_key(key, count, failed=failed)
        return engine


MARKS_PER_ROW: Final = 10_000


def saved_marks(snapshots: Snapshots) -> Iterator[str]:
    """The state of all partitions and keys, without values: at least one text, each for one MARKS marker."""
    saved = [(name, snapshots.save_partition(name)) for name in snapshots.partitions.by_name]
    partitions = [[*name, b64encode(state).decode()] for name, state in saved if state]
    keys = [(key, count, failed) for key, count, _, failed, _ in snapshots.save_keys()]
    for first in range(0, max(len(partitions), len(keys), 1), MARKS_PER_ROW):
        yield json.dumps([part[first : first + MARKS_PER_ROW] for part in (partitions, keys)])
