"""Records the calls to the engine in order: only here is the order of events exactly defined.

`EngineTap` is between the host and a real engine. It records the calls, and no results: the checker computes the
expected ones itself.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import Receipt
from purgatory.engine.calls import Apply, Call, CancelAll, CancelName, Register
from purgatory.engine.engine import Engine
from purgatory.engine.waiting.tables import Owner
from purgatory.engine.waiting.wakeups import UNLIMITED
from purgatory.service.sessions.session import Session


class EngineCall(NamedTuple):
    """A call of the engine. `owner`: its number, or -1."""

    call: Call | Literal["add_owner", "remove_owner"]
    owner: int
    now_ms: int
    stop: int = 0
    """Where the call stopped in its events or ids."""


class EngineTap:
    """Behaves like an engine towards its host. Owners are numbered in order of creation, because the engine reuses
    its ids.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers: dict[int, int] = {}
        self._owners: list[Owner] = []
        self.entries: list[EngineCall] = []
        self.session_ids: dict[int, str] = {}
        """Session ids of the owners that have registered operations. The owner of unary waits has none."""
        self.incarnations: dict[int, str] = {}
        """Incarnations of these sessions."""
        self.session_of: Callable[[int], Session | None] = lambda _: None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the engine has
        return getattr(self._engine, name)

    def owner_number(self, owner: Owner) -> int:
        return self._numbers[id(owner)]

    def add_owner(self, usage: AccountUsage | None = None) -> Owner:
        owner = self._engine.add_owner(usage)
        self._numbers[id(owner)] = len(self._owners)
        self._owners.append(owner)
        self.entries.append(EngineCall("add_owner", self.owner_number(owner), 0))
        return owner

    def remove_owner(self, owner: Owner, now_ms: int) -> None:
        self.entries.append(EngineCall("remove_owner", self.owner_number(owner), now_ms))
        self._engine.remove_owner(owner, now_ms)

    def perform(self, owner: Owner | None, call: Call, now_ms: int, work_max: int = UNLIMITED) -> Receipt:
        number = -1 if owner is None else self.owner_number(owner)
        session = None if owner is None else self.session_of(owner.owner_id)
        if isinstance(call, Register) and session is not None:
            self.session_ids[number] = session.session_id
            self.incarnations[number] = session.incarnation
        receipt = self._engine.perform(owner, call, now_ms, work_max)
        if isinstance(call, CancelAll | CancelName):
            assert not receipt.has_more, "nothing here cuts slices"
        stop = receipt.next_index if isinstance(call, Apply) else len(receipt.were_pending)
        self.entries.append(EngineCall(call, number, now_ms, stop))
        return receipt
