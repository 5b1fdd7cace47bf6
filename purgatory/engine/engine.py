"""The engine: the single owner of all partitions, keys and pending operations, and of the timer that expires them.

`perform` takes every change as a call (see `calls`), and `inspection` has the views. Time is an argument of every call.
A call is bounded by the size of its batch or by its limit; after it, `take_completions` returns the operations that
ended. The same calls always give the same results.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import Receipt
from purgatory.engine.calls import Call, CancelAll
from purgatory.engine.codes import FETCH
from purgatory.engine.completions import Completions
from purgatory.engine.inspection import EngineInspection
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.events import Events
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.memory_estimate import (
    FETCH_BYTES,
    FETCH_ITEM_BYTES,
    HEARTBEAT_BYTES,
    IDLE_ACCOUNT_BYTES,
    ITEM_BYTES,
    OPERATION_BYTES,
    OWNER_BYTES,
    STALE_TIMEOUT_BYTES,
)
from purgatory.engine.performer import Performer
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.engine.snapshot.snapshots import Snapshots
from purgatory.engine.tape import Played, Tape, TapePlayer
from purgatory.engine.waiting.admission import Admission
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.stale_waits import StaleWaits
from purgatory.engine.waiting.tables import Owner
from purgatory.engine.waiting.wakeups import UNLIMITED, Wakeups


class Engine:
    """Purgatory of all kinds of delayed operation. Times are monotonic milliseconds and must not decrease.

    `work_max` bounds a call: it stops after the operation that brings its work to this many units. One unit is an ended
    operation, each of its items, a resolved item, an evaluation, or a replica examined for an event. So ending a plain
    wait on one partition by an event is three units.
    """

    def __init__(
        self,
        limits: EngineLimits,
        now_ms: int,
        *,
        tick_ms: int = 1,
        wheel_size: int = 20,
        strict_partitions: bool = False,
        replica_lag_time_max_ms: int = 30_000,
    ) -> None:
        self.limits: Final = limits
        self._now_ms: i64 = now_ms
        self._partitions: Final = Partitions(strict_partitions)
        self._keys: Final = SignalKeys(limits.signal_keys_max, limits.signal_values_bytes_max, self._partitions.unowned)
        self._pending: Final = PendingOperations(self._partitions, self._keys, tick_ms, wheel_size, now_ms)
        self._wakeups: Final = Wakeups(self._pending)
        self.inspection: Final = EngineInspection(self._partitions, self._keys, self._pending)
        self.snapshots: Final = Snapshots(self._partitions, self._keys, self._pending)
        self.stale_waits: Final = StaleWaits(self._pending)
        self._performer: Final = Performer(
            Admission(self._pending, limits),
            Events(self._partitions, self._keys, self._wakeups, limits, strict_partitions, replica_lag_time_max_ms),
            self.inspection,
            self.stale_waits,
        )
        self._free_owners: Final[list[int]] = []

    # Owners.

    def add_owner(self, usage: AccountUsage | None = None) -> Owner:
        """Create an owner to register operations for. Operation ids are unique and ascending within one owner.

        `usage` are those of its account. By default, the owner uses the shared usage without an account, which
        have no limits.
        """
        owners = self._pending.owners
        if usage is None:
            usage = self._partitions.unowned
        # Reused, so that `owners` is never longer than the most owners at one time. So nothing may be looked up by the
        # id of an owner that was removed: it may be that of a later one.
        if self._free_owners:
            owner = Owner(self._free_owners.pop(), usage)
            owners[owner.owner_id] = owner
        else:
            owner = Owner(len(owners), usage)
            owners.append(owner)
        return owner

    def remove_owner(self, owner: Owner, now_ms: int) -> None:
        """Cancel all pending operations of an owner, without completions. The owner must not be used afterwards.

        What ended before must have been taken: a later owner with the same id would get these results.
        """
        untaken = owner.completions
        assert untaken is None, f"owner {owner.owner_id} has results that were not taken: {len(untaken)}"
        # Closed before its operations end, so that `completions_of` discards their results.
        owner.closed = True
        owner.ended_last = 0
        owner.items_ended_last = 0
        self._pass_time(now_ms)
        # Not bounded: the host ends the operations of a session in slices before it removes the owner.
        self._performer.perform(owner, CancelAll(), now_ms, UNLIMITED)
        self._pending.owners[owner.owner_id] = None
        self._free_owners.append(owner.owner_id)

    # Changes.

    def perform(self, owner: Owner | None, call: Call, now_ms: int, work_max: int = UNLIMITED) -> Receipt:
        """Perform a call (see `calls`) for an owner. `Apply`, `CancelName`, `PassTime` and `Pause` have none.

        Raises:
            InvalidBatch: The columns of `Register` or `Apply` do not fit together. Nothing has been changed.
        """
        assert owner is None or not owner.closed, f"owner {owner.owner_id} was removed"
        self._pass_time(now_ms)
        return self._performer.perform(owner, call, now_ms, work_max)

    def play(self, owner: Owner, tape: Tape, prompt: bool) -> Played:
        """Play a tape (see `tape`). With `prompt`, due operations expire at their own millisecond, before each step.

        Raises:
            InvalidBatch: As for `perform`. Nothing has been changed.
        """
        assert not owner.closed, f"owner {owner.owner_id} was removed"
        # The player advances time by itself. The engine takes over its clock at the end of the tape.
        player = TapePlayer(self._performer, owner, self._now_ms, prompt)
        played = player.play(tape)
        self._pass_time(player.now_ms)
        return played

    def restore(self, owner: Owner, saved: SavedOperations, gone: bytes, now_ms: int) -> int:
        """Restore saved operations, which continue to wait. Returns how many (see `Snapshots.restore`)."""
        assert not owner.closed, f"owner {owner.owner_id} was removed"
        self._pass_time(now_ms)
        return self.snapshots.restore(owner, saved, gone, now_ms)

    # Time.

    def note_refused_events(self, account: AccountUsage, now_ms: int) -> None:
        """Events of an account were refused for reasons of the owner: its keys were not silent until now."""
        account.refused_ms = self._pending.listening_ms(now_ms)

    def next_expiration_ms(self) -> int:
        """When to perform `PassTime` next; -1: nothing is timed. May be in the past."""
        return self._pending.wheel.next_expiration_ms()

    @property
    def has_stale_waits(self) -> bool:
        """Whether a pending operation has a stale timeout: see `stale_waits`."""
        return len(self._pending.stale_timeouts) > 0

    @property
    def has_unreported(self) -> bool:
        """Whether operations wait for a partition that no event has mentioned yet: see `inspection.unreported`."""
        return self._partitions.unreported > 0

    def _pass_time(self, now_ms: i64) -> None:
        assert now_ms >= self._now_ms, f"clock went back: now_ms={now_ms} engine={self._now_ms}"
        self._now_ms = now_ms

    # Results and sizes.

    def take_completions(self) -> list[Completions]:
        """The operations that ended since the last call: one `Completions` per owner that has any."""
        return self._pending.take_completions()

    @property
    def pending(self) -> int:
        """Pending operations of all kinds."""
        return self._pending.count

    @property
    def pending_items(self) -> int:
        """Total partitions and keys of all pending operations."""
        return self._pending.item_count

    def memory_bytes(self) -> int:
        """Estimated memory of the engine, from the sizes of its tables."""
        pending = self._pending
        held = pending.operations.size * OPERATION_BYTES + pending.items.size * ITEM_BYTES
        held += pending.pending_by_kind[FETCH] * FETCH_BYTES + self._wakeups.fetches.item_count * FETCH_ITEM_BYTES
        held += len(pending.stale_timeouts) * STALE_TIMEOUT_BYTES + len(pending.heartbeats) * HEARTBEAT_BYTES
        held += self._keys.idle_accounts * IDLE_ACCOUNT_BYTES
        return held + self._partitions.bytes + self._keys.bytes + len(pending.owners) * OWNER_BYTES

    def memory_bytes_more(self, operations: int, items: int) -> int:
        """Estimated additional memory if `operations` more operations with `items` items were pending."""
        pending = self._pending
        # Tables never shrink: a free row is counted by `memory_bytes` already, and using it takes no more memory.
        free_rows = pending.operations.size - pending.count
        free_items = pending.items.size - pending.item_count
        return max(operations - free_rows, 0) * OPERATION_BYTES + max(items - free_items, 0) * ITEM_BYTES

    @property
    def held_key_count(self) -> int:
        """Number of signal keys with a pending operation."""
        return self.limits.signal_keys_max - self._keys.room()

    @property
    def partition_count(self) -> int:
        """Number of known partitions."""
        return len(self._partitions.by_name)

    @property
    def held_value_bytes(self) -> int:
        """Bytes of the values of signal keys with a pending operation."""
        return int(self._keys.held_value_bytes)

    def check(self) -> None:
        """Assert the invariants of pending operations and keys. Visits everything: for simulators and tests."""
        self._pending.check()
        self._keys.check()
