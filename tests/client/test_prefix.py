"""Completed prefixes: `Prefix` against a set of positions, and its mark at a real daemon."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_client import AdvanceReceipt, AsyncClient
from purgatory_client.errors import EventRefused, InvalidRequest, LimitExceeded, Unavailable
from purgatory_client.prefix import Prefix

from tests.kit.daemon import StartDaemon
from tests.kit.eventually import eventually

POSITIONS = st.integers(0, 12)
STEPS = st.lists(
    st.tuples(st.sampled_from(["started", "done", "release"]), POSITIONS)
    | st.tuples(st.just("release range"), POSITIONS, st.integers(1, 6)),
    max_size=40,
)


class SetOfPositions:
    """The oracle: every position is written down."""

    def __init__(self, first: int, *, in_order: bool) -> None:
        self.first, self.in_order = first, in_order
        self.started: set[int] = set()
        self.finished: set[int] = set()
        self.end = first

    def step(self, verb: str, position: int, length: int = 1) -> None:
        if verb in {"started", "done"}:
            if self.in_order:
                self.finished |= set(range(self.end, position))
            if position not in self.finished:
                self.started.add(position)
        if verb != "started":
            self.finished |= set(range(position, position + length))
        self.end = max(self.end, position + length)

    @property
    def in_flight(self) -> list[int]:
        return sorted(one for one in self.started - self.finished if one >= self.first)

    @property
    def missing(self) -> list[int]:
        return [one for one in range(self.first, self.end) if one not in self.started | self.finished]

    @property
    def mark(self) -> int:
        """The lowest position that is in flight or missing, else the highest plus one."""
        return min([*self.in_flight, *self.missing], default=self.end)

    @property
    def starts(self) -> list[int]:
        """Where runs of finished positions begin above the mark."""
        return sorted(one for one in self.finished if one > self.mark and one - 1 not in self.finished)


@given(st.integers(0, 4), STEPS, st.booleans())
def test_the_mark_is_that_of_a_set(first: int, steps: list[tuple], in_order: bool) -> None:
    """After each step, the mark, the positions in flight and the missing ones are those of a plain set of positions.
    The mark never falls, and no more is remembered than the gaps above it.
    """
    prefix, oracle = Prefix("projection/orders", first, in_order=in_order), SetOfPositions(first, in_order=in_order)
    for verb, position, *length in steps:
        before = prefix.mark
        if verb == "release range":
            prefix.release(position, position + length[0])
        else:
            getattr(prefix, verb)(position)
        oracle.step(verb, position, *length)
        assert prefix.mark == oracle.mark >= before
        assert prefix.in_flight == oracle.in_flight
        assert [one for gap in prefix.missing for one in gap] == oracle.missing
        assert prefix._starts == oracle.starts


@pytest.mark.parametrize("position", [-1, 2**63 - 1])
def test_positions_out_of_range_are_refused(position: int) -> None:
    prefix = Prefix("projection/orders")
    for call in (prefix.started, prefix.done, prefix.release):
        with pytest.raises(InvalidRequest):
            call(position)
    with pytest.raises(InvalidRequest, match="above"):
        prefix.release(7, 7)
    with pytest.raises(InvalidRequest):
        Prefix("projection/orders", position)
    assert (prefix.mark, prefix.in_flight, prefix.missing) == (0, [], [])


def test_a_name_without_a_number_is_partition_0() -> None:
    assert Prefix("projection/orders").name == ("projection/orders", 0)
    assert Prefix("read-model").name == ("read-model", 0)
    assert Prefix("orders-3").name == ("orders", 3)
    assert Prefix(("orders", 3)).name == ("orders", 3)
    with pytest.raises(InvalidRequest):
        Prefix("42")


async def test_readers_are_answered_when_everything_below_is_done(client: AsyncClient) -> None:
    prefix = Prefix("projection/orders")
    reader = asyncio.create_task(client.produce({"projection/orders-0": 3}, timeout=60))
    async with prefix.publishing(client):
        for position in (2, 1):
            prefix.done(position)
        await client.advance("other-0", high_watermark=1)  # applied after every mark that was published so far
        assert (await client.partition("projection/orders-0")).high_watermark == 0
        assert not reader.done()
        worker = threading.Thread(target=prefix.done, args=(0,))
        worker.start()
        assert (await reader).satisfied
        worker.join()
        prefix.done(3)
    assert (await client.partition("projection/orders-0")).high_watermark == 4


async def test_a_restarted_daemon_gets_the_mark_again(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    port = first.address.rpartition(":")[2]
    async with AsyncClient(first.address, give_up_after=None) as client:
        prefix = Prefix("projection/orders", 7)
        async with prefix.publishing(client):

            async def is_known() -> bool:
                try:
                    return "projection/orders-0" in [one.name async for one in client.partitions()]
                except Unavailable:
                    return False

            await eventually(is_known, "the first daemon knows the mark")
            first.kill()
            start_daemon("--grpc-address", f"127.0.0.1:{port}")
            await eventually(is_known, "the second daemon knows the mark")


async def test_errors_of_the_block_and_of_the_daemon(client: AsyncClient) -> None:
    """An error in the block is raised unchanged; a refused mark cancels the block and is raised from it."""
    prefix = Prefix("projection/orders")
    with pytest.raises(KeyError, match="mine"):
        async with prefix.publishing(client):
            raise KeyError("mine")
    await client.advance("projection/orders-0", storage="failed")
    with pytest.raises(EventRefused):
        async with prefix.publishing(client):
            await asyncio.Event().wait()
    async with AsyncClient("127.0.0.1:1") as nobody:
        with pytest.raises(Unavailable):
            async with prefix.publishing(nobody):
                pass


async def test_a_full_disk_of_the_daemon_does_not_end_the_block(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, refusals = client.advance, [LimitExceeded("the disk is full"), Unavailable("the disk is broken")]

    async def refusing(name: Any, *, high_watermark: int) -> AdvanceReceipt:  # noqa: ANN401
        if refusals:
            raise refusals.pop()
        return await advance(name, high_watermark=high_watermark)

    monkeypatch.setattr(client, "advance", refusing)
    async with Prefix("projection/orders", 7).publishing(client):
        assert (await client.produce({"projection/orders-0": 7}, timeout=60)).satisfied
    assert not refusals


async def test_a_prefix_is_published_once(client: AsyncClient) -> None:
    prefix = Prefix("projection/orders")
    async with prefix.publishing(client):
        with pytest.raises(InvalidRequest, match="already"):
            async with prefix.publishing(client):
                pass
        prefix.done(0)
    assert (await client.partition("projection/orders-0")).high_watermark == 1
