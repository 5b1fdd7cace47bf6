"""Unary waits whose caller loses its token or its role while they are pending."""

import asyncio
from pathlib import Path

import grpc
import pytest

from purgatory.service.access.tokens import add_token
from purgatory.service.settings import HostSettings, SessionSettings
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.access.guarded import POLICY, guarding
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import high_watermark, produce

WAITS = 300
"""More than are checked in one slice."""


@pytest.mark.parametrize("lost", ["token", "role"])
async def test_a_pending_wait_ends_when_its_caller_is_refused(tmp_path: Path, lost: str) -> None:
    often = HostSettings(session=SessionSettings(heartbeat_interval_ms=80))
    async with guarding(tmp_path, host_settings=often) as guarded:
        refused_token, other_token = (add_token(guarded.tokens_file, name) for name in ("wait", "root"))
        guarded.access.reload()
        engine = guarded.host.engine
        async with guarded.caller("wait", refused_token) as caller, guarded.caller("root", other_token) as other:
            request = wire.WaitRequest(operation=produce(1, "mine-1", 1, timeout_ms=600_000))
            revoked = [asyncio.ensure_future(caller.call("Wait", request)) for _ in range(WAITS)]
            kept = asyncio.ensure_future(other.call("Wait", request))
            await eventually(lambda: engine.pending == WAITS + 1, "all wait")
            if lost == "token":
                lines = guarded.tokens_file.read_text("utf-8").splitlines()
                guarded.tokens_file.write_text(lines[-1] + "\n", "utf-8")
                guarded.access.reload()
            else:
                guarded.use_policy(POLICY.replace('to = ["wait"]', 'to = ["nobody-else"]'))
            done, _ = await asyncio.wait(revoked, timeout=PATIENCE_S)
            assert len(done) == WAITS
            code = grpc.StatusCode.UNAUTHENTICATED if lost == "token" else grpc.StatusCode.PERMISSION_DENIED
            assert {one.exception().code() for one in revoked} == {code}  # type: ignore[union-attr]
            assert engine.pending == 1
            await other.call("Advance", wire.AdvanceRequest(rows={"events": [high_watermark("mine-1", 1)]}))
            await kept
