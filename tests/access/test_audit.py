"""The audit log: its content, its bounds, and protection against control characters in names."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from purgatory.service.access.audit import AUDIT, LINES_AT_ONCE_MAX, NAME, PRINCIPALS_KEPT, UNAUTHENTICATED, Audit
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.access.guarded import guarding
from tests.kit.messages import advance_request, high_watermark, produce, register_batch
from tests.kit.served_host import refused


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:  # noqa: ANN401 - a function
    """Return the parsed lines of the audit log."""
    caplog.set_level(logging.INFO, AUDIT.name)
    return lambda: [json.loads(record.getMessage()) for record in caplog.records if record.name == AUDIT.name]


async def test_a_line_says_who_what_and_why(tmp_path: Path, lines: Any) -> None:  # noqa: ANN401 - see above
    """The refused events of a batch are one line; names cannot write escape sequences."""
    async with guarding(tmp_path) as served, served.caller("advance") as pusher, served.caller("admin") as admin:
        before = len(lines())
        events = [high_watermark("\x1b[31myours", 1), high_watermark("mine-1", 1), high_watermark("yours-2", 1)]
        await pusher.call("Advance", advance_request(*events))
        await admin.call("Cancel", wire.CancelRequest(key="mine/1"))
        told, acted = lines()[before:]
        about = [told[key] for key in ("audit", "reason", "principal", "role", "count", "call")]
        assert about == ["refused", NAME, "advance", "advance", 2, "Advance"]
        assert "[31myours" in told["name"]
        assert "\x1b" not in told["name"]
        assert told["peer"].startswith("ipv4:127.0.0.1:")
        assert (acted["audit"], acted["principal"], acted["call"]) == ("cancelled", "admin", "Cancel")
        assert served.audit.refusals[NAME] == 2


@pytest.mark.parametrize("call", ["Cancel", "Extend"])
async def test_an_act_on_a_session_of_others(tmp_path: Path, lines: Any, call: str) -> None:  # noqa: ANN401 - see above
    """It names the session's owner; the owner's own act has no line."""
    request: Any = wire.CancelRequest if call == "Cancel" else partial(wire.ExtendRequest, timeout_ms=60_000)
    async with guarding(tmp_path) as served, served.caller("root") as root, served.caller("wait") as owner:
        operations = [produce(1, "mine-1", 9, timeout_ms=600_000)]
        batch = register_batch(*operations)
        await owner.call("Register", wire.RegisterRequest(session_id="s", batch=batch))
        before = len(lines())
        await root.call(call, request(session_id="s", principal="wait", operation_ids=[1]))
        await owner.call(call, request(session_id="s", operation_ids=[1]))
        [acted] = lines()[before:]
        about = [acted[key] for key in ("audit", "principal", "name", "call")]
        assert about == ["cancelled" if call == "Cancel" else "extended", "root", "sessions of 'wait'", call]


async def test_refused_caller_without_principal_is_logged_with_its_peer(tmp_path: Path, lines: Any) -> None:  # noqa: ANN401 - see above
    async with guarding(tmp_path) as served, served.caller("nobody") as caller:
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            await caller.call("Acknowledge", wire.AcknowledgeRequest())
        told = lines()[-1]
        assert (told["reason"], told["call"]) == (UNAUTHENTICATED, "Acknowledge")
        assert "peer" in told
        assert "principal" not in told


def test_a_flood_fills_no_disk(lines: Any) -> None:  # noqa: ANN401 - see above
    """Each principal has a burst and then a few lines per second; the next line has the number of lines left out."""
    now_s = 0.0
    audit = Audit(lambda: now_s)
    for _ in range(1_000):
        audit.refused(NAME, "loud", role="wait", name="x")
    audit.refused(NAME, "quiet", role="wait", name="x")
    assert [line["principal"] for line in lines()] == ["loud"] * int(LINES_AT_ONCE_MAX) + ["quiet"]
    now_s = 60.0
    audit.refused(NAME, "loud", role="wait", name="x")
    assert lines()[-1]["left_out"] == 1_000 - LINES_AT_ONCE_MAX
    assert audit.refusals[NAME] == 1_002


def test_many_principals_take_no_memory() -> None:
    audit = Audit(lambda: 0.0)
    AUDIT.disabled = True
    try:
        for number in range(3 * PRINCIPALS_KEPT):
            audit.refused(NAME, str(number))
    finally:
        AUDIT.disabled = False
    assert len(audit._paces) <= PRINCIPALS_KEPT


def test_refusals_and_reloads_are_counted_by_reason() -> None:
    audit = Audit()
    audit.refusals[NAME] += 3
    audit.reloads["policy", "refused"] += 1
    samples = {
        (sample.name, *sample.labels.values()): sample.value for metric in audit.collect() for sample in metric.samples
    }
    assert samples["purgatory_access_refusals_total", NAME] == 3
    assert samples["purgatory_access_refusals_total", UNAUTHENTICATED] == 0
    assert samples["purgatory_access_reloads_total", "policy", "refused"] == 1
