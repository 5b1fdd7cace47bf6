"""Command line: `python -m tests.mutants [--only WORDS] [--module NAMES] [--generated N --seed S] [--equivalent]`."""

from __future__ import annotations

import argparse
import queue
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalogue import ALL
from tests.mutants.generated import generated
from tests.mutants.known import Memory
from tests.mutants.mutant import Mutant, StaleMutant
from tests.mutants.trees import NOTHING, ROOT, Tree, Verdict

CAUGHT_MIN = 0.95
LAST_TIME = ROOT / ".build" / "mutants.json"
"""What caught each mutant the last time. It makes the next run faster, and changes nothing else."""


def run(mutants: Sequence[Mutant], workers: int, folder: Path) -> list[tuple[Mutant, Verdict]]:
    """Judge each mutant in a tree of its own, and print its row as soon as it is known."""
    whole = Tree.of_the_working_tree(folder / "whole")
    control = whole.judge()
    if control.caught_by != NOTHING:
        sys.exit(f"the engine is broken already: {control.caught_by}: {control.says}")
    print(f"{len(control.costs)} tests pass on the whole engine, in {control.seconds:.0f} s", flush=True)
    memory = Memory(control.costs, LAST_TIME)
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    done: list[tuple[Mutant, Verdict]] = []

    def work(tree: Tree) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            verdict = tree.judge_mutant(mutant, memory.known_of(mutant))
            memory.note(mutant, verdict.caught_by)
            done.append((mutant, verdict))
            print(row(mutant, verdict), flush=True)

    trees = [whole.copy(folder / f"worker-{number}") for number in range(workers)]
    threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.save()
    return done


def row(mutant: Mutant, verdict: Verdict) -> str:
    """A line of the table."""
    name = verdict.caught_by.rpartition("/")[2] or "-- nothing --"
    return f"{mutant.module:16} {mutant.name:64} {verdict.seconds:6.1f} s  {name}"


def check_not_stale(mutants: Sequence[Mutant]) -> None:
    """Exits when the text that a mutant replaces is no longer there, once."""
    said = []
    for mutant in mutants:
        text = (ROOT / "purgatory" / "engine" / f"{mutant.module}.py").read_text(encoding="utf-8")
        try:
            mutant.applied_to(text)
        except StaleMutant as error:
            said.append(str(error))
    if said:
        sys.exit("\n".join([*said, f"{len(said)} mutants are stale: change them as the engine was changed"]))


def report(done: Sequence[tuple[Mutant, Verdict]], seconds: float) -> bool:
    """Print survivors and sum; True when enough were caught."""
    survivors = [mutant for mutant, verdict in done if verdict.caught_by == NOTHING]
    caught = len(done) - len(survivors)
    for mutant in survivors:
        print(f"survived: {mutant.module}.py: {mutant.name}\n  - {mutant.old.strip()}\n  + {mutant.new.strip()}")
    share = caught / len(done) if done else 1.0
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = children.ru_utime + children.ru_stime
    print(
        f"{caught} of {len(done)} mutants caught ({share:.1%}), {len(survivors)} survived;"
        f" {seconds:.0f} s, of the processor {cpu:.0f} s"
    )
    return share >= CAUGHT_MIN


def main() -> None:
    """Run the mutation check."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="only mutants whose name holds these words")
    parser.add_argument("--module", nargs="*", default=[], help="only mutants of these modules of the engine")
    parser.add_argument(
        "--generated", type=int, default=0, help="this many drawn from the syntax trees, in place of the list"
    )
    parser.add_argument("--seed", type=int, default=1, help="for --generated (default 1)")
    parser.add_argument(
        "--equivalent", action="store_true", help="those that are said to be equivalent, in place of the rest"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes side by side (default 2)")
    given = parser.parse_args()
    began = time.monotonic()
    listed = generated(given.generated, given.seed) if given.generated else ALL
    mutants = [
        mutant
        for mutant in listed
        if given.only in mutant.name
        and (not given.module or mutant.module in given.module)
        and bool(mutant.equivalent) == given.equivalent
    ]
    check_not_stale(mutants)
    with tempfile.TemporaryDirectory(prefix="purgatory-mutants-") as folder:
        done = run(mutants, given.workers, Path(folder))
    enough = report(done, time.monotonic() - began)
    if given.equivalent:
        wrong = [mutant.name for mutant, verdict in done if verdict.caught_by != NOTHING]
        sys.exit(f"not equivalent after all: {wrong}" if wrong else 0)
    for mutant in ALL if not given.generated else ():
        if mutant.equivalent:
            print(f"not counted: {mutant.module}.py: {mutant.name}: {mutant.equivalent}")
    sys.exit(0 if enough else 1)


if __name__ == "__main__":
    main()
