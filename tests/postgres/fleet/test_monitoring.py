"""Alerts and the dashboard's row about a fleet, with a real Prometheus and two real daemons over one log."""

import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_monitoring import FLEET, answer_of, prometheus, queries, until_firing
from tests.kit.commands import fleet_command
from tests.kit.eventually import wait_until
from tests.kit.fleet import Fleet

__all__ = ["prometheus"]

pytestmark = pytest.mark.slow


def test_alerts_and_panels_of_a_fleet(prometheus: tuple[Path, str], url: str, tmp_path: Path) -> None:
    """While one daemon leads and one stands by no alert fires, and each panel shows something. Without the standby, and
    then without the leader, alerts say so.
    """
    targets, address = prometheus
    alerts = (
        "PurgatoryNoLeader",
        "PurgatoryNoStandby",
        "PurgatoryStandbyBehind",
        "PurgatorySnapshotOld",
        "PurgatoryAppendSlow",
    )
    with Fleet(tmp_path, url, "--fleet-silence-ms", "600000") as fleet:
        members = fleet.start_pair()
        targets.write_text(yaml.safe_dump([{"targets": [one.http_address for one in members]}]), "utf-8")
        values = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}
        unanswered = {re.sub(r"\$\w+", lambda found: values[found[0]], one) for one in queries() if FLEET in one}
        assert unanswered
        for one in sorted(unanswered):
            wait_until(lambda: answer_of(address, one), one, but=OSError)  # noqa: B023 - called at once
        until_firing(address, but=alerts)
        members[1].end()
        until_firing(address, "PurgatoryNoStandby", but=("PurgatoryNoLeader",))
        members[1].start_if_ended()
        until_firing(address, but=alerts)
        members[0].end()
        until_firing(address, "PurgatoryNoLeader", but=("PurgatoryNoStandby",))
        assert fleet_command(["status", members[1].http_address]) == 1
