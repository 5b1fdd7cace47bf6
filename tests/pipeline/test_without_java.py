"""Without Java, tests on Spark are skipped, which the run says loudly; where Java is required they fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.conftest import ROOT, worker_environment

ON_SPARK = "tests/pipeline/archive/test_intake_reading.py"

pytestmark = pytest.mark.slow  # each is a pytest of its own


def run_without_java(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs two tests on Spark, by a pytest that finds no Java."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PURGATORY_", "PYTEST_"))}
    environment = {**kept, **worker_environment(), "JAVA_HOME": str(folder / "nowhere"), **settings}
    # Within the one process: a worker that takes over ten seconds to end, on a stalled machine, is an error to pytest.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        ON_SPARK,
        "-k",
        "window or topics",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)


def test_tests_on_spark_are_skipped_loudly(tmp_path: Path) -> None:
    """The run succeeds, and ends with how many tests it skipped, why, and what to install."""
    done = run_without_java(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT THE WHOLE SUITE" in done.stdout
    assert re.search(r"2 tests did not run: .*no Java found .*apt install openjdk-17-jre-headless", done.stdout)
    assert "2 skipped" in done.stdout


def test_required_java_fails(tmp_path: Path) -> None:
    """With PURGATORY_REQUIRE_JAVA=1, as in CI, the same tests fail with the same words."""
    done = run_without_java(tmp_path, PURGATORY_REQUIRE_JAVA="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"PURGATORY_REQUIRE_JAVA=1: no Java found", done.stdout)
    assert "2 errors" in done.stdout
