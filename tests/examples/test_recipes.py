"""The recipes of examples/recipes, each run against a new daemon: it prints the lines at the end of its docstring."""

import ast
import inspect
import os
import re
import sys
from pathlib import Path

import pytest

from tests.kit.daemon import DaemonProcess, daemon_environment
from tests.kit.programs import run_program
from tests.parsing import parsed

PROJECT = Path(__file__).resolve().parents[2]
RECIPES = sorted((PROJECT / "examples" / "recipes").glob("[!_]*.py"))
LINES_MIN, LINES_MAX = 20, 60
SECONDS_MAX = 120
CANNOT_RUN = 77
"""The exit code of a recipe that lacks a program such as PostgreSQL; its last line on stderr is the reason."""
pytestmark = pytest.mark.slow
assert RECIPES, "the folder is not found"


def printed_by(recipe: Path) -> str:
    """The output that the recipe's docstring promises."""
    text = inspect.cleandoc(ast.get_docstring(parsed(recipe.read_text("utf-8"))) or "")
    _, heading, lines = text.rpartition("\nPrints:\n")
    assert heading, f"the docstring of {recipe.name} does not end with `Prints:` and its lines"
    return inspect.cleandoc(lines)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_prints_what_it_promises(recipe: Path, daemon: DaemonProcess) -> None:
    environment = {
        "PURGATORY_ADDRESS": daemon.address,
        "PURGATORY_HTTP_URL": f"http://{daemon.http_address}",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    command = [sys.executable, str(recipe)]
    run = run_program(command, code=None, cwd=PROJECT, env=daemon_environment(environment), timeout_s=SECONDS_MAX)
    if run.returncode == CANNOT_RUN:
        reason = run.stderr.strip().rpartition("\n")[2]
        needed = [name for name in os.environ if name.startswith("PURGATORY_REQUIRE_") and os.environ[name] == "1"]
        required = [name for name in needed if name.removeprefix("PURGATORY_REQUIRE_") in reason.upper()]
        assert not required, f"{required[0]}=1: {reason}"
        pytest.skip(reason)
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    assert run.stdout.strip() == printed_by(recipe)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_short_and_linked(recipe: Path) -> None:
    """A recipe has 20 to 60 lines and a `main`, and a page of docs links to it."""
    source = recipe.read_text("utf-8")
    assert LINES_MIN <= source.count("\n") <= LINES_MAX
    assert re.search(r"^(async )?def main\(", source, re.MULTILINE)
    pages = [page.read_text("utf-8") for page in (PROJECT / "docs").glob("*.md")]
    assert any(f"](../examples/recipes/{recipe.name})" in page for page in pages)
