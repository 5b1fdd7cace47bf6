"""Starts everything, shops without the wait and with it, and prints how many orders were missing."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from purgatory_client import AsyncClient

from examples.kafka_cluster import ClusterUnavailable, KafkaCluster
from examples.local_daemon import serving
from examples.local_postgres import LocalPostgres, NoPostgres
from examples.read_your_writes.replica import BEHIND, REPLICA, PostgresOrders
from examples.read_your_writes.shop import Orders, Shop
from examples.read_your_writes.shoppers import HEADING, shop_for
from examples.read_your_writes.view import GROUP, TOPIC, KafkaOrders, make_table, make_topic


@asynccontextmanager
async def kafka_orders(folder: Path) -> AsyncIterator[tuple[Orders, str]]:
    """Orders in Kafka, and the URI of the source that follows them."""
    table = folder / "orders.db"
    make_table(table)
    with KafkaCluster(folder / "kafka") as cluster:
        make_topic(cluster.bootstrap)
        module = "examples.read_your_writes.view"
        consumer = await asyncio.create_subprocess_exec(sys.executable, "-m", module, cluster.bootstrap, str(table))
        orders = KafkaOrders(cluster.bootstrap, table)
        try:
            yield orders, f"kafka://{cluster.bootstrap}?topics={TOPIC}&groups={GROUP}"
        finally:
            await orders.close()
            consumer.kill()
            await consumer.wait()


@asynccontextmanager
async def postgres_orders(_folder: Path) -> AsyncIterator[tuple[Orders, str]]:
    """Orders in PostgreSQL, and the URI of the source that follows the replica."""
    with LocalPostgres() as servers:
        primary = servers.primary()
        replica = servers.replica(REPLICA, primary)
        primary.query("CREATE TABLE orders (id text PRIMARY KEY)")
        replica.query(f"ALTER SYSTEM SET recovery_min_apply_delay = '{BEHIND}'")
        replica.query("SELECT pg_reload_conf()")
        orders = await PostgresOrders.connect(primary.conninfo("postgres"), replica.conninfo("postgres"))
        try:
            yield orders, servers.source_uri()
        finally:
            await orders.close()


async def run(folder: Path, name: str, seconds: float) -> int:
    """Print the table of one store; returns the number of stale reads despite the wait."""
    scene = {"kafka": kafka_orders, "postgres": postgres_orders}[name]
    async with (
        scene(folder) as (orders, source),
        serving(folder, "--source", source) as address,
        AsyncClient(address) as client,
    ):
        site = web.AppRunner(Shop(orders, client).app())
        await site.setup()
        try:
            listener = web.TCPSite(site, "127.0.0.1", 0)
            await listener.start()
            [(host, port, *_)] = site.addresses
            url = f"http://{host}:{port}"
            await shop_for(1.0, url, waits=True)  # until all of them are connected
            without = await shop_for(seconds, url, waits=False)
            waiting = await shop_for(seconds, url, waits=True)
        finally:
            await site.cleanup()
    print(f"{name}\n{HEADING}\n{without.row('without')}\n{waiting.row('with the wait')}", flush=True)
    if waiting.refused:
        print(f"{waiting.refused} reads were told to try again", flush=True)
    return waiting.stale


def main() -> int:
    parser = argparse.ArgumentParser("python -m examples.read_your_writes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to shop each way")
    parser.add_argument("--only", choices=["kafka", "postgres"], help="one of the two stores")
    given = parser.parse_args()
    stale = 0
    for name in [given.only] if given.only else ["kafka", "postgres"]:
        with tempfile.TemporaryDirectory(prefix="read-your-writes-") as folder:
            try:
                stale += asyncio.run(run(Path(folder), name, given.seconds))
            except (ClusterUnavailable, NoPostgres) as error:
                print(f"read-your-writes: {error}", file=sys.stderr)
                return 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
