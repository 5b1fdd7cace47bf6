"""Prints the output of the commands: data on stdout, messages on stderr.

With `--json` each command prints one JSON document (listings: one object per line, so that they can be streamed).
Durations are in seconds, unknown offsets are -1, and missing values are null. `AS_JSON` says whether it was given.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import asdict
from datetime import datetime
from enum import IntEnum
from typing import Any, Final

from purgatory_client import views
from purgatory_client.errors import Unavailable
from purgatory_client.events import AdvanceReceipt
from purgatory_client.results import OperationKind, Outcome, PartitionResult, Result, value_text
from purgatory_client.session.detached_sessions import ClosedSession
from purgatory_client.sources.position_tokens import Positions
from purgatory_client.waits import Wait
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from purgatory.engine.codes import ERROR_NAMES

AS_JSON: Final = ContextVar("AS_JSON", default=False)
PLAIN_WIDTH: Final = 400
"""Width of a table in a file or a pipe, where no column should be cut off."""

_UNITS: Final = (("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400))
COLOURS: Final = {Outcome.SATISFIED: "green", Outcome.EXPIRED: "yellow"}


def escape(text: str) -> str:
    """Make text from the daemon safe for a terminal: escape rich's markup and unprintable characters.

    Topics and session ids come from other callers and may contain escape sequences or bidirectional overrides.
    """
    return escape_markup(printable(text))


def printable(text: str) -> str:
    """Replace unprintable characters by their Python escapes."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def clear() -> None:
    """Clear the screen if stdout is a terminal."""
    Console(emoji=False, highlight=False).clear()


def error_line(message: str) -> None:
    Console(stderr=True, soft_wrap=True, emoji=False, highlight=False).print(f"purgatory: {escape(message)}")


def result(answer: Result, wait: Wait | None = None) -> None:
    """Print a line for the wait and one for each partition or key."""
    colour = COLOURS.get(answer.outcome, "red")
    late = f" ({exact(answer.lateness)} late)" if answer.lateness else ""
    lines = [f"  {escape(line)}" for line in item_lines(answer, wait)]
    if answer.kind == OperationKind.COMPOSITE and answer.decided_by:
        lines.append(f"  decided by {escape(', '.join(item.name for item in answer.decided_by))}")
    print_either(
        result_document(answer),
        f"[{colour}]{outcome_text(answer.outcome)}[/{colour}] after {exact(answer.waited)}{late}",
        *lines,
    )


def item_lines(answer: Result, wait: Wait | None = None) -> list[str]:
    """A line for each partition or key. The wait tells which are keys and the failure arm; without it, none are."""
    names = [] if wait is None else wait.names
    first_failure = len(answer.items) if wait is None else len(names) - wait.unless_count
    keys = {place for place, name in enumerate(names) if isinstance(name, str)}
    return [
        f"unless {_item_line(item, Outcome.FAILED)}"
        if place >= first_failure
        else _item_line(item, answer.outcome, is_key=place in keys)
        for place, item in enumerate(answer.items)
    ]


def _item_line(item: PartitionResult, outcome: Outcome, *, is_key: bool = False) -> str:
    """One partition or key: what it reached, its error, and the estimated time to the target if it was late."""
    reached = "no mark reported" if item.reached_offset < 0 else f"reached {item.reached_offset}"
    parts = [f"{item.name}: {reached} of {item.required_offset}"]
    if item.fetched is not None:
        parts = [f"{item.name}: {counted(item.fetched.available_bytes, 'byte')} from {item.required_offset}, {reached}"]
        if item.fetched.diverging_end_offset is not None:
            parts.append(f"diverged; cut to {item.fetched.diverging_end_offset}")
    is_late = item.error_code == 7 and outcome == Outcome.EXPIRED
    if is_late or item.error_code not in {0, 7}:
        parts.append(f"error {item.error_code} {ERROR_NAMES.get(item.error_code, '')}".rstrip())
    if is_late and not is_key:
        parts.append(_estimate(item))
    if item.stale_for is not None:
        parts.append(f"stale for {span(item.stale_for)}: {item.stale_reason}".removesuffix(": "))
    if item.signal_value:
        parts.append(f"value {value_text(item.signal_value)}")
    if item.signal_value_left_out:
        parts.append("value left out; wait for this key with --timeout 0 to get it")
    return ", ".join(parts)


def result_document(answer: Result) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": answer.kind.name.lower(),
        "outcome": answer.outcome.name.lower(),
        "waited": answer.waited,
        "lateness": answer.lateness,
    }
    if answer.kind != OperationKind.COMPOSITE:
        return document | {"partitions": {name: _item_document(item) for name, item in answer.partitions.items()}}
    # Terms may repeat a name.
    terms = [{"name": item.name, **_item_document(item)} for item in answer.items]
    return document | {"terms": terms, "decided_by": [item.name for item in answer.decided_by]}


def token(ends: Positions) -> None:
    if AS_JSON.get():
        print_json({"token": ends.token, "offsets": ends.offsets})
    else:
        sys.stdout.write(f"{ends.token}\n")  # not through rich, which would wrap a long line


def receipt(answer: AdvanceReceipt) -> None:
    refusals = [document(one) for one in answer.refusals]
    counts = {"events": len(answer.ended), "ended": answer.ended_total, "unchanged": answer.unchanged}
    unchanged = f", {answer.unchanged:,} unchanged" if answer.unchanged else ""
    refused = f", {len(answer.refusals):,} refused" if answer.refusals else ""
    events = counted(len(answer.ended), "event")
    ended = f"{counted(answer.ended_total, 'wait')} ended"
    print_either({**counts, "refusals": refusals}, f"{events}{unchanged}{refused}: {ended}")


def cancelled(count: int) -> None:
    print_either({"cancelled": count}, f"{counted(count, 'operation')} cancelled")


def extended(operations: list[tuple[str, bool]]) -> None:
    lines = [f"{escape(name)}: {'extended' if pending else 'not pending'}" for name, pending in operations]
    print_either(dict(operations), *lines)


def closed(session: ClosedSession) -> None:
    cancelled = f"{counted(session.cancelled, 'operation')} cancelled"
    dropped = f"{counted(session.results_dropped, 'result')} dropped"
    print_either(document(session), f"closed: {cancelled}, {dropped}")


def operations(found: list[views.PendingOperation]) -> None:
    if print_as_json(found):
        return
    table = plain_table("session", "id", "kind", "waited", "remaining", "waits for")
    for one in found:
        name = one.session_id or "-"
        waited, remaining = span(one.waited), span(one.remaining)
        table.add_row(
            escape(name), str(one.operation_id), one.kind.name.lower(), waited, remaining, escape(waits_for(one))
        )
    console_for_data().print(table)


def operation(one: views.PendingOperation) -> None:
    lines = [
        f"{one.kind.name.lower()} {one.operation_id} of session {escape(one.session_id or '-')}",
        f"  registered {_local(one.registered_time)}, waited {exact(one.waited)}",
        f"  expires    {_local(one.deadline_time)}, in {exact(one.remaining)}",
    ]
    if one.min_bytes is not None:
        lines.append(f"  for at least {counted(one.min_bytes, 'byte')}")
    first_failure = len(one.items) - (one.unless_count or 0)
    if one.required_terms is not None:
        lines.append(f"  until {one.required_terms} of these {first_failure} are true:")
    for place, item in enumerate(one.items):
        if place == first_failure:
            lines.append("  unless one of these is true:")
        state = "waiting" if item.error_code == 7 else ERROR_NAMES.get(item.error_code, "reached")
        reached = "no mark reported" if item.reached_offset < 0 else str(item.reached_offset)
        lines.append(f"  {escape(item.name)}: {reached} of {item.required_offset}, {state}")
        lines += [f"    {escape(line)}" for line in _outlook(one, item) if place < first_failure]
    print_either(document(one), *lines)


def _outlook(one: views.PendingOperation, item: views.PendingItem) -> list[str]:
    """The reason why an item of a pending operation is not reached yet, and its estimate."""
    lines = [f"held back: {item.held_back_by}"] if item.held_back_by else []
    if item.estimated_remaining is not None and item.pace_per_second is not None:
        too_late = item.estimated_remaining - one.remaining
        verdict = f"{span(too_late)} too late" if too_late > 0 else "in time"
        reached = f"reached in about {span(item.estimated_remaining)}"
        lines.append(f"{item.pace_per_second:,.1f} a second: {reached}, {verdict}")
    elif item.held_back_by and item.reached_offset > 0 and one.kind != OperationKind.FETCH:
        lines.append("no estimate yet: no progress measured since the wait began")
    return lines


def partitions(found: list[views.Partition]) -> None:
    if print_as_json(found):
        return
    marks_shown = ("log start", "low", "stable", "high", "log end")
    table = plain_table("partition", "role", "epoch", *marks_shown, "in sync", "watched")
    for one in found:
        logs = (one.log_start_offset, one.low_watermark, one.last_stable_offset)
        marks = [_mark(offset) for offset in (*logs, one.high_watermark, one.log_end_offset)]
        in_sync = ",".join(map(str, one.in_sync_replica_ids)) or "-"
        table.add_row(escape(one.name), _role(one), _mark(one.leader_epoch), *marks, in_sync, f"{one.watched:,}")
    console_for_data().print(table)


def partition(one: views.Partition) -> None:
    lines = [
        f"{escape(one.name)}: {_role(one)}, leader epoch {_mark(one.leader_epoch)}, {counted(one.watched, 'wait')}",
        f"  log {_mark(one.log_start_offset)} to {_mark(one.log_end_offset)}",
        f"  high watermark {_mark(one.high_watermark)}, last stable offset {_mark(one.last_stable_offset)}",
        f"  low watermark {_mark(one.low_watermark)}, min in-sync replicas {one.min_in_sync_replicas}",
        f"  events: {one.unchanged_events:,} unchanged, {one.stale_events:,} of a stale epoch",
    ]
    if one.stale_for is not None:
        why = f": {escape(one.stale_reason)}" if one.stale_reason else ""
        lines.insert(1, f"  [red]stale[/red] for {span(one.stale_for)}{why}")
    if one.in_sync_replica_ids:
        lines.append(f"  in sync: {', '.join(map(str, one.in_sync_replica_ids))}; {_mark(one.leader_id)} leads")
    for replica in one.replicas:
        flags = [name for name in ("in_sync", "dead", "fenced") if getattr(replica, name)]
        state = ", ".join(flags).replace("_", " ") or "out of sync"
        lines.append(f"  replica {replica.replica_id}: log end {_mark(replica.log_end_offset)}, {state}")
    print_either(document(one), *lines)


def status(answer: views.Status) -> None:
    if AS_JSON.get():
        print_json(document(answer))
        return
    console = console_for_data()
    engine = "compiled" if answer.compiled else "uncompiled"
    draining = ", shutting down" if answer.draining else ""
    console.print(f"purgatory {answer.version} ({engine} engine), up since {_local(answer.started_time)}{draining}")
    console.print(counts_line(answer))
    if answer.fleet:
        console.print(f"fleet: {escape(answer.fleet)}")
    table = plain_table(
        "kind", "registered", "pending", "watched", "satisfied", "failed", "expired", "cancelled", "shutting down"
    )
    for kind in answer.kinds:
        ended = (kind.satisfied, kind.failed, kind.expired, kind.cancelled, kind.shutting_down)
        counts = [f"{count:,}" for count in (kind.registered, kind.pending, kind.watched, *ended)]
        table.add_row(kind.kind.name.lower(), *counts)
    console.print(table)
    if answer.sources:
        _print_sources(console, answer.sources)
    if answer.webhooks is not None:
        console.print(_webhooks_line(answer.webhooks))
    if answer.remaining_time is not None:
        console.print(remaining_line(answer.remaining_time))


def shards(found: Iterable[tuple[str, views.Status | Unavailable]]) -> None:
    """The shards of a status, each with its address."""
    for number, (address, one) in enumerate(found):
        said = "not available"
        if isinstance(one, views.Status):
            said = f"{sum(kind.pending for kind in one.kinds):,} pending, {counted(one.sessions, 'session')}"
        if not AS_JSON.get():
            print_lines(f"shard {number} at {address}: {said}")


def pending_line(answer: views.Status) -> str:
    return f"purgatory {answer.version}: {sum(kind.pending for kind in answer.kinds):,} pending"


def counts_line(answer: views.Status) -> str:
    return (
        f"{counted(answer.partitions, 'partition')}, {counted(answer.signal_keys, 'signal key')}, "
        f"{counted(answer.sessions, 'session')} ({answer.sessions_connected:,} connected), "
        f"{counted(answer.unacknowledged_results, 'unacknowledged result')}"
    )


def _print_sources(console: Console, sources: list[views.SourceStatus]) -> None:
    table = plain_table("source", "feeds", "state", "for", "lag", "stale", "unseen for", "restarts", "why")
    for one in sources:
        colour = {"live": "green", "behind": "yellow", "held": "yellow", "loading": "yellow"}.get(one.state, "red")
        feeds = ", ".join(f"{prefix}*" for prefix in one.topic_prefixes[:3])
        more = f" and {len(one.topic_prefixes) - 3} more" if len(one.topic_prefixes) > 3 else ""
        table.add_row(
            escape(one.name),
            escape(feeds + more),
            f"[{colour}]{one.state}[/{colour}]",
            span(one.state_for),
            span(one.lag),
            f"{one.stale_partitions:,}",
            "-" if one.stale_for is None else span(one.stale_for),
            "-" if one.restarts is None else str(one.restarts),
            escape(one.reason),
        )
    console.print(table)


def _webhooks_line(webhooks: views.WebhookStatus) -> str:
    oldest = "" if webhooks.oldest is None else f"; oldest delivery started {span(webhooks.oldest)} ago"
    return (
        f"webhooks: {webhooks.undelivered:,} undelivered, {webhooks.paused:,} waiting for a retry, "
        f"{counted(webhooks.dead_letters, 'dead letter')}{oldest}"
    )


def remaining_line(left: views.RemainingTime) -> str:
    """The remaining time of pending operations, without empty buckets."""
    if left.soonest is None or left.latest is None:
        return "nothing is pending"
    bounds = [f"up to {span(bound)}" for bound in left.bounds] + [f"more than {span(left.bounds[-1])}"]
    counts = [f"{count:,} {bound}" for bound, count in zip(bounds, left.operations, strict=True) if count]
    return f"time left: {', '.join(counts)}; first expires in {span(left.soonest)}, last in {span(left.latest)}"


def span(seconds: float) -> str:
    """A duration for people, in at most two units, as `--timeout` accepts it: 250ms, 21.6s, 1m 19s, 3d 4h."""
    if 0 < seconds < 0.9995:
        return f"{seconds * 1_000:.0f}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    # Rounded to the smaller unit first: 59m 59.7s is an hour.
    place = sum(round(seconds / each_s) * each_s >= limit_s for each_s, limit_s in ((1, 3_600), (60, 86_400)))
    (small, small_s), (large, large_s) = _UNITS[place : place + 2]
    smalls = round(seconds / small_s)
    rest = smalls % (large_s // small_s)
    return f"{smalls * small_s // large_s:,}{large}" + (f" {rest}{small}" if rest else "")


def exact(seconds: float) -> str:
    """A measured duration: with milliseconds below a minute."""
    return f"{seconds:.3f} s" if seconds < 59.9995 else span(seconds)


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 partition", "200,006 partitions"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def document(view: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """A view as JSON has it: times in ISO form, names of kinds and outcomes, values of keys as text.

    A value that is not text is in a field of its own, whose name ends in `_base64`.
    """
    return asdict(view, dict_factory=lambda pairs: dict(_plain(name, value) for name, value in pairs))


def _plain(name: str, value: object) -> tuple[str, object]:
    if isinstance(value, datetime):
        return name, value.isoformat()
    if isinstance(value, bytes):
        try:
            return name, value.decode()
        except UnicodeDecodeError:
            return f"{name}_base64", b64encode(value).decode()
    return name, value.name.lower() if isinstance(value, IntEnum) else value


def _item_document(item: PartitionResult) -> dict[str, Any]:
    left_out = {"name", *(["fetched"] if item.fetched is None else [])}
    left_out |= {"stale_for", "stale_reason"} if item.stale_for is None else set()
    left_out |= set() if item.signal_value else {"signal_value"}
    left_out |= set() if item.signal_value_left_out else {"signal_value_left_out"}
    return {name: value for name, value in document(item).items() if name not in left_out}


def _estimate(item: PartitionResult) -> str:
    if item.estimated_remaining is None:
        return "no estimate: no progress was measured" if item.reached_offset >= 0 else "no estimate"
    pace = "" if item.pace_per_second is None else f" at {item.pace_per_second:,.1f} a second"
    return f"would have been reached in about {span(item.estimated_remaining)}{pace}"


def waits_for(one: views.PendingOperation) -> str:
    """The names and offsets that an operation waits for. Not escaped."""
    first_failure = len(one.items) - (one.unless_count or 0)
    text = _targets(one.items[:first_failure])
    if one.required_terms is not None and one.required_terms < first_failure:
        text = f"{one.required_terms} of {text}"
    return text + (f" unless {_targets(one.items[first_failure:])}" if one.unless_count else "")


def _targets(items: list[views.PendingItem]) -> str:
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(f"{item.name}@{item.required_offset}" for item in items[:3]) + more


def _role(one: views.Partition) -> str:
    if one.storage_failed:
        return "storage failed"
    return "leader" if one.is_leader else "follower"


def outcome_text(outcome: Outcome) -> str:
    return outcome.name.lower().replace("_", " ")


def _mark(offset: int) -> str:
    return "-" if offset < 0 else str(offset)


def _local(instant: datetime) -> str:
    return instant.astimezone().isoformat(sep=" ", timespec="milliseconds")


def plain_table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def console_for_data() -> Console:
    console = Console(emoji=False, highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(emoji=False, highlight=False, width=PLAIN_WIDTH)


def print_either(document: dict[str, Any], *lines: str | Table) -> None:
    """Print the document, with `--json`, or the lines (rich's markup)."""
    if AS_JSON.get():
        print_json(document)
    else:
        print_lines(*lines)


def print_lines(*lines: str | Table, soft_wrap: bool = False) -> None:
    console = console_for_data()
    for line in lines:
        console.print(line, soft_wrap=soft_wrap)


def print_as_json(found: Iterable[Any]) -> bool:
    """With `--json`, print an object per line for these views; returns whether it did."""
    if AS_JSON.get():
        for one in found:
            print_json(document(one), indent=None)
    return AS_JSON.get()


def print_json(document: dict[str, Any], indent: int | None = 2) -> None:
    """Print a document on stdout; on one line if `indent` is None."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    # json.dumps escapes only ASCII control characters, but terminals obey others too.
    sys.stdout.write("".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text) + "\n")
