"""Sources under a policy: withdrawn roles apply to open streams, and sources are visible only with the right role."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from purgatory.service.sources import source_links
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import source_pb2
from tests.access.guarded import POLICY, Caller, guarding
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.served_host import refused

REPORT = source_pb2.AttachSourceRequest(report=source_pb2.SourceReport(state=source_pb2.SOURCE_STATE_LIVE))


async def attach(caller: Caller) -> Any:  # noqa: ANN401 - a call
    """Attach a source that feeds `mine`, and read its first demand."""
    stream = caller.stream("AttachSource")
    hello = source_pb2.SourceHello(name="a source", topic_prefixes=["mine-"])
    await stream.write(source_pb2.AttachSourceRequest(hello=hello))
    if await asyncio.wait_for(stream.read(), PATIENCE_S) is grpc.aio.EOF:
        await stream
    await stream.write(REPORT)
    return stream


@pytest.mark.parametrize(
    "policy",
    [
        POLICY.replace('topics = ["mine-*"]', 'topics = ["mine-1"]'),
        POLICY.replace('to = ["advance"]', 'to = ["nobody else"]'),
    ],
    ids=["narrower", "none"],
)
async def test_a_role_that_is_withdrawn_ends_the_stream(policy: str, tmp_path: Path) -> None:
    async with guarding(tmp_path) as served, served.caller("advance") as caller:
        stream = await attach(caller)
        served.use_policy(policy)
        await stream.write(REPORT)
        with refused(grpc.StatusCode.PERMISSION_DENIED, "needs the role advance"):
            await asyncio.wait_for(stream.read(), PATIENCE_S)
            await stream
        await eventually(lambda: not served.host.sources.attached, "the source is gone")


async def test_status_tells_of_sources_to_those_who_may_observe_what_they_feed(tmp_path: Path) -> None:
    async with guarding(tmp_path) as served, served.caller("advance") as caller:
        await attach(caller)
        for principal, sees in (("observe", True), ("root", True), ("wait", False), ("advance", False)):
            async with served.caller(principal) as other:
                status = await other.call("GetStatus", wire.GetStatusRequest())
                assert [one.principal for one in status.sources] == (["advance"] if sees else [])


async def test_two_principals_with_one_name_are_two_sources(tmp_path: Path) -> None:
    async with guarding(tmp_path) as served, served.caller("advance") as caller, served.caller("root") as root:
        await attach(caller)
        await attach(root)
        status = await root.call("GetStatus", wire.GetStatusRequest())
        assert sorted((one.name, one.principal) for one in status.sources) == [
            ("a source", "advance"),
            ("a source", "root"),
        ]


async def test_sources_of_one_principal_leave_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources that the daemon runs itself have no share."""
    monkeypatch.setattr(source_links, "SOURCES_MAX", 6)
    async with (
        guarding(tmp_path) as served,
        served.caller("advance") as caller,
        served.caller("root") as root,
    ):
        streams = [await attach(caller) for _ in range(4)]
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "you have 4 sources attached"):
            await attach(caller)
        streams.append(await attach(root))
        served.host.source_links.supervised_as = "advance"
        streams.append(await attach(caller))
        assert served.host.sources.attached == 6
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "6 sources are attached"):
            await attach(root)
