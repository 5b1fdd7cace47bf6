"""Composites through the Python client on the real daemon, and between wire and engine."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from purgatory_client import AsyncClient, OperationKind, Result, all_of, at_least, batches, errors, mark, signal, waits
from purgatory_client.results import UNLESS_REACHED

from purgatory.engine import codes
from purgatory.engine.views import ItemView, PendingView
from purgatory.service.access.account import Accounts
from purgatory.service.access.roles import Grants, Names
from purgatory.service.translate.operations import parts_from_columns
from purgatory.service.visibility import may_see
from purgatory.v1 import operation_pb2
from tests.client.cli.test_commands import purgatory
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import until_pending

LONG = 60.0


@pytest.fixture
async def client(shared_daemon: DaemonProcess) -> AsyncIterator[AsyncClient]:
    """A client of the shared daemon; each test uses names of its own."""
    async with AsyncClient(shared_daemon.address) as client:
        yield client


def decided(result: Result) -> list[tuple[str, int, int]]:
    """Name, error code and reached value of each term that decided."""
    return [(one.name, one.error_code, one.reached_offset) for one in result.decided_by]


async def test_result_names_the_terms_that_decided(client: AsyncClient) -> None:
    """It also has the offset that each reached. The failure arm has its own error, unlike a lost term."""
    condition = at_least(2, mark("each-3", 42), mark("pg/each/r1", 7), signal("each-job"))
    waiting = asyncio.create_task(client.wait(condition, unless=signal("each-no"), timeout=LONG))
    failing = asyncio.create_task(client.wait(mark("each-3", 51), unless=[signal("each-no", 2)], timeout=LONG))
    losing = asyncio.create_task(client.wait(all_of(mark("lost-0", 9), signal("each-job")), timeout=LONG))
    await until_pending(client, 3)
    await client.advance("each-3", high_watermark=50)
    assert (await client.signal_key("each-job")).ended == [1]
    satisfied = (await waiting).raise_for_outcome()
    assert satisfied.kind is OperationKind.COMPOSITE
    assert decided(satisfied) == [("each-3", 0, 50), ("each-job", 0, 1)]
    assert [(one.name, one.error_code) for one in satisfied.items[1::2]] == [("pg/each/r1", 7), ("each-no", 7)]
    await client.signal_key("each-no", 2)
    with pytest.raises(errors.UnlessReached, match=r"composite failed.*each-no: 2 of 2 \(error 1002\)") as failed:
        (await failing).raise_for_outcome()
    assert isinstance(failed.value, errors.WaitFailed)
    assert decided(failed.value.result) == [("each-no", UNLESS_REACHED, 2)]
    await client.advance("lost-0", removed=True)
    with pytest.raises(errors.WaitFailed) as lost:
        (await losing).raise_for_outcome()
    assert not isinstance(lost.value, errors.UnlessReached)
    assert [one[:2] for one in decided(lost.value.result)] == [("lost-0", 3)]


async def test_an_expired_wait_names_only_what_was_missing(client: AsyncClient) -> None:
    arms: dict[str, Any] = {"unless": [signal("late-no"), signal("late-nor")], "timeout": 0.05}
    one = waits.wait(signal("late-job"), **arms)
    batched = {"offsets": [1] * 5, "indexes": [0, 1, 0, 0, 1], "item_counts": [2, 1, 2], "timeouts_ms": [50]}
    many = await client.wait_many([], ["late-job", "late-no"], unless_counts=[1, 0, 1], **batched)
    for expired in (await client.wait(signal("late-job"), **arms), await client.wait_once(one), *many):
        with pytest.raises(errors.WaitExpired, match=r" s; late-job: 0 of 1 \(error 7\)$"):
            expired.raise_for_outcome()


def test_others_see_it_only_with_the_role_on_every_name() -> None:
    items = [ItemView(name, 7, 1, 0, -1) for name in (("orders", 3), ("job", -1))]
    view = PendingView(1, 1, codes.COMPOSITE, 0, 9, -1, items, 1, 0)
    admin = {"admin": Names(["orders", "job"])}
    seen = []
    for topics, keys in ((admin, {}), ({}, admin), (admin, admin)):
        account = Accounts().of("me")
        account.grants = Grants(topics, keys)  # type: ignore[arg-type]
        seen.append(may_see(account, None, view))
    assert seen == [False, False, True]


async def test_pending_composite_is_shown_with_both_arms(shared_daemon: DaemonProcess, client: AsyncClient) -> None:
    batch = batches.wait(["list-3"], ["list"], offsets=[42, 1], indexes=[0, 1], item_counts=[2], unless_counts=[1])
    await client.register("listed", 1, batch)
    listed = await asyncio.to_thread(purgatory, "ls", "--kind", "composite", address=shared_daemon.address)
    assert "list-3@42 unless list@1" in listed.stdout
    shown = await asyncio.to_thread(purgatory, "show", "listed/1", address=shared_daemon.address)
    assert shown.stdout.splitlines()[3:] == [
        "  until 1 of these 1 are true:", "  list-3: no mark reported of 42, waiting",
        "    held back: nothing has been reported for list-3 yet",
        "  unless one of these is true:", "  list: 0 of 1, waiting",
    ]  # fmt: skip
    [one] = [one async for one in client.operations(session_id="listed")]
    assert (one.required_terms, one.unless_count) == (1, 1)
    await client.close_session("listed")


def test_one_index_may_stand_for_all_items() -> None:
    """The engine and its listeners get an index for each item."""
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_COMPOSITE, keys=["k"], operation_id=[1, 2, 3], item_count=[1_500], offset=[4]
    )
    parts = list(parts_from_columns(columns))
    assert [run.batch.item_indexes for runs, _, _ in parts for run in runs] == [[0] * 1_500] * 3
