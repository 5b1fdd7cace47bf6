"""`make mutants`: runs the engine's tests against a seeded sample of mutmut's mutants of the engine.

mutmut generates the mutants, determines which test reaches which function, and runs those tests until the first fails.
This module adds a copy of the tree to work in, the sample, and the classification of survivors: those that mypy
rejects, and those that no test can kill.
"""

import argparse
import fnmatch
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from tests.mutants.equivalent import EQUIVALENT

ROOT: Final = Path(__file__).resolve().parents[2]
WORK: Final = ROOT / ".build" / "mutants"
STATISTICS: Final = WORK / "mutants" / "mutmut-stats.json"
ENGINE: Final = Path("purgatory", "engine")
COPIED: Final = ("purgatory", "tests", "pyproject.toml")
ABOVE: Final = (ENGINE, Path("purgatory", "__init__.py"), Path("pyproject.toml"))
"""mutmut mutates the files in the folder, and runs the tests in `mutants` below it, with the rest of the tree."""

SURVIVED: Final = {None, 0, 5, 33}
"""Exit codes if no test failed, or no test reaches the function."""
KILLED_MIN: Final = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="mutants to draw (300)")
    parser.add_argument("--seed", type=int, default=1, help="for the draw (1)")
    parser.add_argument(
        "--only", default="*", metavar="GLOB", help="draw from these: 'purgatory.engine.waiting.wheel*'"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    given = parser.parse_args()
    prepare()
    if not STATISTICS.exists():
        # Generates all mutants and records which tests reach each; then it stops, because no mutant is named `none`.
        failed = mutmut("run", "none", check=False)
        if not STATISTICS.exists():
            raise SystemExit(f"mutmut could not begin:\n{failed}")
    names = sorted(fnmatch.filter(results(), given.only))
    sample = sorted(random.Random(given.seed).sample(names, min(given.sample, len(names))))
    left = [name for name in sample if results()[name] is None]
    print(f"{len(sample)} of {len(names)} mutants, seed {given.seed}; {len(left)} to run", flush=True)
    if left:
        mutmut("run", "--max-children", str(given.jobs), *left)
    return report({name: results()[name] for name in sample})


def prepare() -> None:
    """Copy the tree without compiled modules. Results of an earlier run are kept if no file has changed since."""
    files = [path for part in COPIED for path in [ROOT / part, *(ROOT / part).rglob("*")] if path.is_file()]
    files = sorted(path for path in files if path.suffix not in {".so", ".pyc"})
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    stamp = WORK / "digest"
    if stamp.exists() and stamp.read_text() == digest:
        return
    shutil.rmtree(WORK, ignore_errors=True)
    for path in files:
        relative = path.relative_to(ROOT)
        copies = [WORK / "mutants" / relative]
        copies += [WORK / relative for part in ABOVE if relative.is_relative_to(part)]
        for copy in copies if ENGINE not in relative.parents else copies[1:]:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    stamp.write_text(digest)


def mutmut(*arguments: str, check: bool = True) -> str:
    """Run mutmut in the copy; returns its output."""
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    done = subprocess.run(command, cwd=WORK, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"mutmut {arguments[0]} failed:\n{done.stdout[-4_000:]}{done.stderr}")
    return done.stdout[-4_000:] + done.stderr if done.returncode else done.stdout


def results() -> dict[str, int | None]:
    """Exit code of the tests by mutant; None if they have not run."""
    metas = sorted((WORK / "mutants" / ENGINE).rglob("*.meta"))
    return {name: code for meta in metas for name, code in json.loads(meta.read_text())["exit_code_by_key"].items()}


def report(codes: dict[str, int | None]) -> int:
    """Print the survivors with their diffs, and the killed mutants by module. Returns the exit code."""
    verdicts: Counter[str] = Counter()
    alive: Counter[str] = Counter()
    for name in [name for name, code in codes.items() if code in SURVIVED]:
        shown = mutmut("show", name).strip()
        reason = reason_of(name, shown)
        verdict = "equivalent" if reason else "rejected by mypy" if is_rejected_by_mypy(name) else "SURVIVED"
        verdicts[verdict] += 1
        alive[name.rpartition(".")[0]] += verdict == "SURVIVED"
        print(f"\n{shown}\n{verdict}{': ' if reason else ''}{reason}", flush=True)
    print()
    for module, count in sorted(Counter(name.rpartition(".")[0] for name in codes).items()):
        print(f"{module:50} {count - alive[module]:4} of {count:4}")
    counted = len(codes) - verdicts["equivalent"]
    share = 1 - verdicts["SURVIVED"] / max(1, counted)
    print(
        f"{counted - verdicts['SURVIVED']} of {counted} killed, {share:.1%} ({verdicts['rejected by mypy']} of them by "
        f"mypy); {verdicts['equivalent']} equivalent ones not counted"
    )
    return 0 if share >= KILLED_MIN else 1


def reason_of(name: str, shown: str) -> str:
    """Why no test can kill this mutant; empty if there is no entry for it."""
    changed = "\n".join(line for line in shown.splitlines() if re.match(r"[-+](?![-+])", line))
    for function, pattern, reason in EQUIVALENT:
        if fnmatch.fnmatchcase(name, f"{function}__mutmut_*") and re.search(pattern, changed, re.MULTILINE):
            return reason
    return ""


def is_rejected_by_mypy(name: str) -> bool:
    """Whether the mutant has a type error: `make lint` would report it, and mypyc would not build it."""
    unchanged = WORK / "unchanged"
    if not unchanged.exists():
        assert not has_type_errors(), "mypy rejects the engine as it is"
        shutil.copytree(WORK / ENGINE, unchanged)
    try:
        mutmut("apply", name)
        return has_type_errors()
    finally:
        shutil.copytree(unchanged, WORK / ENGINE, dirs_exist_ok=True)


def has_type_errors() -> bool:
    command = [sys.executable, "-m", "mypy", "--cache-dir", "mypy_cache", str(ENGINE)]
    return bool(subprocess.run(command, cwd=WORK, capture_output=True, check=False).returncode)


if __name__ == "__main__":
    sys.exit(main())
