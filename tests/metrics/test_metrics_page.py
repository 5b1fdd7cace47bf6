"""docs/metrics.md is generated from the metrics of a real daemon by `make docs`; these tests check that it is current.

They also check that every series exists from the start.
"""

import asyncio
import json
import ssl
import tempfile
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from purgatory_client import waits
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import PurgatoryClientError

from examples.secure_demo.authority import Authority
from tests.daemon_process import DEADLINE_S, DaemonProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

TEMPLATE = """\
# Metrics

Written from what a daemon shows by `make docs`. The daemon serves them at `/metrics` of its HTTP port, in Prometheus's
text format or, to a scraper that accepts it, in OpenMetrics. They are computed at most once a second
(`http.metrics_interval_ms`), and cost the same whatever is pending.

No topic, partition, key, session or operation is ever a label: the number of series does not grow with use. Whatever
can be a label's value is there from the start, at 0, so that `rate()` and `increase()` miss nothing. Only sources
appear as they attach; there are at most `limits.sources_max` at a time.

## Operations

What waits, and how it ended. For each kind, registered = the outcomes + pending, in every scrape. Kafka's PurgatorySize
is `purgatory_watched_entries`, its NumDelayedOperations `purgatory_pending_operations`. A rising share of
`outcome="expired"` is the first thing to look at: what is waited for does not come in time.

table of registered pending watched outcomes evaluations wait_ expired repeated

## Time

Whether the daemon itself keeps up. Lateness is how long after its deadline an operation ended: a bucket of the timing
wheel (`engine.tick_ms`) on a daemon that keeps up. Late expiries, loop lag and holds of the loop go together; the hold
with the greatest number says which call takes too long.

table of expiry_lateness loop_ longest_loop gc_ reaper turn

## Events

What moves the marks. `stale` events come from a leader that is none any more; refused ones were malformed, or not
allowed.

table of events unchanged

## Calls and refusals

A stream counts when it ends; a call that is refused counts too. `purgatory_rejected_total` counts operations and
events, `purgatory_refused_calls_total` whole calls. `code` is the status that the caller saw, by gRPC's name. Compare
gauges with `purgatory_limit` before a limit is reached.

table of calls refused rejected received sent limit unary access

## Sessions and results

A backlog that only grows: some client does not acknowledge.

table of session streams result_ partitions signal_keys draining

## Memory

What is held, against `limits.memory_bytes_max`; near the budget, registrations are refused.

table of memory

## Journal

With `journal.dir` only. In sync mode every answer waits for its group: `purgatory_journal_sync_seconds` is what the
disk costs each caller. In async mode the lag is what a crash would lose.

table of journal recovered

## Archive

With `archive.uri` only. Dropped rows are gone.

table of archive

## Sources

A source that is not up leaves marks stale: waits on them go on stale, or fail if they asked to.

table of source

## Webhooks

A letter that is given up waits to be sent again (docs/webhooks.md); one that is lost is gone.

table of webhook

## TLS

With `tls.certificate_file` only.

table of tls

## Process

Of the client library for Python, under its own names.

table of build_info process_ python_
"""
"""In a line "table of", the words are the prefixes of the metrics in that table."""

TABLE = "table of "

parsed: Callable[[str], Iterable[Metric]] = text_string_to_metric_families


def scrape(daemon: DaemonProcess, authority: Authority) -> list[Metric]:
    """All metric families in OpenMetrics format, which the parser checks strictly."""
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(f"https://{daemon.http_address}/metrics", headers=accept)
    with urllib.request.urlopen(request, timeout=DEADLINE_S, context=context) as response:
        return list(parsed(response.read().decode()))


def start(folder: Path, authority: Authority) -> DaemonProcess:
    """A daemon with every part that has its own metrics."""
    issued = authority.issue("purgatory", hosts=("127.0.0.1",))
    for name, content in (("ca", authority.certificate_pem), ("crt", issued.certificate_pem), ("key", issued.key_pem)):
        (folder / f"server.{name}").write_bytes(content)
    tls = ("--tls-certificate-file", str(folder / "server.crt"), "--tls-key-file", str(folder / "server.key"))
    return DaemonProcess(folder, ("--data-dir", str(folder / "j"), "--archive", str(folder / "a"), *tls))


async def use(daemon: DaemonProcess, folder: Path) -> None:
    """A bit of everything: all outcomes, refusals, events, a source."""
    async with AsyncClient(daemon.address, tls_ca=folder / "server.ca", outbox=folder / "outbox") as client:
        await client.advance("t-0", high_watermark=5)
        for one in (
            waits.produce({"t-0": 5}),
            waits.produce({"t-0": 9}, timeout=0.01),
            waits.fetch({"t-0": 9}, timeout=0.01),
            waits.delete_records({"t-0": 3}, timeout=0.01),
            waits.signal({"k": 1}, timeout=0.01),
        ):
            await client.wait_once(one)
        for call in (client.partition("nothing-0"), client.operation("nothing", 1), client.close_session("nothing")):
            with pytest.raises(PurgatoryClientError):
                await call
        ticket = await client.submit(waits.produce({"t-0": 99}))
        async with asyncio.timeout(DEADLINE_S):
            while not await client.cancel(partition="t-0"):  # noqa: ASYNC110 - it is on its way
                await asyncio.sleep(0.01)
        await client.result(ticket)
        await client.status(remaining_time=True)
        assert [one async for one in client.partitions()]
        async with client.attach_source("a source", ["kafka/"]), asyncio.timeout(DEADLINE_S):
            while not (await client.status()).sources:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.01)


def series_of(families: list[Metric]) -> set[tuple[str, str]]:
    return {
        (sample.name, json.dumps(sample.labels, sort_keys=True)) for family in families for sample in family.samples
    }


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Metric], list[Metric]]:
    """The metrics of a daemon before anything has happened, and after a bit of everything."""
    return scraped_in(tmp_path_factory.mktemp("metrics"))


def scraped_in(folder: Path) -> tuple[list[Metric], list[Metric]]:
    authority = Authority("The test's authority")
    daemon = start(folder, authority)
    try:
        before = scrape(daemon, authority)
        asyncio.run(use(daemon, folder))
        after = scrape(daemon, authority)
        daemon.stop()
    finally:
        daemon.kill()
    return before, after


def metrics_page(families: list[Metric]) -> str:
    """The page: the template with its tables filled in."""
    tables = [line for line in TEMPLATE.splitlines() if line.startswith(TABLE)]
    rows: dict[str, list[str]] = {line: [] for line in tables}
    for family in sorted(families, key=lambda one: one.name):
        suffix = "_total" if family.type == "counter" else ""
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        shown = ", ".join(f"`{label}`" for label in labels) or "-"
        rows[table_of(family.name, tables)].append(
            f"| `{family.name}{suffix}` | {family.type} | {shown} | {family.documentation} |"
        )
    page = TEMPLATE
    for line, its_rows in rows.items():
        table = ["| metric | type | labels | meaning |", "|---|---|---|---|", *its_rows]
        page = page.replace(f"{line}\n", "\n".join(table) + "\n")
    return page


def table_of(name: str, tables: list[str]) -> str:
    """The table with the longest matching prefix."""
    plain = name.removeprefix("purgatory_")
    fitting = [
        (len(start), line) for line in tables for start in line.removeprefix(TABLE).split() if plain.startswith(start)
    ]
    assert fitting, f"{name} is in no table of docs/metrics.md; name it in TEMPLATE"
    return max(fitting)[1]


def test_metrics_page_is_current(scraped: tuple[list[Metric], list[Metric]]) -> None:
    """The page names and explains exactly the metrics of a daemon; `make docs` rewrites it."""
    assert PAGE.read_text(encoding="utf-8") == metrics_page(scraped[1])


def test_every_series_is_there_from_the_start(scraped: tuple[list[Metric], list[Metric]]) -> None:
    """No later event adds a series, except a source that attaches, so `increase()` never misses a first value."""
    before, after = map(series_of, scraped)
    assert before
    assert {name for name, _ in after - before} <= {
        "purgatory_source_up",
        "purgatory_source_staleness_seconds",
        "purgatory_source_lag_seconds",
        "purgatory_source_restarts_total",
    }


def test_calls_are_counted_by_method_and_status(scraped: tuple[list[Metric], list[Metric]]) -> None:
    """Each call is counted once, whether it was answered, refused or aborted; so are its bytes."""
    values = {
        (sample.name, sample.labels.get("method"), sample.labels.get("code")): sample.value
        for family in scraped[1]
        for sample in family.samples
    }
    calls = "purgatory_calls_ended_total"
    assert values[calls, "Wait", "OK"] == 5
    assert values[calls, "GetPartition", "NOT_FOUND"] == 1
    assert values[calls, "Session", "OK"] + values[calls, "Session", "CANCELLED"] == 1
    assert values["purgatory_received_bytes_total", "Wait", None] > 0
    assert values["purgatory_sent_bytes_total", "Wait", None] > 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(metrics_page(scraped_in(Path(scratch))[1]), encoding="utf-8")
