"""Parses arguments such as "orders-3@42", "job-17" and "30s". UsageError names the expected form."""

import math
import re
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import partial
from typing import Final, NoReturn, TypeVar

import click
from purgatory_client.argument_checks import TIMEOUT_S_MAX, whole_number
from purgatory_client.errors import InvalidRequest
from purgatory_client.partition_names import format_partition, partition_name
from purgatory_client.results import OperationKind, Outcome
from purgatory_client.sources.log_positions import offset_of_lsn
from purgatory_client.terms import Term, mark, signal
from purgatory_client.views import OperationOrder

from purgatory.cli import render
from purgatory.cli.exit_codes import Exit

T = TypeVar("T")

SIGNAL_PREFIX: Final = "signal:"
"""Prefix of a target that is a key, where other targets are partitions."""
UNITS_S: Final[dict[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
ORDERS: Final = {
    "remaining": (OperationOrder.LEAST_REMAINING, OperationOrder.MOST_REMAINING),
    "waited": (OperationOrder.LONGEST_WAITED, OperationOrder.SHORTEST_WAITED),
}
INTERVAL_S_MIN: Final = 0.1
KINDS: Final = {kind.name.lower(): kind for kind in OperationKind}
OUTCOMES: Final = {one.name.lower(): one for one in Outcome if one not in {Outcome.PENDING, Outcome.REFUSED}}


class UsageError(click.ClickException):
    """An invalid argument. The message names the expected form."""

    exit_code = Exit.USAGE


def exit_without(command: str, error: ModuleNotFoundError, extra: str, otherwise: str = "") -> NoReturn:
    """Exit, because a command needs a package that is not installed."""
    advice = f"install it with: pip install 'purgatory-waits[{extra}]'{otherwise}"
    render.error_line(f"`purgatory {command}` needs {error.name}; {advice}")
    sys.exit(Exit.ERROR)


def seconds(text: str) -> float:
    """A duration: "500ms", "30s", "1m 30s", "1h", "1d", or a plain number of seconds; "0" too."""
    text = text.strip()
    given = f"{text}s" if text[-1:].isdigit() else text
    parts = _DURATION.findall(given)
    value = math.inf if not parts or _DURATION.sub("", given).strip() else 0.0
    value += sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if value == math.inf:
        raise UsageError(f"not a duration: {text!r}; expected a number and a unit, like 500ms, 30s, 2m or 1h")
    if value > TIMEOUT_S_MAX:
        raise UsageError(f"{text} is too long; give at most 24d 20h")
    return value


def interval(text: str) -> float:
    """A duration of at least `INTERVAL_S_MIN`."""
    given = seconds(text)
    if given < INTERVAL_S_MIN:
        raise UsageError(f"--watch {text} is too short; the minimum is {INTERVAL_S_MIN} s")
    return given


def moment_of(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """A time: RFC 3339 ("2025-03-01T00:00:00Z"), or the last moment up to `now` at which clocks of the zone (None: this
    machine's) showed "00:00".
    """
    expected = f"not a time: {text!r}; expected 00:00, or with an offset, like 2025-03-01T00:00:00Z"
    try:
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text, re.ASCII):
            today, clock = now.astimezone(zone).date(), time.fromisoformat(text)
            days = (datetime.combine(today - timedelta(days=back), clock, UTC) for back in (0, 1))
            return max(moment for day in days for moment in _shown_at(day, zone) if moment <= now)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(expected) from None
    if moment.tzinfo is None:
        raise UsageError(expected)
    return moment


def _shown_at(clock: datetime, zone: tzinfo | None) -> list[datetime]:
    """The moments at which clocks show a date and time (given as if in UTC): one, or two if they are put back. If they
    are put forward past it: the moment at which that happens.
    """

    def offset(moment: datetime) -> timedelta:
        # Only moments are converted to clock times: the other direction has two answers, or none.
        return moment.astimezone(zone).utcoffset() or timedelta()

    first, last = sorted(clock - offset(clock + timedelta(days=days)) for days in (-1, 1))
    if shown := [moment for moment in (first, last) if moment + offset(moment) == clock]:
        return shown
    seconds = range(int((last - first).total_seconds()))
    until = bisect_left(seconds, True, key=lambda one: offset(first + timedelta(seconds=one)) != offset(first))
    return [first + timedelta(seconds=until)]


def partition_offsets(targets: Sequence[str], default_offset: int | None = None) -> dict[str, int]:
    """Parse targets "orders-3@42" into a mapping of partition to offset. Without "@42", use `default_offset` if given.

    The offset may be a PostgreSQL log sequence number: "pg/main/all@0/16B3748".
    """
    offsets: dict[str, int] = {}
    for target in targets:
        name, at, number = target.rpartition("@")
        if not at:
            if default_offset is None:
                expected = f"partition@offset, like orders-3@42; a signal is {SIGNAL_PREFIX}{target}"
                raise UsageError(f"not a target: {target!r}; expected {expected}")
            name, number = target, str(default_offset)
        partition = checked_partition(name)
        if partition in offsets:
            raise UsageError(f"partition {partition} is given twice")
        offsets[partition] = _offset(target, number)
    return offsets


def _offset(target: str, number: str) -> int:
    offset = whole_number(number.removeprefix("-"))
    if offset is not None:
        return -offset if number.startswith("-") else offset
    if "/" in number:
        try:
            return offset_of_lsn(number)
        except InvalidRequest as error:
            raise UsageError(error.message) from error
    raise UsageError(f"not a target: {target!r}; expected partition@offset, like orders-3@42")


def key_counts(targets: Sequence[str]) -> dict[str, int]:
    """Targets "job-17" or "job-17@3" (three signals) as a mapping of key to count."""
    counts: dict[str, int] = {}
    for target in targets:
        key, at, number = target.rpartition("@")
        count = whole_number(number) if at else None
        if count is None:
            key, count = target, 1
        if key in counts:
            raise UsageError(f"key {key} is given twice; to wait for several signals, write {key}@2")
        counts[key] = count
    return counts


def terms(targets: Sequence[str], *, record: bool) -> list[Term]:
    """Targets "orders-3@42" and "signal:job-17@3" as terms. With `record`, offsets are those of records."""
    found: list[Term] = []
    for target in targets:
        if target.startswith(SIGNAL_PREFIX):
            [(key, count)] = key_counts([target.removeprefix(SIGNAL_PREFIX)]).items()
            found.append(signal(key, count))
        else:
            [(partition, offset)] = partition_offsets([target]).items()
            found.append(mark(partition, offset + record))
    return found


def checked_partition(name: str) -> str:
    """The name of a partition in its plain form ("orders-3")."""
    try:
        return format_partition(*partition_name(name))
    except InvalidRequest as error:
        alone = f"; give {name.rpartition('@')[0]} without an offset here" if "@" in name else ""
        raise UsageError(error.message + alone) from error


def is_reference(text: str) -> bool:
    """Whether it has the form "SESSION/17"."""
    return "/" in text and whole_number(text.rpartition("/")[2]) is not None


def operation_reference(text: str) -> tuple[str, int]:
    """Session id and operation id of "SESSION/17"."""
    session_id, slash, number = text.rpartition("/")
    operation_id = whole_number(number)
    if not slash or operation_id is None:
        raise UsageError(f"not an operation: {text!r}; expected SESSION/ID as shown by `purgatory ls`")
    return session_id, operation_id


def follower(text: str) -> tuple[int, int, int | None]:
    """(replica id, log end offset, log start offset or None) of "2:41" or "2:41:7"."""
    match [whole_number(part) for part in text.split(":")]:
        case [int(replica_id), int(end_offset)]:
            return replica_id, end_offset, None
        case [int(replica_id), int(end_offset), int(start_offset)]:
            return replica_id, end_offset, start_offset
    raise UsageError(f"not a follower's progress: {text!r}; expected id:log_end_offset[:log_start_offset], like 2:41")


def ids(text: str) -> list[int]:
    """Replica ids of "1,2,3"."""
    parts = [whole_number(part.strip()) for part in text.split(",")]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        raise UsageError(f"not a list of replica ids: {text!r}; expected numbers separated by commas, like 1,2,3")
    return found


def _one_of(known: Mapping[str, T], what: str, name: str) -> T:
    """The value of a name, in which "-" may stand for "_"."""
    found = known.get(name.lower().replace("-", "_"))
    if found is None:
        raise UsageError(f"not {what}: {name!r}; expected one of {', '.join(known)}")
    return found


def kind_of(name: str) -> OperationKind:
    """The kind "delete_records" or "delete-records"."""
    return _one_of(KINDS, "a kind", name)


def order_of(name: str) -> tuple[OperationOrder, OperationOrder]:
    """The order "remaining" (least first) or "waited" (longest first), and its reverse."""
    return _one_of(ORDERS, "an order", name)


def outcome_of(name: str) -> Outcome:
    """The outcome of a wait: "expired", "shutting-down"."""
    return _one_of(OUTCOMES, "an outcome", name)


DURATION: Final = partial(click.option, type=seconds, metavar="DURATION")
TIMEOUT: Final = DURATION(
    "--timeout", "-t", default="30s", help="How long to wait: 500ms, 30s, 1m 30s, 1h; 0: answer immediately."
)
FAIL_WHEN_STALE: Final = DURATION(
    "--fail-when-stale", help="Fail if a mark is stale or unreported for this long: 500ms, 5s."
)
flag: Final = partial(click.option, is_flag=True)
