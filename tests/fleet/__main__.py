"""`make fleet-crash ARGS="--faults 200 --seed 7 --kafka"`: the crash test over a pair of daemons, with a real log."""

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from examples.kafka_cluster import KafkaCluster
from examples.local_postgres import LocalPostgres
from purgatory.extensions.fleet.commands import main as fleet_command
from purgatory.replicated_log.open_log import open_log
from tests.fleet.file_audit import check_files
from tests.fleet.host_run import HostRun
from tests.fleet.pair_run import PairRun


@contextlib.contextmanager
def real_log(*, is_kafka: bool, folder: Path) -> Iterator[str]:
    """The address of a new log, in a server that ends with the block."""
    if is_kafka:
        with KafkaCluster(folder / "kafka", 3) as cluster:
            yield f"kafka://{cluster.bootstrap}/pair-{uuid.uuid4().hex[:8]}"
    else:
        with LocalPostgres() as servers:
            yield f"postgresql://postgres@{servers.primary().address}/postgres"


def main() -> None:
    """Run it. A broken rule raises."""
    parser = argparse.ArgumentParser("python -m tests.fleet", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--kafka", action="store_true", help="a log in three brokers; otherwise in PostgreSQL")
    parser.add_argument(
        "--shards", type=int, default=1, help="2 or more: pairs on two hosts, each of which is lost once"
    )
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name, real_log(is_kafka=given.kafka, folder=Path(name)) as url:
        assert fleet_command(["init", url, "--shards", str(given.shards)]) == 0, "a new server accepts it"
        members = Path(name) / "members"
        members.mkdir()
        if given.shards > 1:
            groups = asyncio.run(HostRun(members, url, given.shards).run())
            print(
                f"{given.shards} shards, {groups} groups, all files as the log says; {time.monotonic() - began_s:.0f} s"
            )
            return
        tally = asyncio.run(PairRun(members, url, given.seed).run_faults(given.faults))
        with contextlib.closing(open_log(url)) as log:
            groups = check_files(log, [members / "a", members / "b"])
        print(f"{tally}, {groups} groups, both files as the log says; {time.monotonic() - began_s:.0f} s")
    print("lost: 0, ended twice: 0, too early: 0")


if __name__ == "__main__":
    main()
