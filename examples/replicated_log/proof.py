"""The checks at the end of a run: the bytes on disk, and the daemon's own counters."""

import urllib.request
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from examples.replicated_log.daemon_link import GIVEN_UP, WaitLedger
from examples.replicated_log.log_file import LogRecord

KINDS: Final = ("produce", "fetch", "delete_records", "signal")
OUTCOMES: Final = ("satisfied", "failed", "expired", "cancelled", "shutting_down")
HTTP_TIMEOUT_S: Final = 10.0


class Check(NamedTuple):
    """A condition, and the observed values."""

    holds: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.holds else 'FAIL'}  {self.text}"


class Counters(NamedTuple):
    """The daemon's counters for one kind of operation."""

    registered: int
    pending: int
    outcomes: dict[str, int]


def check_records(who: str, records: list[LogRecord], lines: list[bytes], first_offset: int = 0) -> Check:
    """`records` are exactly `lines`, with consecutive offsets from `first_offset`."""
    expected = [LogRecord(first_offset + index, line) for index, line in enumerate(lines)]
    text = f"{who}: {len(records)} records, {sum(len(record.payload) for record in records)} bytes"
    if records == expected:
        return Check(True, f"{text}, equal to the input")
    wrong = (have.offset for have, want in zip(records, expected, strict=False) if have != want)
    return Check(False, f"{text}; expected {len(expected)} records; first difference at {next(wrong, 'the end')}")


def check_counters(kind: str, counters: Counters, ledger: WaitLedger) -> Check:
    """Every wait ended exactly once, and the daemon and the ledger agree on how.

    A wait whose caller disconnected is the exception: it may have ended at the daemon just before, or never have been
    registered.
    """
    started, given_up = ledger.started[kind], ledger.ended[kind, GIVEN_UP]
    holds = counters.pending == 0 and counters.registered == sum(counters.outcomes.values())
    holds = holds and started - given_up <= counters.registered <= started
    for outcome, counted in counters.outcomes.items():
        recorded = ledger.ended[kind, outcome]
        holds = holds and recorded <= counted <= recorded + given_up
    ended = ", ".join(f"{count} {outcome}" for outcome, count in counters.outcomes.items() if count)
    text = f"/metrics {kind}: {counters.registered} registered = {ended or 'none'} + {counters.pending} pending"
    return Check(holds, f"{text}; the leader began {started} and gave up {given_up}")


def read_counters(http_address: str) -> dict[str, Counters]:
    """Fetch the daemon's counters, by kind. Raises OSError."""
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=HTTP_TIMEOUT_S) as response:
        families = text_string_to_metric_families(response.read().decode())
    samples = {
        (sample.name, sample.labels["kind"], sample.labels.get("outcome", "")): int(sample.value)
        for family in families
        for sample in family.samples
        if "kind" in sample.labels
    }
    return {
        kind: Counters(
            samples["purgatory_registered_total", kind, ""],
            samples["purgatory_pending_operations", kind, ""],
            {outcome: samples["purgatory_outcomes_total", kind, outcome] for outcome in OUTCOMES},
        )
        for kind in KINDS
    }
