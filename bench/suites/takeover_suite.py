"""How long callers wait when a leader is lost with many operations pending, compared with a restart that restores them.

The target is 1.3 times the silence and the restore for a leader that is killed or stopped, and 0.5 s and 1.3 times the
restore for a handover.
"""

import contextlib
import signal
import sqlite3
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from bench.measure.lab import Lab
from bench.measure.pair import Pair
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import daemon
from bench.measure.worker import Numbers
from bench.suites.fleet_suite import primary_of, url_of
from bench.suites.journal_suite import KEPT, KEYS
from examples.kafka_cluster import ClusterUnavailable, KafkaCluster
from examples.local_postgres import NoPostgres
from purgatory.journal.directory import DATABASE, LOCK
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.replica import forget_place

__all__ = ["takeover_kafka", "takeover_postgres"]

FAULTS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "handover": signal.SIGTERM}
SILENCE_S: Final = 2.0
"""The default of `fleet.silence_ms`."""
HANDOVER_S: Final = 0.5
RATIO_MAX: Final = 1.3


def takeover_postgres(lab: Lab) -> None:
    try:
        with primary_of(lab) as server:
            takeover(lab, "postgres", url_of(server))
    except NoPostgres as missing:
        lab.skip(str(missing))


def takeover_kafka(lab: Lab) -> None:
    try:
        with KafkaCluster(lab.folder(), 3) as cluster:
            log = f"kafka://{cluster.bootstrap}/purgatory"
            with contextlib.closing(open_log(log)) as opened:
                opened.create(1)
            takeover(lab, "kafka", log)
    except ClusterUnavailable as missing:
        lab.skip(str(missing))


def takeover(lab: Lab, name: str, log: str) -> None:
    """Kill, stop and hand over the leader with a million operations pending, and restore the same million alone."""
    count = lab.scale.total_pending
    with closing(Pair(lab.folder(), log)) as pair:
        lab.worker(KEPT).run("fill", address=pair.members[0].address, count=count, keys=KEYS, name="kept")
        driver = lab.worker("bench.drivers.outage")

        def lost(fault: str) -> Measure:
            def measure() -> Numbers:
                pair.settle()
                leader, standby = pair.members
                addresses = f"{leader.address},{standby.address}"
                lost_id = leader.process.process_id
                numbers = driver.run("outage", addresses=addresses, leader=lost_id, signal_number=FAULTS[fault].value)
                leader.restart()
                return numbers

            return measure

        def restored(before_s: float) -> Measure:
            def measure() -> Numbers:
                pair.settle()
                return {"seconds": before_s + restore_s(pair.members[1].data / DATABASE)}

            return measure

        for fault in FAULTS:
            is_planned = fault == "handover"
            peer = "0.4 s + restore" if is_planned else "silence + restore"
            # So that the target of all three is a ratio.
            before_s = HANDOVER_S / RATIO_MAX if is_planned else SILENCE_S
            lab.measure(
                [Figure(f"fleet/takeover-{fault}-{name}/pending={count}", "s", "seconds")],
                ("pair", lost(fault)),
                {peer: restored(before_s)},
                runs=min(3, lab.scale.runs),
                warm_up=False,
            )


def restore_s(database: Path) -> float:
    """How long a daemon without a log takes to serve a copy of this file, from when it opens it."""
    with tempfile.TemporaryDirectory(prefix="purgatory-bench-") as folder:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source:
            source.execute("VACUUM INTO ?", (str(Path(folder, DATABASE)),))
        forget_place(Path(folder, DATABASE))
        opened_s: list[float] = []

        def watch() -> None:
            # Not from the start of the process: a standby runs already.
            while not Path(folder, LOCK).exists():
                time.sleep(0.001)
            opened_s.append(time.perf_counter())

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        with daemon("--data-dir", folder):
            served_s = time.perf_counter()
        watching.join()
    return served_s - opened_s[0]
