"""Prints the output of `purgatory load` and `purgatory results`."""

import sys
from collections import Counter
from dataclasses import asdict, dataclass

from purgatory_client.results import Outcome
from purgatory_client.session.detached_sessions import Collected
from rich.markup import escape

from purgatory.cli.render import error_line, outcome_text, plural, print_either, print_json, result_document


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The report of a load; times in seconds. With --detach, `outcomes` contains only the refused waits."""

    session_id: str
    operations: int
    registering: float
    advancing: float | None
    ending: float | None
    outcomes: Counter[Outcome]


def collected(batch: Collected, *, as_json: bool) -> None:
    for operation_id, answer in zip(batch.operation_ids, batch.results, strict=True):
        if as_json:
            print_json({"operation_id": operation_id, **result_document(answer)}, indent=None)
        else:
            sys.stdout.write(f"{operation_id} {outcome_text(answer.outcome)} after {answer.waited:.3f} s\n")
    sys.stdout.flush()


def outcomes(session_id: str, counts: Counter[Outcome], *, as_json: bool, on_stdout: bool) -> None:
    """Print the number of results per outcome."""
    line = f"session {session_id}: {_outcome_counts(counts)}"
    if on_stdout:
        document = {"session_id": session_id, "outcomes": _counts_document(counts)}
        print_either(document if as_json else None, escape(line))
    else:
        error_line(line)


def load_report(report: LoadReport, *, as_json: bool) -> None:
    lines = [f"session {report.session_id}", _paced("registered", report.operations, report.registering)]
    if report.advancing is not None:
        lines.append(f"advanced in {report.advancing:.3f} s")
    if report.ending is None:
        refused = f"{_outcome_counts(report.outcomes)}; " if report.outcomes else ""
        lines.append(f"{refused}detached; collect with: purgatory results --session {report.session_id}")
    else:
        lines.append(f"{_paced('ended', report.outcomes.total(), report.ending)}: {_outcome_counts(report.outcomes)}")
    document = {**asdict(report), "outcomes": _counts_document(report.outcomes)}
    print_either(document if as_json else None, *map(escape, lines))


def _paced(done: str, count: int, elapsed: float) -> str:
    pace = f" ({count / elapsed:.0f} per second)" if elapsed > 0 else ""
    return f"{count} {plural('wait', count)} {done} in {elapsed:.3f} s{pace}"


def _outcome_counts(counts: Counter[Outcome]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome_text(outcome)}" for outcome in sorted(counts)) or "no results"


def _counts_document(counts: Counter[Outcome]) -> dict[str, int]:
    return {outcome.name.lower(): counts[outcome] for outcome in sorted(counts)}
