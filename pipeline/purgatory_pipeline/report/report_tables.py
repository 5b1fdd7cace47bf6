"""The report's tables: their names, columns, units and meanings.

There are two ways of counting. An *operation* counts once, under its first partition. A *wait* is an operation on one
of its partitions (or keys): an operation over three partitions is three waits, one in each. Each table says which it
counts.

Rows belong to the window of their own time: a registration to the window in which it was registered, an end to the
window in which it ended. So `registered` and `ended` of a window differ by the waits that were pending at its borders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

import pyarrow as pa

TEXT: Final = "text"
INSTANT: Final = "instant (UTC)"
COUNT: Final = "count"
MS: Final = "ms"
SHARE: Final = "0 to 1"
NUMBER: Final = "whole number"
MEASURED: Final = "as measured"
FLAG: Final = "true or false"

_ARROW: Final = {
    TEXT: pa.string(),
    INSTANT: pa.timestamp("us", tz="UTC"),
    COUNT: pa.int64(),
    MS: pa.int64(),
    SHARE: pa.float64(),
    NUMBER: pa.int32(),
    MEASURED: pa.float64(),
    FLAG: pa.bool_(),
}


@dataclass(frozen=True)
class ResultColumn:
    """`unit` is one of the words above. Columns are empty where they do not apply."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class ResultTable:
    """`key`: the columns that identify a row; `order`: how rows are sorted ("-": descending)."""

    name: str
    meaning: str
    key: tuple[str, ...]
    order: tuple[str, ...]
    columns: tuple[ResultColumn, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, _ARROW[column.unit]) for column in self.columns])


@dataclass(frozen=True)
class ReportInfo:
    """The context of the tables. `rows`: the number of rows of each table; frames contain the first ones only."""

    archive: str
    first_at: datetime | None
    last_at: datetime | None
    window_ms: int
    slow_over_ms: int | None
    """Produces that waited longer were examined one by one; None if there were none."""
    slow_share: float
    """The share of produces that `slow_over_ms` was chosen for, such as 0.01."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Counts of operations: registered, refused, carried_in, ended, satisfied, failed, expired, cancelled,
    shutting_down, unfinished. registered - refused + carried_in = ended + unfinished.
    """
    rows: Mapping[str, int] = field(default_factory=dict)
    objective: float | None = None
    """The share that may not expire, if one was given."""
    notes: tuple[str, ...] = ()
    """Caveats about figures, such as crashed runs or dropped rows; as sentences."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """purgatory, schema, spark."""


_TOPIC: Final = ResultColumn("topic", TEXT, "topic, or the key of a signal")
_TOPIC_OR_ALL: Final = ResultColumn("topic", TEXT, "topic, or the key of a signal; empty: all together")
_PARTITION: Final = ResultColumn("partition", NUMBER, "partition; -1: a signal")
_KIND: Final = ResultColumn("kind", TEXT, "produce, fetch, delete_records or signal")
_PRINCIPAL: Final = ResultColumn("principal", TEXT, "the caller; empty text: none was recorded")
_WINDOW: Final = ResultColumn("window_start", INSTANT, "where the window begins")


_COUNTS: Final = (
    ResultColumn("registered", COUNT, "registrations, refused ones among them"),
    ResultColumn("refused", COUNT, "registrations that were refused and never waited"),
    ResultColumn("ended", COUNT, "ends of any kind: the sum of the next five"),
    ResultColumn("satisfied", COUNT, "their condition was met"),
    ResultColumn("failed", COUNT, "a partition answered with an error"),
    ResultColumn("expired", COUNT, "their time ran out first"),
    ResultColumn("cancelled", COUNT, "by caller or operator, or with their session"),
    ResultColumn("shutting_down", COUNT, "the daemon shut down first"),
    ResultColumn("unfinished", COUNT, "registered here, with no end in the rows that were read"),
    ResultColumn("carried_in", COUNT, "ended here, with no registration in the rows that were read"),
    ResultColumn("completion_rate", SHARE, "satisfied / ended"),
    ResultColumn("expiry_rate", SHARE, "expired / ended"),
)
_WAITS: Final = (
    ResultColumn("waited_total_ms", MS, "total time waited"),
    ResultColumn("expired_total_ms", MS, "of this, by waits that expired"),
    ResultColumn("wait_p50_ms", MS, "half of the ended waits took this long or less, whatever the outcome"),
    ResultColumn("wait_p90_ms", MS, "90 %"),
    ResultColumn("wait_p99_ms", MS, "99 %"),
    ResultColumn("wait_p999_ms", MS, "99.9 %"),
    ResultColumn("wait_max_ms", MS, "the longest"),
    ResultColumn("lateness_p50_ms", MS, "how late expiries were, median"),
    ResultColumn("lateness_p99_ms", MS, "99 %"),
    ResultColumn("lateness_max_ms", MS, "the latest"),
)

_COMPETING: Final = (
    ResultColumn("satisfied", SHARE, "share that is satisfied within this time; empty: not enough seen"),
    ResultColumn("failed", SHARE, "share that fails within it"),
    ResultColumn("cancelled", SHARE, "share that is cancelled within it"),
)

INTAKE: Final = ResultTable(
    "intake",
    "Files and rows of the archive, used or set aside and why. The sums are the whole archive.",
    ("table", "reason"),
    ("table", "reason"),
    (
        ResultColumn("table", TEXT, "registrations, outcomes, events, calls or markers"),
        ResultColumn("reason", TEXT, "`used`, or why it was set aside"),
        ResultColumn("files", COUNT, "files; 0 where only some rows of a used file were set aside"),
        ResultColumn("rows", COUNT, "rows; empty where they cannot be counted"),
    ),
)
GROUPS: Final = ResultTable(
    "groups",
    "Waits by topic, partition, kind, principal and window: the finest level.",
    ("topic", "partition", "kind", "principal", "window_start"),
    ("-ended", "topic", "partition", "kind", "principal", "window_start"),
    (_TOPIC, _PARTITION, _KIND, _PRINCIPAL, _WINDOW, *_COUNTS, *_WAITS),
)
TOPICS: Final = ResultTable(
    "topics",
    "Waits by topic and kind, over the whole time.",
    ("topic", "kind"),
    ("-ended", "topic", "kind"),
    (_TOPIC, _KIND, ResultColumn("partitions", COUNT, "partitions seen"), *_COUNTS, *_WAITS),
)
WINDOWS: Final = ResultTable(
    "windows",
    "Operations by window and kind, over all topics.",
    ("window_start", "kind"),
    ("window_start", "kind"),
    (_WINDOW, _KIND, *_COUNTS, *_WAITS),
)
BACKLOG: Final = ResultTable(
    "backlog",
    "The most waits that were pending at once (at the end of a millisecond) by topic, partition and kind, and when.",
    ("topic", "partition", "kind"),
    ("-deepest", "topic", "partition", "kind"),
    (
        _TOPIC,
        _PARTITION,
        _KIND,
        ResultColumn("deepest", COUNT, "waits pending at once, in one run"),
        ResultColumn("at", INSTANT, "when it was first that deep"),
        ResultColumn("run_id", TEXT, "the run in which it was"),
    ),
)
HOT_KEYS: Final = ResultTable(
    "hot_keys",
    "The busiest partitions and keys: by number of waits, by time waited, and by time lost.",
    ("by", "rank"),
    ("by", "rank"),
    (
        ResultColumn("by", TEXT, "`waits`, `waited` or `lost`"),
        ResultColumn("rank", NUMBER, "from 1"),
        _TOPIC,
        _PARTITION,
        _KIND,
        ResultColumn("waits", COUNT, "waits that ended"),
        ResultColumn("waited_total_ms", MS, "total time waited"),
        ResultColumn("lost_ms", MS, "how much longer they took than as many waits of other partitions of their topic"),
        ResultColumn("share", SHARE, "of all waits (by waits) or of all time waited (by waited, lost), over all kinds"),
    ),
)
PRINCIPALS: Final = ResultTable(
    "principals",
    "Who waits: waits that ended, by principal and kind.",
    ("principal", "kind"),
    ("-waited_total_ms", "principal", "kind"),
    (
        _PRINCIPAL,
        _KIND,
        ResultColumn("waits", COUNT, "waits that ended"),
        ResultColumn("satisfied", COUNT, "of these, satisfied"),
        ResultColumn("expired", COUNT, "of these, expired"),
        ResultColumn("waited_total_ms", MS, "total time waited"),
        ResultColumn("expired_total_ms", MS, "of this, by waits that expired"),
        ResultColumn("lost_ms", MS, "how much longer they took than as many waits of others on the same topics"),
    ),
)
BUDGET: Final = ResultTable(
    "budget",
    "The share of the error budget that expired operations burnt, with `--slo`. As for `advise`, failed and cancelled "
    "operations have not expired, and immediate answers (timeout 0) do not count.",
    ("kind", "topic", "principal", "day"),
    ("day", "-burnt", "kind", "topic", "principal"),
    (
        _KIND,
        ResultColumn("topic", TEXT, "topic; empty text: all signals together"),
        _PRINCIPAL,
        ResultColumn("day", INSTANT, "where the day (UTC) begins in which their window does; empty: all days"),
        ResultColumn("operations", COUNT, "operations that ended"),
        ResultColumn("expired", COUNT, "of these, expired"),
        ResultColumn("burnt", MEASURED, "expired / operations / the share that may expire: 1 is the whole budget"),
    ),
)
SLOW_PRODUCES: Final = ResultTable(
    "slow_produces",
    "What finally satisfied the slow produces. Counts operations satisfied after more than `slow_over_ms`.",
    ("cause",),
    ("-operations", "cause"),
    (
        ResultColumn(
            "cause",
            TEXT,
            "`follower`: a follower reached the offset last; `leader`: the leader's own append did; `left`: a replica "
            "that had not reached it left the in-sync replicas; `told`: a high watermark was pushed from outside; "
            "`unknown`: the archive does not show it (events were not there, or lost)",
        ),
        ResultColumn("operations", COUNT, "slow produces"),
        ResultColumn("share", SHARE, "of all slow produces"),
        ResultColumn("waited_total_ms", MS, "total time they waited"),
    ),
)
STRAGGLERS: Final = ResultTable(
    "stragglers",
    "Which replica held the slow produces back: the one that reached the required offset last (or left instead).",
    ("topic", "replica_id"),
    ("topic", "-total_ms", "replica_id"),
    (
        _TOPIC_OR_ALL,
        ResultColumn("replica_id", NUMBER, "the replica that was last"),
        ResultColumn("held_back", COUNT, "slow produces (operations) that it held back"),
        ResultColumn("share", SHARE, "of the slow produces with a known last replica (of this topic)"),
        ResultColumn("total_ms", MS, "how much later than the second-last in-sync replica, in total: saved without it"),
        ResultColumn("median_ms", MS, "the same for one produce, median"),
        ResultColumn("p99_ms", MS, "99 %"),
        ResultColumn("max_ms", MS, "the most"),
    ),
)
ADVICE: Final = ResultTable(
    "advice",
    "How long operations wait until they end by themselves: are satisfied, fail or are cancelled. Expired ones count "
    "with the time at which their mark was reached later; the rest is estimated (Aalen-Johansen). Bounds: 95 %.",
    ("topic", "kind"),
    ("-operations", "topic", "kind"),
    (
        _TOPIC_OR_ALL,
        _KIND,
        ResultColumn("operations", COUNT, "operations that waited, ended or not"),
        ResultColumn("satisfied", COUNT, "of these, satisfied"),
        ResultColumn("expired", COUNT, "of these, expired"),
        ResultColumn("expired_share", SHARE, "expired / operations, as seen, with any timeout"),
        ResultColumn("timeout_ms", MS, "the timeout most in use"),
        ResultColumn("timeout_share", SHARE, "share of the operations that use it"),
        ResultColumn("timeout_observed", SHARE, "share of the operations with this timeout that expired, as seen"),
        ResultColumn("timeouts", COUNT, "different timeouts in use"),
        *(
            ResultColumn(
                f"need_{name}_ms",
                MS,
                f"{share} are satisfied, fail or are cancelled within this time{what}; empty: not enough seen",
            )
            for quantile, share in (("p50", "half"), ("p90", "90 %"), ("p99", "99 %"), ("p999", "99.9 %"))
            for name, what in (
                (quantile, ""),
                (f"{quantile}_low", ", lower bound"),
                (f"{quantile}_high", ", upper bound"),
            )
        ),
        ResultColumn("timeout_expires", SHARE, "share that would expire if all used it; empty: not enough seen"),
        ResultColumn("timeout_expires_low", SHARE, "lower bound"),
        ResultColumn("timeout_expires_high", SHARE, "upper bound"),
        ResultColumn("seen_until_ms", MS, "ten or more were seen to wait this long; beyond it little is known"),
        ResultColumn("sentence", TEXT, "the advice in words"),
    ),
)
NEAR_MISSES: Final = ResultTable(
    "near_misses",
    "Expired waits for marks and signals whose mark was reached later, and how long after their timeout.",
    ("topic", "kind"),
    ("-expired", "topic", "kind"),
    (
        _TOPIC_OR_ALL,
        _KIND,
        ResultColumn("expired", COUNT, "operations that expired"),
        ResultColumn("reached", COUNT, "of these, reached later in the rows that were read"),
        ResultColumn("reached_share", SHARE, "reached / expired"),
        ResultColumn("late_p50_ms", MS, "half of these were reached within this time after the timeout"),
        ResultColumn("late_p90_ms", MS, "90 %"),
        ResultColumn("late_p99_ms", MS, "99 %"),
        ResultColumn("late_max_ms", MS, "the last"),
    ),
)
TIMEOUTS: Final = ResultTable(
    "timeouts",
    "What other timeouts would do: how operations would end under each. `expires` + `satisfied` + `failed` + "
    "`cancelled` = 1.",
    ("topic", "kind", "timeout_ms"),
    ("topic", "kind", "timeout_ms"),
    (
        _TOPIC_OR_ALL,
        _KIND,
        ResultColumn("timeout_ms", MS, "the timeout"),
        ResultColumn("in_use", FLAG, "whether it is the timeout most in use (`advice.timeout_ms`)"),
        ResultColumn("expires", SHARE, "share of operations that would expire; empty: not enough seen"),
        ResultColumn("expires_low", SHARE, "lower bound"),
        ResultColumn("expires_high", SHARE, "upper bound"),
        *_COMPETING,
        ResultColumn("estimated", SHARE, "share that left before this time and whose mark was not seen later"),
    ),
)
SURVIVAL: Final = ResultTable(
    "survival",
    "The curve behind the advice, for plots: at most a few hundred steps each, level in between.",
    ("topic", "kind", "waited_ms"),
    ("topic", "kind", "waited_ms"),
    (
        _TOPIC_OR_ALL,
        _KIND,
        ResultColumn("waited_ms", MS, "time waited"),
        ResultColumn("waiting", SHARE, "share that still waits after this, without a timeout"),
        ResultColumn("waiting_low", SHARE, "lower bound"),
        ResultColumn("waiting_high", SHARE, "upper bound"),
        *_COMPETING,
        ResultColumn("at_risk", COUNT, "operations seen to wait at least this long"),
    ),
)
ANOMALIES: Final = ResultTable(
    "anomalies",
    "Windows strikingly unlike the same window of other weeks (in less than three weeks: of the day before, or the "
    "window before), and shifts: days from which on all windows were unlike those before.",
    ("window_start", "topic", "kind", "measure", "basis"),
    ("-score", "window_start", "topic", "kind", "measure"),
    (
        _WINDOW,
        _TOPIC_OR_ALL,
        _KIND,
        ResultColumn("measure", TEXT, "`registered`, `wait_p50_ms`, `wait_p99_ms`, `expiry_rate` or `completion_rate`"),
        ResultColumn("value", MEASURED, "in this window, in the unit of the measure"),
        ResultColumn("usual", MEASURED, "in the windows that it is compared with"),
        ResultColumn(
            "basis",
            TEXT,
            "what it is compared with: `weeks`: the same window of the weeks around it (median); `day`: of the day "
            "before; `window`: the window before; `shift`: the level before the shift",
        ),
        ResultColumn("compared_with", INSTANT, "where that window begins; empty for `weeks` and `shift`"),
        ResultColumn("direction", TEXT, "`up` or `down`"),
        ResultColumn("score", MEASURED, "the change over the usual spread of such changes; 3.5 and more is shown"),
    ),
)

_IN_ORDER: Final = (
    INTAKE, GROUPS, TOPICS, WINDOWS, BACKLOG, HOT_KEYS, PRINCIPALS, BUDGET, SLOW_PRODUCES, STRAGGLERS, ADVICE,
    NEAR_MISSES, TIMEOUTS, SURVIVAL, ANOMALIES,
)  # fmt: skip
TABLES: Final[Mapping[str, ResultTable]] = MappingProxyType({table.name: table for table in _IN_ORDER})
"""In reading order. The page gets a pandas frame for each, with these columns."""

PAGE_ROWS_MAX: Final = 10_000
"""A frame for the page, and a CSV file, holds at most this many rows of its table, the first in its order."""
