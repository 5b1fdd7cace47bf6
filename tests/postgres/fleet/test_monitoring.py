"""Alerts and the dashboard's row about a fleet, with a real Prometheus and two real daemons over one log."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from purgatory.extensions.fleet.commands import main as fleet_command
from tests.deploy.test_monitoring import FLEET, answer_of, prometheus, queries, until_firing
from tests.fleet.pair_run import Member
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.postgres.fleet.test_pair import new_log, url

__all__ = ["new_log", "prometheus", "url"]

pytestmark = pytest.mark.slow


def test_alerts_and_panels_of_a_fleet(prometheus: tuple[Path, str], url: str, tmp_path: Path) -> None:
    """While one daemon leads and one stands by no alert fires, and each panel shows something. Without the standby, and
    then without the leader, alerts say so.
    """
    targets, address = prometheus
    members: list[Member] = []
    alerts = (
        "PurgatoryNoLeader",
        "PurgatoryNoStandby",
        "PurgatoryStandbyBehind",
        "PurgatorySnapshotOld",
        "PurgatoryAppendSlow",
    )
    try:
        for name, probe in (("a", "/leaderz"), ("b", "/readyz")):
            members.append(Member(name, tmp_path, url, ("--fleet-silence-ms", "600000")))
            wait_until(lambda: members[-1].answers(probe), f"{name} answers {probe}")  # noqa: B023 - called at once
        targets.write_text(yaml.safe_dump([{"targets": [one.http_address for one in members]}]), "utf-8")
        values = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}
        unanswered = {re.sub(r"\$\w+", lambda found: values[found[0]], one) for one in queries() if FLEET in one}
        assert unanswered
        deadline = time.monotonic() + PATIENCE_S
        while unanswered := {one for one in unanswered if not answered(address, one)}:
            assert time.monotonic() < deadline, sorted(unanswered)
            time.sleep(0.1)
        until_firing(address, but=alerts)
        members[1].end()
        until_firing(address, "PurgatoryNoStandby", but=("PurgatoryNoLeader",))
        members[1].start_if_ended()
        until_firing(address, but=alerts)
        members[0].end()
        until_firing(address, "PurgatoryNoLeader", but=("PurgatoryNoStandby",))
        assert fleet_command(["status", members[1].http_address]) == 1
    finally:
        for member in members:
            member.end()


def answered(address: str, expression: str) -> list[Any]:
    """The answer; none while Prometheus does not respond yet."""
    try:
        return answer_of(address, expression)
    except OSError:
        return []
