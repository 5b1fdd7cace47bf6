"""What a release builds: cibuildwheel accepts its settings, and the public workflow runs what there is.

`.ci/check-wheel` builds the wheel for this machine, labels it for other Linux systems, installs it and serves by uvx.
"""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.kit.programs import run_program
from tests.strangers.client_builds import BUILT, go_tool

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    ("platform", "systems"),
    [("linux", {"manylinux_x86_64", "musllinux_x86_64"}), ("macos", {"macosx_arm64"})],
)
def test_cibuildwheel_builds_for_each_system_and_python(platform: str, systems: set[str]) -> None:
    """On a machine of the platform there is a wheel for each supported Python, for glibc, musl and macOS."""
    command = [sys.executable, "-m", "cibuildwheel", "--platform", platform, "--print-build-identifiers"]
    command += ["--archs", "arm64" if platform == "macos" else "x86_64"]
    made = run_program(command, cwd=ROOT).stdout.split()
    assert {tuple(one.split("-")) for one in made} == {
        (python, system) for python in ("cp311", "cp312", "cp313", "cp314") for system in systems
    }


def test_a_command_has_the_name_of_the_distribution() -> None:
    """`uvx NAME` and `pipx run NAME` look for a command with the distribution's name."""
    scripts = PROJECT["project"]["scripts"]
    assert scripts[PROJECT["project"]["name"]] == scripts["purgatory"]


def test_the_workflow_runs_what_there_is() -> None:
    """Each step runs an existing target or script, and wheels are built with the version that is tested here."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = [line.split() for step in STEPS for line in step.get("run", "").splitlines()]
    assert {words[1] for words in commands if words[0] == "make"} <= targets
    assert all((ROOT / words[0]).exists() for words in commands if words[0].startswith("."))
    [tested] = re.findall(r"^cibuildwheel==(.*)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert f"pypa/cibuildwheel@v{tested}" in {step.get("uses") for step in STEPS}


@pytest.mark.slow  # Go compiles the checker
@pytest.mark.xdist_group("strangers")
def test_workflow_is_valid_for_actionlint() -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    command = [go_tool("github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"), str(ROOT / ".github/workflows/ci.yml")]
    run_program(command)
