"""Rules that no linter checks: sizes, names of tests, import cycles, unused modules, pinned names and versions.

Import contracts are in pyproject.toml. `purgatory/v1` is generated and not checked.
"""

import ast
import functools
import importlib
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.kit.recorded import assert_recorded, cases_of
from tests.parsing import parsed
from tests.scripts.language import all_scripts

pytestmark = pytest.mark.xdist_group("tidy")  # one worker parses all modules

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("purgatory", "client", "pipeline", "connectors", "tests", "examples", "bench")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
NAME_WORDS_MIN = 4
ENTRY_POINTS = {
    "server",  # python server.py
    "setup",  # the build
    "purgatory.embedded",  # public: for a program with threads and no daemon
    "purgatory.timer",  # public: the same program's timer
    "purgatory.testing",  # public: a clock and a daemon for other projects' tests
    "purgatory_client.middleware.wsgi",  # public: for Django and Flask
    "purgatory.testing.pytest_plugin",  # named in pyproject.toml: pytest loads it
    "purgatory_pipeline.notebook",  # public: for notebooks
    "purgatory_connectors.cli",  # the console script
    "examples.orchestrators.airflow_watcher",  # for programs with Airflow, which is not installed here
    "examples.orchestrators.dagster_sensor",  # the same with Dagster
    "examples.orchestrators.prefect_wait",  # the same with Prefect
    "examples.nats_connector.purgatory_nats",  # a package of its own
    "bench.subjects.engine_runs",  # make bench
    "tests.mutants.budget",  # named in pyproject.toml, for make mutants
}
TEXTS = ("*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*.txt", "*.proto", "Makefile", "Dockerfile", ".dockerignore")
EXPORTS = Path(__file__).with_name("exports.txt")


@functools.cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Every Python file by its import name: its path relative to the root, and its syntax tree."""
    found = {}
    for path in [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")] + [ROOT / "server.py"]:
        relative = path.relative_to(ROOT)
        parts = relative.with_suffix("").parts
        if parts[:2] != ("purgatory", "v1") and "__pycache__" not in parts and "node_modules" not in parts:
            parts = parts[1:] if parts[0] in {"client", "pipeline", "connectors"} else parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = relative, parsed(path.read_text("utf-8"))
    return found


@functools.cache
def nodes_of(name: str) -> list[ast.AST]:
    """The imports, constants and functions of a module. Walking through a tree takes longer than parsing it."""
    kinds = ast.Import | ast.ImportFrom | ast.Constant | ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(modules()[name][1]) if isinstance(node, kinds)]


@functools.cache
def imports_of(name: str) -> set[str]:
    """Known modules that a module imports, anywhere in its code, or names in a string, as "module:function"."""
    found: set[str] = set()
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: ruff rejects relative imports"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (full & modules().keys()) or {node.module or ""}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
            found.add(node.value.partition(":")[0])
    return (found & modules().keys()) - {name}


@functools.cache
def functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [
        (name, node)
        for name in modules()
        for node in nodes_of(name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of lines of a function without its docstring."""
    start, end = node.lineno, node.end_lineno or node.lineno
    if ast.get_docstring(node, clean=False) is not None:
        start += (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    return end - start + 1


def test_sizes() -> None:
    """Functions have at most 70 lines, files 500."""
    long = [f"{name}.{node.name}" for name, node in functions() if code_lines(node) > FUNCTION_LINES_MAX]
    files = {str(path): (ROOT / path).read_text("utf-8").count("\n") for path, _ in modules().values()}
    large = [f"{path}: {lines} lines" for path, lines in files.items() if lines > FILE_LINES_MAX]
    assert long + large == []


def test_every_test_states_what_it_expects() -> None:
    """By a name of at least `NAME_WORDS_MIN` words (subject, condition, result), or by a docstring."""
    tests = [(name, node) for name, node in functions() if name.startswith("tests.") and node.name.startswith("test_")]
    vague = [(name, node) for name, node in tests if node.name.count("_") < NAME_WORDS_MIN]
    assert tests
    assert [f"{name}.{node.name}" for name, node in vague if not ast.get_docstring(node)] == []


def test_imports_have_no_cycle() -> None:
    """No module imports itself through others, not even in functions or for annotations. Raises CycleError."""
    TopologicalSorter({name: imports_of(name) for name in modules()}).prepare()


def test_every_module_is_used() -> None:
    """Modules of the product are imported by the product, or are programs or entry points; test helpers are imported
    by a test.
    """
    unused = []
    users = {name: imports_of(name) for name in modules()}
    for name, (path, tree) in modules().items():
        is_test = name.startswith("tests.")
        is_program = any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)
        is_found = path.stem in {"__init__", "__main__", "conftest"} or path.stem.startswith("test_")
        if is_program or is_found or name in ENTRY_POINTS:
            continue
        if not any(name in found for user, found in users.items() if is_test or not user.startswith("tests.")):
            unused.append(name)
    assert unused == []


def test_no_path_of_a_machine() -> None:
    """No text contains a path into a home folder."""
    home = re.compile(r"(?<![\w.\-}])/(?:home|Users)/[A-Za-z]|(?<![\w.\-}])/(?:root)/")
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"]
    paths = [path for pattern in TEXTS for folder in folders for path in folder.rglob(pattern)]
    paths += [path for pattern in TEXTS for path in ROOT.glob(pattern)]
    ours = [path for path in paths if not {"node_modules", "target"} & set(path.relative_to(ROOT).parts)]
    assert [str(path) for path in ours if home.search(path.read_text("utf-8"))] == []


def test_constraints_are_plain_pins() -> None:
    """constraints.txt pins every version exactly and names no host, so that any registry can be used."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [line for line in pins if line.count("==") != 1 or "://" in line or " " in line] == []


def test_exports_are_pinned() -> None:
    """Each package exports exactly the names in exports.txt, and all of them exist."""
    modules = [importlib.import_module(package) for package in cases_of(EXPORTS)]
    assert_recorded(EXPORTS, (" ".join(sorted(module.__all__)) for module in modules))
    assert [name for module in modules for name in module.__all__ if not hasattr(module, name)] == []


def test_lessons_name_tests_that_exist() -> None:
    """docs/lessons.md names at least one test or script per lesson, and each of them exists."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "lessons.md").read_text("utf-8"), re.MULTILINE)
    name = re.compile(r"`(test_\w+|[a-z_]+: [^`]+)`")
    named = {lesson: name.findall(tests) for lesson, tests in rows if set(lesson) != {"-"}}
    named.pop("what went wrong elsewhere", None)
    assert len(named) >= 60
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    defined = {name for text in sources for name in re.findall(r"def (test_\w+)\(", text)} | set(all_scripts())
    assert {lesson: names for lesson, names in named.items() if not names or not defined.issuperset(names)} == {}
