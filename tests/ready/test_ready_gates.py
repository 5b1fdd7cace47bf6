"""Ready gates of a daemon: targets, progress, limits, and the binding of a name."""

import asyncio
from http import HTTPStatus
from pathlib import Path

import pytest
from purgatory_client.aio import AsyncClient
from purgatory_client.sources.source_link import StaleMarks

from purgatory.extensions.ready import extension
from purgatory.service.access.tokens import add_token
from tests.kit.daemon import RunDaemon, access_flags
from tests.kit.eventually import eventually
from tests.kit.recorded import assert_recorded, cases_of
from tests.ready.gate_kit import TOPIC, ask, log_source, send, until

QUERIES = Path(__file__).with_name("queries.txt")

READY, WAITING = HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE


async def test_a_gate_opens_at_the_end_of_its_first_request(run_daemon: RunDaemon) -> None:
    """The answer is 503 with lag, then with pace and ETA, until everything that was there at the first request is
    processed; what is written later does not close the gate. Another name has a target of its own.
    """
    daemon = await run_daemon()
    async with log_source(daemon.address, 10, 20, 0) as source:
        await source.processed(1, 0)
        assert await ask(daemon.http_address) == (WAITING, {"name": "web", "ready": False, "lag": 29})
        source.ends[0] = 100
        await source.processed(4, 5)
        answer = await until(daemon.http_address, lambda _, gate: "pacePerSecond" in gate)
        assert answer["lag"] == 21
        # 8 of 29 took as long as the pace says, so the 21 take 21/8 of that.
        assert answer["estimatedRemainingMs"] == pytest.approx(21 / answer["pacePerSecond"] * 1_000, rel=0.01, abs=2)
        await source.processed(10, 19)
        assert (await ask(daemon.http_address))[0] == WAITING
        await source.processed(11, 20)
        assert await ask(daemon.http_address) == (READY, {"name": "web", "ready": True, "lag": 0})
        source.ends[1] = 1_000
        assert await ask(daemon.http_address) == (READY, {"name": "web", "ready": True, "lag": 0})
        assert await ask(daemon.http_address, name="api") == (WAITING, {"name": "api", "ready": False, "lag": 89 + 980})
        assert source.asked == 2


async def test_concurrent_first_requests_agree_on_a_target(run_daemon: RunDaemon) -> None:
    """Requests that arrive while the source looks up the target get the same one: there is one wait. It is registered
    also if the callers of the first requests have given up.
    """
    daemon = await run_daemon()
    async with log_source(daemon.address, 10) as source, AsyncClient(daemon.address) as client:
        source.answers.clear()
        requests = [asyncio.create_task(ask(daemon.http_address)) for _ in range(3)]
        await eventually(lambda: source.asked > 0, "the source is asked")
        for request in requests:
            request.cancel()
        source.answers.set()

        async def is_registered() -> bool:
            return len([one async for one in client.operations()]) == 1

        await eventually(is_registered, "the wait is registered")
        source.ends[0] = 50
        assert (await ask(daemon.http_address))[1]["lag"] == 10
        assert await is_registered()


async def test_request_stops_waiting_for_a_silent_source(
    run_daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "LOOKUP_S", 0.05)
    daemon = await run_daemon()
    async with log_source(daemon.address, 10) as source:
        source.answers.clear()
        status, gate = await ask(daemon.http_address)
        assert (status, gate["reason"]) == (WAITING, "the source has not answered within 0.05 s where the logs end")


async def test_an_empty_log_is_ready_for_good(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
    async with log_source(daemon.address, 0) as source:
        assert (await ask(daemon.http_address))[0] == READY
        source.ends[0] = 7
        assert (await ask(daemon.http_address))[0] == READY
        assert source.asked == 1


async def test_a_broken_history_needs_a_new_target(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
    async with log_source(daemon.address, 10, epoch=1) as source:
        await source.processed(4)
        assert (await ask(daemon.http_address))[1]["lag"] == 6
        source.ends[0] = 12
        await source.break_off(2)
        assert (await ask(daemon.http_address))[1]["lag"] == 10
        await source.processed(12)
        assert (await ask(daemon.http_address))[0] == READY
        await source.break_off(1)
        assert (await ask(daemon.http_address))[0] == READY


async def test_a_target_of_an_older_history_is_not_kept(run_daemon: RunDaemon) -> None:
    """If the wait fails at once, because the source's answer is older than the group's reset, the next request asks
    again.
    """
    daemon = await run_daemon()
    async with log_source(daemon.address, 10, epoch=2) as source:
        await source.processed(4)
        source.epoch = 1
        status, gate = await ask(daemon.http_address)
        assert (status, gate["reason"]) == (WAITING, extension.ENDED_AT_ONCE)
        source.epoch = 2
        assert (await ask(daemon.http_address))[1]["lag"] == 6


async def test_lags_are_counted_beyond_64_bits(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
    end = 2**60
    async with log_source(daemon.address, *[end] * 12) as source:
        await source.processed(0)
        assert (await ask(daemon.http_address))[1]["lag"] == 12 * end
        await source.processed(1_000)
        gate = await until(daemon.http_address, lambda _, gate: "pacePerSecond" in gate)
        assert gate["lag"] == 12 * end - 1_000
        assert gate["estimatedRemainingMs"] == pytest.approx(gate["lag"] / gate["pacePerSecond"] * 1_000, rel=0.01)


async def test_waiting_gate_gives_the_stale_mark_as_its_reason(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
    async with log_source(daemon.address, 10) as source:
        await source.processed(4)
        await ask(daemon.http_address)
        source.stale = [StaleMarks(reason="broker 2 is down")]
        await source.report()
        gate = await until(daemon.http_address, lambda _, gate: "reason" in gate)
        assert f"{TOPIC}-0 has been stale for " in gate["reason"]
        assert "broker 2 is down" in gate["reason"]


async def test_without_a_source_it_says_so_and_asks_again(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
    status, gate = await ask(daemon.http_address)
    assert (status, gate["ready"]) == (WAITING, False)
    assert "no source that publishes 'kafka/billing/orders' is attached" in gate["reason"]
    async with log_source(daemon.address, 10):
        await until(daemon.http_address, lambda _, gate: gate.get("lag") == 10)


async def test_several_gates_have_targets_of_their_own(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
    async with log_source(daemon.address, 10) as source:
        await ask(daemon.http_address, name="pod-1")
        source.ends[0] = 15
        names = ",".join(f"pod-{number}" for number in range(60))
        status, answer = await ask(daemon.http_address, names=names)
        assert (status, answer["ready"]) == (WAITING, False)
        assert [gate["lag"] for gate in answer["gates"]] == [15, 10, *[15] * 58]
        await source.processed(10)
        status, answer = await ask(daemon.http_address, names="pod-0,pod-1")
        assert (status, [gate["ready"] for gate in answer["gates"]]) == (WAITING, [False, True])
        await source.processed(15)
        assert (await ask(daemon.http_address, names=names))[0] == READY


async def test_gate_is_a_session_that_is_listed_and_closed(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon()
    async with log_source(daemon.address, 10) as source, AsyncClient(daemon.address) as client:
        await source.processed(4)
        await ask(daemon.http_address)
        [wait] = [one async for one in client.operations()]
        assert (wait.session_id, [item.name for item in wait.items]) == ("ready/web", [f"{TOPIC}-0"])
        source.ends[0] = 20
        await client.close_session("ready/web")
        assert (await ask(daemon.http_address))[1]["lag"] == 16


async def test_gate_is_forgotten_after_its_time_to_live(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon("--session-ttl-ms", "100")
    async with log_source(daemon.address, 10) as source, AsyncClient(daemon.address) as client:
        await ask(daemon.http_address)

        async def is_forgotten() -> bool:
            return (await client.status()).sessions == 0

        await eventually(is_forgotten, "nobody asks, and the gate is forgotten")
        assert [one async for one in client.operations()] == []
        source.ends[0] = 30
        assert (await ask(daemon.http_address))[1]["lag"] == 30


async def test_request_that_makes_no_sense_creates_no_gate(run_daemon: RunDaemon) -> None:
    """As in queries.txt."""
    daemon = await run_daemon()
    many = ",".join(f"m{number}" for number in range(1_001))
    answers = [await send("GET", daemon.http_address, case.replace("MANY", many)) for case in cases_of(QUERIES)]
    assert {status for status, _ in answers} == {HTTPStatus.BAD_REQUEST}
    assert_recorded(QUERIES, [answer["message"] for _, answer in answers])
    async with AsyncClient(daemon.address) as client:
        assert (await client.status()).sessions == 0


async def test_a_name_is_bound_to_its_marks_and_their_number_is_limited(run_daemon: RunDaemon) -> None:
    """Other topics under the same name are refused, also if they include those of the gate, before and after it is
    ready. Beyond the limit of sessions, new names are refused, and old ones work.
    """
    daemon = await run_daemon("--limits-sessions-max", "1", "--shares-times-free", "0")
    others = ("topics=invoices", "group=billing&topics=orders,invoices")
    async with log_source(daemon.address, 10) as source:
        await ask(daemon.http_address)
        for query in others:
            status, answer = await ask(daemon.http_address, query)
            assert status == HTTPStatus.BAD_REQUEST
            assert "purgatory close ready/web" in answer["message"]
        assert (await ask(daemon.http_address, name="api"))[0] == HTTPStatus.TOO_MANY_REQUESTS
        await source.processed(10)
        assert (await ask(daemon.http_address, f"marks={TOPIC},{TOPIC}"))[0] == READY
        for query in others:
            assert (await ask(daemon.http_address, query))[0] == HTTPStatus.BAD_REQUEST
    status, _ = await send("POST", daemon.http_address, "name=web&topics=orders")
    assert status == HTTPStatus.METHOD_NOT_ALLOWED


async def test_a_policy_decides_who_may_ask_and_keeps_names_apart(run_daemon: RunDaemon, tmp_path: Path) -> None:
    """A caller needs the role wait on the marks, and its names are not those of other principals."""
    flags = access_flags(
        tmp_path,
        'loopback_principal = "root"\n'
        '[[grant]]\nto = ["root"]\nroles = ["wait", "advance", "observe", "admin"]\ntopics = ["*"]\nkeys = ["*"]\n'
        '[[grant]]\nto = ["billing"]\nroles = ["wait"]\ntopics = ["kafka/billing/*"]\n',
    )
    billing = {"Authorization": f"Bearer {add_token(tmp_path / 'tokens', 'billing')}"}
    daemon = await run_daemon(*flags)
    async with log_source(daemon.address, 10) as source:
        assert (await ask(daemon.http_address))[1]["lag"] == 10
        source.ends[0] = 20
        assert (await ask(daemon.http_address, headers=billing))[1]["lag"] == 20
        status, answer = await ask(daemon.http_address, "topics=orders", billing)
        assert status == HTTPStatus.FORBIDDEN
        assert "needs the role wait for topic 'kafka/orders'" in answer["message"]
        status, _ = await ask(daemon.http_address, headers={"Authorization": "Bearer made up"})
        assert status == HTTPStatus.UNAUTHORIZED
