"""The engine's build: the suite runs on both builds, and these tests prove which one is in use."""

import importlib
import os
import pkgutil
import sys
from pathlib import Path

import pytest

import purgatory.engine
from tests.kit.programs import run_program

SUFFIXES = {"compiled": (".so", ".pyd"), "pure": (".py",)}


def engine_files() -> dict[str, str]:
    """The file from which each module of the engine was loaded."""
    found = pkgutil.walk_packages(purgatory.engine.__path__, "purgatory.engine.")
    names = [module.name for module in found if not module.ispkg]
    files = {name: importlib.import_module(name).__file__ for name in names}
    return {name: file for name, file in files.items() if file}


@pytest.mark.xdist_group("together")
def test_groups_of_tests_stay_together(request: pytest.FixtureRequest) -> None:
    """With several workers, a test's id ends with its group, which is assigned to one worker. Otherwise each worker
    would start its own Spark, Kafka and PostgreSQL.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@together")


def test_engine_is_wholly_one_build() -> None:
    """All modules of the engine are compiled, or none is; COMPILED has the matching value."""
    suffixes = SUFFIXES["compiled" if purgatory.engine.COMPILED else "pure"]
    assert [file for file in engine_files().values() if not file.endswith(suffixes)] == []


def test_engine_is_the_build_that_is_asked_for() -> None:
    build = os.environ.get("PURGATORY_BUILD")
    if build is None:
        pytest.skip("PURGATORY_BUILD is not set: any build will do (make test runs both)")
    assert [file for file in engine_files().values() if not file.endswith(SUFFIXES[build])] == []


def test_child_processes_run_the_same_build() -> None:
    code = "import purgatory.engine.codes as codes; print(codes.__file__)"
    answer = run_program([sys.executable, "-c", code], cwd=Path("/"))
    assert answer.stdout.strip() == importlib.import_module("purgatory.engine.codes").__file__


def test_type_checker_outside_the_checkout_knows_the_packages(tmp_path: Path) -> None:
    """Beside the editable installation that make sets up. A type checker does not run its import hook."""
    root = Path(__file__).parents[1]
    if Path(sys.prefix) != root / ".venv":
        pytest.skip("only the environment that make sets up has the path file")
    run_program(["make", "-s", ".venv/stamps/paths"], cwd=root)
    code = "from purgatory_client import Client; reveal_type(Client().status())"
    checked = run_program([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "-c", code], cwd=tmp_path)
    assert 'Revealed type is "purgatory_client.views.Status"' in checked.stdout
