"""Waits for conditions that only polling can observe. The limit is generous, because the machine may be busy."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, overload

from purgatory_client.unary import SingleCalls

T = TypeVar("T")
Description = str | Callable[[], str]
Exceptions = type[Exception] | tuple[type[Exception], ...]

ITS_CONDITION: Final = "the condition holds"
EVERY_S: Final = 0.005
"""The first pause. Later ones grow with the time waited, so that polling takes little time from the awaited work."""
EVERY_S_MAX: Final = 0.1
PATIENCE_S: Final = 60.0
"""Seconds after which a test gives up on anything that should happen soon."""


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]], what: Description = ITS_CONDITION, but: Exceptions = ()
) -> T: ...
@overload
async def eventually(
    condition: Callable[[], T], what: Description = ITS_CONDITION, but: Exceptions = (), every_s: float = EVERY_S
) -> T: ...
async def eventually(
    condition: Callable[[], Any], what: Description = ITS_CONDITION, but: Exceptions = (), every_s: float = EVERY_S
) -> Any:
    """Poll until the condition returns a true value, and return that value. Exceptions in `but` mean: not yet.

    Raises AssertionError with `what` after `PATIENCE_S`.
    """
    begun_s = time.monotonic()
    while True:
        try:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
        except but:
            found = None
        if found:
            return found
        await asyncio.sleep(_pause_s(begun_s, every_s, what))


def wait_until(condition: Callable[[], T], what: Description = ITS_CONDITION, but: Exceptions = ()) -> T:
    """Do the same as `eventually` in a thread that may block."""
    begun_s = time.monotonic()
    while True:
        try:
            if found := condition():
                return found
        except but:
            pass
        time.sleep(_pause_s(begun_s, EVERY_S, what))


async def until_pending(client: SingleCalls, count: int, but: Exceptions = ()) -> None:
    async def is_reached() -> bool:
        return sum(kind.pending for kind in (await client.status()).kinds) == count

    await eventually(is_reached, f"{count} operations are pending", but)


def _pause_s(begun_s: float, every_s: float, what: Description) -> float:
    """The time until the next look: a twentieth of the time waited so far."""
    waited_s = time.monotonic() - begun_s
    assert waited_s < PATIENCE_S, f"not within {PATIENCE_S:.0f} s: {what if isinstance(what, str) else what()}"
    return min(max(every_s, waited_s / 20), EVERY_S_MAX)
