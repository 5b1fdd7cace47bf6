"""One history: the input of a world, and its report."""

import importlib
import random
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple

from tests.histories.judge import Judge
from tests.histories.tables import Seen

WORLDS = {
    "engine": "the engine and the oracle, with the same calls",
    "day": "a daemon and its clients, over connections that break",
    "archive": "a host with an archive, and the replay of its calls",
    "shards": "two real daemons, values of keys, and two principals",
    "stops": "real daemons that are stopped for seconds, while workers and sources report to them",
    "stream": "the shards of a Spark stream, and the engine (needs the pipeline)",
    "crash": "a real daemon with a journal, which is killed, and callers that speak the protocol",
    "pair": "two real daemons over one log in PostgreSQL or Kafka",
    "churn": "a real daemon, and callers that come and go",
    "kafka": "real brokers, a daemon and two sources (needs Java)",
    "spark": "streams and queries of Spark that are killed (needs the pipeline and Java)",
    "fleet": "the log of a fleet in memory, and daemons that are interrupted at every step",
}
"""The modules of `tests.histories.worlds`, with their descriptions."""


@dataclass
class History:
    """A world draws everything from `chance`, and injects only faults that are among `faults`."""

    seed: int
    faults: frozenset[str]
    judge: Judge = field(default_factory=Judge)
    seen: Seen = field(default_factory=Seen)
    figures: Counter[str] = field(default_factory=Counter)
    """What to print at the end of the run: sums over all histories."""
    trace: int = 0
    """A hash over everything that ended, for worlds that can be repeated exactly."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)


class Report(NamedTuple):
    """The result of a history, which can be sent between processes. It passes without complaints."""

    seed: int
    complaints: list[str]
    figures: Counter[str]
    pairs: Counter[tuple[str, str]]
    trace: int
    seconds: float


def world_of(name: str) -> ModuleType:
    """Its module: the paths, faults and features that it draws, and `run`."""
    return importlib.import_module(f"tests.histories.worlds.{'kafka.world' if name == 'kafka' else name}")


def run_history(world: str, seed: int, faults: frozenset[str] | None = None) -> Report:
    """Run one history, by default with all faults of its world. An error is a complaint."""
    module, began_s = world_of(world), time.monotonic()
    history = History(seed, frozenset(module.FAULTS) if faults is None else faults)
    try:
        module.run(history)
        history.judge.check_end()
    except Exception:  # noqa: BLE001 - any error is a finding of this history
        history.judge.complaints.append(traceback.format_exc())
    seconds = time.monotonic() - began_s
    return Report(seed, history.judge.complaints, history.figures, history.seen.pairs, history.trace, seconds)
