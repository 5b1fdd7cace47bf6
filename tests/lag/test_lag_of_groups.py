"""The lag of groups over HTTP, in metrics and with `purgatory lag`, with a source that a test plays."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from purgatory_client import AsyncClient
from purgatory_client.sources.source_link import StaleMarks

from purgatory.extensions.lag import extension
from purgatory.service.access.tokens import add_token
from tests.kit.daemon import RunDaemon, access_flags, daemon_environment
from tests.kit.eventually import eventually
from tests.kit.programs import run_program
from tests.ready.gate_kit import TOPIC, log_source, send

FOLLOWED = ("--lag-groups", "billing", "--lag-poll-ms", "100")


async def until(
    http_address: str, fits: Callable[[dict[str, Any]], object], group: str = "billing", token: str = ""
) -> Any:  # noqa: ANN401 - JSON
    """Ask until the first partition of the group fits, and return it."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def found() -> Any:  # noqa: ANN401 - JSON
        rows = (await send("GET", http_address, f"group={group}", headers, page="lag"))[1]["partitions"]
        return rows[0] if rows and fits(rows[0]) else None

    return await eventually(found)


async def test_command_and_metrics_show_position_age_and_pace(run_daemon: RunDaemon) -> None:
    """Metrics only of groups that the setting names. A group that falls behind never catches up."""
    daemon = await run_daemon(*FOLLOWED)

    async def run(group: str, code: int) -> list[str]:
        command = [sys.executable, "-m", "purgatory", "lag", group, "--http", f"http://{daemon.http_address}"]
        return (await asyncio.to_thread(run_program, command, code=code, env=daemon_environment())).stdout.splitlines()

    async with log_source(daemon.address, 1_210, 5) as source, AsyncClient(daemon.address) as client:
        await source.processed(4, 5)
        await client.advance("kafka/audit/orders-0", high_watermark=1)
        assert len((await send("GET", daemon.http_address, "group=audit", page="lag"))[1]["partitions"]) == 1
        row = await until(daemon.http_address, lambda row: row.get("endPerSecond") == 0)
        assert (row["isAtLeast"], "ageErrorMs" in row, "caughtUpInMs" in row) == (True, False, False)
        [_, behind, there] = [line.split() for line in await run("billing", 0)]
        assert behind[:6] == [f"{TOPIC}-0", "4", "1,210", "1,206", "0.0", "0.0"]
        assert behind[-6:] == ["or", "more", "not", "at", "this", "pace"]
        assert there[:4] + there[-3:] == [f"{TOPIC}-1", "5", "5", "0", "-", "caught", "up"]
        assert await run("nobody", 16) == []
        async with aiohttp.ClientSession() as http, http.get(f"http://{daemon.http_address}/metrics") as page:
            text = await page.text()
        assert 'purgatory_group_lag_offsets{group="billing",partition="0",topic="orders"} 1206.0' in text
        assert 'group="audit"' not in text
        await source.processed(604)
        row = await until(daemon.http_address, lambda row: row.get("positionPerSecond", 0) > 0)
        assert row["caughtUpInMs"] == pytest.approx(row["lag"] * 1_000 / row["positionPerSecond"], rel=0.01)
        source.ends[0] = 5_000
        row = await until(daemon.http_address, lambda row: row["endPerSecond"] > row["positionPerSecond"])
        assert "caughtUpInMs" not in row


async def test_lag_is_unknown_if_the_source_fails(run_daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it does not answer, cannot see the group's position, or is gone. A group that was behind is still behind."""
    monkeypatch.setattr(extension, "ANSWER_S", 0.3)
    daemon = await run_daemon(*FOLLOWED)
    async with log_source(daemon.address, 10) as source:
        await source.processed(10)
        await until(daemon.http_address, lambda row: row.get("lag") == 0)
        source.answers.clear()
        row = await until(daemon.http_address, lambda row: "lag" not in row)
        assert (row["position"], row["end"], "has not answered" in row["reason"]) == (10, 10, True)
        source.answers.set()
        await until(daemon.http_address, lambda row: row.get("lag") == 0)
        source.stale = [StaleMarks(TOPIC, stale_ms=5, reason="not authorized")]
        await source.report()
        await until(daemon.http_address, lambda row: "lag" not in row and "not authorized" in row["reason"])
        source.ends[0] = 12
        await until(daemon.http_address, lambda row: row.get("lag") == 2 and "not authorized" in row["reason"])
    await until(daemon.http_address, lambda row: row.get("lag") == 2 and "not attached" in row.get("reason", ""))


async def test_questions_of_one_caller_leave_room_for_those_of_others(
    run_daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extension, "OWN_MAX", 1)
    flags = access_flags(tmp_path, '[[grant]]\nto = ["*"]\nroles = ["wait", "advance", "observe"]\ntopics = ["*"]\n')
    web, greedy = (add_token(tmp_path / "tokens", one) for one in ("web", "greedy"))
    daemon = await run_daemon(*flags, "--lag-poll-ms", "100")
    async with log_source(daemon.address, 10, token=web), AsyncClient(daemon.address, token=web) as client:
        for asked in (("billing", web), ("audit", greedy), ("mail", greedy)):
            await client.advance(f"kafka/{asked[0]}/orders-0", high_watermark=1)
            await until(daemon.http_address, lambda row: "endPerSecond" in row, *asked)
        for group, token, is_followed in (("billing", web, True), ("audit", greedy, False)):
            assert ("endPerSecond" in await until(daemon.http_address, bool, group, token)) is is_followed


async def test_caller_sees_only_marks_that_it_may_wait_on(run_daemon: RunDaemon, tmp_path: Path) -> None:
    policy = '[[grant]]\nto = ["web"]\nroles = ["wait"]\ntopics = ["kafka/billing/orders"]\n'
    policy += '[[grant]]\nto = ["source"]\nroles = ["advance", "observe"]\ntopics = ["kafka/*"]\n'
    flags = access_flags(tmp_path, policy)
    web, source = ({"Authorization": f"Bearer {add_token(tmp_path / 'tokens', one)}"} for one in ("web", "source"))
    daemon = await run_daemon(*flags)
    async with AsyncClient(daemon.address, token=source["Authorization"][7:]) as client:
        for mark in ("billing/orders-0", "billing/payments-0", "audit/orders-0"):
            await client.advance(f"kafka/{mark}", high_watermark=1)
    status, answer = await send("GET", daemon.http_address, "group=billing", web, page="lag")
    assert (status, [row["mark"] for row in answer["partitions"]]) == (200, [TOPIC])
    assert (await send("GET", daemon.http_address, "group=audit", web, page="lag"))[0] == 403
    assert (await send("GET", daemon.http_address, "group=billing", page="lag"))[0] == 401
