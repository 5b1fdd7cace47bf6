"""`make hostile`: every attack on a real daemon with a memory budget of 512 MB, and a table of what it did.

An honest client waits 200 times a second before, during and after each attack. It shares two processors with its
attacker, so for floods it is first measured while the same flood hits another, idle daemon: p99 under attack is judged
beside that. Ends with 1 when a line fails.
"""

import argparse
import json
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from tests.daemon_process import open_files_max
from tests.hostile.arena import Arena, AttackReport, attack, flooder, saturation
from tests.hostile.floods.flood_calls import FLOODS

MEMORY_MB_MAX: Final = 600
RATIO_MAX: Final = 3.0
RECOVERY_S_MAX: Final = 2.0
HTTP_RECOVERY_S_MAX: Final = 5.0


class Line(NamedTuple):
    """An attack of the table: what it did before there was a guard, for how long it runs, and whether it is a flood."""

    attack: str
    before: str
    seconds: float
    is_flood: bool = False
    has_control: bool = False
    """The attack hits another, idle daemon first, as a flood does; the p99 is not judged."""
    method: str = ""
    """Of the calls of a flood, in `floods.flood_calls.FLOODS`."""
    times: float = 0.0
    """How many of them are started for each that the daemon serves alone."""
    files: int = 0
    """Files that the attacked daemon may open; 0: as many as this process."""


LINES: Final = (
    Line("rapid-reset", "79 MB to over 5,000 MB in 7 s", 7),
    Line("unary-waits", "1.2 GB; honest p50 2.1 s", 8),
    Line("burst", "two thirds UNAVAILABLE", 4),
    Line("idle-connections", "no new gRPC caller, no probe", 4, files=1_024),
    Line("unread-listings", "+1.7 GB; a third of the honest waits timed out", 6),
    Line("unfinished-messages", "1.6 GB held", 6),
    Line("unfinished-smaller", "not measured", 6),
    Line("unfinished-on-streams", "not measured", 6),
    Line("large-messages", "2.4 GB", 6),
    Line("fat-names", "4.1 GB", 6),
    Line("many-items", "2.3 GB, nothing refused", 8),
    Line("fill-up", "everybody else refused, for 10 minutes", 20),
    Line("half-open-http", "no new gRPC caller; lives over 100 s", 4),
    Line("metrics", "honest p50 2.5 s", 5, is_flood=True),
    Line("compressed", "300 MB; 3.6 s", 5),
    Line("http-pipelined-unread", "2.3 GB; registrations refused for 78 s after", 6, has_control=True),
    Line("http-unread-pages", "not measured", 6, has_control=True),
    Line("http-gzip-members", "no caller served for 38 s", 6, has_control=True),
    Line("http-gzip-bombs", "128 of 269 honest calls failed", 6, has_control=True),
    Line("http-large-json", "honest p99 883 ms", 6, has_control=True),
    Line("http-unfinished-bodies", "880 MB; 131 of 418 honest calls refused", 6, has_control=True),
    Line("http-tiny-chunks", "not measured", 6, has_control=True),
    Line("http-places", "probes reset 10 of 10", 6, has_control=True),
    Line("endless-receivers", "honest p99 10 s; 314 of 450 failed", 8),
    Line("silent-receivers", "one honest webhook in 10 s", 8),
)

FLOOD_S: Final = 4.0
"""The p99 of a flood is of 800 honest waits."""
TIMES: Final = 5.0
BEFORE_FLOODS: Final = {
    "Wait": "honest p50 0.3 to 2.3 s; 0 refusals",
    "Register": "honest p50 3 to 7 s, time-outs; backlog of 25 s",
    "Advance": "honest p50 3 to 7 s, time-outs; backlog of 25 s",
    "GetStatus": "25 s for a million pending",
}


def flood_line(method: str, times: float) -> Line:
    before = BEFORE_FLOODS.get(method, "not measured")
    return Line(f"flood-{method}-x{times:g}", before, FLOOD_S, is_flood=True, method=method, times=times)


def verdict(line: Line, report: AttackReport) -> list[str]:
    """What of an attack is more than a daemon may suffer; empty: it stands."""
    faults = []
    if report.faults:
        faults.append(f"{len(report.faults)} honest waits failed: {report.faults[0]}")
    if report.undelivered:
        faults.append(f"{report.undelivered} honest webhooks not delivered")
    if report.memory_peak_mb > MEMORY_MB_MAX:
        faults.append(f"{report.memory_peak_mb} MB")
    if line.is_flood and report.ratio > RATIO_MAX:
        faults.append(f"p99 x {report.ratio:.1f}")
    if report.recovery_s > (HTTP_RECOVERY_S_MAX if line.has_control else RECOVERY_S_MAX):
        faults.append(f"back to normal after {report.recovery_s:.1f} s")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="ATTACK", help="only attacks whose names contain one of these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
    rates = "start so many calls of a flood for each that the daemon serves alone (default 5)"
    parser.add_argument("--times", nargs="*", type=float, default=[TIMES], metavar="N", help=rates)
    given = parser.parse_args()
    floods = [flood_line(method, times) for method in FLOODS for times in given.times]
    lines = [line for line in (*LINES, *floods) if not given.only or any(word in line.attack for word in given.only)]
    reports, failed = [], 0
    print(f"{'attack':24} {'before':48} {'RSS MB':>10} {'p50/p99 alone':>14} {'elsewhere':>14} {'under it':>14} "
          f"{'x':>5} {'bare x':>6} {'calm after':>10} {'started of due':>17} {'refused':>8}  lost")  # fmt: skip
    for line in lines:
        with tempfile.TemporaryDirectory(prefix="purgatory-hostile-") as folder:
            report = run_line(line, Path(folder))
        faults = verdict(line, report)
        failed += bool(faults)
        reports.append(asdict(report) | {"faults_found": faults})
        print(row(line, report, faults), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(reports, indent=1), "utf-8")
    print(f"{len(lines) - failed} of {len(lines)} attacks change nothing that matters to an honest caller")
    return 1 if failed else 0


def row(line: Line, report: AttackReport, faults: list[str]) -> str:
    """An attack as a row of the table."""
    pairs = [_pair(pair) for pair in (report.alone_ms, report.control_ms, report.under_ms)]
    lost = f"{len(report.faults)} of {report.waits}"
    started = f"{report.tally['started']} of {report.tally['due']}" if "due" in report.tally else "-"
    return (
        f"{line.attack:24} {line.before:48} {report.memory_before_mb:>4} {report.memory_peak_mb:>5} "
        f"{pairs[0]:>14} {pairs[1]:>14} {pairs[2]:>14} {report.ratio:>5.1f} {report.bare_ratio:>6.1f} "
        f"{report.recovery_s:>8.2f} s {started:>17} {report.refused:>8}  {lost}"
        f"{'   FAILS: ' + '; '.join(faults) if faults else ''}"
    )


def run_line(line: Line, folder: Path) -> AttackReport:
    """One attack on a new daemon; for a flood, on another one first."""
    with open_files_max(line.files) if line.files else nullcontext():
        attacked = Arena(folder / "attacked")
    with attacked as arena:
        if not (line.is_flood or line.has_control):
            return attack(arena, line.attack, line.seconds)
        with Arena(folder / "elsewhere") as elsewhere:
            if not line.method:
                return attack(arena, line.attack, line.seconds, elsewhere)
            calls_per_second = line.times * saturation(elsewhere, line.method)
            command = flooder(line.method, calls_per_second)
            return attack(arena, line.attack, line.seconds, elsewhere, command=command)


def _pair(latencies_ms: tuple[float, float]) -> str:
    return f"{latencies_ms[0]:.1f}/{latencies_ms[1]:.0f} ms" if any(latencies_ms) else "-"


if __name__ == "__main__":
    sys.exit(main())
