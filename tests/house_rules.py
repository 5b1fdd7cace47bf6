"""The house rules that no tool has, functions from modules to complaints; tests/test_tidy.py runs them on this tree and
on planted faults. What may import what is in pyproject.toml, for import-linter.

A rule reads syntax trees and text only, so it also judges code that cannot be imported here. Each complaint says where,
what, and what would be right.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

FOLDERS = ("purgatory", "client", "pipeline", "sources", "tests", "examples", "bench")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
FOLDER_MODULES_MAX = 15
NAMELESS = {"util", "utils", "common", "commons", "helper", "helpers", "misc"}


@dataclass(frozen=True)
class Module:
    """One Python file: `name` as imported, `path` relative to the root, its text and its tree."""

    name: str
    path: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> Module:
        parts = list(Path(path).with_suffix("").parts)
        if parts[0] in {"client", "pipeline", "sources"}:
            parts = parts[1:]
        if parts[-1] == "__init__":
            parts = parts[:-1]
        return cls(".".join(parts), path, text, ast.parse(text, path))

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")

    @property
    def is_test(self) -> bool:
        return self.name.startswith("tests.")


def read_tree(root: Path) -> list[Module]:
    """Every Python file of ours under `root`; generated stubs are not ours."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    paths += [root / "server.py", root / "setup.py"]
    names = [path.relative_to(root) for path in paths if path.exists()]
    ours = [name for name in names if name.parts[:2] != ("purgatory", "v1") and "__pycache__" not in name.parts]
    return [Module.parse(str(name), (root / name).read_text(encoding="utf-8")) for name in ours]


def imports_of(module: Module, known: set[str]) -> set[str]:
    """Full names of what it imports, wherever that stands; `from a import b` gives a.b when that is a known module."""
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*above, source]).rstrip(".")
            full = [f"{source}.{alias.name}" for alias in node.names]
            found |= {name if name in known else source for name in full}
    return found


def check_circles(modules: list[Module]) -> list[str]:
    """No module imports itself over others, for annotations alone neither."""
    known = {module.name for module in modules}
    graph = {m.name: (imports_of(m, known) & known) - {m.name} for m in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"imports run in a circle: {' <- '.join(error.args[1])}"]
    return []


def check_lengths(modules: list[Module]) -> list[str]:
    """Functions end after 70 lines, their docstrings not counted; files after 500."""
    complaints = []
    for module in modules:
        lines = module.text.count("\n")
        if lines > FILE_LINES_MAX:
            complaints.append(f"{module.path}: {lines} lines, at most {FILE_LINES_MAX}; split it")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = function_lines(node)
                if length > FUNCTION_LINES_MAX:
                    complaints.append(f"{module.path}:{node.lineno}: {node.name} has {length} lines, at most 70")
    return complaints


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def check_names(modules: list[Module]) -> list[str]:
    """A file is named for what it holds."""
    return [f"{m.path}: name it for what it holds" for m in modules if Path(m.path).stem.strip("_") in NAMELESS]


def check_folders(modules: list[Module]) -> list[str]:
    """A folder has at most 15 modules side by side; __init__ and __main__ do not count."""
    sizes = Counter(str(Path(m.path).parent) for m in modules if Path(m.path).stem not in {"__init__", "__main__"})
    return [
        f"{folder}: {size} modules side by side, at most {FOLDER_MODULES_MAX}; make folders"
        for folder, size in sizes.items()
        if size > FOLDER_MODULES_MAX
    ]


def check_test_docstrings(modules: list[Module]) -> list[str]:
    """Every test says what it expects."""
    return [
        f"{module.path}:{node.lineno}: {node.name} does not say what it expects"
        for module in modules
        if module.is_test
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


def is_program(module: Module) -> bool:
    """True for a module that starts something when it is run: `if __name__ == "__main__"`."""
    tests = [ast.unparse(node.test) for node in module.tree.body if isinstance(node, ast.If)]
    return any("__name__" in test and "__main__" in test for test in tests)


def check_alive(modules: list[Module], entry_points: set[str]) -> list[str]:
    """Every module of the product is imported by something that is not a test, or is an entry point."""
    known = {module.name for module in modules}
    imported = {name for m in modules if not m.is_test for name in imports_of(m, known) if name != m.name}
    shared = {name for m in modules if m.is_test for name in imports_of(m, known)}
    complaints = []
    for module in modules:
        if module.is_package or module.name in entry_points or is_program(module):
            continue
        stem = module.name.rpartition(".")[2]
        if module.is_test:
            if not stem.startswith("test_") and stem != "conftest" and module.name not in shared:
                complaints.append(f"{module.path}: no test imports it")
        elif stem != "__main__" and module.name not in imported:
            complaints.append(f"{module.path}: nothing imports it and it is no entry point")
    return complaints


HOME = re.compile(r"(?<![\w.\-}])/(?:home|Users)/[A-Za-z]|(?<![\w.\-}])/(?:root)/")


def check_paths(texts: dict[str, str]) -> list[str]:
    """Nobody's home folder is written down. Takes path -> text."""
    return [
        f"{path}:{number}: a path of somebody's machine"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if HOME.search(line)
    ]


def check_version(version: str, changelog: str) -> list[str]:
    """The newest entry of the changelog is the package's version."""
    head = re.search(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)
    newest = head.group(1) if head else "none"
    return [] if newest == version else [f"CHANGELOG.md begins with {newest}, purgatory.__version__ is {version}"]
