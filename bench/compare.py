"""The regression check: fails if an instruction count, counter or ratio is over 15 % worse than the committed baseline.

    python -m bench.compare              # measures and compares; exits with 1 if something is worse
    python -m bench.compare --update     # measures and writes a new baseline

Absolute times are never compared. A ratio is worse only if even the best of its pairs is, because a busy machine may
distort some of them. Rows that cannot be measured here, or only under different conditions, are reported and skipped.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Final

from bench.measure.instructions import UNIT, CountingMissing, counted_rows
from bench.measure.lab import Lab
from bench.measure.pairing import Figure
from bench.measure.processes import ROOT, run_of
from bench.measure.result_rows import HIGHER_IS_BETTER, Row, read_rows, write_rows
from bench.scale import QUICK, Scale
from purgatory.engine import COMPILED

__all__ = ["TOLERANCE", "Verdict", "compared"]

BASELINE: Final = ROOT / "bench" / "results" / "baseline.json"
TOLERANCE: Final = 0.15
SCALE: Final[Scale] = dataclasses.replace(QUICK, runs=5)
SAME, BETTER, WORSE, NOT_COMPARED = "same", "better", "WORSE", "not compared"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How one row compares with the baseline."""

    name: str
    before: float
    now: float | None
    said: str
    why: str = ""


def main() -> None:
    """Measure and compare; exit with 1 if something is worse."""
    parser = argparse.ArgumentParser(prog="bench.compare", description="Compares with the committed baseline.")
    parser.add_argument("--update", action="store_true", help="write a new baseline instead")
    arguments = parser.parse_args()
    if not COMPILED:
        print("nothing was compared: the engine is not compiled")
        return
    if not arguments.update and not BASELINE.exists():
        sys.exit(f"no baseline at {BASELINE}; create one with --update")
    rows, skipped = measured_rows()
    for line in skipped:
        print(f"-- {line}")
    if arguments.update:
        write_rows(rows, BASELINE)
        print(f"written: {BASELINE}")
        return
    verdicts = compared(read_rows(BASELINE), rows)
    print(shown(verdicts))
    worse = [verdict.name for verdict in verdicts if verdict.said == WORSE]
    if worse:
        sys.exit(f"more than {TOLERANCE:.0%} worse than the baseline: {', '.join(worse)}")


def measured_rows() -> tuple[list[Row], list[str]]:
    """Measure the guarded rows. Also returns a line for each thing that was skipped."""
    skipped: list[str] = []
    lab = Lab(SCALE, skipped)
    try:
        guarded(lab)
    finally:
        lab.close()
    try:
        return [*lab.rows, *counted_rows()], skipped
    except CountingMissing as missing:
        return lab.rows, [*skipped, str(missing)]


def guarded(lab: Lab) -> None:
    """Counters and ratios that are repeatable and need no external peer."""
    engine = lab.worker("bench.subjects.engine_runs")
    many = {"keys": 1_000, "hot": 1_000, "step": 1, "events": 1_000, "seconds": SCALE.seconds}
    lab.measure(
        [Figure("guard/total-pending", "ops/s")],
        ("engine", run_of(engine, "register-complete", **many, pending=200)),
        {"self": run_of(engine, "register-complete", **many, pending=1)},
    )
    wheel, heapq = (
        run_of(
            lab.worker("bench.subjects.timers", timer),
            "timer-add-cancel",
            timer=timer,
            pending=SCALE.timers,
            seconds=SCALE.seconds,
        )
        for timer in ("wheel", "heapq")
    )
    lab.measure([Figure("guard/timer-add-cancel", "ops/s")], ("wheel", wheel), {"heapq": heapq})
    lab.measure_once(
        [Figure("guard/fetch-evaluations", "evaluations/fetch", "evaluations")],
        "engine",
        run_of(engine, "fetch-evaluations", fetches=1_000, appends=1_024),
    )
    with lab.fresh_worker("bench.subjects.engine_runs") as fresh:
        memory = run_of(fresh, "memory", count=SCALE.memory, keys=100)
        lab.measure_once([Figure("guard/memory", "B", "bytes")], "engine", memory)


def compared(before: Sequence[Row], now: Sequence[Row]) -> list[Verdict]:
    """A verdict for each row of the baseline, then one for each new row."""
    there = {row.key: row for row in now}
    known = {row.key for row in before}
    verdicts = [verdict(row, there.get(row.key)) for row in before]
    return verdicts + [Verdict(row.name, 0.0, figure_of(row), "new") for row in now if row.key not in known]


def verdict(before: Row, now: Row | None) -> Verdict:
    base = figure_of(before)
    if now is None:
        return Verdict(before.name, base, None, NOT_COMPARED, "not measured here")
    if before.ratio is None and before.unit in HIGHER_IS_BETTER:
        return Verdict(before.name, base, now.value, NOT_COMPARED, "absolute rates are never compared")
    if before.unit == UNIT and before.machine != now.machine:
        return Verdict(before.name, base, now.value, NOT_COMPARED, f"counted with {before.machine}; here {now.machine}")
    if before.ratio is not None:
        best, ratio = now.max, now.ratio or 0.0
        said = WORSE if best < base * (1 - TOLERANCE) else BETTER if ratio > base * (1 + TOLERANCE) else SAME
        return Verdict(before.name, base, now.ratio, said, f"best pair {best:.3g}")
    said = WORSE if now.value > base * (1 + TOLERANCE) else BETTER if now.value < base * (1 - TOLERANCE) else SAME
    return Verdict(before.name, base, now.value, said)


def figure_of(row: Row) -> float:
    """The compared figure of a row: its ratio, or its value if it has no ratio."""
    return row.value if row.ratio is None else row.ratio


def shown(verdicts: Sequence[Verdict]) -> str:
    lines = [f"{'what':<45} {'baseline':>12} {'now':>12}"]
    for one in verdicts:
        now = "" if one.now is None else f"{one.now:,.4g}"
        why = f" ({one.why})" if one.why else ""
        lines.append(f"{one.name:<45} {one.before:>12,.4g} {now:>12}  {one.said}{why}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
