"""`make mutants`: a seeded sample of mutmut's mutants of the engine, each against the engine's tests.

mutmut generates the mutants, finds which tests reach which function, and runs those until the first fails. Here is
what it lacks: a copy of the tree to work in, the sample, and survivors that are known to be equivalent.
"""

from __future__ import annotations

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
ENGINE: Final = Path("purgatory", "engine")
COPIED: Final = ("purgatory", "tests", "pyproject.toml")
MUTMUT: Final = Path(sys.executable).with_name("mutmut")

SURVIVED: Final = {0, 5, 33}
"""Exit codes that mutmut notes where no test failed, or no test reaches the function."""
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
    prepare(WORK)
    if not results(WORK):
        generate(WORK)
    names = sorted(name for name in results(WORK) if fnmatch.fnmatchcase(name, given.only))
    sample = sorted(random.Random(given.seed).sample(names, min(given.sample, len(names))))
    left = [name for name in sample if results(WORK)[name] is None]
    print(f"{len(sample)} of {len(names)} mutants, seed {given.seed}; {len(left)} to run", flush=True)
    if left:
        with (WORK / "mutmut.log").open("w") as log:  # it draws its progress anew for each mutant
            command = [MUTMUT, "run", "--max-children", str(given.jobs), *left]
            subprocess.run(command, cwd=WORK, check=True, stdout=None if sys.stdout.isatty() else log)
    return report({name: results(WORK)[name] for name in sample})


def prepare(work: Path) -> None:
    """Copies the tree without compiled modules. Results of an earlier run stay if no file has changed since."""
    files = [path for part in COPIED for path in [ROOT / part, *(ROOT / part).rglob("*")] if path.is_file()]
    files = sorted(path for path in files if path.suffix not in {".so", ".pyc"})
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    stamp = work / "digest"
    if stamp.exists() and stamp.read_text() == digest:
        return
    shutil.rmtree(work, ignore_errors=True)
    for path in files:
        relative = path.relative_to(ROOT)
        # mutmut mutates what lies in the folder and runs the tests in mutants/ below it, with the rest of the tree.
        above = relative.is_relative_to(ENGINE) or relative.suffix == ".toml"
        target = work / relative if above else work / "mutants" / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    stamp.write_text(digest)


def generate(work: Path) -> None:
    """Generates all mutants and notes which tests reach each; then mutmut stops, as no mutant is named `none`."""
    done = subprocess.run([MUTMUT, "run", "none"], cwd=work, check=False, capture_output=True, text=True)
    if not results(work) or not (work / "mutants" / "mutmut-stats.json").exists():
        raise SystemExit(f"mutmut could not begin:\n{done.stdout[-4_000:]}{done.stderr}")


def results(work: Path) -> dict[str, int | None]:
    """Exit code of the tests by mutant; None where they have not run."""
    metas = sorted((work / "mutants" / ENGINE).rglob("*.meta"))
    return {name: code for meta in metas for name, code in json.loads(meta.read_text())["exit_code_by_key"].items()}


def report(codes: dict[str, int | None]) -> int:
    """Prints what was killed by module, and survivors with their difference. Gives the exit code."""
    equivalent: list[str] = []
    survivors: list[str] = []
    for name in [name for name, code in codes.items() if code in SURVIVED or code is None]:
        shown = subprocess.run([MUTMUT, "show", name], cwd=WORK, check=True, capture_output=True, text=True).stdout
        reason = reason_of(name, shown)
        (survivors if reason is None else equivalent).append(name)
        print(f"\n{shown.strip()}\n" + (f"equivalent: {reason}" if reason else "SURVIVED"))
    modules, alive = Counter(map(module_of, codes)), Counter(map(module_of, survivors))
    print()
    for module, count in sorted(modules.items()):
        print(f"{module:50} {count - alive[module]:4} of {count:4}")
    counted = len(codes) - len(equivalent)
    share = (counted - len(survivors)) / max(1, counted)
    print(f"{counted - len(survivors)} of {counted} killed, {share:.1%}; {len(equivalent)} equivalent ones not counted")
    return 0 if share >= KILLED_MIN else 1


def reason_of(name: str, shown: str) -> str | None:
    """Why no test can kill this mutant; None if nobody has said so."""
    changed = "\n".join(line for line in shown.splitlines() if re.match(r"[-+](?![-+])", line))
    for function, pattern, reason in EQUIVALENT:
        if fnmatch.fnmatchcase(name, f"{function}__mutmut_*") and re.search(pattern, changed, re.MULTILINE):
            return reason
    return None


def module_of(name: str) -> str:
    return name.rpartition(".")[0]


if __name__ == "__main__":
    sys.exit(main())
