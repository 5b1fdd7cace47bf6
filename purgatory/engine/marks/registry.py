"""The known partitions and signal keys, by name and by the index that items store. Both are bounded."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine import memory_estimate
from purgatory.engine.account_usage import LONG_AGO_MS, AccountUsage
from purgatory.engine.batches import AsGiven, PartitionName
from purgatory.engine.codes import NONE, OFFSET_MAX, UNKNOWN_TOPIC_OR_PARTITION
from purgatory.engine.marks.idle_keys import IdleKeys
from purgatory.engine.marks.partition import Partition
from purgatory.engine.waiting.watches import WatchList

NO_VALUE: Final = b""


class Partitions:
    """Known partitions. A removed partition keeps its index until the last operation that names it has ended."""

    def __init__(self, strict: bool) -> None:
        self.strict: Final = strict
        """Waits do not create partitions: only events make one known."""
        self.by_name: Final[dict[PartitionName, Partition]] = {}
        self.by_index: Final[list[Partition | None]] = []
        self.changes = 0
        """How often a name became known or was forgotten."""
        self.bytes: i64 = 0
        """Total bytes, as of the last `weigh` of each partition."""
        self.unreported: i64 = 0
        """Number of named partitions that no event has mentioned."""
        self.unowned: Final = AccountUsage()
        """Usage of partitions without an account, such as restored ones."""
        self._free: Final[list[int]] = []

    def get(self, name: AsGiven) -> Partition | None:
        """The partition with this name, or None if it is not known."""
        return self.by_name.get(name)

    def make(self, name: AsGiven, account: AccountUsage) -> Partition:
        """Create a partition. The name must be unknown and the limits must have been checked."""
        assert name not in self.by_name, f"partition {name} is known already"
        partition = self._place(name, account)
        self.by_name[name] = partition
        partition.is_named = True
        self.unreported += 1
        self.changes += 1
        account.partitions += 1
        return partition

    def announce(self, partition: Partition) -> None:
        """Record that an event has mentioned the partition."""
        if not partition.announced:
            partition.announced = True
            self.unreported -= 1

    def make_missing(self, name: AsGiven, error_code: i64, account: AccountUsage) -> Partition:
        """A stand-in for an unknown partition that must not be created: items that name it end with `error_code`."""
        partition = self._place(name, account)
        partition.removed_error_code = error_code
        partition.log_start_offset = -1
        return partition

    def get_or_create(self, name: AsGiven, account: AccountUsage) -> Partition:
        """The partition that an item names, with one reference added.

        It is created if it is unknown. If that is not allowed, a stand-in that answers UNKNOWN_TOPIC_OR_PARTITION is
        returned.
        """
        partition = self.by_name.get(name)
        if partition is None:
            if self.strict:
                # Not stored by name, so it ends with its item and does not make the partition known.
                partition = self.make_missing(name, UNKNOWN_TOPIC_OR_PARTITION, account)
            else:
                partition = self.make(name, account)
        partition.references += 1
        return partition

    def mention_again(self, name: AsGiven, removed: i64, log_start: i64) -> Partition:
        """The partition that a restored item names, with one reference added.

        `removed`: the error code if the partition had been removed when the item was saved, and so must not be known
        here; else NONE.
        """
        partition: Partition | None
        if removed != NONE:
            partition = self.make_missing(name, removed, self.unowned)
            partition.log_start_offset = log_start
        else:
            partition = self.by_name.get(name)
            if partition is None:
                partition = self.make(name, self.unowned)
        partition.references += 1
        return partition

    def _place(self, name: AsGiven, account: AccountUsage) -> Partition:
        # Items store this index, so it is freed only when no pending operation names the partition any more
        # (`release`).
        index = self._free.pop() if self._free else len(self.by_index)
        partition = Partition(name, index, account)
        self._count_bytes(partition, memory_estimate.PARTITION_BYTES + memory_estimate.name_bytes(name))
        if index == len(self.by_index):
            self.by_index.append(partition)
        else:
            self.by_index[index] = partition
        return partition

    def weigh(self, partition: Partition) -> None:
        """Recount the bytes of a partition. Call when replicas, epochs or positions may have been added or dropped."""
        if self.by_index[partition.index] is not partition:
            return  # the event has removed it
        held = memory_estimate.PARTITION_BYTES + memory_estimate.name_bytes(partition.name)
        held += len(partition.replicas) * memory_estimate.REPLICA_BYTES
        held += len(partition.epochs.epochs) * memory_estimate.EPOCH_BYTES
        held += len(partition.positions) * memory_estimate.POSITION_BYTES
        self._count_bytes(partition, held)

    def _count_bytes(self, partition: Partition, held: i64) -> None:
        more = held - partition.weighed_bytes
        partition.weighed_bytes = held
        partition.account.name_bytes += more
        self.bytes += more

    def at(self, index: i64) -> Partition:
        """The partition with this index, as stored in items."""
        partition = self.by_index[index]
        assert partition is not None, f"no partition at {index}"
        return partition

    def forget(self, partition: Partition, error_code: i64) -> None:
        """Remove the name of a held partition. A later mention creates a new one; its items get `error_code`."""
        assert partition.references > 0, f"partition {partition.name} is not held"
        partition.removed_error_code = error_code
        self._unname(partition)

    def hold(self, partition: Partition) -> None:
        """Add a reference: one more item names the partition."""
        partition.references += 1

    def release(self, partition: Partition) -> None:
        """Drop a reference. A partition that was removed, or that no event has named, is freed with the last one."""
        partition.references -= 1
        assert partition.references >= 0, f"partition {partition.name} released once too often"
        if partition.references > 0:
            return
        # Two cases, because a removed partition has lost its name already, and the name may belong to a new one.
        if partition.removed_error_code != 0:
            self._free_index(partition)
        elif not partition.announced:
            self._unname(partition)
            self._free_index(partition)

    def _unname(self, partition: Partition) -> None:
        del self.by_name[partition.name]
        partition.is_named = False
        if not partition.announced:
            self.unreported -= 1
        self.changes += 1
        partition.account.partitions -= 1

    def _free_index(self, partition: Partition) -> None:
        self._count_bytes(partition, 0)
        self.by_index[partition.index] = None
        self._free.append(partition.index)


class NamedPartitions:
    """The partitions of a batch's dictionary. Each is looked up by name once, and again if its name was removed.

    The result is kept for the next batch if that has the same name in the same place, as batches from one caller often
    do. Names are compared when they are asked for: a small batch may have a large dictionary.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions: Final = partitions
        self._names: list[AsGiven] = []
        self._looked_up: list[AsGiven] = []
        """The name of each partition in `_found`, because the caller may reuse its list for the next batch."""
        self._found: list[Partition | None] = []

    def use(self, names: list[AsGiven]) -> None:
        """Set the dictionary that `at` refers to."""
        if len(names) != len(self._found):
            self._looked_up = [None] * len(names)
            self._found = [None] * len(names)
        self._names = names

    def at(self, place: i64) -> Partition | None:
        """The partition of the name at this index, or None if it is not known."""
        found = self._found[place]
        name: AsGiven = self._names[place]
        # A removed partition still exists while waits hold it; its name may belong to a new one by now.
        if name is not self._looked_up[place] or found is None or not found.is_named:
            found = self._partitions.get(name)
            self._found[place], self._looked_up[place] = found, name
        return found


class SignalKey:
    """A signal key, how often it was signalled, with which value, and its waits."""

    def __init__(self, key: str, index: i64, account: AccountUsage) -> None:
        self.key: Final = key
        self.account = account
        """Usage of the account that was the first to signal the key or, until then, that made it for a wait."""
        self.holder = account
        """Usage of the account that was the first to wait for the key, while it has waits."""
        self.name: Final[AsGiven] = (key, -1)
        self.index: Final[i64] = index
        self.count: i64 = 0
        self.references: i64 = 0
        self.waits: Final = WatchList()
        self.value = NO_VALUE
        """The first value it was signalled with; empty: none."""
        self.value_at: i64 = 0
        """Its count when it got the value."""
        self.failed = False
        """It was signalled as failed. Stays so."""
        self.failed_at: i64 = 0
        """Its count when it failed."""
        self.signalled_ms: i64 = LONG_AGO_MS
        """Listening time of the last signal, heartbeats included."""
        self.signaller: AccountUsage | None = None
        """Usage of the account that signalled last; None: none since this engine was created."""
        self.composite_waits: WatchList | None = None
        """Terms of composites; see `SignalKeys.composite_waits`."""
        self.bytes: i64 = memory_estimate.KEY_BYTES + memory_estimate.name_bytes(self.name)

    def watched(self) -> i64:
        """Watch entries of pending operations."""
        composites = self.composite_waits
        return self.waits.live + (0 if composites is None else composites.live)


class SignalKeys:
    """Known keys, at most `keys_max`. Idle keys (without waits) are kept for their counts. When there is no room for
    another key, the account with the most idle keys loses the one that was signalled, or lost its last wait, longest
    ago (see `IdleKeys`).
    """

    def __init__(self, keys_max: int, values_bytes_max: int, unowned: AccountUsage) -> None:
        self.keys_max: Final = keys_max
        # Capped while it is a Python integer, as in `Admission`.
        self._values_bytes_max: Final[i64] = min(values_bytes_max, OFFSET_MAX)
        self._value_bytes: i64 = 0
        """Total bytes of all values."""
        self.held_value_bytes: i64 = 0
        """Those of keys with waits, which cannot be forgotten."""
        self.by_key: Final[dict[str, SignalKey]] = {}
        self.by_index: Final[list[SignalKey | None]] = []
        self.bytes: i64 = 0
        """Total bytes."""
        self.unowned: Final = unowned
        """Usage of keys that belong to no account."""
        self.notes_forgotten = False
        self.forgotten: list[str] = []
        """Forgotten keys, if they are recorded."""
        self._idle: Final = IdleKeys()
        self._idle_with_value: Final = IdleKeys()
        """The idle keys that have a value, in the same orders."""
        self._free: Final[list[int]] = []

    def get(self, key: str) -> SignalKey | None:
        """The key with this name, or None if it is not known."""
        return self.by_key.get(key)

    def room(self) -> int:
        """How many new keys could be created now, including those in place of idle keys."""
        return self.keys_max - len(self.by_key) + int(self._idle.count)

    @property
    def idle_accounts(self) -> int:
        """Number of accounts that have idle keys."""
        return len(self._idle.by_account)

    def make(self, key: str, account: AccountUsage) -> SignalKey:
        """Create an idle key; there must be room."""
        assert key not in self.by_key, f"key {key!r} is known already"
        if len(self.by_key) >= self.keys_max and self._idle.count > 0:
            self._forget(self._idle.first_to_forget(account, 1))
        index = self._free.pop() if self._free else len(self.by_index)
        made = SignalKey(key, index, account)
        self.bytes += made.bytes
        account.owned_keys += 1
        if index == len(self.by_index):
            self.by_index.append(made)
        else:
            self.by_index[index] = made
        self.by_key[key] = made
        self._add_idle(made)
        return made

    def take_over(self, signal_key: SignalKey, account: AccountUsage) -> None:
        """A held key is signalled for the first time; from now on it belongs to the account that did so."""
        assert signal_key.count == 0, f"{signal_key.key!r} has been signalled"
        signal_key.account.owned_keys -= 1
        signal_key.account = account
        account.owned_keys += 1

    def has_room_for_value(self, account: AccountUsage, length: i64) -> bool:
        """Whether a value of this length fits, if idle keys with values are forgotten for it."""
        return (
            self.held_value_bytes + length <= self._values_bytes_max
            and account.held_value_bytes + length <= account.value_bytes_max
        )

    def set_value(self, signal_key: SignalKey, value: bytes) -> None:
        """Store the value of a key that has none. Idle keys with values are forgotten until there is room for it: those
        of its own account if that is above its share, and otherwise those of the account that has the most.
        """
        length = i64(len(value))
        account, idle = signal_key.account, self._idle_with_value
        while account.value_bytes + length > account.value_bytes_max and account in idle.by_account:
            self._forget(next(iter(idle.by_account[account].keys)))
        while self._value_bytes + length > self._values_bytes_max:
            self._forget(idle.first_to_forget(account, length))
        self._value_bytes += length
        account.value_bytes += length
        signal_key.value = value
        signal_key.bytes += memory_estimate.VALUE_BYTES + length
        self.bytes += memory_estimate.VALUE_BYTES + length
        if signal_key.references > 0:
            self._hold_value(signal_key, length)
            signal_key.holder.name_bytes += memory_estimate.VALUE_BYTES + length
        else:
            account.name_bytes += memory_estimate.VALUE_BYTES + length
            idle.add(account, signal_key.key, length)

    def drop_value(self, signal_key: SignalKey) -> None:
        """Remove the value of a key that gets another one; see `Signals`."""
        length, account = i64(len(signal_key.value)), signal_key.account
        self._value_bytes -= length
        account.value_bytes -= length
        signal_key.bytes -= memory_estimate.VALUE_BYTES + length
        self.bytes -= memory_estimate.VALUE_BYTES + length
        if signal_key.references > 0:
            self._hold_value(signal_key, -length)
            signal_key.holder.name_bytes -= memory_estimate.VALUE_BYTES + length
        else:
            account.name_bytes -= memory_estimate.VALUE_BYTES + length
            self._idle_with_value.remove(account, signal_key.key, length)
        signal_key.value = NO_VALUE

    def at(self, index: i64) -> SignalKey:
        """The key with this index, as stored in items."""
        signal_key = self.by_index[index]
        assert signal_key is not None, f"no key at {index}"
        return signal_key

    def touch(self, signal_key: SignalKey) -> None:
        """Record a signal: of the idle keys of its account, this one is now forgotten last."""
        if signal_key.references == 0:
            self._idle.touch(signal_key.account, signal_key.key)
            if signal_key.value:
                self._idle_with_value.touch(signal_key.account, signal_key.key)

    def composite_waits(self, signal_key: SignalKey) -> WatchList:
        """The list of the terms that wait for a held key, made on first use: few keys need one."""
        waits = signal_key.composite_waits
        if waits is None:
            waits = signal_key.composite_waits = WatchList()
            signal_key.bytes += memory_estimate.WATCH_LIST_BYTES
            signal_key.holder.name_bytes += memory_estimate.WATCH_LIST_BYTES
            self.bytes += memory_estimate.WATCH_LIST_BYTES
        return waits

    def oldest_first(self) -> list[SignalKey]:
        """All keys: idle ones, each account's in the order in which they would be forgotten, then those with waits."""
        held = [signal_key for signal_key in self.by_key.values() if signal_key.references > 0]
        return [self.by_key[key] for order in self._idle.by_account.values() for key in order.keys] + held

    def hold(self, signal_key: SignalKey, holder: AccountUsage) -> None:
        """Add a reference: one more item names the key."""
        if signal_key.references == 0:
            self._remove_idle(signal_key)
            signal_key.holder = holder
            holder.keys += 1
            holder.name_bytes += signal_key.bytes
            self._hold_value(signal_key, i64(len(signal_key.value)))
        signal_key.references += 1

    def get_or_create(self, key: str, holder: AccountUsage) -> SignalKey:
        """The key that an item names, created if it is unknown, with one reference added."""
        signal_key = self.by_key.get(key)
        if signal_key is None:
            signal_key = self.make(key, holder)
        self.hold(signal_key, holder)
        return signal_key

    def get_or_create_all(self, names: list[str], holder: AccountUsage) -> list[SignalKey]:
        """The keys that an operation names, which may be repeated."""
        # Known keys are held first: creating a key may evict an idle key, which must not be one that is named here.
        known = [self.by_key.get(name) for name in names]
        for signal_key in known:
            if signal_key is not None:
                self.hold(signal_key, holder)
        return [
            self.get_or_create(names[place], holder) if signal_key is None else signal_key
            for place, signal_key in enumerate(known)
        ]

    def release(self, signal_key: SignalKey) -> None:
        """Drop a reference; a key without a count is forgotten with the last one."""
        signal_key.references -= 1
        assert signal_key.references >= 0, f"key {signal_key.key!r} released once too often"
        if signal_key.references == 0:
            holder = signal_key.holder
            holder.keys -= 1
            holder.name_bytes -= signal_key.bytes
            self._hold_value(signal_key, -i64(len(signal_key.value)))
            # At the end of the order: a key that was waited for until now is forgotten after those that were idle.
            self._add_idle(signal_key)
            if signal_key.count == 0:
                self._forget(signal_key.key)

    def _hold_value(self, signal_key: SignalKey, more: i64) -> None:
        self.held_value_bytes += more
        signal_key.account.held_value_bytes += more

    def _add_idle(self, signal_key: SignalKey) -> None:
        account = signal_key.account
        account.name_bytes += signal_key.bytes
        self._idle.add(account, signal_key.key, 1)
        if signal_key.value:
            self._idle_with_value.add(account, signal_key.key, i64(len(signal_key.value)))

    def _remove_idle(self, signal_key: SignalKey) -> None:
        account = signal_key.account
        account.name_bytes -= signal_key.bytes
        self._idle.remove(account, signal_key.key, 1)
        if signal_key.value:
            self._idle_with_value.remove(account, signal_key.key, i64(len(signal_key.value)))

    def _forget(self, key: str) -> None:
        if self.notes_forgotten:
            self.forgotten.append(key)
        gone = self.by_key.pop(key)
        self._remove_idle(gone)
        gone.account.owned_keys -= 1
        gone.account.value_bytes -= i64(len(gone.value))
        self.by_index[gone.index] = None
        self._free.append(gone.index)
        self.bytes -= gone.bytes
        self._value_bytes -= i64(len(gone.value))

    def check(self) -> None:
        """Assert that the orders of idle keys and the bytes agree with the keys. Visits every key: for tests."""
        known = list(self.by_key.values())
        held = [signal_key for signal_key in known if signal_key.references > 0]
        for orders, only_with_value in ((self._idle, False), (self._idle_with_value, True)):
            kept = sorted([key for order in orders.by_account.values() for key in order.keys])
            idle = [key for key in known if key.references == 0 and (key.value or not only_with_value)]
            assert kept == sorted([key.key for key in idle]), f"{kept} are kept as idle"
        for account, order in self._idle_with_value.by_account.items():
            ordered = [key for key in self._idle.by_account[account].keys if self.by_key[key].value]
            assert list(order.keys) == ordered, f"{list(order.keys)}, not {ordered}"
            size = sum([len(self.by_key[key].value) for key in ordered])
            assert order.size == size, f"{order.size} bytes, not {size}"
        assert self.bytes == sum([int(signal_key.bytes) for signal_key in known]), f"{self.bytes} bytes"
        assert self._value_bytes == sum([len(signal_key.value) for signal_key in known]), f"{self._value_bytes} bytes"
        held_bytes = sum([len(signal_key.value) for signal_key in held])
        assert self.held_value_bytes == held_bytes, f"{self.held_value_bytes} bytes are held, not {held_bytes}"
