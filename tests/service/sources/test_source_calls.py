"""Sources at a daemon: the demand and questions they receive, and their visibility to callers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from purgatory_client import batches
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import InvalidRequest, Unavailable
from purgatory_client.sources.source_link import (
    DemandChanged,
    EndsWanted,
    MarkEnd,
    SourceLink,
    SourceState,
    StaleMarks,
    _fitting,
)
from purgatory_client.waits import produce as produce_wait

from purgatory.service.draining import drain
from purgatory.service.metrics.exposition import SourceMetrics
from purgatory.service.sources import source_table
from purgatory.v1 import operation_pb2, source_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.client.cli.test_commands import purgatory
from tests.journal.kit import copy_files
from tests.kit.daemon import RunDaemon
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.recorded import assert_recorded, cases_of
from tests.kit.served_host import ServedHost, refused, serving
from tests.service.test_daemon import fetch_page


@asynccontextmanager
async def attached(
    served: ServedHost, name: str = "a", prefix: str = "kafka/"
) -> AsyncIterator[tuple[AsyncClient, SourceLink]]:
    """A source that is attached and has not reported anything yet."""
    before = served.host.sources.attached
    async with AsyncClient(served.address) as client, client.attach_source(name, [prefix]) as link:
        await eventually(lambda: served.host.sources.attached > before, "the source is attached")
        yield client, link


async def next_of(link: SourceLink) -> DemandChanged | EndsWanted:
    """Return the next message to a source."""
    return await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)


def staleness(served: ServedHost, topic: str, partition: int = 0) -> source_table.Staleness | None:
    """Return since when a mark is stale."""
    return served.host.sources.stale((topic, partition), served.host.time.now_ms())


async def partition(served: ServedHost, topic: str) -> wire.Partition:
    """Return the daemon's view of partition 0 of a topic."""
    name = operation_pb2.TopicPartition(topic=topic)
    answer: wire.GetPartitionResponse = await served.stub.GetPartition(wire.GetPartitionRequest(topic_partition=name))
    return answer.partition


async def test_demand_begins_with_what_is_waited_on_and_follows_it() -> None:
    """Only for topics that the source feeds."""
    async with serving() as served, AsyncClient(served.address) as waiter:
        first = asyncio.create_task(waiter.produce({"kafka/orders-3": 5, "elsewhere-0": 5}, timeout=60))
        await eventually(lambda: served.host.engine.pending == 1, "the first wait is registered")
        async with attached(served) as (_, link):
            assert await next_of(link) == DemandChanged([("kafka/orders", 3)], [])
            second = asyncio.create_task(waiter.produce({"kafka/orders-4": 5, "kafka/orders-3": 6}, timeout=60))
            assert await next_of(link) == DemandChanged([("kafka/orders", 4)], [])
            await served.high_watermark("kafka/orders", 5, 3)
            await served.high_watermark("elsewhere", 5)
            await first
            await served.high_watermark("kafka/orders", 5, 4)
            assert await next_of(link) == DemandChanged([], [("kafka/orders", 4)])
            assert link.demand == {("kafka/orders", 3)}
            second.cancel()


async def test_a_wait_that_is_met_at_once_is_no_demand() -> None:
    async with serving() as served, AsyncClient(served.address) as waiter, attached(served) as (_, link):
        await served.high_watermark("kafka/done", 5)
        await waiter.produce({"kafka/done-0": 5}, timeout=60)
        pending = asyncio.create_task(waiter.produce({"kafka/more-0": 5}, timeout=60))
        assert await next_of(link) == DemandChanged([("kafka/more", 0)], [])
        pending.cancel()


async def test_ends_are_asked_of_the_source_and_answered() -> None:
    async with serving() as served, attached(served) as (_, link):
        asked = served.stub.GetSourceEnds(source_pb2.GetSourceEndsRequest(topics=["kafka/g/orders", "kafka/g/orders"]))
        question = await next_of(link)
        assert isinstance(question, EndsWanted)
        assert question.topics == ["kafka/g/orders"]
        ends = [MarkEnd("kafka/g/orders", 0, 11, 4), MarkEnd("kafka/g/orders", 1, 0), MarkEnd("kafka/other", 0, 1)]
        await link.answer_ends(question.ask_id, ends)
        answer = await asked
        assert [(end.topic_partition.partition, end.offset) for end in answer.ends] == [(0, 11), (1, 0)]
        assert [end.HasField("leader_epoch") for end in answer.ends] == [True, False]


async def test_ends_without_a_source_or_with_one_that_cannot_see() -> None:
    async with serving() as served:
        request = source_pb2.GetSourceEndsRequest(topics=["kafka/orders"])
        with refused(grpc.StatusCode.UNAVAILABLE, "no source that publishes 'kafka/orders'"):
            await served.stub.GetSourceEnds(request)
        async with AsyncClient(served.address) as client:
            with pytest.raises(Unavailable, match="no source") as said:
                await client.ends(["kafka/orders"])
            assert said.value.is_answer, "it is not that nobody is there"
        async with attached(served) as (_, stale):
            await stale.report(SourceState.LIVE)
            asked = served.stub.GetSourceEnds(request)
            question = await next_of(stale)
            assert isinstance(question, EndsWanted)
            await stale.answer_ends(question.ask_id, error="broker 2 is down")
            with refused(grpc.StatusCode.UNAVAILABLE, "broker 2 is down"):
                await asked
            async with attached(served, "b") as (_, other):
                await other.report(SourceState.BEHIND)
                asked = served.stub.GetSourceEnds(request)
                question = await next_of(stale)
                assert isinstance(question, EndsWanted)
                await stale.answer_ends(question.ask_id, error="broker 2 is down")
                question = await next_of(other)
                assert isinstance(question, EndsWanted)
                await other.answer_ends(question.ask_id, [MarkEnd("kafka/orders", 0, 7)])
                assert (await asked).ends[0].offset == 7


async def test_ends_as_of_a_time() -> None:
    """The source gets it in ms, rounded up; an answer for another time, or none, is FAILED_PRECONDITION."""
    midnight = datetime(2025, 3, 1, microsecond=1, tzinfo=timezone(timedelta(hours=1)))
    as_of_ms = 1_740_783_600_001
    async with serving() as served, attached(served) as (client, link):
        asked = asyncio.create_task(client.ends(["kafka/orders"], as_of=midnight))
        assert await next_of(link) == EndsWanted(1, ["kafka/orders"], as_of_ms)
        await link.answer_ends(1, [MarkEnd("kafka/orders", 0, 7)], as_of_ms=as_of_ms)
        assert (await asked).offsets == {"kafka/orders-0": 7}
        asked = asyncio.create_task(client.ends(["kafka/orders"], as_of=midnight))
        await next_of(link)
        await link.answer_ends(2, [MarkEnd("kafka/orders", 0, 9)])
        with pytest.raises(InvalidRequest, match="the source a cannot look up where its logs ended at a time"):
            await asked
        async with attached(served, "b") as (_, other):
            await link.report(SourceState.LIVE)
            asked = asyncio.create_task(client.ends(["kafka/orders"], as_of=midnight))
            await next_of(link)
            await link.answer_ends(3, error="it has no clock")
            await next_of(other)
            await other.answer_ends(1, error="broker 2 is down", as_of_ms=as_of_ms)
            with pytest.raises(Unavailable, match="it has no clock; broker 2 is down"):
                await asked
        with pytest.raises(InvalidRequest, match="must be from 0 to the present"):
            await client.ends(["kafka/orders"], as_of=datetime.now(UTC) + timedelta(hours=1))
        with pytest.raises(InvalidRequest, match="must be from 0 to the present"):
            await client.ends(["kafka/orders"], as_of=datetime(1969, 12, 31, tzinfo=UTC))
        with pytest.raises(InvalidRequest, match="has no time zone"):
            await client.ends(["kafka/orders"], as_of=datetime(2025, 3, 1))


async def test_a_source_that_goes_leaves_questions_unanswered_and_marks_stale() -> None:
    """Until a source sees them again."""
    async with serving() as served:
        await served.high_watermark("kafka/orders", 5)
        await served.high_watermark("elsewhere", 5)
        async with attached(served) as (_, link):
            await link.report(SourceState.LIVE)
            await eventually(lambda: staleness(served, "kafka/orders") is None, "seen")
            asked = served.stub.GetSourceEnds(source_pb2.GetSourceEndsRequest(topics=["kafka/orders"]))
            assert isinstance(await next_of(link), EndsWanted)
        with refused(grpc.StatusCode.UNAVAILABLE, "the source a has gone"):
            await asked
        await eventually(lambda: not served.host.sources.attached, "the source is gone")
        gone = await partition(served, "kafka/orders")
        assert gone.HasField("stale_ms")
        assert "not attached" in gone.stale_reason
        assert not (await partition(served, "elsewhere")).HasField("stale_ms")
        async with attached(served) as (_, link):
            await link.report(SourceState.LIVE)
            await eventually(lambda: staleness(served, "kafka/orders") is None, "seen")
            assert not (await partition(served, "kafka/orders")).HasField("stale_ms")


def attaching(*, name: str = "a", prefixes: Sequence[str] = ("kafka/",)) -> source_pb2.AttachSourceRequest:
    return source_pb2.AttachSourceRequest(hello=source_pb2.SourceHello(name=name, topic_prefixes=prefixes))


def reporting(state: int = source_pb2.SOURCE_STATE_STALE, **fields: Any) -> source_pb2.AttachSourceRequest:  # noqa: ANN401
    return source_pb2.AttachSourceRequest(report=source_pb2.SourceReport(state=state, **fields))


NONSENSE = Path(__file__).with_name("nonsense.txt")


async def test_message_that_makes_no_sense_ends_its_source() -> None:
    """As in nonsense.txt."""

    async def refusal(served: ServedHost, case: str) -> str:
        call = served.stub.AttachSource()
        for message in eval(case, {**vars(source_pb2), "attaching": attaching, "reporting": reporting}):
            await call.write(message)
        with refused(grpc.StatusCode.INVALID_ARGUMENT) as error:
            while await call.read() is not grpc.aio.EOF:
                pass
            await call
        await eventually(lambda: not served.host.sources.attached, "the source is gone")
        return str(error.value.details())

    async with serving() as served:
        assert_recorded(NONSENSE, [await refusal(served, case) for case in cases_of(NONSENSE)])


async def test_the_largest_report_is_taken_and_long_reasons_are_cut() -> None:
    async with serving() as served, attached(served) as (_, link):
        await link.report(
            SourceState.STALE, "r" * 1_500, [StaleMarks("kafka/orders", True, range(9_999), 0, "s" * 1_500)]
        )
        sources = served.host.sources
        await eventually(lambda: [one.state for one in sources] == [source_table.STALE], "the report is taken")
        stale = staleness(served, "kafka/orders", 9_998)
        assert stale is not None
        assert stale.reason == "s" * 1_000


async def test_a_report_of_too_many_marks_names_more_of_them() -> None:
    """The client falls back to whole topics, and then to prefixes of topics."""
    partitions = [StaleMarks("kafka/a", True, range(6_000), 5), StaleMarks("kafka/a", True, range(6_000, 12_000), 7)]
    assert _fitting(partitions) == [StaleMarks("kafka/a", True, (), 7)]
    topics = [StaleMarks(f"kafka/g{number}/", stale_ms=number, reason="down") for number in range(2_001)]
    assert _fitting(topics[:2_000]) == topics[:2_000]
    assert _fitting(topics) == [StaleMarks("kafka/g", False, (), 2_000, "down")]
    async with serving() as served, attached(served) as (_, link):
        await link.report(SourceState.STALE, stale=topics)
        await eventually(lambda: getattr(staleness(served, "kafka/g/orders"), "reason", "") == "down", "it is taken")


async def test_client_raises_its_own_errors_for_refusals_and_the_end() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        with pytest.raises(InvalidRequest, match=r"hello\.name"):
            async with client.attach_source("", ["b/"]) as link:
                await next_of(link)
        async with client.attach_source("b", ["b/"]) as link:
            await eventually(lambda: served.host.sources.attached == 1, "the source is attached")
            served.host.source_links.shut_down()
            with pytest.raises(Unavailable, match="shutting down"):
                await next_of(link)
            with pytest.raises(Unavailable):
                await link.report(SourceState.LIVE)


async def test_nothing_attached_costs_nothing() -> None:
    """Without a source, no names of a batch are looked up, no task runs, and no memory is used."""
    async with serving() as served, AsyncClient(served.address) as client:
        async with attached(served):
            assert served.host.source_links.demand.is_wanted
        await eventually(lambda: not served.host.sources.attached, "the source is gone")
        links = served.host.source_links
        assert not links.demand.is_wanted
        assert not [task for task in asyncio.all_tasks() if task.get_name() in ("sources", "source reader")]
        await client.wait_once(produce_wait({"kafka/orders-0": 5}, timeout=0))
        assert links.held_bytes() == 0


async def test_metrics_and_log_follow_a_source(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        host = served.host
        registry = CollectorRegistry()
        registry.register(SourceMetrics(host.source_links, host.time.now_ms))
        labels = {"source": "a", "principal": ""}
        with caplog.at_level("INFO", logger="purgatory.service.sources.source_links"):
            async with attached(served) as (_, link):
                await link.report(SourceState.LIVE, lag_ms=1_500)
                await eventually(lambda: registry.get_sample_value("purgatory_source_up", labels) == 1, "it is up")
                assert registry.get_sample_value("purgatory_source_staleness_seconds", labels) == 0
                assert registry.get_sample_value("purgatory_source_lag_seconds", labels) == 1.5
                await link.report(SourceState.STALE, "broker 2\x1b is down", [StaleMarks(stale_ms=4_000)])
                await eventually(lambda: registry.get_sample_value("purgatory_source_up", labels) == 0, "it is stale")
                assert (registry.get_sample_value("purgatory_source_staleness_seconds", labels) or 0) >= 4
                await eventually(lambda: "is stale: 'broker 2\\x1b is down'" in caplog.text, "the log says so")
            await eventually(lambda: not host.sources.attached, "the source is gone")
            assert registry.get_sample_value("purgatory_source_up", labels) == 0
        assert "source 'a' ('kafka/*') is" in caplog.text
        host.source_links.restarts["a"] = 3
        assert registry.get_sample_value("purgatory_source_restarts_total", {"source": "a"}) == 3


async def test_a_daemon_that_shuts_down_lets_its_sources_go() -> None:
    async with serving() as served, attached(served) as (_, link):
        asked = served.stub.GetSourceEnds(source_pb2.GetSourceEndsRequest(topics=["kafka/orders"]))
        assert isinstance(await next_of(link), EndsWanted)
        await drain(served.host, 1.0)
        with pytest.raises(Unavailable, match="shutting down"):
            await next_of(link)
        with refused(grpc.StatusCode.UNAVAILABLE):
            await asked
        call = served.stub.AttachSource()
        hello = source_pb2.SourceHello(name="b", topic_prefixes=["kafka/"])
        await call.write(source_pb2.AttachSourceRequest(hello=hello))
        with refused(grpc.StatusCode.UNAVAILABLE, "shutting down"):
            assert await call.read() is grpc.aio.EOF
            await call


async def test_status_and_partitions_say_what_a_source_cannot_see() -> None:
    async with serving() as served, attached(served) as (client, link):
        for number in range(2):
            await served.high_watermark("kafka/orders", 5, number)
        stale = [StaleMarks("kafka/orders", True, [0], 2_000, "broker 2 is down")]
        await link.report(SourceState.STALE, "down", stale, lag_ms=20)
        sources = served.host.sources
        await eventually(lambda: [one.state for one in sources] == [source_table.STALE], "the report is taken")
        (source,) = (await client.status()).sources
        assert (source.name, source.state, source.reason, source.attached) == ("a", "stale", "down", 1)
        assert (source.lag, source.stale_partitions, source.restarts) == (0.02, 1, None)
        assert source.stale_for is not None
        seen = await client.partition("kafka/orders-0")
        assert seen.stale_for is not None
        assert seen.stale_reason == "broker 2 is down"
        listed = (await served.stub.ListPartitions(wire.ListPartitionsRequest())).partitions
        assert [one.stale_reason for one in listed] == ["broker 2 is down", ""]


async def until_state(client: AsyncClient, state: str) -> None:
    """Return once the only source is in this state."""

    async def is_reached() -> bool:
        return [one.state for one in (await client.status()).sources] == [state]

    await eventually(is_reached, f"the source is {state}")


async def test_a_source_before_and_after_the_daemon_is_killed(tmp_path: Path, run_daemon: RunDaemon) -> None:
    """The restarted daemon sends the demand of waits from the journal."""
    daemon = await run_daemon("--data-dir", str(tmp_path / "data"))
    async with AsyncClient(daemon.address) as client, client.attach_source("thermometer", ["room/"]) as link:
        batch = batches.produce(["room/kitchen-0"], offsets=[21], indexes=[0], timeouts_ms=[600_000])
        await client.register("s", 1, batch)
        told = await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)
        assert told == ([("room/kitchen", 0)], [])
        copy_files(tmp_path / "data", tmp_path / "copy")
        await daemon.stop()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)
    daemon = await run_daemon("--data-dir", str(tmp_path / "copy"))
    async with AsyncClient(daemon.address) as client, client.attach_source("thermometer", ["room/"]) as link:
        told = await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)
        assert told == ([("room/kitchen", 0)], [])
        await client.advance("room/kitchen-0", high_watermark=5)
        reporting = asyncio.create_task(_report_stale(link))
        await until_state(client, "stale")
        show = await asyncio.to_thread(purgatory, "show", "room/kitchen-0", address=daemon.address)
        status = await asyncio.to_thread(purgatory, "status", address=daemon.address)
        page = (await asyncio.to_thread(fetch_page, daemon, "/metrics"))[1]
        reporting.cancel()
    assert "stale for 1" in show.stdout
    assert "battery" in show.stdout
    assert "thermometer" in status.stdout
    assert "stale" in status.stdout
    assert 'purgatory_source_up{principal="",source="thermometer"} 0.0' in page
    assert "source 'thermometer' ('room/*') is" in daemon.log


async def _report_stale(link: SourceLink) -> None:
    """Report once a second, as every source does: nothing has been visible for a minute."""
    while True:
        await link.report(SourceState.STALE, "battery", [StaleMarks(stale_ms=60_000, reason="battery")])
        await asyncio.sleep(0.5)
