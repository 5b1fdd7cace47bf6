"""The house rules, functions from modules to complaints; tests/test_tidy.py runs them on this tree and planted faults.

A rule reads syntax trees and text only, so it also judges code that cannot be imported here. Each complaint says where,
what, and what would be right.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("purgatory", "client", "pipeline", "tests", "examples", "bench")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
FILE_LINES_WARN = 300
NAMELESS = {"util", "utils", "common", "commons", "helper", "helpers", "misc"}

ENGINE_NEVER = {
    "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "random", "select",
    "selectors", "signal", "socket", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
ENGINE_NEEDS = {"librt", "mypy_extensions"}
"""The only packages of others that the engine may import."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "purgatory.engine": ("purgatory.engine",),
    "purgatory.clock": (),
    "purgatory.embedded": ("purgatory.engine", "purgatory.clock"),
    "purgatory.testing": ("purgatory.engine", "purgatory.clock", "purgatory.embedded"),
    "purgatory.journal": ("purgatory.journal", "purgatory.engine"),
    "purgatory.archive": ("purgatory.archive", "purgatory.engine"),
    "purgatory.service": (
        "purgatory.service",
        "purgatory.archive",
        "purgatory.journal",
        "purgatory.engine",
        "purgatory.clock",
        "purgatory.v1",
    ),
    "purgatory.daemon": (
        "purgatory.service",
        "purgatory.journal",
        "purgatory.engine",
        "purgatory.clock",
        "purgatory.v1",
    ),
    "purgatory.__main__": ("purgatory_client.cli",),
    "server": ("purgatory.daemon",),
    "purgatory_client": ("purgatory_client", "purgatory.v1"),
    "purgatory_pipeline": ("purgatory_pipeline", "purgatory_client", "purgatory.archive", "purgatory.engine"),
}
"""What a part may import of ours; the longest name that fits decides. What is not named here may import anything."""

MAY_ALSO = {
    ("purgatory_client.cli", "purgatory.daemon"): "`purgatory serve` starts the daemon",
    ("purgatory_client.cli", "purgatory.journal.cli"): "`purgatory journal` looks after the daemon's journal",
}
"""Single exceptions, from a package or module to a module, each with its reason."""

WIRES_BOTH = {"purgatory.daemon"}
"""The composition root names engine and wire to put them together; it reads neither."""

OURS = ("purgatory", "purgatory_client", "purgatory_pipeline", "server", "tests", "examples", "bench")


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
        if parts[0] in {"client", "pipeline"}:
            parts = parts[1:]
        if parts[-1] == "__init__":
            parts = parts[:-1]
        return cls(".".join(parts), path, text, ast.parse(text, path))

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")


def read_tree(root: Path) -> list[Module]:
    """Every Python file of ours under `root`; generated stubs are not ours."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    paths += [root / "server.py", root / "setup.py"]
    names = [path.relative_to(root) for path in paths if path.exists()]
    ours = [name for name in names if name.parts[:2] != ("purgatory", "v1") and "__pycache__" not in name.parts]
    return [Module.parse(str(name), (root / name).read_text(encoding="utf-8")) for name in ours]


def imports_of(module: Module, known: set[str]) -> list[tuple[int, str]]:
    """(line, full name) of each import, wherever it stands; `from a import b` gives a.b when that is a known module."""
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    found: list[tuple[int, str]] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*above, source]).rstrip(".")
            full = [f"{source}.{alias.name}" for alias in node.names]
            is_module = [name in known or source == "purgatory.v1" for name in full]
            found += [(node.lineno, name if yes else source) for name, yes in zip(full, is_module, strict=True)]
    return found


def is_within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def rule_of(name: str) -> tuple[str, ...] | None:
    fitting = [prefix for prefix in MAY_IMPORT if is_within(name, prefix)]
    return MAY_IMPORT[max(fitting, key=len)] if fitting else None


def check_layers(modules: list[Module]) -> list[str]:
    """Imports run one way: server -> service -> engine; client -> wire. `from purgatory import __version__` is free."""
    known = {module.name for module in modules}
    complaints = []
    for module in modules:
        allowed = rule_of(module.name)
        for line, name in imports_of(module, known):
            if name.partition(".")[0] in {"proto", "client", "pipeline"}:
                complaints.append(f"{module.path}:{line}: `{name}` is not a name of ours at the top level")
            version_only = name == "purgatory" and not is_within(module.name, "purgatory.engine")
            if allowed is None or name.partition(".")[0] not in OURS or version_only:
                continue
            excused = any(is_within(module.name, who) and name == what for who, what in MAY_ALSO)
            if not excused and not any(is_within(name, prefix) for prefix in allowed):
                complaints.append(f"{module.path}:{line}: {module.name} may not import {name}")
    return complaints


def check_engine_is_pure(modules: list[Module]) -> list[str]:
    """The engine knows no clock, socket, thread, log or file, and no package but those it is compiled with."""
    complaints = []
    for module in modules:
        if not is_within(module.name, "purgatory.engine"):
            continue
        for line, name in imports_of(module, {module.name for module in modules}):
            top = name.partition(".")[0]
            if top in ENGINE_NEVER:
                complaints.append(
                    f"{module.path}:{line}: the engine does not import {top}; pass what it gives as an argument"
                )
            elif top != "purgatory" and top not in ENGINE_NEEDS and top not in sys.stdlib_module_names:
                complaints.append(f"{module.path}:{line}: the engine does not know {top}")
        calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
        named = [(node.lineno, node.func.id) for node in calls if isinstance(node.func, ast.Name)]
        banned = [(line, name) for line, name in named if name in {"open", "print"}]
        complaints += [f"{module.path}:{line}: the engine does not {name}" for line, name in banned]
    return complaints


def check_translate_alone_knows_both(modules: list[Module]) -> list[str]:
    """Only service/translate* knows engine and wire.

    Generated service classes (_pb2_grpc) do not count as wire, nor purgatory.engine.COMPILED as engine.
    """
    known = {module.name for module in modules}
    complaints = []
    for module in modules:
        excused = module.name.startswith("purgatory.service.translate") or module.name in WIRES_BOTH
        if excused or not is_within(module.name, "purgatory"):
            continue
        names = [name for _, name in imports_of(module, known)]
        wire = [name for name in names if is_within(name, "purgatory.v1") and not name.endswith("_pb2_grpc")]
        engine = [name for name in names if name.startswith("purgatory.engine.")]
        if wire and engine:
            complaints.append(f"{module.path}: knows {engine[0]} and {wire[0]}; only purgatory/service/translate* may")
    return complaints


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


def check_docstrings(modules: list[Module]) -> list[str]:
    """Every test says what it expects; ruff (D100) asks the same of modules."""
    complaints = []
    for module in modules:
        if not is_within(module.name, "tests"):
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                continue
            if not ast.get_docstring(node):
                complaints.append(f"{module.path}:{node.lineno}: {node.name} does not say what it expects")
    return complaints


def exported_names(module: Module) -> list[str] | None:
    """What `__all__` lists; None where there is none."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def check_exports(modules: list[Module]) -> list[str]:
    """A package that offers names lists them in `__all__`; no `__all__` lists a name twice."""
    complaints = []
    for module in modules:
        offers = any(not isinstance(node, ast.Expr) for node in module.tree.body)
        names = exported_names(module)
        if names is None and module.is_package and offers and not is_within(module.name, "tests"):
            complaints.append(f"{module.path}: offers names without an __all__")
        elif names is not None and len(set(names)) != len(names):
            complaints.append(f"{module.path}: __all__ lists a name twice")
    return complaints


def is_program(module: Module) -> bool:
    """True for a module that starts something when it is run: `if __name__ == "__main__"`."""
    tests = [ast.unparse(node.test) for node in module.tree.body if isinstance(node, ast.If)]
    return any("__name__" in test and "__main__" in test for test in tests)


def check_alive(modules: list[Module], entry_points: set[str]) -> list[str]:
    """Every module of the product is imported by something that is not a test, or is an entry point."""
    known = {module.name for module in modules}
    product = [module for module in modules if not is_within(module.name, "tests")]
    imported = {name for module in product for _, name in imports_of(module, known) if name != module.name}
    shared = {name for module in modules if is_within(module.name, "tests") for _, name in imports_of(module, known)}
    complaints = []
    for module in modules:
        if module.is_package or module.name in entry_points or is_program(module):
            continue
        stem = module.name.rpartition(".")[2]
        if is_within(module.name, "tests"):
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
