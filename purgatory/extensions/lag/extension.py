"""The extension lag: follows groups, serves `GET /v1/lag` for `purgatory lag` and the page, and exports metrics."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Collection, Iterable
from operator import sub
from typing import Any, Final

from prometheus_client.core import Metric
from purgatory_client.sources.source_names import escaped_group
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from purgatory import sizes
from purgatory.engine.batches import PartitionName
from purgatory.extension import Core, Extension, HttpParts, own_settings
from purgatory.extensions.lag.end_history import EndHistory
from purgatory.service.access.roles import WAIT
from purgatory.service.errors import RpcError, invalid_argument, quoted
from purgatory.service.histogram import gauges
from purgatory.service.http import http_calls
from purgatory.service.http.server_sent_events import parameters_of
from purgatory.service.listeners.listener import Listener
from purgatory.service.rpc.call import Call
from purgatory.service.settings import DurationMs, SettingsGroup, Words, setting

LOGGER: Final = logging.getLogger(__name__)

PRINCIPAL: Final = "purgatory-lag"
ANSWER_S: Final = 4.0
KEPT_MS: Final = 3_600_000
"""A group that no setting names is followed for this long after the last question about it."""
OWN_MAX: Final = 2_000
"""Positions followed because one principal asked, in its last questions. A group counts as 20 at least."""
LOGS_MAX: Final = 10_000
"""Partitions with a history: at most 120 MB."""
PACE_READINGS: Final = 12
"""The pace is the mean over this many readings. One that has not moved for all of them may have nothing to read."""


class LagSettings(SettingsGroup):
    """Lag in time of consumer groups and replicas (docs/lag.md)."""

    groups: Words = setting(
        "", "Groups to follow always and to export as metrics: billing (kafka/billing/), or prefixes: pg/main/all."
    )
    poll_ms: DurationMs = setting(5_000, "Interval at which the ends of the logs of followed groups are read.")


class WithLag(BaseModel):
    """The group, as the daemon's settings have it."""

    lag: LagSettings = LagSettings()


def marks_of(group: str) -> str:
    """The prefix of a group's marks: "kafka/billing/" of "billing". A text with a slash is a mark or a prefix."""
    return group if "/" in group else f"kafka/{escaped_group(group)}/"


def lag_metrics(rows: Iterable[dict[str, Any]]) -> Iterable[Metric]:
    """The metrics of positions. A lag that is not known is left out."""
    known = [row for row in rows if "lag" in row]
    names = [(*row["mark"].removeprefix("kafka/").rpartition("/")[::2], str(row["partition"])) for row in known]
    for name, field, divisor, text in (
        ("seconds", "ageMs", 1_000, "Age of a group's position."),
        ("is_lower_bound", "isAtLeast", 1, "1 if the age is at least that of purgatory_group_lag_seconds."),
        ("offsets", "lag", 1, "Offsets between a group's position and the end of the log."),
    ):
        values = zip(names, (row[field] / divisor for row in known), strict=True)
        yield gauges(f"purgatory_group_lag_{name}", text, ["group", "topic", "partition"], values)


class LagExtension(Extension, Listener):
    """Asks the sources of groups at intervals where the logs end, and computes the lag of each position. A group is the
    prefix of its marks: "kafka/billing/", "pg/main/all". Those of the setting are followed always.
    """

    name = "lag"
    settings = WithLag
    needed_for = "lag.groups"

    def __init__(self, core: Core) -> None:
        settings = own_settings(core.settings, WithLag).lag
        self._host: Final = core.host
        self._poll_ms: Final = settings.poll_ms
        self._always: Final = tuple(map(marks_of, settings.groups.split()))
        self._asked: dict[tuple[str, str], tuple[int, int]] = {}
        """When a principal last asked for a group, the latest at the end, and how many positions it had."""
        self._histories: dict[PartitionName, EndHistory] = {}
        self._failed: dict[str, str] = {}
        """Why the last reading of a log failed; empty: it has not."""
        self._readings: dict[PartitionName, deque[tuple[int, int, int]]] = {}
        """Time, position and end at the last readings of each position."""
        self._task: asyncio.Task[None] | None = None

    @property
    def listener(self) -> Listener | None:
        return self

    def metrics(self) -> Iterable[Metric]:
        return lag_metrics(self._row(name) for name in self._readings if name[0].startswith(self._always))

    def routes(self, methods: http_calls.HttpMethods) -> HttpParts:
        return HttpParts(applications={"/v1/lag": http_calls.page(methods, "GetSourceEnds", self._answer)})

    def serving(self) -> None:
        self._task = asyncio.create_task(self._run(), name="lag")

    async def close(self, _grace_s: float) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, scope: Scope, call: Call) -> Response:
        group = parameters_of(scope, "group").get("group")
        if not group:
            raise invalid_argument("group", "is missing")
        allowed, prefix = call.account.grants.on_topics(WAIT), marks_of(group)
        if not allowed.meets_prefix(prefix):  # whether the group exists or not
            raise self._host.sessions.accounts.audit.denied(call.account.principal, WAIT, f"topics {quoted(prefix)}")
        names = [name for name in await self._positions(prefix) if name[0] in allowed]
        if names:
            self._asked.pop((call.account.principal, prefix), None)
            self._asked[call.account.principal, prefix] = self._host.time.now_ms(), max(OWN_MAX // 100, len(names))
            own = [asked for asked in self._asked if asked[0] == call.account.principal]
            while sum(self._asked[asked][1] for asked in own) > OWN_MAX:
                del self._asked[own.pop(0)]
        await self._read(names)
        return JSONResponse({"group": group, "pollMs": self._poll_ms, "partitions": [*map(self._row, names)]})

    def _row(self, name: PartitionName) -> dict[str, Any]:
        """The lag of a position as JSON (docs/lag.md). What is unknown is left out."""
        log, listening_ms = self._log_of(name), self._host.listening.now_ms()
        history, position = self._histories.get(log), self._position(name)
        stale = self._host.sources.stale(name, listening_ms)
        reason = f"stale for {stale.ms(listening_ms)} ms: {stale.reason}" if stale else self._failed.get(log[0])
        row: dict[str, Any] = {"mark": name[0], "partition": name[1], "position": position, "reason": reason or None}
        if history is None or position is None:
            row["reason"] = reason or "its position, or the end of the log, is not known"
        else:
            lag, age_ms, error_ms = history.behind(position, self._host.time.now_ms())
            row["end"] = history.end
            if lag or not reason:  # being at the end that was last seen proves nothing
                row |= {"lag": lag, "ageMs": age_ms, "ageErrorMs": error_ms, "isAtLeast": error_ms is None}
                readings = self._readings.get(name) or [(0, 0, 0)]
                took_ms, done, written = map(sub, readings[-1], readings[0])
                if took_ms:
                    row |= {"positionPerSecond": done * 1_000 / took_ms, "endPerSecond": written * 1_000 / took_ms}
                gained = done - max(0, written)  # negative if the log was cut
                if not lag or gained > 0:
                    row["caughtUpInMs"] = lag * took_ms // gained if lag else 0
        return {field: value for field, value in row.items() if value is not None}

    def _position(self, name: PartitionName) -> int | None:
        partition = self._host.engine.inspection.partitions.get(name)
        return None if partition is None or partition.high_watermark < 0 else partition.high_watermark

    def _log_of(self, name: PartitionName) -> PartitionName:
        """The mark whose end is that of the log: for a Kafka group, the topic's. Its groups share one history."""
        label, *group, topic = name[0].split("/")
        for source in self._host.sources if group else ():
            if source.name.startswith("kafka:") and name[0].startswith(source.topic_prefixes):
                return f"{label}/{topic}", name[1]
        return name

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._poll_ms / 1_000)
            try:
                await self._poll(self._host.time.now_ms())
            except Exception:
                LOGGER.exception("reading the lag of groups failed; will be retried")

    async def _poll(self, now_ms: int) -> None:
        self._asked = {one: asked for one, asked in self._asked.items() if now_ms - asked[0] <= KEPT_MS}
        names = await self._positions(*self._always, *(prefix for _, prefix in self._asked))
        logs = set(map(self._log_of, names))
        self._histories = {log: history for log, history in self._histories.items() if log in logs}
        self._failed = {topic: self._failed.get(topic, "") for topic, _ in logs}
        self._readings = {name: self._readings.get(name) or deque(maxlen=PACE_READINGS) for name in names}
        await self._read(names)
        unsure = set()
        for name, readings in self._readings.items():
            history, position = self._histories.get(self._log_of(name)), self._position(name)
            if history is not None and position is not None:
                is_same = len(readings) == PACE_READINGS and readings[0][1:] == (position, history.end)
                readings.append((now_ms, position, history.end))
                if is_same and position < history.end:
                    unsure.add(name[0])
                    self._readings[name] = deque([*readings][-2:], PACE_READINGS)  # not again at the next reading
        # The question by the group's own mark lets the source check whether only invisible offsets are left.
        with contextlib.suppress(RpcError):
            await self._host.source_links.ends(sorted(unsure), PRINCIPAL, limit_s=ANSWER_S)

    async def _positions(self, *groups: str) -> list[PartitionName]:
        """The known marks of these groups."""
        names, found = self._host.engine.inspection.partition_names() if groups else [], list[PartitionName]()
        for start in range(0, len(names), sizes.DEMAND_NAMES_PER_SLICE):
            some = names[start : start + sizes.DEMAND_NAMES_PER_SLICE]
            found += [name for name in some if name[0].startswith(groups)]
            await asyncio.sleep(0)
        return sorted(found)

    async def _read(self, names: Collection[PartitionName]) -> None:
        """Read the ends of the logs of these positions."""
        logs, asked_ms = set(map(self._log_of, names)), self._host.time.now_ms()
        topics = {topic for topic, _ in logs}
        try:
            found = await self._host.source_links.ends(sorted(topics), PRINCIPAL, limit_s=ANSWER_S)
        except RpcError as refused:
            self._failed.update(dict.fromkeys(topics, refused.message))
            if len(topics) > 1:  # one that may not be read must not hide the others
                await asyncio.gather(*(self._read([log for log in logs if log[0] == topic]) for topic in topics))
            return
        self._failed.update(dict.fromkeys(topics, ""))
        ends: dict[PartitionName, tuple[int | None, int | None]] = {end.name: end[1:] for end in found}
        for log in logs:
            if log in self._histories or len(self._histories) < LOGS_MAX:
                history = self._histories.setdefault(log, EndHistory(self._poll_ms))
                history.seen(*ends.get(log, (None, None)), asked_ms, self._host.time.now_ms())
