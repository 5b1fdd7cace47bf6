"""What must hold at the end, by the bytes on disk and the daemon's own counters; and the table that is printed."""

import hashlib
import math
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from examples.replicated_log.log_records import LogRecord
from examples.replicated_log.wait_ledger import GIVEN_UP, WaitLedger

OUTCOMES: Final = ("satisfied", "failed", "expired", "cancelled", "shutting_down")
HTTP_SECONDS_MAX: Final = 10.0
PERCENTILES: Final = (50, 95, 99)


class Check(NamedTuple):
    """One thing that must hold, and what was found."""

    holds: bool
    text: str


class Counters(NamedTuple):
    """One kind of operation in the daemon's metrics."""

    registered: int
    pending: int
    outcomes: dict[str, int]

    def add_up(self) -> bool:
        """Whether every registered operation has ended once or is pending."""
        return self.registered == sum(self.outcomes.values()) + self.pending


def check_records(who: str, records: list[LogRecord], lines: list[bytes], first_offset: int) -> Check:
    """`records` are exactly `lines`, byte for byte, with the offsets from `first_offset` on."""
    expected = [LogRecord(first_offset + index, line) for index, line in enumerate(lines)]
    wrong = next((have for have, want in zip(records, expected, strict=False) if have != want), None)
    size = sum(len(record.payload) for record in records)
    text = f"{who}: {len(records)} records, {size} bytes, SHA-256 {_digest(record.payload for record in records)[:16]}"
    if wrong is not None:
        return Check(False, f"{text}: record {wrong.offset} is not what was sent")
    if len(records) != len(expected):
        return Check(False, f"{text}: {len(expected)} were sent")
    same = _digest(record.payload for record in records) == _digest(lines)
    return Check(same, f"{text}: equal to what was sent")


def check_whole_input(records: list[LogRecord], source: Path) -> Check:
    """The records, put together again, are the input file."""
    data = source.read_bytes()
    joined = b"\n".join(record.payload for record in records) + (b"\n" if data.endswith(b"\n") else b"")
    digest, wanted = hashlib.sha256(joined).hexdigest(), hashlib.sha256(data).hexdigest()
    return Check(joined == data and digest == wanted, f"put together again: SHA-256 {digest}, the input's {wanted}")


def check_ledger(ledger: WaitLedger) -> Check:
    """Every wait that began has ended, once (a second end would have raised)."""
    started, ended = ledger.started.total(), sum(map(len, ledger.ended_ms.values()))
    holds = started == ended and ledger.open_count == 0
    return Check(holds, f"waits: {started} began, {ended} ended, {ledger.open_count} open")


def check_counters(
    before: dict[str, Counters], after: dict[str, Counters], ledger: WaitLedger, alone: bool
) -> list[Check]:
    """The daemon's counters add up and, if the daemon served nobody else, agree with the ledger kind by kind."""
    checks = []
    for kind, counters in after.items():
        ended = ", ".join(f"{count} {outcome}" for outcome, count in counters.outcomes.items() if count)
        text = f"/metrics {kind}: {counters.registered} registered = {ended or 'none'} + {counters.pending} pending"
        checks.append(Check(counters.add_up(), text))
        if alone:
            checks.append(_check_agreement(kind, before[kind], counters, ledger))
    return checks


def _check_agreement(kind: str, before: Counters, after: Counters, ledger: WaitLedger) -> Check:
    """A wait given up by its asker may have ended at the daemon just before, or never got there; all others agree."""
    ours = [name for name in ledger.started if name.partition("/")[0] == kind]
    started = sum(ledger.started[name] for name in ours)
    given_up = sum(ledger.ended(name, GIVEN_UP) for name in ours)
    registered = after.registered - before.registered
    holds = started - given_up <= registered <= started and after.pending == 0
    for outcome in OUTCOMES:
        noted = sum(ledger.ended(name, outcome) for name in ours)
        counted = after.outcomes[outcome] - before.outcomes[outcome]
        holds = holds and noted <= counted <= noted + given_up
    return Check(holds, f"/metrics {kind}: agrees with the {started} waits begun here, {given_up} of them given up")


def read_counters(http_address: str) -> dict[str, Counters]:
    """The daemon's counters of operations, by kind. ConnectionError: they cannot be fetched."""
    url = f"http://{http_address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=HTTP_SECONDS_MAX) as response:
            text = response.read().decode()
    except OSError as error:
        raise ConnectionError(f"{url} cannot be read: {error}") from error
    samples: dict[tuple[str, ...], int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "kind" in sample.labels:
                key = (sample.name, sample.labels["kind"], sample.labels.get("outcome", ""))
                samples[key] = int(sample.value)
    kinds = [kind for name, kind, _ in samples if name == "purgatory_registered_total"]
    return {
        kind: Counters(
            samples["purgatory_registered_total", kind, ""],
            samples["purgatory_pending_operations", kind, ""],
            {outcome: samples["purgatory_outcomes_total", kind, outcome] for outcome in OUTCOMES},
        )
        for kind in kinds
    }


def _digest(payloads: Iterable[bytes]) -> str:
    """One SHA-256 over all, each with its length before it, so that no two different lists look alike."""
    digest = hashlib.sha256()
    for payload in payloads:
        digest.update(len(payload).to_bytes(8, "big"))
        digest.update(payload)
    return digest.hexdigest()


def percentile(values: list[float], percent: int) -> float:
    """The smallest value that at least `percent` of a hundred do not exceed. `values` is sorted and not empty."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)]


def wait_table(ledger: WaitLedger) -> list[str]:
    """A line for each kind and outcome: how many, and the milliseconds from asking to answer."""
    rows = [("wait", "outcome", "count", *(f"p{percent} ms" for percent in PERCENTILES), "max ms")]
    for (kind, outcome), waits in sorted(ledger.ended_ms.items()):
        waited = sorted(waits)
        times = [percentile(waited, percent) for percent in PERCENTILES]
        rows.append((kind, outcome, str(len(waited)), *(f"{ms:.1f}" for ms in (*times, waited[-1]))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def check_lines(checks: list[Check]) -> list[str]:
    return [f"{'ok  ' if check.holds else 'FAIL'}  {check.text}" for check in checks]
