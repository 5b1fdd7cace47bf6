"""Copies of the tree in which an engine may be broken: the engine uncompiled, its tests, and nothing else of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.known import Known
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = (
    "purgatory/__init__.py",
    "purgatory/clock.py",
    "purgatory/engine",
    "tests/engine",
    "tests/simulator",
    "tests/mutants",
)
SETTINGS = """[pytest]
pythonpath = .
addopts = --import-mode=importlib
xfail_strict = true
filterwarnings = error
markers = slow: takes longer than 0.25 s on purpose
"""
SECONDS_MAX = 3_600
"""A judge that has not ended by then never will: it waits for something. One that computes is bounded by itself."""

NOTHING = ""
OUT_OF_TIME = "(the judge's own time)"
CRASH = "(the interpreter)"


@dataclass(frozen=True)
class Verdict:
    """The test that failed (NOTHING: none did), what it said, how long it took, what each test cost (CPU seconds)."""

    caught_by: str
    says: str
    seconds: float
    costs: dict[str, float]


class Tree:
    """One copy. Its modules keep the time stamps of the originals, so that no mutant runs on another's bytecode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = path / "purgatory" / "engine"

    @classmethod
    def of_the_working_tree(cls, path: Path) -> Tree:
        """A fresh copy of what is being worked on."""
        for part in PARTS:
            source, target = ROOT / part, path / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
            else:
                shutil.copy2(source, target)
        (path / "pytest.ini").write_text(SETTINGS, encoding="utf-8")
        return cls(path)

    def copy(self, path: Path) -> Tree:
        """Another one, bytecode included."""
        shutil.copytree(self.path, path)
        return Tree(path)

    def judge(self, known: Known | None = None) -> Verdict:
        """Run the tests on this tree's engine. Without what is known they are measured, and bytecode is written."""
        arguments = []
        if known is not None:
            arguments = [str(self.path / "known.json")]
            Path(arguments[0]).write_text(json.dumps(asdict(known)), encoding="utf-8")
        result = self.path / "verdict.json"
        result.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "" if known is None else "1",
            "PYTHONHASHSEED": "0",
        }
        began = time.monotonic()
        try:
            process = subprocess.run(
                [sys.executable, "-m", "tests.mutants.judge", str(result), *arguments],
                cwd=self.path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict(OUT_OF_TIME, f"stopped after {SECONDS_MAX} s", time.monotonic() - began, {})
        seconds = time.monotonic() - began
        if not result.exists():
            last = (process.stderr.strip() or process.stdout.strip() or "no word").splitlines()[-1]
            return Verdict(CRASH, f"ended with {process.returncode}: {last}", seconds, {})
        said = json.loads(result.read_text(encoding="utf-8"))
        caught_by = said["caught_by"]
        if said["code"] != 0 and not caught_by:
            caught_by = f"(pytest ended with {said['code']})"
        return Verdict(caught_by, said["says"], seconds, said["costs"])

    def judge_mutant(self, mutant: Mutant, known: Known) -> Verdict:
        """Break the engine, run the tests, mend it."""
        module = self.engine / f"{mutant.module}.py"
        text = module.read_text(encoding="utf-8")
        stamp = module.stat()
        module.write_text(mutant.applied_to(text), encoding="utf-8")
        os.utime(module, (stamp.st_atime + 1_000, stamp.st_mtime + 1_000))
        try:
            return self.judge(known)
        finally:
            module.write_text(text, encoding="utf-8")
            os.utime(module, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
