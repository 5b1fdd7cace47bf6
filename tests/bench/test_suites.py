"""The suites measure all that is to be reached, and leave out only peers that cannot be had."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.__main__ import SUITES
from bench.measure.lab import Lab
from bench.measure.pairing import Figure, Measure
from bench.measure.worker import Numbers
from bench.peers.jvm import jvm_worker
from bench.peers.redis import RedisServer
from bench.pipeline.__main__ import MEASURED
from bench.reach import REACH
from bench.scale import FULL
from bench.suites import engine_suite, service_suite


class Stub:
    """A worker, server or process of every kind that is there at once and measures one of everything."""

    address = http_address = "127.0.0.1:1"
    process_id = 1

    def run(self, workload: str, **parameters: object) -> Numbers:
        del workload, parameters
        return {"seconds": 1.0, "operations": 1.0, "p99_us": 1.0}

    def metric(self, name: str) -> float:
        del name
        return 0.0


class StubLab(Lab):
    """A lab that starts and measures nothing and notes what it was asked to."""

    def __init__(self, *, peers_from_elsewhere: bool = True) -> None:
        super().__init__(FULL, [])
        self.asked: set[tuple[str, str | None]] = set()
        self._missing = () if peers_from_elsewhere else (jvm_worker, RedisServer)

    def _started(self, start: object, *_arguments: str, name: str = "") -> Any:  # noqa: ANN401 - any process
        del name
        return None if start in self._missing else Stub()

    def measure(
        self,
        figures: Sequence[Figure],
        subject: tuple[str, Measure],
        peers: Mapping[str, Measure | None],
        **options: object,
    ) -> None:
        del subject, options
        there = [name for name, measure in peers.items() if measure is not None]
        for figure in figures:
            beside = [peer for peer in figure.peers or there if peer in there]
            self.asked.update((figure.name, peer) for peer in beside)
            if not beside:
                self.asked.add((figure.name, None))


def asked_by_all(*, peers_from_elsewhere: bool = True) -> set[tuple[str, str | None]]:
    lab = StubLab(peers_from_elsewhere=peers_from_elsewhere)
    for suite in SUITES.values():
        suite(lab)
    lab.close()
    return lab.asked


def histories(folder: Path) -> list[Path]:
    """What says how many operations they have, and nothing else."""
    sizes = [10_000_000, 30_000_000, 100_000_000]
    for size in sizes:
        truth = folder / str(size) / "_truth" / "truth.json"
        truth.parent.mkdir(parents=True)
        truth.write_text(json.dumps({"plan": {"operations": size}}))
    return [folder / str(size) for size in sizes]


def test_everything_that_is_to_be_reached_is_measured(tmp_path: Path) -> None:
    """No figure is promised that no suite measures, beside the very peer it is promised for."""
    made = histories(tmp_path)
    asked = asked_by_all()
    for measure in MEASURED.values():
        lab = StubLab()
        measure(lab, made)
        asked |= lab.asked
    names = {name for name, _ in asked}
    assert {key for key in REACH if key not in asked and not (key[1] is None and key[0] in names)} == set()


def test_without_a_jvm_and_redis_the_rest_is_measured() -> None:
    """Rows beside other peers stay; those beside the missing ones go, and none is beside nobody by mistake."""
    everything = asked_by_all()
    left = asked_by_all(peers_from_elsewhere=False)
    assert {peer for _, peer in left} == {
        "asyncio", "heapq", "echo", "self", "uvloop", "none", "fsync", "registering", "served", "grpc", None,
    }  # fmt: skip
    assert {key for key in left if key[1] is not None} == {
        key for key in everything if key[1] not in {"kafka", "netty", "redis", None}
    }


def test_each_suite_is_documented() -> None:
    """Every suite says in a sentence what it measures."""
    for suite in (*SUITES.values(), engine_suite.timers, service_suite.herd):
        assert suite.__doc__
