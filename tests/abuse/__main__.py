"""`make abuse`: runs every kind of abuse against a real daemon and prints a table of the results.

Attacks and floods: an honest client waits 200 times per second before, during and after each. It shares the machine
with the attacker, so for floods it is first measured while the same flood hits another, idle daemon; p99 under attack
is relative to that. Requests: fuzzed messages and bytes, `--requests` per target. Churn: callers that
come and go for `--minutes`. Exit code 1 if a row fails.
"""

import argparse
import json
import secrets
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from tests.abuse.arena import Arena, attack
from tests.abuse.attacks import ATTACKS, CALL_FLOODS
from tests.abuse.floods import FLOODS
from tests.abuse.requests.targets import TARGETS, fuzz
from tests.abuse.result import HEADER, Result
from tests.histories.worlds.churn import churn

FLOOD_S: Final = 4
"""So that the p99 of a flood is computed from 800 honest waits."""

Run = Callable[[argparse.Namespace, Path], Result]
"""Runs an abuse, as the command line says, in a folder of its own."""


def run_attack(name: str, options: argparse.Namespace, folder: Path, *, has_policy: bool = True) -> Result:
    """One attack, or a flood of a method. Floods hit another, idle daemon first."""
    is_flood = name not in ATTACKS
    with (
        Arena(folder / "attacked", has_policy=has_policy) as arena,
        Arena(folder / "elsewhere", has_policy=has_policy) as elsewhere,
    ):
        rate = options.times * elsewhere.saturation(name) if is_flood else 0.0
        seconds = FLOOD_S if is_flood else ATTACKS[name].seconds
        result = attack(arena, name, seconds, elsewhere if is_flood or name in CALL_FLOODS else None, rate)
    result.name += "" if has_policy else "-no-policy"
    result.judge(is_flood=is_flood)
    return result


def run_requests(name: str, options: argparse.Namespace, folder: Path) -> Result:
    return fuzz(name, options.seed, options.requests, folder)


def abuses() -> dict[str, Run]:
    rows: dict[str, Run] = {name: partial(run_attack, name) for name in ATTACKS}
    rows |= {f"{name}-no-policy": partial(run_attack, name, has_policy=False) for name in CALL_FLOODS}
    rows |= {f"flood-{method}": partial(run_attack, f"flood-{method}") for method in FLOODS}
    rows |= {name: partial(run_requests, name) for name in TARGETS}
    rows["churn"] = lambda options, folder: churn(folder, options.seed, options.minutes * 60)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse", description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only rows whose names contain one of these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    parser.add_argument(
        "--times", type=float, default=5.0, metavar="N", help="rate of a flood: N times what the daemon serves (5)"
    )
    parser.add_argument("--requests", type=int, default=50_000, help="fuzzed requests per target (50000)")
    parser.add_argument("--minutes", type=float, default=15.0, help="duration of the churn (15)")
    random_seed = secrets.randbelow(1_000_000)
    parser.add_argument("--seed", type=int, default=random_seed, help="seed of requests and churn (default: random)")
    options = parser.parse_args()
    rows = [run for name, run in abuses().items() if not options.only or any(word in name for word in options.only)]
    print(f"seed {options.seed}\n{HEADER}")
    results = []
    for run in rows:
        with tempfile.TemporaryDirectory(prefix="purgatory-abuse-") as folder:
            results.append(run(options, Path(folder)))
        print(results[-1].row(), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1), "utf-8")
    failed = sum(bool(result.faults) for result in results)
    print(f"{len(results) - failed} of {len(results)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
