"""Style is a test: the house rules hold on this tree, and each rule is shown to catch what it is for."""

import importlib
from pathlib import Path

import pytest

import purgatory
from tests import house_rules as rules

ROOT = Path(__file__).resolve().parent.parent
ENTRY_POINTS = {
    "server",  # python server.py
    "setup",  # the build
    "purgatory.embedded",  # public: for a program with threads and no daemon
    "purgatory.timer",  # public: the same program's timer
    "purgatory.testing",  # public: a clock and a daemon for others' tests
    "purgatory_pipeline.notebook",  # public: for notebooks
    "purgatory_sources.cli",  # the console script
    "purgatory_sources.uri",  # what each source is made from
    "bench.subjects.engine_runs",  # make bench
    "tests.mutants.simulated_days",  # named in pyproject.toml, for make mutants
}
TEXTS = ("*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*.txt", "*.proto", "Makefile", "Dockerfile", ".dockerignore")
EXPORTS: dict[str, list[str]] = {
    "purgatory": ["__version__"],
    "purgatory.embedded": [
        "CANCELLED",
        "EXPIRED",
        "OUTCOME_NAMES",
        "PENDING",
        "SATISFIED",
        "SHUTTING_DOWN",
        "Clock",
        "DelayedOperation",
        "EmbeddedPurgatory",
        "OnError",
        "OperationEnded",
        "PurgatoryClosed",
        "PurgatoryError",
        "PurgatoryFull",
        "ReentrantCall",
        "SystemClock",
        "UsedAfterFork",
    ],
    "purgatory.engine": ["COMPILED"],
    "purgatory.timer": [
        "AsyncTimer",
        "Clock",
        "OnTaskError",
        "SystemClock",
        "SystemTimer",
        "Timer",
        "TimerClosed",
        "TimerTask",
        "UsedAfterFork",
    ],
    "purgatory_client": [
        "DEFAULT_ADDRESS",
        "AdvanceReceipt",
        "AsyncClient",
        "Client",
        "ClosedSession",
        "Collected",
        "Event",
        "OperationKind",
        "Outcome",
        "PartitionResult",
        "Registered",
        "Result",
        "ResultColumns",
        "Ticket",
        "errors",
        "events",
        "waits",
    ],
    "purgatory_pipeline.notebook": ["TABLES", "Report", "ReportOptions", "read", "replay", "report"],
}
"""What packages offer, pinned: a change here is a change of the public surface and belongs into the changelog."""


@pytest.fixture(scope="module")
def modules() -> list[rules.Module]:
    """Every Python file of this tree."""
    return rules.read_tree(ROOT)


def complaints(found: list[str]) -> str:
    return "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "rule",
    [
        rules.check_lengths,
        rules.check_folders,
        rules.check_names,
        rules.check_test_docstrings,
        rules.check_circles,
    ],
)
def test_rule_holds(rule: object, modules: list[rules.Module]) -> None:
    """No module breaks the rule."""
    assert callable(rule)
    found = rule(modules)
    assert not found, complaints(found)


def test_no_module_is_dead(modules: list[rules.Module]) -> None:
    """Every module is imported by something or is an entry point."""
    found = rules.check_alive(modules, ENTRY_POINTS)
    assert not found, complaints(found)


def test_no_path_of_a_machine() -> None:
    """No file holds a path into somebody's home folder."""
    paths = [path for pattern in TEXTS for path in ROOT.rglob(pattern)]
    ours = [path for path in paths if not {".venv", ".build", "build", "target"} & set(path.relative_to(ROOT).parts)]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ours}
    texts.pop("tests/test_tidy.py")  # plants some
    found = rules.check_paths(texts)
    assert not found, complaints(found)


def test_version_is_the_newest_in_the_changelog() -> None:
    """The changelog begins with the version that the package says it has."""
    found = rules.check_version(purgatory.__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert not found, complaints(found)


def test_constraints_are_plain_pins() -> None:
    """constraints.txt pins every version exactly and names no host, so that any registry serves."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [line for line in pins if line.count("==") != 1 or "://" in line or " " in line] == []


@pytest.mark.parametrize("package", EXPORTS)
def test_exports_are_pinned(package: str) -> None:
    """Each package offers exactly the names pinned here, and each of them is there."""
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(EXPORTS[package])
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


# Planted faults: (rule, path, text, what the complaint says). An empty last field: no complaint.
LONG_FUNCTION = "def f() -> None:\n" + '    """Doc."""\n' + "    pass\n" * 70
SHORT_FUNCTION = "def f() -> None:\n" + '    """Doc,\n' + "    long.\n" * 90 + '    """\n' + "    pass\n" * 69
PLANTED = [
    (rules.check_lengths, "purgatory/a.py", LONG_FUNCTION, "f has 71 lines"),
    (rules.check_lengths, "purgatory/a.py", SHORT_FUNCTION, ""),
    (rules.check_lengths, "purgatory/a.py", "\n" * 501, "501 lines"),
    (rules.check_names, "purgatory/service/utils.py", "", "name it for what it holds"),
    (rules.check_names, "tests/_helpers.py", "", "name it for what it holds"),
    (rules.check_test_docstrings, "tests/test_a.py", '"""Doc."""\ndef test_b(): pass', "test_b does not say"),
    (rules.check_test_docstrings, "tests/test_a.py", '"""Doc."""\nasync def test_b():\n    """Says."""', ""),
]


@pytest.mark.parametrize(("rule", "path", "text", "says"), PLANTED)
def test_planted_fault_is_found(rule: object, path: str, text: str, says: str) -> None:
    """A rule finds the fault it is for, and leaves alone what is right."""
    assert callable(rule)
    found = rule([rules.Module.parse(path, text)])
    if says:
        assert len(found) == 1, complaints(found)
        assert says in found[0]
    else:
        assert not found, complaints(found)


def test_planted_full_folder_is_found() -> None:
    """The sixteenth module side by side is one too many; __init__, __main__ and folders below do not count."""
    planted = [rules.Module.parse(f"purgatory/m{number}.py", "") for number in range(15)]
    planted += [rules.Module.parse(f"purgatory/{name}.py", "") for name in ("__init__", "__main__", "below/a")]
    assert rules.check_folders(planted) == []
    assert len(rules.check_folders([*planted, rules.Module.parse("purgatory/m15.py", "")])) == 1


def test_planted_circle_is_found() -> None:
    """Modules that import each other are found, also where one does so relatively, in a function or for annotations."""
    planted = [
        rules.Module.parse("purgatory/a.py", "from . import b"),
        rules.Module.parse("purgatory/b.py", "def f():\n    import purgatory.c"),
        rules.Module.parse("purgatory/c.py", "if TYPE_CHECKING: from purgatory.a import name"),
    ]
    (found,) = rules.check_circles(planted)
    assert {"purgatory.a", "purgatory.b", "purgatory.c"} <= set(found.split())
    assert rules.check_circles(planted[:2]) == []


def test_planted_dead_modules_are_found() -> None:
    """A module that nothing imports is found; an entry point is not, a module that imports only itself is."""
    planted = [
        rules.Module.parse("purgatory/alive.py", ""),
        rules.Module.parse("purgatory/dead.py", "import purgatory.dead"),
        rules.Module.parse("server.py", "from purgatory import alive"),
        rules.Module.parse("examples/program.py", "if __name__ == '__main__': print()"),
        rules.Module.parse("tests/driver.py", ""),
        rules.Module.parse("tests/test_a.py", "import purgatory.dead"),
    ]
    found = rules.check_alive(planted, {"server"})
    assert [line.partition(":")[0] for line in found] == ["purgatory/dead.py", "tests/driver.py"]


@pytest.mark.parametrize("line", ["/home/ada/x", "cd /home/bob/work", "see '/Users/ada'"])
def test_planted_home_paths_are_found(line: str) -> None:
    """A path into a home folder is found wherever it stands in a line."""
    assert len(rules.check_paths({"README.md": f"first\n{line}\n"})) == 1


@pytest.mark.parametrize("line", ["docs/home/page", "https://x.test/home/a", "/rooted"])
def test_innocent_paths_are_left_alone(line: str) -> None:
    """What only looks like a home folder is no fault."""
    assert rules.check_paths({"README.md": line}) == []


@pytest.mark.parametrize(("changelog", "count"), [("## [0.2.0] - x\n## [0.1.0]", 0), ("## [0.1.0]", 1), ("", 1)])
def test_planted_version_mismatch_is_found(changelog: str, count: int) -> None:
    """A version that is not the changelog's newest is found."""
    assert len(rules.check_version("0.2.0", changelog)) == count
