"""Signal events: each is checked, counts for its key, and ends the waits on it that are reached or fail."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch
from purgatory.engine.codes import INVALID_ARGUMENT, OFFSET_MAX, RESOURCE_EXHAUSTED
from purgatory.engine.columns import value_at
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX, EngineLimits
from purgatory.engine.marks.event_checks import Fault, no_memory
from purgatory.engine.marks.registry import SignalKey, SignalKeys
from purgatory.engine.names import key_fault
from purgatory.engine.waiting.wakeups import Wakeups

FAILED_FLAG: Final = 1
DECIDED_FLAG: Final = 2


class Signals:
    """Applies signal events to keys.

    The first value of a key is kept for as long as its count; values of later signals are ignored, so that all waits on
    the key are answered with the same one. A count of 0 is a heartbeat: it only ends the silence of the key.

    With shards, the key's shard applies a signal first, and the others what it has decided (`DECIDED_FLAG`). Those
    events may arrive in another order, so each has the key's value and failure, and its count when it got the value
    (`segment_base_offsets`) and when it failed (`log_start_offsets`).
    """

    def __init__(self, keys: SignalKeys, wakeups: Wakeups, limits: EngineLimits) -> None:
        self.keys: Final = keys
        self.wakeups: Final = wakeups
        self.limits: Final = limits

    def apply(
        self, batch: EventBatch, row: int, key: str, now_ms: i64, account: AccountUsage, is_full: bool
    ) -> Fault | None:
        """Apply the event in a row, or return why it is refused. `account` is that of its sender. With `is_full`, no
        memory may be taken.
        """
        given = value_at(batch.offsets, row, -1)
        count = 1 if given == -1 else given
        flags = value_at(batch.flags, row, 0)
        value = batch.values[row] if batch.values else b""
        signal_key = self.keys.get(key)
        owner = account if signal_key is None or signal_key.count == 0 else signal_key.account
        fault = self._fault(key, signal_key, count, flags, value, owner, is_full)
        if fault is not None and fault.code != RESOURCE_EXHAUSTED:
            return fault
        if signal_key is None:
            if count == 0 or fault is not None:
                return fault
            signal_key = self.keys.make(key, account)
        # Also if there is no room for the value: the key is not silent.
        signal_key.signalled_ms = self.wakeups.pending.listening_ms(now_ms)
        signal_key.signaller = account
        if fault is not None:
            return fault
        if signal_key.count == 0 and count > 0:
            self.keys.take_over(signal_key, account)
        self.keys.touch(signal_key)
        takes_value = _takes_value(signal_key, value, flags)
        if takes_value and signal_key.value:
            # The key's shard had forgotten the key, and has decided again.
            self.keys.drop_value(signal_key)
            signal_key.failed = False
        is_failing = flags & FAILED_FLAG != 0 and not signal_key.failed
        before = signal_key.count
        # Before any wait ends: a key without a count is forgotten with its last wait.
        signal_key.count += count
        if flags & DECIDED_FLAG:
            self._catch_up(signal_key, batch, row, before, is_failing, now_ms)
        if takes_value:
            self.keys.set_value(signal_key, value)
            signal_key.value_at = before
        # Only once: what still waits for a failed key waits for its count.
        if is_failing:
            if flags & DECIDED_FLAG:
                self._wake_at(signal_key, value_at(batch.log_start_offsets, row, 0), before, now_ms)
            signal_key.failed = True
            signal_key.failed_at = before
            self.wakeups.fail_key(signal_key, now_ms)
        elif count > 0:
            self.wakeups.wake_key(signal_key, now_ms)
        return None

    def _catch_up(
        self, signal_key: SignalKey, batch: EventBatch, row: int, before: i64, is_failing: bool, now_ms: i64
    ) -> None:
        """End the waits that ended at the shard of the key before it had the value."""
        got_at = value_at(batch.segment_base_offsets, row, 0)
        failed_at = value_at(batch.log_start_offsets, row, 0)
        self._wake_at(signal_key, min(got_at, failed_at) if is_failing else got_at, before, now_ms)
        if is_failing and got_at > failed_at:
            self.wakeups.fail_key(signal_key, now_ms)

    def _wake_at(self, signal_key: SignalKey, at: i64, before: i64, now_ms: i64) -> None:
        """End the waits for this count, which the key had at its shard and, with a count of `before`, not yet here."""
        if at > before:
            count = signal_key.count
            signal_key.count = at
            self.wakeups.wake_key(signal_key, now_ms)
            signal_key.count = count

    def _fault(
        self,
        key: str,
        signal_key: SignalKey | None,
        count: int,
        flags: int,
        value: bytes,
        owner: AccountUsage,
        is_full: bool,
    ) -> Fault | None:
        said = key_fault(key, self.limits.topic_length_max)
        if said:
            return Fault(INVALID_ARGUMENT, "key_signalled.key", said)
        counted = 0 if signal_key is None else int(signal_key.count)
        # The sum is bounded, not only this count: thresholds of waits are compared with it in 64 bits.
        if not 0 <= count < OFFSET_MAX - counted:
            return Fault(INVALID_ARGUMENT, "key_signalled.count", f"{count} is not in 0..{OFFSET_MAX - counted - 1}")
        if count == 0 and (flags or value):
            message = "0 is a heartbeat, which has no value and does not fail; give 1 or more"
            return Fault(INVALID_ARGUMENT, "key_signalled.count", message)
        if len(value) > SIGNAL_VALUE_BYTES_MAX:
            message = f"has {len(value)} bytes; at most {SIGNAL_VALUE_BYTES_MAX} are allowed"
            return Fault(INVALID_ARGUMENT, "key_signalled.value", message)
        if signal_key is None and count > 0:
            if self.keys.room() < 1:
                message = f"the limit of {self.keys.keys_max} keys with waits is reached"
                return Fault(RESOURCE_EXHAUSTED, "key_signalled.key", message)
            if is_full:
                return no_memory("key_signalled.key")
        if _takes_value(signal_key, value, flags):
            if not self.keys.has_room_for_value(owner, len(value)):
                most = min(int(owner.value_bytes_max), self.limits.signal_values_bytes_max)
                whose = "total" if most == self.limits.signal_values_bytes_max else "your current share"
                message = f"values with waits may have at most {most} bytes in {whose}"
                return Fault(RESOURCE_EXHAUSTED, "key_signalled.value", f"{message}; try again later")
            if is_full:
                return no_memory("key_signalled.value")
        return None


def _takes_value(signal_key: SignalKey | None, value: bytes, flags: int) -> bool:
    """Whether a key gets this value: only its first one, or another one that its shard has decided."""
    known = b"" if signal_key is None else signal_key.value
    return value not in (b"", known) and (flags & DECIDED_FLAG != 0 or not known)
