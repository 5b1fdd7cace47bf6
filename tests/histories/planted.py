"""Planted faults: `python -m tests.histories --planted` applies one at a time to a copy, and prints when it was found.

The engine of the copy is not compiled. A fault that is not found in time is a gap in the histories or in their judge.
"""

import contextlib
import importlib
import inspect
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
COPIED: Final = ("purgatory", "client/purgatory_client", "examples", "tests")
IGNORED: Final = shutil.ignore_patterns("*.so", "__pycache__", "node_modules")


class Planted(NamedTuple):
    """A text of a file that is replaced, and the world in which that must be found."""

    world: str
    path: str
    right: str
    wrong: str


PLANTED: Final = {
    name: Planted(**planted) for name, planted in tomllib.loads((HERE / "planted.toml").read_text("utf-8")).items()
}


@contextlib.contextmanager
def planted_here(planted: Planted) -> Iterator[None]:
    """Plant a fault in a module of this process: its methods get the code of the changed text."""
    module = importlib.import_module(planted.path.removesuffix(".py").replace("/", "."))
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(changed_text(ROOT / planted.path, planted), changed)
    right: dict[FunctionType, CodeType] = {}
    for name in [name for name, one in vars(module).items() if inspect.isclass(one)]:
        for method, function in vars(changed[name]).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                planted_in = vars(getattr(module, name))[method]
                right[planted_in] = planted_in.__code__
                planted_in.__code__ = function.__code__
    try:
        yield
    finally:
        for function, code in right.items():
            function.__code__ = code


def changed_text(path: Path, planted: Planted) -> str:
    text = path.read_text("utf-8")
    assert text.count(planted.right) == 1, f"{planted.path} no longer has this once: {planted.right}"
    return text.replace(planted.right, planted.wrong)


def copy_with(planted: Planted, target: Path) -> None:
    for folder in COPIED:
        shutil.copytree(ROOT / folder, target / folder, ignore=IGNORED)
    path = target / planted.path
    path.write_text(changed_text(path, planted), "utf-8")


def cpu_seconds() -> float:
    """CPU time of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds_until_found(planted: Planted, seconds: float) -> float | None:
    """Run the world in a copy; returns the CPU time until a history failed, or None."""
    with tempfile.TemporaryDirectory() as name:
        copy_with(planted, Path(name))
        command = [sys.executable, "-m", "tests.histories", "--world", planted.world, "--seed", "1"]
        command += ["--seconds", str(seconds)]
        environment = os.environ | {"PYTHONPATH": f"{name}{os.pathsep}{name}/client", "GRPC_VERBOSITY": "NONE"}
        before_s = cpu_seconds()
        run = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0 or " FAILED " in run.stdout, run.stdout + run.stderr
        return cpu_seconds() - before_s if run.returncode else None


def find_all(seconds: float) -> int:
    """Look for each fault for this long. Returns how many were not found."""
    missed = 0
    for name, planted in PLANTED.items():
        found_s = cpu_seconds_until_found(planted, seconds)
        missed += found_s is None
        when = f"not found in {seconds:.0f} s" if found_s is None else f"found after {found_s:.1f} s of CPU time"
        print(f"{planted.world:<8} {name}: {when}", flush=True)
    return missed
