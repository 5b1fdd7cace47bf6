"""The tables of docs/metrics.md are written by `make docs` from the metrics of a real daemon: whether they are current,
and whether every series exists from the start.

Totals of completions, events, refusals and calls, and histograms. Nothing here starts a daemon.
"""

import asyncio
import json
import re
import ssl
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from purgatory_client import waits
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import PurgatoryClientError

from examples.secure_demo.authority import Authority
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, Receipt, Refusal
from purgatory.engine.calls import Apply, Register
from purgatory.engine.completions import Completions
from purgatory.extensions.fleet.fleet_view import LEADING, FleetView
from purgatory.extensions.lag.extension import lag_metrics
from purgatory.service.histogram import Histogram
from purgatory.service.listeners.listener import Called, Completed
from purgatory.service.listeners.refusal_log import INTERVAL_MS, SUBJECTS_MAX, RefusalLog
from purgatory.service.metrics.metrics import Metrics
from purgatory.testing import ManualClock
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
    """The page with the rows of its tables regenerated. Metrics of a fleet and of groups are added: it has none."""
    rows = {}
    lags = lag_metrics([{"mark": "kafka/billing/orders", "partition": 0, "lag": 1, "ageMs": 1, "isAtLeast": True}])
    for family in [*families, *FleetView(LEADING, 0, 0, 0, -1, 0.0).metrics(), *lags]:
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
    before, after = (
        {(sample.name, json.dumps(sample.labels, sort_keys=True)) for family in families for sample in family.samples}
        for families in scraped
    )
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


End = tuple[int, int, int, int, list[int]]
"""Kind, outcome, time waited, lateness, and error codes of the items."""


def completions_of(*ends: End) -> Completions:
    completions = Completions(0)
    for operation_id, (kind, outcome, waited_ms, lateness_ms, error_codes) in enumerate(ends, 1):
        for error_code in error_codes:
            completions.add_item(("t", 0), error_code, 0, 0, 0, -1, -1.0)
        completions.add_operation(operation_id, kind, outcome, waited_ms, lateness_ms, len(error_codes))
    completions.finish()
    return completions


def events_receipt(next_index: int, unchanged: int = 0, refusals: list[Refusal] | None = None) -> Receipt:
    receipt = Receipt()
    receipt.next_index = next_index
    receipt.unchanged = unchanged
    receipt.refusals.extend(refusals or [])
    return receipt


END = st.tuples(
    st.sampled_from([codes.PRODUCE, codes.FETCH, codes.DELETE_RECORDS]),
    st.sampled_from([codes.SATISFIED, codes.EXPIRED, codes.CANCELLED]),
    st.sampled_from([0, 1, 70]),
    st.integers(0, 5),
    st.lists(st.sampled_from([0, codes.REQUEST_TIMED_OUT]), max_size=3),
)


@given(st.lists(END, min_size=1, max_size=6), st.booleans())
def test_completions_are_counted_like_single_operations(ends: list[End], alike: bool) -> None:
    """Also where all are alike. Pending partitions are those of Kafka's meter: of produce and delete-records."""
    ends = ends[:1] * len(ends) if alike else ends
    metrics, single = Metrics(), Metrics()
    metrics.completed(Completed(None, "", completions_of(*ends)))
    expired_partitions = Counter({codes.PRODUCE: 0, codes.DELETE_RECORDS: 0})
    for kind, outcome, waited_ms, lateness_ms, error_codes in ends:
        single.waits[kind, outcome].observe(waited_ms)
        if outcome == codes.EXPIRED:
            single.lateness[kind].observe(lateness_ms)
            if kind != codes.FETCH:
                expired_partitions[kind] += error_codes.count(codes.REQUEST_TIMED_OUT)
    for found, expected in ((metrics.waits, single.waits), (metrics.lateness, single.lateness)):
        assert {key: (one.cumulative(), one.sum_ms) for key, one in found.items()} == {
            key: (one.cumulative(), one.sum_ms) for key, one in expected.items()
        }
    assert metrics.expired_partitions == expired_partitions


def test_events_are_counted_slice_by_slice() -> None:
    metrics = Metrics()
    batch = EventBatch([codes.HIGH_WATERMARK, codes.HIGH_WATERMARK, codes.LEADER_APPEND, 99])
    fenced = Refusal(1, 9, "leader_epoch", "older", codes.FENCED_LEADER_EPOCH)
    metrics.called(Called(None, "", Apply(batch), events_receipt(2, 1, [fenced]), 0))
    unknown = Refusal(3, 3, "event", "unknown type 99")
    metrics.called(Called(None, "", Apply(batch, 2), events_receipt(4, 0, [unknown]), 0))
    assert {key: count for key, count in metrics.event_results.items() if count} == {
        ("high_watermark", "applied"): 1,
        ("high_watermark", "stale"): 1,
        ("leader_append", "applied"): 1,
        ("unknown", "refused"): 1,
    }
    assert metrics.unchanged_events == 1


def test_unknown_event_types_share_one_name() -> None:
    """A caller that sends a thousand unknown numbers creates one series, not a thousand."""
    metrics = Metrics()
    known = set(metrics.event_results)
    metrics.called(Called(None, "", Apply(EventBatch(list(range(100, 1_100)))), events_receipt(1_000), 0))
    assert set(metrics.event_results) == known
    assert metrics.event_results["unknown", "applied"] == 1_000


def test_refusals_are_counted_by_code_and_repeats_by_kind() -> None:
    metrics = Metrics()
    metrics.refused([Refusal(index, 8, "", "") for index in range(3)])
    metrics.refused([Refusal(0, 8, "", "")])
    receipt = Receipt()
    receipt.accepted, receipt.already_known = 10, 2
    metrics.called(Called(None, "", Register(codes.PRODUCE, OperationBatch([1])), receipt, 0))
    assert metrics.rejected[8] == 4
    assert metrics.repeated[codes.PRODUCE] == 2


def test_bounds_are_inclusive_and_cumulative() -> None:
    histogram = Histogram((0, 1, 10))
    for value_ms in (0, 1, 2, 10, 11):
        histogram.observe(value_ms)
    assert histogram.cumulative() == [("0.0", 1), ("0.001", 2), ("0.01", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.sum_seconds == pytest.approx(0.024)


def test_reached_limits_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """At once, then every ten seconds with the count since; other refusals are not logged."""
    clock = ManualClock()
    log = RefusalLog(clock)
    full = [Refusal(place, 8, f"produce.partitions[{place}]", "no room for partitions") for place in range(3)]
    log.refused([*full, Refusal(3, 3, "topic", "is bad")])
    log.refused(full)
    log.refused([Refusal(0, 8, "sessions", "no room for sessions")])
    log.tick()
    assert [record.args[:2] for record in caplog.records if isinstance(record.args, tuple)] == [
        (3, " (produce.partitions)"),
        (1, " (sessions)"),
    ]
    caplog.clear()
    clock.jump(INTERVAL_MS)
    log.tick()
    log.refused(full)
    assert caplog.messages == [
        "limit reached: 3 refused (produce.partitions) since this was last logged: no room for partitions"
    ]
    caplog.clear()
    log.refused([Refusal(0, 8, f"field_{place}", "x") for place in range(100)])
    assert len(caplog.records) <= SUBJECTS_MAX
