"""Events: each is checked, moves the marks of its partition, and then wakes the affected waits.

A refused event changes nothing; the rest of its batch is applied. The order within one event is always: check
everything, change state, wake.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import AsGiven, EventBatch, Receipt, Refusal
from purgatory.engine.columns import value_at
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.event_checks import NO_SETS, POSITION_MAX, Event, EventChecks, Fault, check_columns
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import NamedPartitions, Partitions, SignalKeys
from purgatory.engine.marks.signals import Signals
from purgatory.engine.names import partition_fault
from purgatory.engine.waiting.wakeups import Wakeups

POSITIONS_WHEN_FULL: Final = 64
"""While memory is short, positions of a partition are thinned at this count; they stay correct but less exact."""

MOVED: Final = 1
DEAD: Final = 1
FENCED: Final = 2


class Events:
    """Applies events to partitions and keys."""

    def __init__(
        self,
        partitions: Partitions,
        keys: SignalKeys,
        wakeups: Wakeups,
        limits: EngineLimits,
        strict_partitions: bool,
        lag_max_ms: i64,
    ) -> None:
        self.partitions: Final = partitions
        self.wakeups: Final = wakeups
        self._signals: Final = Signals(keys, wakeups, limits)
        self.limits: Final = limits
        self.checks: Final = EventChecks(limits, strict_partitions)
        self.lag_max_ms: Final[i64] = lag_max_ms
        # Kept between batches. It looks a name up again if its partition was removed, so it never returns one that is
        # not known.
        self._named: Final = NamedPartitions(partitions)
        self._account = partitions.unowned
        """Usage of the sender of the events that are being applied."""

    def apply(
        self, batch: EventBatch, now_ms: i64, start: int, limit: int, account: AccountUsage, is_full: bool
    ) -> Receipt:
        """Apply events from `start` on until events and units of work together reach `limit`.

        Everything that becomes known is counted in `account`. With `is_full` (memory is short), events may change only
        what is already known.

        Raises:
            InvalidBatch: The columns do not fit together. Nothing has been changed.
        """
        check_columns(batch)
        self._named.use(batch.partitions)
        self._account = account
        self.checks.is_full = is_full
        pending = self.wakeups.pending
        receipt = Receipt()
        work_at_start = pending.work_total
        row = start
        while row < len(batch.types) and row - start + pending.work_total - work_at_start < limit:
            before = pending.ended_total
            self.apply_row(batch, row, now_ms, receipt, self._named)
            receipt.ended_by_event.append(pending.ended_total - before)
            row += 1
        receipt.next_index = row
        receipt.has_more = row < len(batch.types)
        return receipt

    def apply_row(self, batch: EventBatch, row: int, now_ms: i64, receipt: Receipt, known: NamedPartitions) -> None:
        """Apply one event of a batch whose columns were checked, or add its refusal to the receipt. `known` are the
        partitions of the batch's dictionary.
        """
        kind = batch.types[row]
        place = value_at(batch.item_indexes, row, 0)
        if kind in (codes.HIGH_WATERMARK, codes.LEADER_APPEND, codes.FOLLOWER_PROGRESS) and 0 <= place < len(
            batch.partitions
        ):
            partition = known.at(place)
            if partition is not None and self._apply_plain(batch, kind, row, partition, now_ms, receipt):
                return
        fault = self._apply_any(batch, kind, row, place, now_ms, receipt)
        if fault is not None:
            receipt.refusals.append(Refusal(row, fault.code, fault.field, fault.message, fault.error_code))

    def _apply_any(
        self, batch: EventBatch, kind: int, row: int, place: int, now_ms: i64, receipt: Receipt
    ) -> Fault | None:
        names = len(batch.keys) if kind == codes.KEY_SIGNALLED else len(batch.partitions)
        if kind not in codes.EVENT_NAMES:
            return Fault(codes.INVALID_ARGUMENT, "event", f"type {kind} is not known; set one event")
        if not 0 <= place < names:
            return Fault(codes.INVALID_ARGUMENT, "item_index", f"{place} is outside the dictionary of {names}")
        if kind == codes.KEY_SIGNALLED:
            return self._signals.apply(batch, row, batch.keys[place], now_ms, self._account, self.checks.is_full)
        return self._apply_event(batch.partitions[place], Event(batch, row), now_ms, receipt)

    def _apply_plain(
        self, batch: EventBatch, kind: int, row: int, partition: Partition, now_ms: i64, receipt: Receipt
    ) -> bool:
        """Fast path for the most common events: a valid mark of a known partition.

        False: nothing was done; use the full path, which also writes the refusals.
        """
        offset = value_at(batch.offsets, row, -1)
        # Values are still Python integers here. They are range-checked before a call converts them to i64, which raises
        # for a larger one.
        if partition.storage_failed or not 0 <= offset < codes.OFFSET_MAX:
            return False
        epoch = value_at(batch.leader_epochs, row, -1)
        # A newer epoch has to re-evaluate all waits first, and an older one is refused: both need the full path.
        if epoch not in (-1, partition.leader_epoch):
            return False
        if kind == codes.HIGH_WATERMARK:
            self.partitions.announce(partition)
            changed = self._high_watermark(partition, offset, now_ms)
        elif kind == codes.LEADER_APPEND:
            segment = value_at(batch.segment_base_offsets, row, -1)
            position = value_at(batch.byte_positions, row, -1)
            if not (-1 <= segment <= offset and -1 <= position < POSITION_MAX):
                return False
            if offset >= partition.log_end_offset and partition.positions.fault(offset, segment, position):
                return False
            self.partitions.announce(partition)
            changed = self._leader_append(partition, offset, segment, position, now_ms)
            # Of these events, only a reported position can add memory. The full path weighs the partition after each
            # event.
            if segment >= 0 or position >= 0:
                self.partitions.weigh(partition)
        else:
            replica_id = value_at(batch.replica_ids, row, -1)
            log_start = value_at(batch.log_start_offsets, row, -1)
            # Creating a replica is subject to limits and memory.
            if replica_id not in partition.replicas or replica_id == partition.leader_id:
                return False
            if not -1 <= log_start < codes.OFFSET_MAX:
                return False
            self.partitions.announce(partition)
            changed = self._follower_progress(partition, replica_id, offset, log_start, now_ms)
        partition.note_first_mark(now_ms)
        if not changed:
            partition.unchanged_events += 1
            receipt.unchanged += 1
        return True

    def _apply_event(self, name: AsGiven, event: Event, now_ms: i64, receipt: Receipt) -> Fault | None:
        said = partition_fault(name, self.limits.topic_length_max)
        if said:
            return Fault(codes.INVALID_ARGUMENT, "topic_partition", said)
        partition = self.partitions.get(name)
        if event.sets is not NO_SETS:
            sets = event.sets
            # Counted before the checks: a refused event has cost the validation of its replicas too.
            self.wakeups.pending.work_total += len(sets.replicas) + len(sets.in_sync) + len(sets.proposed)
        fault = self.checks.fault(name, partition, len(self.partitions.by_name), event, self._account)
        if fault is not None:
            if partition is not None and fault.error_code == codes.FENCED_LEADER_EPOCH:
                partition.stale_events += 1
            return fault
        if partition is None:
            if event.kind == codes.PARTITION_REMOVED:
                receipt.unchanged += 1
                return None
            partition = self.partitions.make(name, self._account)
        # Before any waits end: an unannounced partition is freed with its last wait, under the event that is being
        # applied.
        self.partitions.announce(partition)
        changed = self._take_newer_epoch(partition, event, now_ms)
        # Not joined by `or`, which would skip the change whenever the epoch was newer.
        if self._change(partition, event, now_ms):
            changed = True
        partition.note_first_mark(now_ms)
        self.partitions.weigh(partition)
        if not changed:
            partition.unchanged_events += 1
            receipt.unchanged += 1
        return None

    # Changes. Each returns whether anything moved.

    def _take_newer_epoch(self, partition: Partition, event: Event, now_ms: i64) -> bool:
        """Take over the newer epoch of an event. The role and the state of the replicas are kept."""
        # A leadership event sets the epoch itself, together with the role; a removal does not need it.
        if event.leader_epoch <= partition.leader_epoch or event.kind in (codes.LEADERSHIP, codes.PARTITION_REMOVED):
            return False
        partition.take_epoch(event.leader_epoch)
        # Before the event itself is applied: fenced waits are answered with the marks before it.
        self.wakeups.reevaluate(partition, now_ms)
        return True

    def _change(self, partition: Partition, event: Event, now_ms: i64) -> bool:
        kind = event.kind
        if kind == codes.HIGH_WATERMARK:
            return self._high_watermark(partition, event.offset, now_ms)
        if kind == codes.LEADER_APPEND:
            return self._leader_append(partition, event.offset, event.segment_base_offset, event.byte_position, now_ms)
        if kind == codes.FOLLOWER_PROGRESS:
            return self._follower_progress(partition, event.replica_id, event.offset, event.log_start_offset, now_ms)
        if kind == codes.LAST_STABLE_OFFSET:
            return self._last_stable_offset(partition, event.offset, now_ms)
        if kind == codes.LOG_START_OFFSET:
            return self._log_start(partition, event.offset, now_ms)
        if kind == codes.IN_SYNC_REPLICAS:
            return self._in_sync_replicas(partition, event, now_ms)
        if kind == codes.LEADERSHIP:
            return self._leadership(partition, event, now_ms)
        if kind == codes.REPLICA_STATE:
            return self._replica_state(partition, event, now_ms)
        if kind == codes.TRUNCATION:
            return self._truncation(partition, event.offset, now_ms)
        if kind == codes.PARTITION_REMOVED:
            return self._removed(partition, event.flags & MOVED != 0, now_ms)
        return self._storage(partition, kind == codes.STORAGE_FAILED, now_ms)

    def _settle(self, partition: Partition, now_ms: i64, fetches_first: bool) -> None:
        """Let the high watermark follow the replicas, then wake."""
        # In this order: no wait may be evaluated, and answer, with a mark that the same event is still going to move.
        self._recompute(partition, now_ms)
        self.wakeups.wake(partition, now_ms, fetches_first)

    def _recompute(self, partition: Partition, now_ms: i64) -> None:
        self.wakeups.pending.work_total += len(partition.replicas)
        partition.recompute_high_watermark(now_ms, self.lag_max_ms)

    def _high_watermark(self, partition: Partition, offset: i64, now_ms: i64) -> bool:
        before = partition.high_watermark
        if not partition.raise_high_watermark(offset):
            return False
        if partition.high_watermark < before:
            self.wakeups.on_mark_lowered(partition, now_ms)
        else:
            self.wakeups.wake(partition, now_ms, fetches_first=False)
        return True

    def _leader_append(self, partition: Partition, offset: i64, segment: i64, position: i64, now_ms: i64) -> bool:
        had_positions = len(partition.positions) > 0
        if self.checks.is_full and len(partition.positions) >= POSITIONS_WHEN_FULL:
            partition.positions.thin()
        if not partition.append(offset, segment, position):
            return False
        self._recompute(partition, now_ms)
        # Must run before waking: from the first byte position on, thresholds counted in records are no longer valid.
        if not had_positions and len(partition.positions) > 0:
            self.wakeups.fetches.anchor(partition, now_ms)
        self.wakeups.wake(partition, now_ms, fetches_first=False)
        return True

    def _follower_progress(
        self, partition: Partition, replica_id: int, offset: i64, log_start: i64, now_ms: i64
    ) -> bool:
        if not partition.follower_progress(replica_id, offset, log_start, now_ms):
            return False
        self._settle(partition, now_ms, True)
        return True

    def _last_stable_offset(self, partition: Partition, offset: i64, now_ms: i64) -> bool:
        if not partition.set_first_unstable(offset):
            return False
        self.wakeups.wake(partition, now_ms, fetches_first=False)
        return True

    def _log_start(self, partition: Partition, offset: i64, now_ms: i64) -> bool:
        if not partition.raise_log_start(offset):
            return False
        # Thresholds do not show which fetches are now below the log start, so all are evaluated if there may be one.
        if partition.log_start_offset > partition.lowest_fetch_offset:
            self.wakeups.fetches.reevaluate(partition, now_ms)
        self.wakeups.wake(partition, now_ms, fetches_first=False)
        return True

    def _in_sync_replicas(self, partition: Partition, event: Event, now_ms: i64) -> bool:
        # A proposal alone must not raise the high watermark: it only adds replicas that have to be waited for.
        # Withdrawing a proposal may raise it, and so may a new committed set, minimum or leader.
        # References are enough: `set_in_sync` replaces the lists and does not change them.
        committed = partition.in_sync
        proposed = partition.proposed
        minimum = partition.min_in_sync_replicas
        leader_id = partition.leader_id
        if not partition.set_in_sync(event.sets):
            return False
        if (
            committed != partition.in_sync
            or minimum != partition.min_in_sync_replicas
            or leader_id != partition.leader_id
            or not set(proposed).issubset(partition.proposed)
        ):
            self._recompute(partition, now_ms)
        # Bytes of a throttled follower count as soon as it is in sync, although no mark moves.
        if partition.throttled_fetches > 0:
            self.wakeups.fetches.reevaluate(partition, now_ms)
        self.wakeups.wake(partition, now_ms, fetches_first=True)
        return True

    def _leadership(self, partition: Partition, event: Event, now_ms: i64) -> bool:
        is_leader = event.flags != 0
        # Read before anything is changed: an event that repeats the present state must count as unchanged and wake
        # nothing.
        before = partition.assignment()
        newer = event.leader_epoch > partition.leader_epoch
        turned = is_leader != partition.is_leader
        partition.leader_epoch = event.leader_epoch
        # A leader may begin its epoch at its own log end. A follower knows the beginning only if the event has it.
        # After `leader_epoch` was set, because the entry is made for the current epoch.
        if (newer and event.offset >= 0) or (is_leader and (newer or turned)):
            partition.note_epoch_start(event.offset)
        partition.set_leader(is_leader)
        partition.assign(event.sets.replicas, event.sets.leader_id)
        if not newer and not turned and partition.assignment() == before:
            return False
        # Before the high watermark can move: fenced waits are answered with the marks before the event.
        self.wakeups.reevaluate(partition, now_ms)
        self._settle(partition, now_ms, True)
        return True

    def _replica_state(self, partition: Partition, event: Event, now_ms: i64) -> bool:
        # Before `replica` creates it: the first mention is a change even if no flag is set.
        known = event.replica_id in partition.replicas
        replica = partition.replica(event.replica_id)
        dead = event.flags & DEAD != 0
        fenced = event.flags & FENCED != 0
        if known and replica.dead == dead and replica.fenced == fenced:
            return False
        replica.dead = dead
        replica.fenced = fenced
        self.wakeups.wake(partition, now_ms, fetches_first=False)
        return True

    def _truncation(self, partition: Partition, offset: i64, now_ms: i64) -> bool:
        if not partition.truncate(offset):
            return False
        # The second call is for a mark that rises: if an open transaction was cut off, the last stable offset becomes
        # the high watermark.
        self.wakeups.on_mark_lowered(partition, now_ms)
        self.wakeups.wake(partition, now_ms, fetches_first=False)
        return True

    def _removed(self, partition: Partition, moved: bool, now_ms: i64) -> bool:
        # Hold the partition: otherwise the last wait that ends would free its index while it is being visited.
        self.partitions.hold(partition)
        self.partitions.forget(partition, codes.NOT_LEADER_OR_FOLLOWER if moved else codes.UNKNOWN_TOPIC_OR_PARTITION)
        self.wakeups.reevaluate(partition, now_ms)
        self.partitions.release(partition)
        return True

    def _storage(self, partition: Partition, failed: bool, now_ms: i64) -> bool:
        if partition.storage_failed == failed:
            return False
        partition.storage_failed = failed
        self.wakeups.reevaluate(partition, now_ms)
        return True
