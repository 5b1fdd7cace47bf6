"""Runs the demonstration, and narrates it as it happens."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from purgatory_client import AsyncClient
from purgatory_client.results import Result

from examples.kafka_cluster import ClusterUnavailable, KafkaCluster
from examples.kafka_demo.traffic import GROUP, TOPIC, Writer, make_topic
from examples.local_daemon import serving

BROKER = 1
DOWN_S = 5.0


def tell(what: str) -> None:
    print(what, flush=True)


def seen(result: Result, since: float) -> str:
    return f"{result.outcome.name.lower()} after {time.monotonic() - since:.2f} s"


async def wait_for_a_record(client: AsyncClient, writer: Writer) -> None:
    offset = await asyncio.to_thread(writer.write, 5, 0)
    began = time.monotonic()
    tell(f"1. five orders are written; waiting until {GROUP} has processed record {offset} of {TOPIC}-0")
    result = await client.processed(GROUP, {f"{TOPIC}-0": offset}, timeout=60)
    tell(f"   {seen(result, began)}")


async def wait_for_everything(client: AsyncClient, writer: Writer) -> None:
    await asyncio.to_thread(writer.write_and_abort, 3, 1)
    await asyncio.to_thread(writer.write, 5, 0)
    began = time.monotonic()
    tell("2. three in a transaction that is aborted, which nobody will ever read or commit, and five more;")
    tell(f"   waiting until {GROUP} has caught up with everything written before now")
    result = await client.caught_up(GROUP, [TOPIC], timeout=60)
    tell(f"   {seen(result, began)}")


async def through_a_restart(client: AsyncClient, writer: Writer, cluster: KafkaCluster) -> None:
    offset = await asyncio.to_thread(writer.write, 1, 0)
    tell(
        f"3. somebody waits for record {offset + 1}, which is not written yet; the broker goes down for {DOWN_S:.0f} s"
    )
    began = time.monotonic()
    waiting = asyncio.create_task(client.processed(GROUP, {f"{TOPIC}-0": offset + 1}, timeout=120))
    await asyncio.to_thread(cluster.stop, BROKER)
    down = time.monotonic()
    stale_max_s = 0.0
    while time.monotonic() < down + DOWN_S:
        await asyncio.sleep(1.0)
        stale_max_s = max(stale_max_s, await tell_status(client))
    await asyncio.to_thread(cluster.start, BROKER)
    tell("   the broker is back")
    while (stale_s := await tell_status(client)) > 0:
        stale_max_s = max(stale_max_s, stale_s)
        await asyncio.sleep(0.5)
    await asyncio.to_thread(writer.write, 1, 0)
    tell(f"   the record is written; the wait that went on all the while: {seen(await waiting, began)}")
    tell(f"   nobody could see the group's mark for about {stale_max_s:.1f} s; nothing was answered meanwhile")


async def tell_status(client: AsyncClient) -> float:
    """Print the state of the source. Returns for how many seconds a mark has been stale; 0: none is."""
    [source] = (await client.status()).sources
    stale_s = source.stale_for or 0.0
    clock = time.strftime("%H:%M:%S")
    tell(f"   {clock} the source is {source.state}, stale for {stale_s:.1f} s  {source.reason}")
    return stale_s


async def run(folder: Path) -> None:
    tell("starting a broker of Kafka ...")
    with KafkaCluster(folder / "kafka") as cluster:
        make_topic(cluster.bootstrap)
        consumer = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "examples.kafka_demo.traffic", cluster.bootstrap
        )
        try:
            uri = f"kafka://{cluster.bootstrap}?topics={TOPIC}&groups={GROUP}"
            tell(f"purgatory serve --source '{uri}'")
            async with serving(folder, "--source", uri) as address, AsyncClient(address) as client:
                writer = Writer(cluster.bootstrap)
                await wait_for_a_record(client, writer)
                await wait_for_everything(client, writer)
                await through_a_restart(client, writer, cluster)
        finally:
            consumer.kill()
            await consumer.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="kafka-demo-") as name:
        try:
            asyncio.run(run(Path(name)))
        except ClusterUnavailable as error:
            sys.exit(f"kafka-demo: {error}")
