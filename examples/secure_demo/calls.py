"""The rows of the table: the caller, its credentials, its request, and whether it should be allowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from purgatory_client import AsyncClient, batches, waits
from purgatory_client.errors import PurgatoryClientError

from examples.secure_demo.setting import Scene

SAW_LENGTH_MAX: Final = 96
SESSION: Final = "billing-invoices"
"""Billing's session, in which one operation is always pending."""

Ask = Callable[[AsyncClient], Awaitable[str]]


@dataclass(frozen=True)
class Row:
    """One call and its outcome."""

    caller: str
    shows: str
    asks: str
    should: str
    """"allowed" or "refused"."""
    was: str
    saw: str


async def all_rows(scene: Scene) -> list[Row]:
    """Make all calls, in an order that explains the policy."""
    async with scene.client(scene.tokens["billing"], name="billing") as billing:
        pending = batches.produce(["orders-0"], offsets=[1_000], timeouts_ms=[600_000])
        registered = await billing.register(SESSION, 1, pending)
        assert registered.accepted == 1, registered
        return [
            *[await _row(*stranger) for stranger in _strangers(scene)],
            *[await _row(*member) for member in _members(scene)],
        ]


Call = tuple[str, str, str, str, Callable[[], AsyncClient], Ask]


def _strangers(scene: Scene) -> list[Call]:
    token = scene.tokens["billing"]
    authority = scene.authority.certificate_pem

    def without_tls() -> AsyncClient:
        return AsyncClient(scene.address, token=token, give_up_after=1.0)

    def without_certificate() -> AsyncClient:
        return AsyncClient(scene.address, tls_ca=authority, token=token, give_up_after=1.0)

    def of_another_authority() -> AsyncClient:
        return scene.client(token, scene.foreign, give_up_after=1.0)

    status = "status"
    connect = scene.client
    return [
        ("stranger", "no TLS", status, "refused", without_tls, _status),
        ("stranger", "no certificate", status, "refused", without_certificate, _status),
        ("stranger", "wrong authority", status, "refused", of_another_authority, _status),
        ("stolen laptop", "revoked certificate", status, "refused", lambda: connect(token, scene.revoked), _status),
        ("gateway", "no token", status, "refused", connect, _status),
        ("gateway", "unknown token", status, "refused", lambda: connect("pgt_guessed"), _status),
        ("intern", "token without role", status, "refused", _of(scene, "intern"), _status),
    ]


def _members(scene: Scene) -> list[Call]:
    def row(name: str, asks: str, should: str, ask: Ask) -> Call:
        return name, "its token", asks, should, _of(scene, name), ask

    return [
        row("leader", "advance orders", "allowed", partial(_advance, "orders-0", 42)),
        row("billing", "wait on orders", "allowed", partial(_wait, "orders-0", 42)),
        row("billing", "wait on payroll", "refused", partial(_wait, "payroll-0", 1)),
        row("billing", "advance orders", "refused", partial(_advance, "orders-0", 43)),
        row("leader", "wait on orders", "refused", partial(_wait, "orders-0", 42)),
        row("billing", "list own operations", "allowed", partial(_list, SESSION)),
        row("shipping", "list billing's operations", "refused", partial(_list, SESSION)),
        row("shipping", "read billing's results", "refused", partial(_read, SESSION)),
        row("shipping", "cancel billing's operation", "allowed", partial(_cancel, SESSION)),
        row("operator", "list all operations", "allowed", partial(_list, "")),
        row("operator", "cancel what waits on orders", "allowed", partial(_cancel_on, "orders-0")),
    ]


async def _row(caller: str, shows: str, asks: str, should: str, connect: Callable[[], AsyncClient], ask: Ask) -> Row:
    async with connect() as client:
        try:
            was, saw = "allowed", await ask(client)
        except PurgatoryClientError as error:
            was, saw = "refused", f"{type(error).__name__}: {error}"
    saw = " ".join(saw.split())
    return Row(
        caller, shows, asks, should, was, saw if len(saw) <= SAW_LENGTH_MAX else f"{saw[: SAW_LENGTH_MAX - 3]}..."
    )


def _of(scene: Scene, name: str) -> Callable[[], AsyncClient]:
    return lambda: scene.client(scene.tokens[name])


async def _status(client: AsyncClient) -> str:
    return f"version {(await client.status()).version}"


async def _advance(partition: str, high_watermark: int, client: AsyncClient) -> str:
    await client.advance(partition, high_watermark=high_watermark)
    return f"{partition} is at {high_watermark}"


async def _wait(partition: str, offset: int, client: AsyncClient) -> str:
    result = await client.wait_once(waits.produce({partition: offset}, timeout=5.0))
    return result.outcome.name.lower()


async def _list(session_id: str, client: AsyncClient) -> str:
    found = [operation async for operation in client.operations(session_id=session_id)]
    return f"{len(found)} operations"


async def _read(session_id: str, client: AsyncClient) -> str:
    async for collected in client.results(session_id):
        return f"results: {collected}"
    return "no results"


async def _cancel(session_id: str, client: AsyncClient) -> str:
    return f"{await client.cancel(session_id=session_id)} cancelled"


async def _cancel_on(partition: str, client: AsyncClient) -> str:
    return f"{await client.cancel(partition=partition)} cancelled"
