"""`make mutants`: runs the engine's tests against a seeded sample of mutmut's mutants of the engine.

mutmut generates the mutants, determines which test reaches which function, and runs those tests until the first fails.
This module adds a copy of the tree to work in, the sample, and the classification of survivors: those that mypy
rejects, and those that no test can kill.
"""

import argparse
import fnmatch
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
WORK: Final = ROOT / ".build" / "mutants"
ALIVE: Final = {"survived", "no tests", "skipped"}
"""mutmut's statuses of mutants that no test kills."""
KILLED_MIN: Final = 0.95
EQUIVALENT: Final[list[list[str]]] = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text("utf-8"))[
    "equivalent"
]
"""Function, change and reason of mutants that no test can kill."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="mutants to draw (300)")
    parser.add_argument("--seed", type=int, default=1, help="for the draw (1)")
    parser.add_argument(
        "--only", default="*", metavar="GLOB", help="draw from these: 'purgatory.engine.waiting.wheel*'"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    given = parser.parse_args()
    copy_tree()
    mutmut("run", "none", check=False)  # generates all mutants, and stops because no mutant is named `none`
    names = sorted(fnmatch.filter(statuses(), given.only))
    sample = sorted(random.Random(given.seed).sample(names, min(given.sample, len(names))))
    print(f"{len(sample)} of {len(names)} mutants, seed {given.seed}", flush=True)
    mutmut("run", "--max-children", str(given.jobs), *sample)
    found = statuses()
    return report({name: found[name] for name in sample})


def copy_tree() -> None:
    """Copy the sources without compiled modules. mutmut runs the tests in the folder `mutants` of the copy, to which it
    copies the tests and pyproject.toml itself.
    """
    shutil.rmtree(WORK, ignore_errors=True)
    for folder in ("purgatory", "tests", "mutants/purgatory"):
        source = ROOT / Path(folder).name
        shutil.copytree(source, WORK / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", WORK)


def mutmut(*arguments: str, check: bool = True) -> str:
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    done = subprocess.run(command, cwd=WORK, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"mutmut {arguments[0]} failed:\n{done.stdout[-4_000:]}{done.stderr}")
    return done.stdout


def statuses() -> dict[str, str]:
    return dict(re.findall(r"^    (\S+): (.+)$", mutmut("results", "--all", "true"), re.MULTILINE))


def report(sample: dict[str, str]) -> int:
    """Print the survivors with their diffs, and the killed mutants by module. Returns the exit code."""
    verdicts: Counter[str] = Counter()
    survivors: Counter[str] = Counter()
    for name in [name for name, status in sample.items() if status in ALIVE]:
        shown = mutmut("show", name).strip()
        reason = reason_of(name, shown)
        verdict = "equivalent" if reason else "rejected by mypy" if is_rejected_by_mypy(name) else "SURVIVED"
        verdicts[verdict] += 1
        survivors[name.rpartition(".")[0]] += verdict == "SURVIVED"
        print(f"\n{shown}\n{verdict}{': ' if reason else ''}{reason}", flush=True)
    print()
    for module, count in sorted(Counter(name.rpartition(".")[0] for name in sample).items()):
        print(f"{module:50} {count - survivors[module]:4} of {count:4}")
    counted = len(sample) - verdicts["equivalent"]
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
    engine, unchanged = WORK / "purgatory" / "engine", WORK / "unchanged"
    shutil.copytree(engine, unchanged)
    try:
        mutmut("apply", name)
        command = [sys.executable, "-m", "mypy", "--cache-dir", "mypy_cache", "purgatory/engine"]
        return bool(subprocess.run(command, cwd=WORK, capture_output=True, check=False).returncode)
    finally:
        shutil.rmtree(engine)
        unchanged.rename(engine)


if __name__ == "__main__":
    sys.exit(main())
