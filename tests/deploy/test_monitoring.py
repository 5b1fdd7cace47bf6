"""Alert rules and the dashboard: they use existing metrics, have descriptions, and fire on a planted fault."""

import contextlib
import json
import re
import shutil
import subprocess
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.free_ports import free_port
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import webhook_pb2
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.messages import produce, register_batch
from tests.kit.programs import run_program
from tests.webhooks.receiver import CallbackCaller, WebhookReceiver, webhook_flags

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "purgatory.json"
PROMTOOL = shutil.which("promtool")
SERVER = shutil.which("prometheus")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool; apt-get install prometheus")

KNOWN = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "metrics.md").read_text("utf-8"), re.MULTILINE)) | {"up"}
FLEET = "purgatory_fleet"
SUFFIXES = re.compile(r"_(bucket|count|sum)$")
NAME = re.compile(r"\b(?:purgatory|process|python)_\w+|\bup\b")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def filled(query: str) -> str:
    """A query of the dashboard with values for its variables."""
    values = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}
    return re.sub(r"\$\w+", lambda found: values[found[0]], query)


def promtool(*arguments: str) -> str:
    """Run promtool and return its output; fail if it reports an error."""
    assert PROMTOOL is not None, "the test is skipped without it"
    return run_program([PROMTOOL, *arguments]).stdout


@pytest.mark.parametrize("expression", [rule["expr"] for rule in rules()] + queries())
def test_expression_uses_only_documented_metrics(expression: str) -> None:
    named = {SUFFIXES.sub("", name) if SUFFIXES.sub("", name) in KNOWN else name for name in NAME.findall(expression)}
    assert named
    assert named <= KNOWN


def test_panels_are_explained_and_do_not_overlap() -> None:
    places = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in panels()
        for column in range(panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places)
    assert all(x < 24 for x, _ in places)
    assert all(panel["description"] for panel in panels())
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    document = yaml.safe_load((PROMETHEUS / "alerts.test.yml").read_text("utf-8"))
    fired = {case["alertname"] for test in document["tests"] for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules()}


def test_every_alert_leads_to_its_runbook() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    page = f"{project['urls']['Documentation']}/runbooks.html"
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "runbooks.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in rules())
    links = {rule["annotations"]["runbook_url"] for rule in rules()}
    assert links == {f"{page}#{heading.lower()}" for heading in headings}


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    """Promtool runs the cases of alerts.test.yml: one daemon with the fault, and one without."""
    assert "SUCCESS" in promtool("test", "rules", str(PROMETHEUS / "alerts.test.yml"))


@needs_promtool
def test_configuration_is_accepted_by_promtool() -> None:
    promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))


@needs_promtool
def test_dashboard_queries_are_understood(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:{number}", "expr": filled(one)} for number, one in enumerate(queries())]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}), "utf-8")
    promtool("check", "rules", str(path))


def test_compose_starts_grafana_on_request_only() -> None:
    """It is a profile, listens on loopback, and uses the data source and the dashboard of this repository."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    assert services["grafana"]["profiles"] == ["grafana"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), volume


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A running Prometheus: the file of its targets, and its address.

    It scrapes twice a second. Our rules are changed to fire without delay and to look back only seconds.
    """
    if SERVER is None:
        pytest.skip("no prometheus; apt-get install prometheus")
    tmp_path = tmp_path_factory.mktemp("prometheus")
    hasty = (PROMETHEUS / "alerts.yml").read_text("utf-8")
    hasty = re.sub(r"\bfor: \w+", "for: 0s", re.sub(r"\[\d+m\]", "[6s]", hasty))
    (tmp_path / "alerts.yml").write_text(hasty, "utf-8")
    configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
    configuration["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "100ms"}
    scraped = configuration["scrape_configs"][0]
    del scraped["static_configs"]
    scraped["file_sd_configs"] = [{"files": [str(tmp_path / "targets.yml")], "refresh_interval": "100ms"}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration), "utf-8")
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "prometheus.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [
                SERVER,
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield tmp_path / "targets.yml", address
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def answer_of(address: str, expression: str) -> list[Any]:
    """Prometheus's current result."""
    asked = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as response:
        found: list[Any] = json.load(response)["data"]["result"]
        return found


def firing(address: str) -> set[str]:
    """Alerts that are firing; empty while Prometheus does not respond yet."""
    with contextlib.suppress(OSError):
        return {one["metric"]["alertname"] for one in answer_of(address, "ALERTS")}
    return set()


def until_firing(address: str, *alerts: str, but: tuple[str, ...] = ()) -> None:
    """Wait until these alerts fire and those in `but` do not."""
    wait_until(
        lambda: set(alerts) <= (now := firing(address)) and now.isdisjoint(but),
        lambda: f"firing: {firing(address)}, expected: {alerts}, but not {but}",
    )


def test_alerts_fire_under_a_planted_fault(
    prometheus: tuple[Path, str], start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """With a real Prometheus and a real daemon: a client whose waits expire and that acknowledges nothing for a while,
    a receiver of webhooks that refuses everything until its dead letters fill their space, then a daemon that is
    killed. The first expiries count, although the counter was 0 before.
    """
    targets, address = prometheus
    lazy = ("PurgatoryResultBacklog", "PurgatoryManyExpiries")
    refused = ("PurgatoryWebhooksFail", "PurgatoryDeadLettersNearLimit")
    limits = ("--limits-unacknowledged-results-max", "10", "--webhooks-dead-letters-max", "1")
    daemon = start_daemon(*webhook_flags(tmp_path, *limits))
    targets.write_text(yaml.safe_dump([{"targets": [daemon.http_address]}]), "utf-8")
    until_scraped(address)
    with (
        WebhookReceiver(lambda received: 410 if received.operation_id == 1 else 500) as receiver,
        CallbackCaller(daemon.address) as caller,
    ):
        batch = register_batch(*[produce(number, "t", 5, 1) for number in range(1, 10)], batch_id=1)
        caller.stub.Register(wire.RegisterRequest(session_id="lazy", batch=batch), timeout=PATIENCE_S)
        until_firing(address, *lazy, but=("PurgatoryDown",))
        caller.register("refused", receiver.url(), ["gone", "refused"])
        caller.signal("gone", "refused")
        until_firing(address, *refused, but=("PurgatoryDown",))
        caller.stub.Acknowledge(wire.AcknowledgeRequest(session_id="lazy", sequence=9), timeout=PATIENCE_S)
        receiver.answer = lambda _received: 204
        ids = [letter.webhook_id for letter in caller.dead_letters()]
        caller.stub.DeleteDeadLetters(webhook_pb2.DeleteDeadLettersRequest(webhook_ids=ids))
        until_firing(address, but=(*lazy, *refused, "PurgatoryWebhooksLate"))
    daemon.kill()
    until_firing(address, "PurgatoryDown")


def until_scraped(address: str) -> None:
    """Wait until Prometheus has scraped the initial counts twice."""
    query = 'count_over_time(purgatory_outcomes_total{outcome="expired"}[1m]) > 1'
    wait_until(lambda: answer_of(address, query), "Prometheus scrapes the daemon", but=OSError)


def test_each_panel_shows_something(prometheus: tuple[Path, str], start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Each query of the dashboard has a result on a daemon with a journal, an archive and a source, even if nothing was
    refused, expired or lost yet. Those of a fleet need two daemons: see tests/postgres/fleet/test_monitoring.py.
    """
    targets, address = prometheus
    daemon = start_daemon(
        "--data-dir", str(tmp_path / "data"), "--archive", str(tmp_path / "archive"), "--source", "kafka://127.0.0.1:9"
    )  # fmt: skip
    targets.write_text(yaml.safe_dump([{"targets": [daemon.http_address]}]), "utf-8")
    until_scraped(address)
    for query in {filled(one) for one in queries() if FLEET not in one}:
        wait_until(partial(answer_of, address, query), f"a result of {query}")
