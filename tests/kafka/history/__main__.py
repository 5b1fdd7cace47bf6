"""`python -m tests.kafka.history --waits 100000 --seed 1` runs the check and prints the answers.

The exit code is 1 if any answer was wrong.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.kafka.history.history_check import HistoryReport, run

AROUND_S: Final = 15.0


def _print(report: HistoryReport) -> None:
    for wrong in report.wrong[:20]:
        print(wrong)
        for step in report.changes:
            if step.mark == wrong.answer.mark and abs(step.begun_s - wrong.answer.registered_s) < AROUND_S:
                print("   ", step)
    for told in (*report.wrong_marks[:20], *report.contradictions[:20]):
        print(told)
    rows = {f"waits {outcome.name.lower()}": count for outcome, count in sorted(report.outcomes.items())}
    rows |= {
        "of them with a stale mark": report.stale,
        "ended with their marks (3)": report.removed,
        "ended with their lineage (74)": report.fenced,
    }
    rows |= {f"fault: {what}": count for what, count in sorted(report.faults.items())}
    rows |= dict(sorted(report.tally.items()))
    rows |= {"steps recorded by writers": report.steps, "steps in the brokers' logs": report.logged}
    rows |= {
        "milliseconds allowed for an answer": round(report.settle_s * 1000),
        "WRONG ANSWERS": len(report.wrong),
        "wrong marks at the end": len(report.wrong_marks),
        "contradictions between record and logs": len(report.contradictions),
    }
    for what, count in rows.items():
        print(f"| {what:<45} | {count:>8} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waits", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="Keeps what it leaves, to look into.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        report = run(options.folder or Path(folder), options.waits, options.seed)
    _print(report)
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
