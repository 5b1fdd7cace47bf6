"""The examples of ready gates for docker-compose and Kubernetes: they match their schemas, and their commands work."""

import asyncio
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.test_kubernetes import check_schemas
from tests.kit.daemon import DaemonProcess, StartDaemon, daemon_environment
from tests.ready.gate_kit import log_source

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "ready"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text("utf-8"))["services"]
DEPLOYMENT: dict[str, Any] = yaml.safe_load((FOLDER / "deployment.yaml").read_text("utf-8"))
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
PROBE: list[str] = POD["containers"][0]["readinessProbe"]["exec"]["command"]


def test_the_deployment_matches_its_schema() -> None:
    check_schemas(DEPLOYMENT)
    assert DEPLOYMENT["spec"]["template"]["metadata"]["labels"]["purgatory-client"] == "true"


def test_the_service_starts_after_its_gate() -> None:
    assert COMPOSE["web"]["depends_on"] == {"billing-is-ready": {"condition": "service_completed_successfully"}}
    assert COMPOSE["billing-is-ready"]["environment"]["PURGATORY_HTTP_URL"] == "http://purgatory:7441"
    assert COMPOSE["purgatory"]["environment"]["PURGATORY_HTTP_ALLOWED_HOSTS"] == "purgatory"


async def test_the_commands_end_when_the_gate_is_ready(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """The commands of the compose service, the init container and the probe fail before the group has caught up, and
    succeed afterwards; the probe also once the daemon is gone.
    """
    daemon = start_daemon()
    gates = [shlex.split(COMPOSE["billing-is-ready"]["command"]), POD["initContainers"][0]["args"]]
    commands = [[sys.executable, "-m", "purgatory", *gate[:-1], "0"] for gate in gates]
    for command in commands:
        assert command[-2] == "--timeout"
    probe = [part.replace("/tmp", str(tmp_path)) for part in PROBE]
    async with log_source(daemon.address, 10) as source:
        assert [await exit_code(command, daemon) for command in [*commands, probe]] == [11, 11, 22]
        await source.processed(10)
        assert [await exit_code(command, daemon) for command in [*commands, probe]] == [0, 0, 0]
    daemon.kill()
    assert [await exit_code(command, daemon) for command in [*commands, probe]] == [13, 13, 0]


async def exit_code(command: list[str], daemon: DaemonProcess) -> int:
    """Run a command of a container, without TLS. 22 is that of curl for a status of 400 or more."""
    given = {"POD": "web-0", "PURGATORY_HTTP_URL": f"http://{daemon.http_address}", "PURGATORY_TLS_CA": os.devnull}
    run = await asyncio.to_thread(
        subprocess.run, [part.replace("$(POD)", "web-0") for part in command],
        env=daemon_environment(given), capture_output=True, check=False,
    )  # fmt: skip
    return run.returncode
