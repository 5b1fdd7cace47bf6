"""The cost of a replicated log in PostgreSQL, compared with the local journal and with the bare log; and that of a
standby, compared with its leader.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from bench.drivers.latency import WARM_UP
from bench.measure.lab import Lab
from bench.measure.pair import Pair
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import DaemonProcess
from bench.measure.worker import Numbers
from bench.suites.journal_suite import BATCH, KEPT, RATE
from examples.local_postgres import LocalPostgres, LocalServer, NoPostgres
from purgatory.replicated_log.open_log import open_log

__all__ = ["columns", "receipts"]

LANES: Final = 32
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def primary_of(lab: Lab) -> Iterator[LocalServer]:
    """A primary with a synchronous replica. The lab's processes end before them."""
    with LocalPostgres() as servers:
        primary = servers.primary()
        servers.replica("replica", primary)
        primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.query("SELECT pg_reload_conf()")
        open_log(url_of(primary)).create(1)
        try:
            yield primary
        finally:
            lab.close()


def url_of(server: LocalServer) -> str:
    return f"postgresql://postgres@{server.address}/postgres"


def leader(lab: Lab, server: LocalServer) -> DaemonProcess:
    return lab.daemon("--data-dir", str(lab.folder() / "leader"), "--fleet-log", url_of(server))


def columns(lab: Lab) -> None:
    """Operations per second in batches of 500 and the daemon's processor time for each, next to a local journal."""
    try:
        with primary_of(lab) as server:
            client = lab.worker("bench.drivers.client")

            def loading(process: DaemonProcess) -> Measure:
                def measure() -> Numbers:
                    before_s = processor_s(process.process_id)
                    numbers = client.run(
                        "columns", address=process.address, batch=500, lanes=LANES, seconds=2 * lab.scale.seconds
                    )
                    used_us = (processor_s(process.process_id) - before_s) * 1e6
                    return {**numbers, "processor_us": used_us / numbers["operations"]}

                return measure

            local = lab.daemon("--data-dir", str(lab.folder() / "local"))
            lab.measure(
                [
                    Figure("fleet/columns-postgres/batch=500", "ops/s"),
                    Figure("fleet/processor-postgres/batch=500", "us", "processor_us"),
                ],
                ("daemon", loading(leader(lab, server))),
                {"sync": loading(local)},
            )
            lab.close()
            with closing(Pair(lab.folder(), url_of(server))) as pair:
                standby_cost(lab, pair)
    except NoPostgres as missing:
        lab.skip(str(missing))


def standby_cost(lab: Lab, pair: Pair) -> None:
    """The processor time of a standby for each operation, next to its leader's in the same runs."""
    client, leader_us = lab.worker("bench.drivers.client"), 0.0

    def measure() -> Numbers:
        nonlocal leader_us
        before_s = [processor_s(member.process.process_id) for member in pair.members]
        numbers = client.run(
            "columns", address=pair.members[0].address, batch=500, lanes=LANES, seconds=2 * lab.scale.seconds
        )
        pair.settle()
        used_s = [processor_s(member.process.process_id) for member in pair.members]
        leader_us, standby_us = (
            (used - before) * 1e6 / numbers["operations"] for used, before in zip(used_s, before_s, strict=True)
        )
        return {"processor_us": standby_us}

    lab.measure(
        [Figure("fleet/standby-processor-postgres/batch=500", "us", "processor_us")],
        ("standby", measure),
        {"leader": lambda: {"processor_us": leader_us}},
    )


def receipts(lab: Lab) -> None:
    """Time to a receipt with the log, next to a loop that inserts as many bytes."""
    try:
        with primary_of(lab) as server:
            process, driver = leader(lab, server), lab.worker(KEPT)
            bare, turns, turn_bytes = lab.worker("bench.peers.durable_loops"), lab.scale.probes, 0

            def inserted() -> Numbers:
                return bare.run("insert", url=url_of(server), turn_bytes=turn_bytes, turns=turns, rate=RATE / BATCH)

            def receipted() -> Numbers:
                nonlocal turn_bytes
                before = log_bytes(server)
                numbers = driver.run("receipts", address=process.address, batch=BATCH, turns=turns, rate=RATE)
                turn_bytes = (log_bytes(server) - before) // (WARM_UP + turns)
                return numbers

            lab.measure(
                [Figure(f"fleet/receipt-{part}-postgres/rate={RATE}", "us", f"{part}_us") for part in ("p50", "p99")],
                ("daemon", receipted),
                {"insert": inserted},
                runs=min(3, lab.scale.runs),
                warm_up=False,
            )
    except NoPostgres as missing:
        lab.skip(str(missing))


def log_bytes(server: LocalServer) -> int:
    ((count,),) = server.query("SELECT coalesce(sum(length(content)), 0)::bigint FROM purgatory_log")
    return int(count)


def processor_s(process_id: int) -> float:
    """The processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{process_id}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
