"""State that callers leave at a daemon and must find there again, even after a daemon of a later release has read its
files. `python -m tests.compatibility.scenario ADDRESS NAME` performs the first steps of a client, for any pair of
releases.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import purgatory_client
from purgatory_client import AsyncClient, Result, batches, events, waits

LONG_S: Final = 2_000_000.0
"""A timeout of 23 days, nearly the longest."""
POLICY: Final = """
[[grant]]
to = ["ann", "bob"]
roles = ["wait", "advance", "observe"]
topics = ["*"]
keys = ["*"]
"""
VALUE: Final = b"artifact-7"
TAGS: Final = ("deploy", "announce")
OFFSETS: Final = {"orders-3": 42, "kafka/billing/orders-0": 7}
"""The marks of the position tokens; the second one has leader epoch 5."""


async def fill(address: str, ann_token: str, bob_token: str, outbox: Path | None) -> None:
    """Leave pending waits of two principals, uncollected results, marks, a signal's value, half of a signal's count
    and, with an outbox, two waits in it, of which one has ended.
    """
    async with AsyncClient(address, token=ann_token) as ann, AsyncClient(address, token=bob_token) as bob:
        await ann.advance("orders-3", high_watermark=20)
        await ann.advance_many([events.signalled("build-9", value=VALUE), events.signalled("job-17")])
        long = [int(LONG_S * 1_000)] * 2
        await ann.register("nightly", 1, batches.produce(["orders-3"] * 2, offsets=[10, 42], timeouts_ms=long))
        await ann.register("nightly", 3, batches.signal(["build-9", "job-17"], counts=[1, 2], timeouts_ms=long))
        await bob.register("weekly", 1, batches.produce(["orders-3"] * 2, offsets=[99, 42], timeouts_ms=[0, long[0]]))
    if outbox is not None:
        async with AsyncClient(address, token=ann_token, outbox=outbox) as client:
            wanted = (waits.produce({"orders-3": offset}, timeout=LONG_S) for offset in (15, 42))
            done, _ = [await client.submit(wait, tag) for wait, tag in zip(wanted, TAGS, strict=True)]
            assert (await client.result(done)).satisfied


async def found(address: str, ann_token: str, bob_token: str, outbox: Path | None) -> None:
    """Check that everything is there, and that the pending waits end."""
    async with AsyncExitStack() as stack:
        ann, bob = [await stack.enter_async_context(AsyncClient(address, token=one)) for one in (ann_token, bob_token)]
        for client, session, pending, ended in (
            (ann, "nightly", {2, 4}, {1: "SATISFIED", 3: "SATISFIED"}),
            (bob, "weekly", {2}, {1: "EXPIRED"}),
        ):
            collected: dict[int, Result] = {}
            async for some in client.results(session):
                collected.update(zip(some.operation_ids, some.results, strict=True))
                if len(collected) == len(ended):
                    break
            assert {number: one.outcome.name for number, one in collected.items()} == ended
            listed = {one.operation_id async for one in client.operations() if one.session_id == session}
            assert listed == pending
            if session == "nightly":
                assert collected[3].partitions["build-9"].signal_value == VALUE
        assert (await bob.partition("orders-3")).high_watermark == 20
        left = []
        if outbox is not None:
            keeper = await stack.enter_async_context(AsyncClient(address, token=ann_token, outbox=outbox))
            left = await keeper.recovered()
            assert tuple(one.tag for one in left) == TAGS
        # Everything that was pending ends; half of the count of job-17 was signalled before.
        await ann.advance("orders-3", high_watermark=42)
        await ann.signal_key("job-17")
        for client, session, last in ((ann, "nightly", {2, 4}), (bob, "weekly", {2})):
            ids = [number async for some in client.results(session) for number in some.operation_ids]
            assert set(ids) >= last
        for ticket in left:
            assert (await keeper.result(ticket)).satisfied
            await keeper.confirm(ticket)


async def steps(address: str, name: str) -> None:
    """A wait that is satisfied, one that expires, a signal with a value, and one over a lost connection: the caller of
    this program cuts it after `pending`, and then reports the mark.
    """
    async with AsyncClient(address) as client:
        waiting = asyncio.create_task(client.produce({f"{name}-0": 5}, timeout=60))
        receipt = await client.advance(f"{name}-0", high_watermark=5)
        print("satisfied", (await waiting).satisfied, len(receipt.refusals), flush=True)
        print("expired", (await client.produce({f"{name}-0": 6}, timeout=0.01)).outcome.name, flush=True)
        await client.signal_key(f"{name}/key", value=VALUE)
        signalled = await client.signal([f"{name}/key"], timeout=60)
        print("value", signalled.partitions[f"{name}/key"].signal_value.decode(), flush=True)
        waiting = asyncio.create_task(client.produce({f"{name}-0": 7}, timeout=60))
        await asyncio.create_task(client.produce({f"{name}-0": 5}, timeout=60))  # sent after the one that is pending
        print("pending", purgatory_client.__file__, flush=True)
        print("resumed", (await waiting).satisfied, flush=True)


if __name__ == "__main__":
    asyncio.run(steps(*sys.argv[1:]))
