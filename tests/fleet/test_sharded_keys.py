"""Signals with shards: the shard of a key decides its value and failure, and the waits at all shards end alike."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from google.rpc import code_pb2
from purgatory_client import AsyncClient, errors, events, waits
from purgatory_client.results import Result
from purgatory_client.wire.sizes import DECISIONS_PER_MESSAGE_MAX

from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX
from purgatory.service.translate.shards import VALUE_BYTES_MAX
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.fleet.shard_daemons import client_of, session_of, start_shards
from tests.kit.daemon import RunDaemon
from tests.kit.eventually import eventually, until_pending, wait_until
from tests.kit.fleet import ShardSet

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
KEYS = 150
KEYS_OF_CASE = 60

FAILURE: dict[str, Any] = {"value": b"disk full", "failed": True}
TWO_PROGRAMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two values": ({"value": b"a"}, {"value": b"b"}),
    "a value and a failure": ({"value": b"ok"}, FAILURE),
    "a count and a failure": ({}, FAILURE),
    "a count and a value": ({}, {"value": b"ok"}),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardSet]:
    """Two shards with journals. Tests use keys of their own."""
    started = ShardSet(tmp_path_factory.mktemp("keys"))
    yield started
    started.kill()


def wait_for(readers: Sequence[AsyncClient], keys: Sequence[str]) -> list["asyncio.Task[Result]"]:
    """Wait for each key at each shard; first all keys at the first one."""
    return [asyncio.create_task(client.signal([key], timeout=PATIENCE_S)) for client in readers for key in keys]


def different(keys: Sequence[str], results: Sequence[Result]) -> list[set[tuple[str, bytes]]]:
    """What the waits for a key read, for those keys whose waits differ."""
    read: dict[str, set[tuple[str, bytes]]] = {key: set() for key in keys}
    for result in results:
        [item] = result.partitions.values()
        read[item.name].add((result.outcome.name, item.signal_value))
    assert all(read.values())
    return [found for found in read.values() if len(found) > 1]


async def connect(stack: AsyncExitStack, targets: Sequence[str]) -> tuple[list[AsyncClient], list[AsyncClient]]:
    """Readers at both shards, and two programs that signal."""
    readers = [await client_of(shard, 2, targets[0]) for shard in range(2)]
    programs = [AsyncClient(target, give_up_after=PATIENCE_S) for target in targets]
    for client in [*readers, *programs]:
        await stack.enter_async_context(client)
    return readers, programs


@pytest.mark.parametrize("case", TWO_PROGRAMS)
async def test_waits_at_all_shards_agree_on_signals_of_two_programs(shards: ShardSet, case: str) -> None:
    keys = [f"{case}/{number}" for number in range(KEYS_OF_CASE)]
    async with AsyncExitStack() as stack:
        readers, programs = await connect(stack, shards.targets)
        waiting = wait_for(readers, keys)
        for target in shards.targets:
            async with AsyncClient(target) as client:
                await until_pending(client, KEYS_OF_CASE)
        for key in keys:
            signals = zip(programs, TWO_PROGRAMS[case], strict=True)
            await asyncio.gather(*(program.signal_key(key, **signal) for program, signal in signals))
        assert different(keys, await asyncio.gather(*waiting)) == []
        assert different(keys, await asyncio.gather(*wait_for(readers, keys))) == []


async def test_waits_and_late_readers_agree_after_a_shard_was_killed(shards: ShardSet) -> None:
    keys = [f"killed/{number}" for number in range(KEYS)]

    async def signal_until_answered(program: AsyncClient, key: str, value: bytes) -> None:
        async def is_answered() -> bool:
            try:
                await program.signal_key(key, value=value)
            except errors.Unavailable:
                return False
            return True

        await eventually(is_answered, f"{key} is signalled")

    async with AsyncExitStack() as stack:
        readers, programs = await connect(stack, shards.targets)
        waiting = wait_for(readers, keys)
        for number, key in enumerate(keys):
            signalling = [signal_until_answered(program, key, b"%d" % one) for one, program in enumerate(programs)]
            if number == KEYS // 2:
                killed = shards.pid_of(1)
                os.kill(killed, signal.SIGKILL)
            await asyncio.gather(*signalling)
        await asyncio.to_thread(wait_until, lambda: shards.pid_of(1) != killed, "the shard is back")
        assert different(keys, await asyncio.gather(*waiting, *wait_for(readers, keys))) == []
    assert "shard 1 ended with -9" in shards.log


# The protocol, with daemons in this process.


OWN, OTHER = (session_of(shard, name="job") for shard in range(2))
"""Keys of shard 0 and of shard 1."""


async def advance(
    client: AsyncClient,
    *signals: event_pb2.KeySignalled,
    columns: event_pb2.EventColumns | None = None,
    passes_on_decided: bool = True,
) -> wire.AdvanceReceipt:
    rows = event_pb2.EventRows(events=[event_pb2.Event(key_signalled=one) for one in signals]) if signals else None
    request = wire.AdvanceRequest(rows=rows, columns=columns, all_shards=True, passes_on_decided=passes_on_decided)
    return cast("wire.AdvanceResponse", await client._stub().Advance(request)).receipt


async def is_reached(client: AsyncClient, *keys: str) -> bool:
    """Whether the keys are known as signalled at the client's daemon."""
    return (await client.wait_once(waits.signal(keys, timeout=0))).satisfied


async def test_shard_decides_its_own_keys_only(run_daemon: RunDaemon) -> None:
    """A shard lists as decided what it has applied to its own keys, with their values; to a key of another shard, a
    signal is a heartbeat.
    """
    [daemon] = await start_shards(run_daemon, count=1)
    async with AsyncClient(daemon.address) as client:
        await advance(client, event_pb2.KeySignalled(key=OWN, value=b"first"))
        receipt = await advance(
            client,
            event_pb2.KeySignalled(key=OTHER, count=3, value=b"other", failed=True),
            event_pb2.KeySignalled(key=OWN, count=0),
            event_pb2.KeySignalled(key=OWN, count=-5),
            event_pb2.KeySignalled(key=OWN, count=2, value=b"second", failed=True),
        )
        assert ([refusal.index for refusal in receipt.refusals], list(receipt.decided_index)) == ([2], [3])
        decision = event_pb2.KeyDecision(value_at=0, failed_at=1)
        decided = event_pb2.KeySignalled(key=OWN, count=2, value=b"first", failed=True, decision=decision)
        assert [one.key_signalled for one in receipt.decided] == [decided]
        types = [event_pb2.EVENT_TYPE_SIGNAL] * 3
        columns = event_pb2.EventColumns(keys=[OTHER, OWN], type=types, item_index=[0, 1, 0], offset=[4])
        receipt = await advance(client, columns=columns)
        assert [(one.key_signalled.key, one.key_signalled.count) for one in receipt.decided] == [(OWN, 4)]
        assert not await is_reached(client, OTHER)


async def test_signals_that_are_not_passed_on_are_refused(run_daemon: RunDaemon) -> None:
    """Where waits at other shards would miss it, a signal is refused, whatever its key; a heartbeat is not."""
    [daemon] = await start_shards(run_daemon, count=1)
    async with AsyncClient(daemon.address) as client:
        signals = [event_pb2.KeySignalled(key=key, count=count) for key in (OWN, OTHER) for count in (1, 0)]
        refusals = (await advance(client, *signals, passes_on_decided=False)).refusals
        assert [(one.index, one.code, one.field) for one in refusals] == [
            (index, code_pb2.FAILED_PRECONDITION, "key_signalled") for index in (0, 2)
        ]
        assert "passes_on_decided" in refusals[0].message
        assert not await is_reached(client, OWN)


async def test_decisions_are_refused_by_the_shard_of_the_key(run_daemon: RunDaemon) -> None:
    """Nobody but the shard of a key can replace its value, and a single daemon is the shard of all keys."""
    for daemon in (await run_daemon(), *await start_shards(run_daemon, count=1)):
        async with AsyncClient(daemon.address) as client:
            await advance(client, event_pb2.KeySignalled(key=OWN, value=b"first"))
            decision = event_pb2.KeyDecision()
            receipt = await advance(client, event_pb2.KeySignalled(key=OWN, value=b"forged", decision=decision))
            [refusal] = receipt.refusals
            assert (refusal.code, refusal.field) == (code_pb2.INVALID_ARGUMENT, "key_signalled.decision")
            result = await client.wait_once(waits.signal([OWN], timeout=0))
            assert result.partitions[OWN].signal_value == b"first"


async def test_decision_with_counts_out_of_range_is_refused(run_daemon: RunDaemon) -> None:
    [daemon] = await start_shards(run_daemon, count=1)
    async with AsyncClient(daemon.address) as client:
        decisions = [
            event_pb2.KeyDecision(value_at=value_at, failed_at=failed_at)
            for value_at, failed_at in ((-1, 0), (2**61, 0), (0, -(2**63)), (0, 2**63 - 1), (0, 0))
        ]
        signals = [event_pb2.KeySignalled(key=OTHER, value=b"v", decision=decision) for decision in decisions]
        refusals = (await advance(client, *signals)).refusals
        assert [(one.index, one.code, one.field) for one in refusals] == [
            (index, code_pb2.INVALID_ARGUMENT, "key_signalled.decision") for index in range(4)
        ]
        assert await is_reached(client, OTHER)


async def test_values_of_a_receipt_are_limited(run_daemon: RunDaemon) -> None:
    """Signals whose values would make the receipt too large are refused, also if the values are those of earlier ones,
    and those before them are applied.
    """
    [daemon] = await start_shards(run_daemon, count=1)
    most = VALUE_BYTES_MAX // SIGNAL_VALUE_BYTES_MAX
    async with AsyncClient(daemon.address) as client:
        await advance(client, event_pb2.KeySignalled(key=OWN, value=bytes(SIGNAL_VALUE_BYTES_MAX)))
        columns = event_pb2.EventColumns(keys=[OWN], type=[event_pb2.EVENT_TYPE_SIGNAL] * (most + 2))
        receipt = await advance(client, columns=columns)
        assert list(receipt.decided_index) == list(range(most))
        assert [(one.index, one.code) for one in receipt.refusals] == [
            (index, code_pb2.RESOURCE_EXHAUSTED) for index in (most, most + 1)
        ]


async def test_many_signals_in_one_call_reach_both_shards_once(run_daemon: RunDaemon) -> None:
    keys = [f"many/{number}" for number in range(3 * DECISIONS_PER_MESSAGE_MAX + 3)]
    daemons = await start_shards(run_daemon)
    async with AsyncClient(daemons[0].address) as client, AsyncClient(daemons[1].address) as other:
        waiting = [asyncio.create_task(one.wait_once(waits.signal(keys, timeout=600))) for one in (client, other)]
        for one in (client, other):
            await until_pending(one, 1)
        values = [b"value"] + [b""] * (len(keys) - 1)
        receipt = await client.advance_many([
            events.signalled(key, value=value) for key, value in zip(keys, values, strict=True)
        ])  # fmt: skip
        assert (len(receipt.ended), receipt.ended_total, receipt.refusals) == (len(keys), 2, [])
        for result in await asyncio.gather(*waiting):
            assert (result.satisfied, result.partitions[keys[0]].signal_value) == (True, b"value")


async def test_signal_while_a_shard_is_down(run_daemon: RunDaemon) -> None:
    """A signal raises an error while either shard is down. It is not applied anywhere without the shard of its key."""
    [daemon] = await start_shards(run_daemon, count=1)
    async with AsyncClient(daemon.address) as client:
        for key in (OWN, OTHER):
            with pytest.raises(errors.Unavailable, match=r"shard 1 of 2: .*; shards that have answered: 0"):
                await client.signal_key(key, value=b"value")
        assert (await is_reached(client, OWN), await is_reached(client, OTHER)) == (True, False)
