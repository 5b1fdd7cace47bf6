"""Mutants of what happens: events and their checks, who is woken, and the engine's own calls."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WAKING = (
    Mutant(
        "produces are not woken",
        "wakeups",
        "            self._wake_produces(partition, partition.produces, now_ms)\n",
        "            pass\n",
    ),
    Mutant(
        "delete-records are not woken",
        "wakeups",
        "            self._wake_deletes(partition, partition.deletes, now_ms)\n",
        "            pass\n",
    ),
    Mutant(
        "fetches of stable records are not woken",
        "wakeups",
        "            self._wake_watch(partition, watch, partition.last_stable_offset(), now_ms)\n",
        "            pass\n",
    ),
    Mutant(
        "waits behind a stale entry are not woken",
        "wakeups",
        "            if not ref_is_live(ref, items.generation):\n                continue\n",
        "            if not ref_is_live(ref, items.generation):\n                return\n",
    ),
    Mutant(
        "the rule of in-sync replicas is skipped for those who wait",
        "wakeups",
        "error = NOT_ENOUGH_REPLICAS_AFTER_APPEND if partition.is_under_min_in_sync() else NONE",
        "error = NONE",
    ),
    Mutant(
        "the rule of in-sync replicas is skipped on arrival",
        "wakeups",
        "return NOT_ENOUGH_REPLICAS_AFTER_APPEND if partition.is_under_min_in_sync() else NONE",
        "return NONE",
    ),
    Mutant(
        "a high watermark equal to the required offset is not enough on arrival",
        "wakeups",
        "or partition.high_watermark < required_offset:",
        "or partition.high_watermark <= required_offset:",
    ),
    Mutant(
        "a produce does not check the leader epoch",
        "wakeups",
        "if leader_epoch >= 0 and partition.leader_epoch >= 0",
        "if leader_epoch >= 2**31 and partition.leader_epoch >= 0",
    ),
    Mutant(
        "a produce waits on a follower",
        "wakeups",
        "    if not partition.is_leader:\n        return NOT_LEADER_OR_FOLLOWER\n",
        "",
    ),
    Mutant(
        "a low watermark equal to the offset is not enough on arrival",
        "wakeups",
        "return NONE if partition.low_watermark() >= offset else UNRESOLVED",
        "return NONE if partition.low_watermark() > offset else UNRESOLVED",
    ),
    Mutant(
        "fetches are not looked at when anything may have changed",
        "wakeups",
        "        self.recheck_fetches(partition, now_ms)\n        deletes",
        "        deletes",
    ),
    Mutant(
        "a new segment does not wake its readers",
        "wakeups",
        "        if segment != watch.segment:\n",
        "        if segment < 0:\n",
    ),
    Mutant(
        "a fetch that was woken for nothing is not watched again",
        "wakeups",
        "        else:\n            self.watch_fetch(fetch)\n",
        "",
    ),
    Mutant(
        "a produce that was looked at for nothing is not watched again",
        "wakeups",
        "            self.pending.watch(produces, PRODUCE, item, required)\n",
        "            pass\n",
    ),
    Mutant(
        "the lowest fetch offset is not kept",
        "wakeups",
        "                partition.lowest_fetch_offset = item.fetch_offset\n",
        "                pass\n",
    ),
    Mutant(
        "starts are not taken anew with the first position",
        "wakeups",
        "                part.anchor()\n",
        "                pass\n",
    ),
)

EVENTS = (
    Mutant(
        "a stale event is applied",
        "event_checks",
        "elif 0 <= event.leader_epoch < partition.leader_epoch:",
        "elif 0 <= event.leader_epoch < -1:",
    ),
    Mutant(
        "a high watermark of a newer epoch does not take it over",
        "events",
        "if epoch not in (-1, partition.leader_epoch):",
        "if -1 < epoch < partition.leader_epoch:",
    ),
    Mutant(
        "an event is applied although the storage failed",
        "event_checks",
        "elif partition.storage_failed and kind not in",
        "elif partition.storage_failed and kind in () and kind not in",
    ),
    Mutant(
        "stale events are not counted",
        "events",
        "                partition.stale_events += 1\n",
        "                pass\n",
    ),
    Mutant(
        "a log start above the high watermark is taken",
        "event_checks",
        "0 <= partition.high_watermark < event.offset:",
        "0 <= partition.high_watermark < 0:",
    ),
    Mutant(
        "the leader's own progress is taken for a follower's",
        "event_checks",
        "and event.replica_id == leader_id:",
        "and event.replica_id == -2:",
    ),
    Mutant(
        "waits of an older epoch are not ended",
        "events",
        "        partition.take_epoch(event.leader_epoch)\n        self.wakeups.recheck(partition, now_ms)\n",
        "        partition.take_epoch(event.leader_epoch)\n",
    ),
    Mutant(
        "a high watermark that went down leaves fetches beyond it",
        "events",
        "            self.wakeups.recheck_fetches(partition, now_ms)\n        else:\n",
        "            pass\n        else:\n",
    ),
    Mutant(
        "the first position anchors nobody",
        "events",
        "            self.wakeups.anchor_fetches(partition, now_ms)\n",
        "            pass\n",
    ),
    Mutant(
        "an append lets the high watermark be",
        "events",
        "        partition.recompute_high_watermark(now_ms, self.lag_max_ms)\n        if not had_positions",
        "        if not had_positions",
    ),
    Mutant(
        "a log start leaves fetches below it",
        "events",
        "        if partition.log_start_offset > partition.lowest_fetch_offset:\n",
        "        if partition.log_start_offset < 0:\n",
    ),
    Mutant(
        "the end of a proposal does not free the high watermark",
        "events",
        "            or any(member not in partition.proposed for member in proposed)\n",
        "",
    ),
    Mutant(
        "a new minimum does not free the high watermark",
        "events",
        "            or minimum != partition.min_in_sync_replicas\n",
        "",
    ),
    Mutant(
        "a proposal already frees the high watermark",
        "events",
        "or any(member not in partition.proposed for member in proposed)",
        "or proposed != partition.proposed",
    ),
    Mutant(
        "a throttled follower that joins the in-sync set still waits",
        "events",
        "        if partition.throttled_fetches > 0:\n",
        "        if partition.throttled_fetches < 0:\n",
    ),
    Mutant(
        "a change of leadership ends nothing",
        "events",
        "            return False\n        self.wakeups.recheck(partition, now_ms)\n        self._settle(",
        "            return False\n        self._settle(",
    ),
    Mutant(
        "a replica's death does not free the low watermark",
        "events",
        "        replica.fenced = fenced\n        self.wakeups.wake(partition, now_ms, fetches_first=False)\n",
        "        replica.fenced = fenced\n",
    ),
    Mutant(
        "truncation leaves fetches beyond the end",
        "events",
        "            return False\n        self.wakeups.recheck_fetches(partition, now_ms)\n        self.wakeups.wake",
        "            return False\n        self.wakeups.wake",
    ),
    Mutant(
        "moved and deleted are mixed up",
        "events",
        "NOT_LEADER_OR_FOLLOWER if moved else UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION if moved else NOT_LEADER_OR_FOLLOWER",
    ),
    Mutant(
        "failed storage ends nothing",
        "events",
        "        partition.storage_failed = failed\n        self.wakeups.recheck(partition, now_ms)\n",
        "        partition.storage_failed = failed\n",
    ),
    Mutant(
        "what events end does not count against the limit of a slice",
        "events",
        "row - start + pending.ended_total - ended_at_start < limit:",
        "row - start < limit:",
    ),
    Mutant(
        "a plain append may go back in its segment",
        "events",
        "if offset >= partition.log_end_offset and partition.positions.fault(offset, segment, position):",
        "if offset >= partition.log_end_offset and partition.positions.fault(offset, -1, -1):",
    ),
    Mutant(
        "a plain append may begin its segment above itself",
        "events",
        "if not (-1 <= segment <= offset and",
        "if not (-1 <= segment < OFFSET_MAX and",
    ),
    Mutant(
        "the leader's own progress is plain",
        "events",
        "if replica_id not in partition.replicas or replica_id == partition.leader_id:",
        "if replica_id == -2:",
    ),
    Mutant(
        "a partition that is gone is still found by its place",
        "registry",
        "        partition.is_named = False\n",
        "",
    ),
    Mutant(
        "a partition is found by its place whatever its name",
        "registry",
        "if names != self._names:",
        "if len(names) != len(self._names):",
    ),
    Mutant("a signal counts once whatever its count", "events", "signal_key.count += count", "signal_key.count += 1"),
    Mutant("a signal wakes nobody", "events", "        self.wakeups.wake_key(signal_key, now_ms)\n", ""),
)

CALLS = (
    Mutant(
        "a removed owner's operations stay pending",
        "engine",
        "        self.cancel_all(owner, now_ms)\n        self._pending.owners",
        "        self._pending.owners",
    ),
    Mutant(
        "a removed owner's place is never used again",
        "engine",
        "        self._free_owners.append(owner.owner_id)\n",
        "",
    ),
    Mutant(
        "a cancelled operation stays pending",
        "engine",
        "            if slot >= 0:\n                self._pending.end(slot, CANCELLED, now_ms)\n",
        "",
    ),
    Mutant(
        "shutdown skips operations that came after it began",
        "engine",
        "slot + 1 if slot + 1 < operations.size else 0",
        "slot + 1",
    ),
    Mutant(
        "shutdown knows no limit",
        "engine",
        "while ended < limit and self._pending.count > 0:",
        "while self._pending.count > 0:",
    ),
    Mutant(
        "the engine's clock may go back",
        "engine",
        "assert now_ms >= self._now_ms",
        "assert now_ms >= 0 or self._now_ms",
    ),
    Mutant(
        "the last page of a listing goes on",
        "look",
        "return found, slot if slot < operations.size else -1",
        "return found, slot",
    ),
    Mutant(
        "a listing of an owner shows all owners",
        "look",
        "and (owner_id < 0 or operations.owner_id[slot] == owner_id)",
        "and (owner_id < 0 or operations.owner_id[slot] >= 0)",
    ),
    Mutant(
        "a pending produce shows the mark of its registration",
        "look",
        "                reached = partition.high_watermark\n",
        "                pass\n",
    ),
)

MUTANTS = WAKING + EVENTS + CALLS
