"""Mutants of the waits: how operations arrive, what a fetch waits for, how each ends and what is then said."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ARRIVAL = (
    Mutant(
        "the last id of before is not known when it is sent again",
        "registration",
        "if 1 <= operation_id <= known_before:",
        "if 1 <= operation_id < known_before:",
    ),
    Mutant(
        "an id may come twice in a batch",
        "registration",
        "        if operation_id <= owner.highest_operation_id:\n            return Fault(",
        "        if operation_id < owner.highest_operation_id:\n            return Fault(",
    ),
    Mutant(
        "a refused id may be used again",
        "registration",
        "and operation_id > owner.highest_operation_id:\n",
        "and operation_id > owner.highest_operation_id and fault is None:\n",
    ),
    Mutant(
        "items of an operation that is known are not passed over",
        "registration",
        "            first_item += columns.item_count(row)\n",
        "            if operation_id > known_before:\n                first_item += columns.item_count(row)\n",
    ),
    Mutant(
        "a produce's own error is overlooked",
        "registration",
        "if partition is None or columns.local_error_code(place) != NONE:",
        "if partition is None:",
    ),
    Mutant(
        "from_now is ignored",
        "registration",
        "            if from_now:\n",
        "            if from_now and key.count < 0:\n",
    ),
    Mutant("any key waits for all", "registration", "        if any_key:\n            left = 1\n", ""),
    Mutant(
        "any key waits although one was signalled already",
        "registration",
        "if left == 0 or (any_key and left < len(held)):",
        "if left == 0:",
    ),
    Mutant(
        "all records are deleted up to the log end",
        "registration",
        "                offset = partition.high_watermark\n",
        "                offset = partition.log_end_offset\n",
    ),
    Mutant(
        "records up to the high watermark cannot be deleted",
        "registration",
        "0 <= partition.high_watermark < offset:",
        "0 <= partition.high_watermark <= offset:",
    ),
    Mutant(
        "an operation that ends at once keeps its partitions",
        "registration",
        "            self.partitions.release(partition)\n        self._note(",
        "        self._note(",
    ),
    Mutant(
        "a fetch that ends at once keeps its partitions",
        "registration",
        "                self.partitions.release(part.partition)\n",
        "                pass\n",
    ),
    Mutant(
        "a signal that ends at once keeps its keys",
        "registration",
        "                self.keys.release(key)\n            self._note(",
        "            self._note(",
    ),
    Mutant(
        "a key is forgotten to make room for its neighbour",
        "registration",
        "            if key is not None:\n                self.keys.hold(key)\n        held: list[SignalKey] = []\n",
        "        held: list[SignalKey] = []\n",
    ),
    Mutant(
        "a strict engine makes partitions that are only mentioned",
        "registration",
        "partition = self.partitions.make_missing(name, UNKNOWN_TOPIC_OR_PARTITION)",
        "partition = self.partitions.make(name)",
    ),
    Mutant(
        "one operation more than allowed",
        "operation_checks",
        "if pending >= limits.pending_operations_max:",
        "if pending > limits.pending_operations_max:",
    ),
    Mutant("any timeout is taken", "operation_checks", "<= timeout_ms <= limits.timeout_ms_max:", "<= timeout_ms:"),
    Mutant(
        "a plain operation may repeat the id before it",
        "registration",
        "        if operation_id <= owner.highest_operation_id:\n            return False\n",
        "        if operation_id < owner.highest_operation_id:\n            return False\n",
    ),
    Mutant("a plain operation may have any id", "plain_rows", "OPERATION_ID_MAX)", "2**62)"),
    Mutant("a plain operation may wait for no time", "plain_rows", "timeout_ms_default, 1,", "timeout_ms_default, 0,"),
    Mutant("a plain operation may wait for any time", "plain_rows", "1, timeout_ms_max)\n", "1, 2**62)\n"),
    Mutant("a plain operation may wait for any offset", "plain_rows", "OFFSET_MAX - 1)", "2**62)"),
    Mutant(
        "a plain operation may wait for an offset below 0", "plain_rows", "offset_default, 0,", "offset_default, -1,"
    ),
    Mutant("a plain operation may have any epoch", "plain_rows", "-1, -1, INT32_MAX)", "-1, -1, 2**40)"),
    Mutant(
        "a plain operation may have an epoch below -1", "plain_rows", "leader_epochs, -1, -1,", "leader_epochs, -1, -2,"
    ),
    Mutant(
        "a plain operation may name what is before the dictionary", "plain_rows", "indexes, 0, 0,", "indexes, 0, -1,"
    ),
    Mutant("a plain operation may name what is behind the dictionary", "plain_rows", "names - 1)", "names)"),
    Mutant(
        "the first value of a column speaks for all",
        "columns",
        "self.is_within: Final = place == count",
        "self.is_within: Final = place > 0",
    ),
    Mutant(
        "operations with errors of their own are plain",
        "plain_rows",
        " or columns.batch.local_error_codes:",
        ":",
    ),
    Mutant(
        "operations of several items are plain",
        "registration",
        "if plain.item_counts.at(row) != 1:",
        "if plain.item_counts.at(row) < 1:",
    ),
    Mutant("operations of any kind are plain", "plain_rows", "columns.kind != PRODUCE", "columns.kind < 0"),
    Mutant(
        "one plain operation more than allowed",
        "registration",
        "self.pending.count >= self.pending_max:",
        "self.pending.count > self.pending_max:",
    ),
    Mutant(
        "a plain operation leaves the highest id as it was",
        "registration",
        "            return False\n        owner.highest_operation_id = operation_id\n",
        "            return False\n",
    ),
    Mutant(
        "a partition may be named twice",
        "operation_checks",
        "if columns.named_by[first] == row:",
        "if columns.named_by[first] == -2:",
    ),
    Mutant(
        "idle keys that are asked for count as room",
        "operation_checks",
        "if made <= room - idle:",
        "if made <= room:",
    ),
    Mutant(
        "one partition less than allowed",
        "operation_checks",
        "else self.limits.partitions_max - known",
        "else self.limits.partitions_max - known - 1",
    ),
)

FETCHES = (
    Mutant(
        "exactly min_bytes are too few", "fetch", "return total >= fetch.min_bytes", "return total > fetch.min_bytes"
    ),
    Mutant(
        "shares are rounded up too far",
        "fetch",
        "share = (missing + growing - 1) // growing if growing else missing",
        "share = (missing + growing - 1) // growing + 1 if growing else missing",
    ),
    Mutant(
        "each partition is to give all that is missing",
        "fetch",
        "share = (missing + growing - 1) // growing if growing else missing",
        "share = missing",
    ),
    Mutant(
        "a fetch does not check the leader epoch",
        "fetch",
        "if item.leader_epoch >= 0 and partition.leader_epoch >= 0",
        "if item.leader_epoch >= 2**31 and partition.leader_epoch >= 0",
    ),
    Mutant(
        "an old and an unknown epoch are mixed up",
        "fetch",
        "if partition.leader_epoch > item.leader_epoch else",
        "if partition.leader_epoch < item.leader_epoch else",
    ),
    Mutant(
        "a follower may fetch from a follower",
        "fetch",
        "= replica_id >= 0 or not follower_reads",
        "= not follower_reads",
    ),
    Mutant(
        "read_committed reads what is not stable",
        "fetch",
        "isolation_level == READ_COMMITTED\n",
        "isolation_level > READ_COMMITTED\n",
    ),
    Mutant(
        "a follower reads only up to the high watermark",
        "fetch",
        "            return partition.log_end_offset\n",
        "            return partition.high_watermark\n",
    ),
    Mutant(
        "a fetch at the end is out of range",
        "fetch",
        "        if item.fetch_offset > end:\n",
        "        if item.fetch_offset >= end:\n",
    ),
    Mutant(
        "a fetch at the log start is out of range",
        "fetch",
        "    if item.fetch_offset < partition.log_start_offset:\n",
        "    if item.fetch_offset <= partition.log_start_offset:\n",
    ),
    Mutant(
        "partition_max_bytes does not bound what is counted",
        "fetch",
        "            if available > item.max_bytes:\n                available = item.max_bytes\n",
        "",
    ),
    Mutant(
        "partition_max_bytes does not bound the answer",
        "fetch",
        "return available if available < item.max_bytes else item.max_bytes",
        "return available",
    ),
    Mutant(
        "an older segment does not end the wait",
        "fetch",
        "            if partition.positions.segment(end) > item.start_segment:\n                return ANSWER_NOW\n",
        "",
    ),
    Mutant(
        "a throttled follower's bytes count",
        "fetch",
        "and reach >= 0 and not held_back:",
        "and reach >= 0:",
    ),
    Mutant(
        "a throttled follower within the in-sync set is held back",
        "fetch",
        " and int(self.replica_id) not in item.partition.in_sync",
        "",
    ),
    Mutant(
        "a log that diverged in the same epoch agrees",
        "fetch",
        "if epoch < item.last_fetched_epoch or end_offset < item.fetch_offset:",
        "if epoch < item.last_fetched_epoch:",
    ),
    Mutant("an unknown epoch agrees", "fetch", "        return UNDEFINED\n", "        return AGREES\n"),
    Mutant(
        "a partition without a mark is never looked at again",
        "fetch",
        "    if reach < 0:\n        return 0\n    if fetch",
        "    if reach < 0:\n        return NEVER\n    if fetch",
    ),
)

ENDING = (
    Mutant(
        "an ended operation keeps its timer", "pending", "            self.wheel.remove(slot)\n", "            pass\n"
    ),
    Mutant(
        "an ended countdown keeps its partitions",
        "pending",
        "            self.partitions.release(partition)\n            item = after\n",
        "            item = after\n",
    ),
    Mutant(
        "an ended fetch keeps its partitions",
        "pending",
        "            self.partitions.release(item.partition)\n",
        "",
    ),
    Mutant("an ended signal keeps its keys", "pending", "            self.keys.release(key)\n", ""),
    Mutant(
        "an ended fetch stays watched",
        "pending",
        "            self.unwatch_fetch_item(fetch, item)\n            self.items.release",
        "            self.items.release",
    ),
    Mutant(
        "an ended fetch stays throttled",
        "pending",
        "                item.partition.throttled_fetches -= 1\n",
        "                pass\n",
    ),
    Mutant(
        "a fetch watched anew keeps its old entry alive",
        "pending",
        "            self.items.renew(item.item)\n",
        "",
    ),
    Mutant("ended operations still count as pending", "pending", "        self.pending_by_kind[kind] -= 1\n", ""),
    Mutant("watches are only counted up", "pending", "        self.watched_by_kind[kind] -= 1\n", ""),
    Mutant(
        "failed items leave it satisfied",
        "pending",
        "if outcome == SATISFIED and failed:",
        "if outcome < SATISFIED and failed:",
    ),
    Mutant("ends with one item still to come", "pending", "        if left == 0:\n", "        if left <= 1:\n"),
    Mutant("the mark an item reached is not kept", "pending", "        self.items.mark[item] = mark\n", ""),
    Mutant(
        "the remaining time is rounded down",
        "pending",
        "(missing * int(waited_ms) + moved - 1) // moved",
        "missing * int(waited_ms) // moved",
    ),
    Mutant(
        "an expired delete-records answers the mark of now",
        "pending",
        "                if kind == PRODUCE:\n                    reached = current\n",
        "                reached = current\n",
    ),
    Mutant(
        "a wait that expires has no error",
        "pending",
        "                error = REQUEST_TIMED_OUT\n                current =",
        "                error = NONE\n                current =",
    ),
    Mutant(
        "lateness is not told",
        "pending",
        "kind, outcome, waited_ms, lateness_ms, item_count",
        "kind, outcome, waited_ms, 0, item_count",
    ),
    Mutant(
        "completions are told again", "pending", "                owner.completions = None\n", "                pass\n"
    ),
    Mutant(
        "a removed owner is told",
        "pending",
        "            if not owner.closed:\n",
        "            if owner.owner_id >= 0:\n",
    ),
    Mutant("an owner's pending operations are only counted up", "pending", "        owner.pending -= 1\n", ""),
    Mutant("ends are not counted", "pending", "        self.ended[kind * OUTCOMES_MAX + outcome] += 1\n", ""),
)

MUTANTS = ARRIVAL + FETCHES + ENDING
