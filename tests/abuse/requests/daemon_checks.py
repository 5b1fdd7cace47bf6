"""Checks of a daemon after it was fuzzed: it is alive, its counts agree, its log has no errors, and it still serves."""

import re
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from purgatory_client import AsyncClient, Outcome, events, waits
from purgatory_client.errors import PurgatoryClientError

from purgatory.engine.codes import KIND_NAMES
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually
from tests.kit.served_host import DaemonChannel
from tests.service.test_daemon import fetch_page, sums_by_kind

FAULTS: Final = re.compile(r"Traceback|\b(?:ERROR|CRITICAL)\b|^E\d{4} ", re.MULTILINE)
"""Errors of Python, of the daemon, and of gRPC's core (E and the date)."""
ENTRY: Final = re.compile(r"^(?=\d{4}-\d\d-\d\dT)", re.MULTILINE)


def faults_in(log: str) -> list[str]:
    """The entries of a daemon's log that are never allowed, one of each kind, shortened to fit on a screen."""
    faults: dict[str, str] = {}
    for entry in ENTRY.split(log):
        if FAULTS.search(entry):
            last = entry.rstrip().rpartition("\n")[2]
            faults.setdefault(re.sub(r"\d+|'.*", "", last)[:100], entry[:3_000])
    return list(faults.values())


def check_metrics(daemon: DaemonProcess) -> None:
    """In one scrape, registered equals the outcomes plus pending for each kind, no gauge is negative, and the reaper
    never failed.
    """
    text = fetch_page(daemon, "/metrics")[1]
    gauges = [family for family in text_string_to_metric_families(text) if family.type == "gauge"]
    assert [sample for family in gauges for sample in family.samples if sample.value < 0] == []
    registered, outcomes, pending = (
        sums_by_kind(text, f"purgatory_{name}") for name in ("registered_total", "outcomes_total", "pending_operations")
    )
    assert sorted(registered) == sorted(KIND_NAMES.values())
    for kind, count in registered.items():
        assert count == outcomes[kind] + pending[kind], f"{kind}: {registered}, {outcomes}, {pending}"
    assert sums_by_kind(text, "purgatory_reaper_failures_total") == {"": 0.0}, "the reaper has failed"


async def check_serves(daemon: DaemonProcess) -> None:
    """The counts agree, a signal and a wait for it are served, and the daemon forgets all sessions and tidies up."""
    assert daemon.process.poll() is None, f"the daemon ended with {daemon.process.returncode}:\n{daemon.log}"

    async def is_served() -> bool:
        await client.advance_many([events.signalled("still-there")])
        return (await client.wait_once(waits.signal(["still-there"], timeout=1))).outcome is Outcome.SATISFIED

    async def is_idle() -> bool:
        status = await channel.status()
        return not status.sessions and not any(kind.pending or kind.watched for kind in status.kinds)

    async with AsyncClient(daemon.address) as client, DaemonChannel(daemon.address) as channel:
        # Operations left by the fuzzer may fill a limit until their sessions' time to live is over.
        await eventually(is_served, "a wait is served", but=PurgatoryClientError)
        await eventually(is_idle, "nothing is pending or watched, all sessions are forgotten")
    # After two more collections, at least one of them started after this call.
    enough = _collections(daemon) + 2
    await eventually(lambda: _collections(daemon) >= enough, "the daemon has tidied its memory")


def _collections(daemon: DaemonProcess) -> float:
    return sums_by_kind(fetch_page(daemon, "/metrics")[1], "purgatory_gc_pause_seconds_count")[""]
