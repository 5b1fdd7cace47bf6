"""Values and failures of signals, and missed heartbeats, from the caller of an event to the results of waits."""

from __future__ import annotations

import asyncio

import pytest
from purgatory_client import batches, waits
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import InvalidRequest, WaitFailed
from purgatory_client.events import EventRefused, signalled
from purgatory_client.results import SIGNAL_FAILED, Outcome, Result

from tests.kit.eventually import until_pending
from tests.kit.messages import key_signalled, signal
from tests.kit.served_host import Peer, ServedHost, serving

RESULT = b'{"rows": 17}'


async def ask(client: AsyncClient, key: str, *, is_once: bool, timeout: float = 60) -> Result:  # noqa: ASYNC109
    """Wait for a key by a unary call (in the row form) or in a session (in columns)."""
    if is_once:
        return await client.wait_once(waits.signal([key], timeout=timeout))
    return await client.signal([key], timeout=timeout)


@pytest.mark.parametrize("is_once", [False, True], ids=["columns", "row"])
async def test_failed_signal_fails_the_wait_with_its_reason(is_once: bool) -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        early = asyncio.create_task(ask(client, "job", is_once=is_once))
        await until_pending(client, 1)
        await client.signal_key("job", value="disk full: \u00e4\u00f6".encode(), failed=True)
        for result in (await early, await ask(client, "job", is_once=is_once)):
            assert result.outcome is Outcome.FAILED
            assert result.partitions["job"].error_code == SIGNAL_FAILED
            with pytest.raises(WaitFailed, match="job: 1 of 1 \\(error 1003: disk full: \u00e4\u00f6\\)"):
                result.raise_for_outcome()


async def test_events_of_one_call_keep_their_order() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        events = [signalled("a"), signalled("a", value=b"one"), signalled("a", 0), signalled("a", value=b"two")]
        receipt = await client.advance_many(events)
        assert receipt.raise_for_refusals().ended == [0, 0, 0, 0]
        item = (await client.signal({"a": 3}, timeout=0)).partitions["a"]
        assert (item.reached_offset, item.signal_value) == (3, b"one")


async def test_each_operation_of_a_batch_has_the_value_of_its_key() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        keys = [f"job-{number}" for number in range(100)]
        many = asyncio.create_task(client.signal_many(keys, timeouts_ms=[60_000]))
        await until_pending(client, 100)
        order = [*keys[50:], *keys[:50]]
        await client.advance_many([signalled(key, value=key.encode() if key[-1] != "7" else b"") for key in order])
        results = await many
        assert results.satisfied
        assert results.signal_values == [key.encode() if key[-1] != "7" else b"" for key in keys]


async def test_values_of_results_that_wait_for_a_reader() -> None:
    """They are stored together, and their memory is counted until they are acknowledged."""
    async with serving() as served:
        peer = await Peer(served, "s").open()
        await peer.registered(*(signal(number, f"k{number}", 60_000) for number in range(1, 151)))
        peer.cancel()
        for number in range(1, 151):
            await signal_with_value(served, f"k{number}", b"%d" % number * 10)
        outbox = served.host.sessions.open("s", served.host.time.now_ms())[0].outbox
        outbox.check()
        for columns in (False, True):
            assert await values_read(served, columns=columns) == {n: b"%d" % n * 10 for n in range(1, 151)}
        before = outbox.held_bytes
        peer = await Peer(served, "s").open(150)
        assert outbox.held_bytes == 0 < before
        peer.cancel()


async def signal_with_value(served: ServedHost, key: str, value: bytes) -> None:
    event = key_signalled(key, value=value)
    assert (await served.advance(event)).ended_total == 1


async def values_read(served: ServedHost, *, columns: bool) -> dict[int, bytes]:
    """All unacknowledged results of the session `s`: the value of each operation."""
    peer = await Peer(served, "s").open(columns=columns)
    found: dict[int, bytes] = {}
    while len(found) < 150:
        batch = await peer.results()
        if columns:
            values = [b"", *batch.columns.signal_values]
            indexes = list(batch.columns.signal_value_index)
            ids = batch.columns.operation_id
            found.update((number, values[index]) for number, index in zip(ids, indexes, strict=True))
        else:
            found.update((row.operation_id, row.partitions[0].signal_value) for row in batch.rows.results)
    peer.cancel()
    return found


async def test_values_that_cannot_be_sent_change_nothing() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        with pytest.raises(EventRefused, match="value: has 4097 bytes; at most 4096 are allowed"):
            await client.signal_key("job", value=b"x" * 4097)
        with pytest.raises(EventRefused, match="count: 0 is a heartbeat"):
            await client.signal_key("job", 0, failed=True)
        with pytest.raises(InvalidRequest, match="give bytes"):
            await client.signal_key("job", value="text")  # type: ignore[arg-type]
        assert served.host.engine.inspection.signal_key_count == 0


async def test_heartbeat_timeouts_of_a_batch() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        many = client.signal_many(["a", "b"], timeouts_ms=[60_000, 200], heartbeat_timeouts_ms=[20, -1])
        assert list((await many).outcomes) == [Outcome.FAILED, Outcome.EXPIRED]
        refused = await client.signal_many(["a"], timeouts_ms=[200], heartbeat_timeouts_ms=[-1])
        assert list(refused.outcomes) == [Outcome.EXPIRED]
        with pytest.raises(InvalidRequest, match="must be from -1"):
            batches.signal(["a"], heartbeat_timeouts_ms=[-2])
        with pytest.raises(InvalidRequest, match="at least 1 ms"):
            waits.signal(["a"], heartbeat_timeout=0)
