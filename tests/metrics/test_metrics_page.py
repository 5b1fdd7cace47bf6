"""The tables of docs/metrics.md are written by `make docs` from the metrics of a real daemon: whether they are current,
and whether every series exists from the start.
"""

import asyncio
import json
import re
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
from purgatory.extensions.fleet.fleet_view import LEADING, FleetView
from tests.kit.daemon import DaemonThread
from tests.kit.eventually import PATIENCE_S, eventually

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

ROW = re.compile(r"^\| `(\w+)` \|.*\n", re.MULTILINE)
"""A row of a table, by the name of its metric."""

parsed: Callable[[str], Iterable[Metric]] = text_string_to_metric_families


def scrape(daemon: DaemonThread, authority: Authority) -> list[Metric]:
    """All metric families in OpenMetrics format, which the parser checks strictly."""
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(f"https://{daemon.http_address}/metrics", headers=accept)
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as response:
        return list(parsed(response.read().decode()))


def start(folder: Path, authority: Authority) -> DaemonThread:
    """A daemon with every part that has its own metrics."""
    issued = authority.issue("purgatory", hosts=("127.0.0.1",))
    for name, content in (("ca", authority.certificate_pem), ("crt", issued.certificate_pem), ("key", issued.key_pem)):
        (folder / f"server.{name}").write_bytes(content)
    tls = ("--tls-certificate-file", str(folder / "server.crt"), "--tls-key-file", str(folder / "server.key"))
    return DaemonThread("--data-dir", str(folder / "j"), "--archive", str(folder / "a"), *tls)


async def use(daemon: DaemonThread, folder: Path) -> None:
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
        await eventually(lambda: client.cancel(partition="t-0"))  # it is on its way
        await client.result(ticket)
        await client.status(remaining_time=True)
        assert [one async for one in client.partitions()]
        async with client.attach_source("a source", ["kafka/"]), asyncio.timeout(PATIENCE_S):
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
    finally:
        daemon.stop()
    return before, after


def with_current_rows(page: str, families: list[Metric]) -> str:
    """The page with the rows of its tables made anew. Metrics of a fleet are added: this daemon has no log."""
    rows = {}
    for family in [*families, *FleetView(LEADING, 0, 0, 0, -1, 0.0).metrics()]:
        name = f"{family.name}{'_total' if family.type == 'counter' else ''}"
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        shown = ", ".join(f"`{label}`" for label in labels) or "-"
        rows[name] = f"| `{name}` | {family.type} | {shown} | {family.documentation} |\n"
    missing = rows.keys() - set(ROW.findall(page))
    assert not missing, f"add rows for {missing} to docs/metrics.md, of which `make docs` fills in all but the name"
    return ROW.sub(lambda found: rows.get(found[1], ""), page)


def test_metrics_page_is_current(scraped: tuple[list[Metric], list[Metric]]) -> None:
    """The page names and explains exactly the metrics of a daemon; `make docs` rewrites it."""
    page = PAGE.read_text("utf-8")
    assert page == with_current_rows(page, scraped[1])


def test_every_series_is_there_from_the_start(scraped: tuple[list[Metric], list[Metric]]) -> None:
    """Except for a source that attaches, so `increase()` never misses a first value."""
    before, after = map(series_of, scraped)
    assert before
    assert {name for name, _ in after - before} <= {
        "purgatory_source_up",
        "purgatory_source_staleness_seconds",
        "purgatory_source_lag_seconds",
        "purgatory_source_restarts_total",
    }


def test_calls_are_counted_by_method_and_status(scraped: tuple[list[Metric], list[Metric]]) -> None:
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
        PAGE.write_text(with_current_rows(PAGE.read_text("utf-8"), scraped_in(Path(scratch))[1]), "utf-8")
