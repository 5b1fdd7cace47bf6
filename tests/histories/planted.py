"""Planted faults: `python -m tests.histories --planted` applies one at a time to a copy, and prints when it was found.

The engine of the copy is not compiled. A fault that is not found in the time is a gap in what histories draw or judge.
"""

import contextlib
import importlib
import inspect
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent.parent
COPIED: Final = ("purgatory", "client/purgatory_client", "examples", "tests")
IGNORED: Final = shutil.ignore_patterns("*.so", "__pycache__", "node_modules")
PENDING: Final = "purgatory/engine/waiting/pending.py"
REIGN: Final = "purgatory/replicated_log/reign.py"
WRITER: Final = "purgatory/replicated_log/log_writer.py"


class Planted(NamedTuple):
    """A text of a file that is replaced, and the world in which that must be found."""

    world: str
    path: str
    right: str
    wrong: str


PLANTED: Final = {
    "satisfied one mark early": Planted(
        "engine",
        "purgatory/engine/kinds/produce.py",
        "partition.high_watermark < required:",
        "partition.high_watermark < required - 1:",
    ),
    "expires a tick early": Planted(
        "engine",
        "purgatory/engine/waiting/wheel.py",
        "(deadline_ms + tick_ms - 1) // tick_ms",
        "deadline_ms // tick_ms",
    ),
    "a cancel is ignored": Planted(
        "engine",
        "purgatory/engine/performer.py",
        "receipt.were_pending.append(self.end(owner, operation_id, CANCELLED, now_ms))",
        "receipt.were_pending.append(self._inspection.find(owner, operation_id) >= 0)",
    ),
    "a result is recorded twice": Planted(
        "engine",
        PENDING,
        "        self.operations.release(slot)\n        # With the slot",
        "        if outcome == EXPIRED:\n            completions.add_operation("
        "self.operations.operation_id[slot], kind, outcome, waited_ms, lateness_ms, 0)\n"
        "        self.operations.release(slot)\n        # With the slot",
    ),
    "an extension shortens": Planted(
        "engine", PENDING, "if deadline_ms <= self.deadline_ms(slot):", "if deadline_ms == self.deadline_ms(slot):"
    ),
    "composites miss a failed key": Planted(
        "engine",
        "purgatory/engine/waiting/wakeups.py",
        "        self._composites.fail_key(key, now_ms)\n",
        "",
    ),
    "a stale timeout is inherited": Planted(
        "engine", PENDING, "            self.stale_timeouts.pop(int(slot), None)", "            pass"
    ),
    "the archive forgets extensions": Planted(
        "archive",
        "purgatory/extensions/archive/archive_listener.py",
        "if extended := list(compress(ids, receipt.were_pending)):",
        "if extended := []:",
    ),
    "a client does not send its waits again": Planted(
        "day",
        "client/purgatory_client/session/session_core.py",
        "self._plan = deque(self._table.chunks_above(highest, self._chunk_max))",
        "self._plan.clear()",
    ),
    "results written to a lost stream are lost": Planted(
        "day",
        "purgatory/service/sessions/outbox.py",
        "        self._unwritten.extendleft(reversed(self._written))\n",
        "",
    ),
    "a result with more items than a message stops its session": Planted(
        "day",
        "purgatory/service/sessions/outbox.py",
        "count_within(room, items_max) or (0 if taken else 1)",
        "count_within(room, items_max)",
    ),
    "a listener that raises stops the delivery": Planted(
        "day",
        "purgatory/service/listeners/listener.py",
        "            except Exception as error:  # noqa: BLE001 - logged and counted\n"
        "                self.failed(type(listener).__name__, hook.__name__, error)\n"
        "                listener.hook_failed(error)",
        "            except KeyError as error:\n                listener.hook_failed(error)",
    ),
    "a stop of the daemon counts as silence": Planted(
        "stops", "purgatory/clock.py", "PAUSE_MS_MIN: Final = 250", "PAUSE_MS_MIN: Final = 10**9"
    ),
    "the account with the most keys is not the one that loses some": Planted(
        "shards",
        "purgatory/engine/marks/idle_keys.py",
        "return next(iter((most if own is None or own.size + more < most.size else own).keys))",
        "return next(iter(next(iter(self.by_account.values())).keys))",
    ),
    "a result is larger than a message": Planted(
        "shards",
        "purgatory/service/translate/results.py",
        "        if room < 0:\n            return place\n",
        "",
    ),
    "each shard decides each signal": Planted(
        "shards",
        "purgatory/service/translate/shards.py",
        "            elif not is_own:\n                _make_heartbeat(batch, row)\n",
        "",
    ),
    "an owner does not learn of an extension": Planted(
        "shards",
        "purgatory/service/rpc/session_requests.py",
        "host.journal.when_durable(partial(session.stream.extended, found, timeout_ms))",
        "pass",
    ),
    "any number follows in a log": Planted(
        "fleet",
        REIGN,
        "(entry.epoch, entry.writer, entry.number) == (now.epoch, now.writer, now.number + 1)",
        "(entry.epoch, entry.writer) == (now.epoch, now.writer)",
    ),
    "a second claim counts": Planted(
        "fleet",
        REIGN,
        "return entry.epoch == now.epoch + 1",
        "return now.epoch <= entry.epoch <= now.epoch + 1",
    ),
    "a claim leaves the parts of an unfinished group": Planted(
        "fleet", REIGN, "            self._parts.clear()\n            leader", "            leader"
    ),
    "a resignation does not end a reign": Planted(
        "fleet",
        REIGN,
        '        leader = b"" if entry.kind is Kind.RESIGNATION else entry.writer\n',
        "        if entry.kind is Kind.RESIGNATION:\n            return self.state._replace(position=entry.position)\n"
        "        leader = entry.writer\n",
    ),
    "an entry counts because the log reports its position": Planted(
        "fleet", WRITER, "if place is not None and place.position == last + 1:", "if place is not None:"
    ),
    "a claimant does not apply what it finds on the way": Planted(
        "fleet", WRITER, "                    self.judge(read)", "                    self._reign.accept(read)"
    ),
    "a file is not compared with the log": Planted("fleet", WRITER, "if known.position < 0:", "if known:"),
    "a file is compared with the log by its position only": Planted(
        "fleet", WRITER, "if known.ends_with(entry):", "if known.position >= 0:"
    ),
}


@contextlib.contextmanager
def planted_here(planted: Planted) -> Iterator[None]:
    """Plant a fault in a module of this process: its methods get the code of the changed text."""
    module = importlib.import_module(planted.path.removesuffix(".py").replace("/", "."))
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(changed_text(ROOT / planted.path, planted), changed)
    right: dict[FunctionType, CodeType] = {}
    for name in [name for name, one in vars(module).items() if inspect.isclass(one)]:
        for method, function in vars(changed[name]).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                planted_in = vars(getattr(module, name))[method]
                right[planted_in] = planted_in.__code__
                planted_in.__code__ = function.__code__
    try:
        yield
    finally:
        for function, code in right.items():
            function.__code__ = code


def changed_text(path: Path, planted: Planted) -> str:
    text = path.read_text("utf-8")
    assert text.count(planted.right) == 1, f"{planted.path} no longer has this once: {planted.right}"
    return text.replace(planted.right, planted.wrong)


def copy_with(planted: Planted, target: Path) -> None:
    for folder in COPIED:
        shutil.copytree(ROOT / folder, target / folder, ignore=IGNORED)
    path = target / planted.path
    path.write_text(changed_text(path, planted), "utf-8")


def cpu_seconds() -> float:
    """CPU time of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds_until_found(planted: Planted, seconds: float) -> float | None:
    """Run the world in a copy; returns the CPU time until a history failed, or None."""
    with tempfile.TemporaryDirectory() as name:
        copy_with(planted, Path(name))
        command = [sys.executable, "-m", "tests.histories", "--world", planted.world, "--seed", "1"]
        command += ["--seconds", str(seconds)]
        environment = os.environ | {"PYTHONPATH": f"{name}{os.pathsep}{name}/client", "GRPC_VERBOSITY": "NONE"}
        before_s = cpu_seconds()
        run = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0 or " FAILED " in run.stdout, run.stdout + run.stderr
        return cpu_seconds() - before_s if run.returncode else None


def find_all(seconds: float) -> int:
    """Look for each fault for so long. Returns how many were not found."""
    missed = 0
    for name, planted in PLANTED.items():
        found_s = cpu_seconds_until_found(planted, seconds)
        missed += found_s is None
        when = f"not found in {seconds:.0f} s" if found_s is None else f"found after {found_s:.1f} s of CPU time"
        print(f"{planted.world:<8} {name}: {when}", flush=True)
    return missed
