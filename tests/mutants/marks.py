"""Mutants of a partition's marks: watermarks, replicas, the in-sync set, byte positions, leader epochs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WATERMARKS = (
    Mutant(
        "a leader's high watermark goes back",
        "partition",
        "            if offset <= self.high_watermark:\n                return False\n            if self.log",
        "            if offset == self.high_watermark:\n                return False\n            if self.log",
    ),
    Mutant(
        "a high watermark above the log does not raise its end",
        "partition",
        "            if self.log_end_offset < offset:\n                self.log_end_offset = offset\n        elif",
        "        elif",
    ),
    Mutant(
        "a follower's high watermark goes beyond its log",
        "partition",
        "        elif offset > self.log_end_offset:\n            offset = self.log_end_offset\n",
        "",
    ),
    Mutant(
        "the first append leaves the high watermark unknown",
        "partition",
        "        if self.high_watermark < 0:\n            self.high_watermark = self.log_start_offset\n",
        "",
    ),
    Mutant(
        "the log end goes back with an old append",
        "partition",
        "if log_end_offset <= self.log_end_offset and not rolled:",
        "if log_end_offset == self.log_end_offset and not rolled:",
    ),
    Mutant(
        "a roll to a new segment is not noticed",
        "partition",
        "rolled = log_end_offset == self.log_end_offset and segment > self.positions.last_segment()",
        "rolled = False",
    ),
    Mutant(
        "the log start does not push the high watermark",
        "partition",
        "        if self.high_watermark < offset:\n            self.high_watermark = offset\n",
        "",
    ),
    Mutant(
        "the last stable offset passes the high watermark",
        "partition",
        "if unstable < 0 or unstable >= self.high_watermark:",
        "if unstable < 0:",
    ),
    Mutant(
        "the last stable offset lies below the log start",
        "partition",
        "return unstable if unstable > self.log_start_offset else self.log_start_offset",
        "return unstable",
    ),
    Mutant(
        "the last stable offset goes back",
        "partition",
        "or (0 <= offset < self.last_stable_offset()):",
        "or False:",
    ),
    Mutant(
        "the low watermark waits for the dead",
        "partition",
        "if not replica.dead and replica.log_start_offset < lowest:",
        "if replica.log_start_offset < lowest:",
    ),
    Mutant(
        "a follower has a low watermark",
        "partition",
        "        if not self.is_leader:\n            return -1\n        lowest",
        "        lowest",
    ),
    Mutant(
        "truncation leaves the high watermark above the log",
        "partition",
        "        if self.high_watermark > log_end_offset:\n            self.high_watermark = log_end_offset\n",
        "",
    ),
    Mutant(
        "truncation leaves an unstable offset that was cut",
        "partition",
        "        if self.first_unstable_offset >= log_end_offset:\n            self.first_unstable_offset = -1\n",
        "",
    ),
    Mutant(
        "truncation leaves positions that were cut",
        "partition",
        "        self.positions.truncate(log_end_offset)\n",
        "",
    ),
    Mutant("truncation leaves epochs that were cut", "partition", "        self.epochs.truncate(log_end_offset)\n", ""),
)

REPLICAS = (
    Mutant(
        "the minimum of in-sync replicas may exceed the replicas",
        "partition",
        "return self.min_in_sync_replicas if self.min_in_sync_replicas < replicas else replicas",
        "return self.min_in_sync_replicas",
    ),
    Mutant(
        "proposed members do not count as in sync",
        "partition",
        "                size += 1\n",
        "                size += 0\n",
    ),
    Mutant(
        "exactly the minimum in sync is too few",
        "partition",
        "self.maximal_in_sync_size() < self.effective_min_in_sync_replicas()",
        "self.maximal_in_sync_size() <= self.effective_min_in_sync_replicas()",
    ),
    Mutant(
        "the high watermark moves under the minimum of in-sync replicas",
        "partition",
        "        if committed < self.effective_min_in_sync_replicas():\n            return False\n",
        "",
    ),
    Mutant(
        "the high watermark does not wait for the in-sync set",
        "partition",
        "                replica.in_sync\n                or replica.proposed",
        "                replica.proposed",
    ),
    Mutant(
        "the high watermark does not wait for a proposed member",
        "partition",
        "                or replica.proposed\n",
        "",
    ),
    Mutant("the high watermark waits for a fenced replica", "partition", "not replica.fenced\n", "True\n"),
    Mutant("the high watermark waits for a dead replica", "partition", "and not replica.dead\n", "and True\n"),
    Mutant(
        "lag of exactly the maximum is too much",
        "partition",
        "now_ms - self.last_caught_up_ms <= lag_max_ms",
        "now_ms - self.last_caught_up_ms < lag_max_ms",
    ),
    Mutant(
        "a follower that reaches an old end counts as caught up now",
        "partition",
        "replica.last_caught_up_ms = replica.last_fetch_ms",
        "replica.last_caught_up_ms = now_ms",
    ),
    Mutant(
        "a follower may not go back",
        "partition",
        "        changed = replica.log_end_offset != log_end_offset\n",
        "        changed = replica.log_end_offset < log_end_offset\n",
    ),
    Mutant(
        "a new leader keeps what the followers told another",
        "partition",
        "                replica.forget_progress()\n",
        "                pass\n",
    ),
    Mutant(
        "replicas that are no longer assigned stay",
        "partition",
        "                del self.replicas[gone]\n",
        "                pass\n",
    ),
    Mutant(
        "a new leader stays among its own followers",
        "partition",
        "            del self.replicas[int(self.leader_id)]\n",
        "            pass\n",
    ),
    Mutant(
        "a member of the in-sync set that is heard of later is not one",
        "partition",
        "            known.in_sync = replica_id in self.in_sync\n",
        "",
        equivalent="members are made when their set is told, so whoever is made later is in none",
    ),
    Mutant(
        "a proposal stays after the set was committed",
        "partition",
        "        self.proposed = sorted(set(sets.proposed))\n",
        "        self.proposed = sorted(set(sets.proposed)) or self.proposed\n",
    ),
)

POSITIONS = (
    Mutant(
        "thinning drops from the newer half too",
        "positions",
        "if place >= half or place % 2 == 0:",
        "if place % 2 == 0:",
    ),
    Mutant(
        "records count no byte of their own",
        "positions",
        "        if grown < ahead:\n            grown = ahead\n",
        "",
    ),
    Mutant(
        "an entry at the very offset is not found",
        "positions",
        "            if offsets[middle] <= offset:",
        "            if offsets[middle] < offset:",
    ),
    Mutant(
        "between entries nothing grows",
        "positions",
        "return self.reaches[place] + offset - self.offsets[place]",
        "return self.reaches[place]",
    ),
    Mutant(
        "the entry at the cut goes with it",
        "positions",
        "while keep and self.offsets[keep - 1] > log_end_offset:",
        "while keep and self.offsets[keep - 1] >= log_end_offset:",
    ),
    Mutant(
        "a position that goes back is taken",
        "positions",
        "and position < self.positions[count - 1]:",
        "and position < 0:",
    ),
    Mutant("positions are not bounded", "positions", "elif count >= ENTRIES_MAX:", "elif count >= 2**40:"),
)

EPOCHS = (
    Mutant(
        "an epoch that begins at the cut stays",
        "epochs",
        "while self.start_offsets and self.start_offsets[-1] >= log_end_offset:",
        "while self.start_offsets and self.start_offsets[-1] > log_end_offset:",
    ),
    Mutant(
        "the newest epoch ends where it begins",
        "epochs",
        "return epoch, log_end_offset",
        "return epoch, self.start_offsets[-1]",
    ),
    Mutant(
        "the epoch before is taken for the one asked for",
        "epochs",
        "if epochs[middle] <= epoch:",
        "if epochs[middle] < epoch:",
    ),
    Mutant(
        "an epoch older than all is undefined",
        "epochs",
        "return epoch, self.start_offsets[0]",
        "return -1, -1",
    ),
    Mutant(
        "epochs that a new one contradicts stay",
        "epochs",
        "or self.start_offsets[-1] >= start_offset):",
        "or self.start_offsets[-1] > start_offset):",
    ),
    Mutant("the epoch cache is not bounded", "epochs", "if len(self.epochs) > ENTRIES_MAX:", "if False:"),
)

MUTANTS = WATERMARKS + REPLICAS + POSITIONS + EPOCHS
