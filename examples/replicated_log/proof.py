"""What must hold at the end, by the bytes on disk and the daemon's own counters; and the table that is printed."""

import hashlib
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from examples.replicated_log.daemon_link import GIVEN_UP, WaitLedger
from examples.replicated_log.log_file import LogRecord

OUTCOMES: Final = ("satisfied", "failed", "expired", "cancelled", "shutting_down")
HTTP_SECONDS_MAX: Final = 10.0
PERCENTILES: Final = {"p50 ms": 50, "p95 ms": 95, "p99 ms": 99}


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
    text = f"{who}: {len(records)} records, {sum(len(record.payload) for record in records)} bytes"
    if records == expected:
        return Check(True, f"{text}: equal to what was sent")
    wrong = (have.offset for have, want in zip(records, expected, strict=False) if have != want)
    return Check(False, f"{text}, not the {len(expected)} that were sent; differing from {next(wrong, 'the end')} on")


def check_whole_input(records: list[LogRecord], source: Path) -> Check:
    """The records, put together again, are the input file."""
    data = source.read_bytes()
    joined = b"\n".join(record.payload for record in records) + (b"\n" if data.endswith(b"\n") else b"")
    digest, wanted = hashlib.sha256(joined).hexdigest(), hashlib.sha256(data).hexdigest()
    return Check(joined == data, f"put together again: SHA-256 {digest}, the input's {wanted}")


def check_ledger(ledger: WaitLedger) -> Check:
    """Every wait that began has ended."""
    return Check(ledger.open_count == 0, f"waits: {ledger.started.total()} began, {ledger.open_count} have not ended")


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


def wait_table(ledger: WaitLedger) -> list[str]:
    """A line for each kind and outcome: how many, and the milliseconds from asking to answer."""
    lines = [f"{'wait':16}{'outcome':12}{'count':>7}" + "".join(f"{name:>10}" for name in (*PERCENTILES, "max ms"))]
    for kind, outcomes in sorted(ledger.ended_ms.items()):
        for outcome, waits in sorted(outcomes.items()):
            waited = sorted(waits)
            # The nearest rank: the smallest value that at least this share does not exceed.
            times = [waited[-(-len(waited) * percent // 100) - 1] for percent in PERCENTILES.values()]
            lines.append(
                f"{kind:16}{outcome:12}{len(waited):>7}" + "".join(f"{ms:>10.1f}" for ms in (*times, waited[-1]))
            )
    return lines


def check_lines(checks: list[Check]) -> list[str]:
    return [f"{'ok  ' if check.holds else 'FAIL'}  {check.text}" for check in checks]
