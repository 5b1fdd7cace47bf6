"""Records the calls to the engine in order: only here is the order of events exactly defined.

`EngineTap` is between the host and a real engine. It records the arguments of each call that may change something, and
no results: the checker computes the expected ones itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, RegisterReceipt
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.waiting.tables import Owner
from purgatory.engine.waiting.wakeups import UNLIMITED
from purgatory.service.sessions.session import Session


class EngineCall(NamedTuple):
    """A call of a method of the engine. `owner`: its number, or -1. Its other arguments depend on the method."""

    method: str
    owner: int
    now_ms: int
    arguments: tuple[Any, ...] = ()


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

    def register(
        self, owner: Owner, kind: int, batch: OperationBatch, now_ms: int, known_up_to: int = -1
    ) -> RegisterReceipt:
        number = self.owner_number(owner)
        session = self.session_of(owner.owner_id)
        if session is not None:
            self.session_ids[number] = session.session_id
            self.incarnations[number] = session.incarnation
        self.entries.append(EngineCall("register", number, now_ms, (kind, batch)))
        return self._engine.register(owner, kind, batch, now_ms, known_up_to)

    def apply(
        self,
        batch: EventBatch,
        now_ms: int,
        start: int = 0,
        limit: int = 100_000,
        **shares: Any,  # noqa: ANN401 - as the engine's
    ) -> EventsReceipt:
        receipt = self._engine.apply(batch, now_ms, start, limit, **shares)
        self.entries.append(EngineCall("apply", -1, now_ms, (batch, start, receipt.next_index)))
        return receipt

    def cancel(self, owner: Owner, operation_ids: list[int], now_ms: int, work_max: int = UNLIMITED) -> list[bool]:
        cancelled = self._engine.cancel(owner, operation_ids, now_ms, work_max)
        ids = operation_ids[: len(cancelled)]
        self.entries.append(EngineCall("cancel", self.owner_number(owner), now_ms, (ids,)))
        return cancelled

    def cancel_all(self, owner: Owner, now_ms: int, work_max: int = UNLIMITED, up_to_id: int = OPERATION_ID_MAX) -> int:
        self.entries.append(EngineCall("cancel_all", self.owner_number(owner), now_ms))
        ended = self._engine.cancel_all(owner, now_ms, work_max, up_to_id)
        assert not self._engine.has_pending(owner, OPERATION_ID_MAX), "nothing here cuts slices"
        return ended

    def cancel_partition(self, name: tuple[str, int], now_ms: int, work_max: int = UNLIMITED) -> int:
        self.entries.append(EngineCall("cancel_name", -1, now_ms, (name,)))
        ended = self._engine.cancel_partition(name, now_ms, work_max)
        assert not self._engine.has_waits(name), "nothing here cuts slices"
        return ended

    def cancel_key(self, key: str, now_ms: int, work_max: int = UNLIMITED) -> int:
        self.entries.append(EngineCall("cancel_name", -1, now_ms, ((key, -1),)))
        ended = self._engine.cancel_key(key, now_ms, work_max)
        assert not self._engine.has_waits((key, -1)), "nothing here cuts slices"
        return ended

    def advance_clock(self, now_ms: int, limit: int, work_max: int = UNLIMITED) -> int:
        self.entries.append(EngineCall("advance_clock", -1, now_ms, (limit,)))
        return self._engine.advance_clock(now_ms, limit, work_max)

    def shut_down(self, now_ms: int, limit: int, owner: Owner | None = None, work_max: int = UNLIMITED) -> int:
        assert owner is None, "without a journal all pending operations are shut down"
        self.entries.append(EngineCall("shut_down", -1, now_ms, (limit,)))
        return self._engine.shut_down(now_ms, limit, owner, work_max)
