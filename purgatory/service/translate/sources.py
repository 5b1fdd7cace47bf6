"""Messages between connectors and the daemon. Pure functions."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.codes import OFFSET_MAX
from purgatory.engine.names import PARTITION_MAX
from purgatory.service.errors import check_range, invalid_argument
from purgatory.service.sources import source_table
from purgatory.service.sources.ends_asked import EndsAnswer, EndsQuestion, LogEnd
from purgatory.service.translate.results import topic_partition
from purgatory.v1 import source_pb2 as wire

NAME_LENGTH_MAX: Final = 249
PREFIXES_MAX: Final = 100
REPORT_BYTES_MAX: Final = 1024 * 1024
STALE_MAX: Final = 2_000
"""Entries of one report: about seven milliseconds."""
STALE_PARTITIONS_MAX: Final = 10_000
"""Total partitions of all entries."""
REASON_LENGTH_MAX: Final = 1_000
ENDS_MAX: Final = 100_000
"""Log ends in one answer."""
LARGEST: Final = OFFSET_MAX - 1
"""The largest offset or time of a source, milliseconds. Added to any time of the daemon it still fits into 64 bits."""


def checked_hello(hello: wire.SourceHello) -> tuple[str, list[str]]:
    """The name and the topic prefixes.

    Raises:
        RpcError: One of them is invalid.
    """
    _check_length("hello.name", hello.name)
    prefixes = list(hello.topic_prefixes)
    if not 1 <= len(prefixes) <= PREFIXES_MAX:
        raise invalid_argument("hello.topic_prefixes", f"{len(prefixes)} prefixes given; allowed: 1 to {PREFIXES_MAX}")
    for place, prefix in enumerate(prefixes):
        _check_length(f"hello.topic_prefixes[{place}]", prefix)
    return hello.name, prefixes


def take_report(report: wire.SourceReport, stream: source_table.SourceStream, now_ms: int) -> None:
    """Replace the previous report of a stream.

    Raises:
        RpcError: The report is invalid; nothing has changed.
    """
    if not source_table.LOADING <= report.state <= source_table.REFUSED:
        raise invalid_argument("report.state", f"not a state that a connector can report: {report.state}")
    check_range("report.lag_ms", report.lag_ms, 0, LARGEST)
    size = report.ByteSize()
    if size > REPORT_BYTES_MAX:
        raise invalid_argument("report", f"has {size} bytes; at most {REPORT_BYTES_MAX} are allowed")
    entries, partitions = len(report.stale), sum(len(one.partitions) for one in report.stale)
    if entries > STALE_MAX or partitions > STALE_PARTITIONS_MAX:
        most = f"at most {STALE_MAX} with {STALE_PARTITIONS_MAX} are allowed: use prefixes"
        raise invalid_argument("report.stale", f"has {entries} entries with {partitions} partitions; {most}")
    index = source_table.StaleIndex()
    for place, one in enumerate(report.stale):
        check_range(f"report.stale[{place}].stale_ms", one.stale_ms, 0, LARGEST)
        check_range(f"report.stale[{place}].partitions", min(one.partitions, default=0), 0, PARTITION_MAX)
        unseen = source_table.Unseen(now_ms - one.stale_ms, one.reason[:REASON_LENGTH_MAX])
        index.add(one.topic_prefix, one.exact, list(one.partitions), unseen)
    stream.report(report.state, report.reason[:REASON_LENGTH_MAX], report.lag_ms, index, now_ms)


def answer_of(ends: wire.SourceEnds) -> EndsAnswer:
    """Decode an answer about log ends.

    Raises:
        RpcError: There are too many, or a number is out of range.
    """
    as_of_ms = ends.as_of_ms if ends.HasField("as_of_ms") else None
    if ends.error:
        return EndsAnswer([], ends.error[:REASON_LENGTH_MAX], as_of_ms)
    if len(ends.ends) > ENDS_MAX:
        raise invalid_argument("ends.ends", f"{len(ends.ends)} log ends given; at most {ENDS_MAX} are allowed")
    for place, end in enumerate(ends.ends):
        # A caller waits for these numbers next, so they have the ranges of a wait.
        if min(end.offset, end.leader_epoch, end.topic_partition.partition) < 0 or end.offset > LARGEST:
            path = f"ends.ends[{place}]"
            check_range(f"{path}.offset", end.offset, 0, LARGEST)
            check_range(f"{path}.leader_epoch", end.leader_epoch, 0, PARTITION_MAX)
            check_range(f"{path}.topic_partition.partition", end.topic_partition.partition, 0, PARTITION_MAX)
    return EndsAnswer([_log_end(end) for end in ends.ends], as_of_ms=as_of_ms)


def demand_message(gained: Iterable[PartitionName], lost: Iterable[PartitionName]) -> wire.AttachSourceResponse:
    demand = wire.Demand(gained=map(topic_partition, gained), lost=map(topic_partition, lost))
    return wire.AttachSourceResponse(demand=demand)


def ends_wanted_message(ask_id: int, question: EndsQuestion) -> wire.AttachSourceResponse:
    wanted = wire.EndsWanted(ask_id=ask_id, topics=sorted(question.topics), as_of_ms=question.as_of_ms)
    return wire.AttachSourceResponse(ends_wanted=wanted)


def ends_response(ends: Sequence[LogEnd]) -> wire.GetSourceEndsResponse:
    return wire.GetSourceEndsResponse(
        ends=[
            wire.PartitionEnd(
                topic_partition=topic_partition(end.name), offset=end.offset, leader_epoch=end.leader_epoch
            )
            for end in ends
        ]
    )


def source_status(
    source: source_table.KnownSource, now_ms: int, stale_partitions: int, restarts: int | None
) -> wire.SourceStatus:
    """The state of a connector: that of its best stream."""
    stream = source.leading(now_ms)
    stale_since_ms = stream.stale_since_ms(now_ms)
    return wire.SourceStatus(
        name=source.name,
        principal=source.principal,
        topic_prefixes=source.topic_prefixes,
        state=wire.SourceState.Name(stream.state_at(now_ms)),
        reason=stream.why(now_ms),
        state_ms=max(0, now_ms - source.state_since_ms),
        attached=len(source.streams),
        stale_ms=None if stale_since_ms is None else max(0, now_ms - stale_since_ms),
        stale_partitions=stale_partitions,
        lag_ms=stream.lag_ms,
        restarts=restarts,
    )


def absent_source_status(source: source_table.ManagedSource) -> wire.SourceStatus:
    """The state of a connector that the daemon runs and that has never attached."""
    said = f"ended ({source.ending}); its output is in the daemon's log" if source.ending else "not attached yet"
    return wire.SourceStatus(
        name=source.name,
        state=wire.SOURCE_STATE_LOADING if source.is_running else wire.SOURCE_STATE_DETACHED,
        reason=said,
        state_ms=round((time.monotonic() - source.changed) * 1_000),
        restarts=source.restarts,
    )


def _log_end(end: wire.PartitionEnd) -> LogEnd:
    name = end.topic_partition.topic, end.topic_partition.partition
    return LogEnd(name, end.offset, end.leader_epoch if end.HasField("leader_epoch") else None)


def _check_length(field: str, text: str) -> None:
    if not 1 <= len(text) <= NAME_LENGTH_MAX:
        raise invalid_argument(field, f"{len(text)} characters given; allowed: 1 to {NAME_LENGTH_MAX}")
