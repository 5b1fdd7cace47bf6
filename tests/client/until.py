"""Waits for conditions that only an inspection of the daemon shows."""

from purgatory_client.unary import SingleCalls

from tests.service.serving import eventually


async def until_pending(client: SingleCalls, count: int) -> None:
    """Return when `count` operations are pending at the daemon."""

    async def reached() -> bool:
        return sum(kind.pending for kind in (await client.status()).kinds) == count

    await eventually(reached, f"{count} operations are pending")
