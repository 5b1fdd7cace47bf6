"""Mutants of the watch lists, the tables of pending operations, and what is known by which name."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WATCHES = (
    Mutant(
        "a mark equal to the threshold wakes nobody",
        "watches",
        "or self._thresholds[head] > mark:",
        "or self._thresholds[head] >= mark:",
    ),
    Mutant(
        "a mark equal to an overflow threshold wakes nobody",
        "watches",
        "if overflow.top_key() > mark:",
        "if overflow.top_key() >= mark:",
    ),
    Mutant(
        "overflow goes before older equals of the run",
        "watches",
        "if overflow.size > 0 and overflow.top_key() < self._thresholds[head]:",
        "if overflow.size > 0 and overflow.top_key() <= self._thresholds[head]:",
    ),
    Mutant(
        "compaction loses the last live entry",
        "watches",
        "            if ref_is_live(ref, generations):\n",
        "            if ref_is_live(ref, generations) and i64(len(refs)) + 1 < self.live:\n",
    ),
    Mutant(
        "compaction keeps the dead",
        "watches",
        "            if ref_is_live(ref, generations):\n",
        "            if ref >= 0:\n",
    ),
    Mutant(
        "dead entries are never compacted away",
        "watches",
        "self._overflow.size > 2 * self.live + SLACK\n",
        "self._overflow.size > 2**40\n",
    ),
    Mutant(
        "compaction forgets to start anew at the head",
        "watches",
        "        self._refs = refs\n        self._head = 0\n        return before",
        "        self._refs = refs\n        return before",
    ),
    Mutant(
        "a stale entry counts as live",
        "watches",
        "return i64(generations[ref >> GENERATION_BITS]) & GENERATION_MASK == ref & GENERATION_MASK",
        "return True",
    ),
    Mutant(
        "references hold eight bits of the generation",
        "watches",
        "(item << GENERATION_BITS) + (generation & GENERATION_MASK)",
        "(item << GENERATION_BITS) + (generation & 0xFF)",
    ),
    Mutant(
        "shifted in before its equals",
        "watches",
        "and thresholds[place - 1] > threshold:",
        "and thresholds[place - 1] >= threshold:",
    ),
    Mutant(
        "shifted in from any distance",
        "watches",
        "return place < self._head or self._thresholds[place] <= threshold",
        "return True",
    ),
    Mutant(
        "a threshold below the tail is appended all the same",
        "watches",
        "if end == self._head or threshold >= self._thresholds[end - 1]:",
        "if end == self._head or threshold >= self._thresholds[end - 1] - 1:",
    ),
    Mutant(
        "popped entries come back when the head is dropped",
        "watches",
        "        self._refs = self._refs[self._head :]\n        self._head = 0\n",
        "        self._refs = self._refs[self._head - 1 :]\n        self._head = 0\n",
    ),
    Mutant(
        "popped entries keep their memory",
        "watches",
        "if head > SLACK and head * 2 >",
        "if head > 2**40 and head * 2 >",
    ),
    Mutant("a forgotten entry still counts as live", "watches", "        self.live -= 1\n", ""),
    Mutant(
        "renumbering the overflow mixes the references up",
        "watches",
        "refs = append(refs, old_refs[old.top_value()])",
        "refs = append(refs, old_refs[i64(len(refs))])",
    ),
)

TABLES = (
    Mutant(
        "a released item keeps its generation",
        "tables",
        "        self.renew(item)\n        self.slot[item]",
        "        self.slot[item]",
    ),
    Mutant("a new generation is not stored", "tables", "        self.generation[item] = i32(generation)\n", ""),
    Mutant("released slots are not used again", "tables", "        self._free = slot\n", ""),
    Mutant("released items are not used again", "tables", "        self._free = item\n", ""),
    Mutant(
        "a successor in the slot passes for the old operation",
        "tables",
        "            operations.operation_id[slot] == self.ids[place]\n            and i64",
        "            i64",
    ),
    Mutant(
        "another owner's operation passes for one's own",
        "tables",
        "            and i64(operations.owner_id[slot]) == self.owner_id\n",
        "",
    ),
    Mutant(
        "an owner's ids grow for ever",
        "tables",
        "if i64(len(self.ids)) > 2 * self.pending + 64:",
        "if i64(len(self.ids)) > 2**40:",
    ),
    Mutant(
        "an owner's oldest pending operation is dropped when its ids are compacted",
        "tables",
        "            if self._is_pending(place, operations):\n                ids",
        "            if self._is_pending(place, operations) and place > 0:\n                ids",
    ),
    Mutant(
        "the search for an id misses it",
        "tables",
        "if self.ids[middle] < operation_id:",
        "if self.ids[middle] <= operation_id:",
    ),
)

NAMES = (
    Mutant(
        "a key that was never signalled stays known",
        "registry",
        "            if signal_key.count == 0:\n                self._forget(signal_key.key)\n",
        "",
    ),
    Mutant(
        "a key that is waited for stays among the idle ones",
        "registry",
        "if signal_key.references == 0:\n            self._idle.pop(signal_key.key, None)\n        signal_key",
        "signal_key",
    ),
    Mutant("the youngest idle key is forgotten", "registry", "next(iter(self._idle))", "next(reversed(self._idle))"),
    Mutant(
        "a signal does not make an idle key young",
        "registry",
        "            self._idle.pop(signal_key.key, None)\n            self._idle[signal_key.key] = None\n",
        "            pass\n",
    ),
    Mutant(
        "a partition that was only mentioned stays known", "registry", "elif not partition.announced:", "elif False:"
    ),
    Mutant(
        "an announced partition goes with its last wait",
        "registry",
        "elif not partition.announced:",
        "else:",
    ),
    Mutant(
        "a removed partition's place is never used again",
        "registry",
        "        self.by_index[partition.index] = None\n        self._free.append(partition.index)",
        "        self.by_index[partition.index] = None",
    ),
    Mutant(
        "a forgotten key's place is never used again",
        "registry",
        "        self.by_index[gone.index] = None\n        self._free.append(gone.index)",
        "        self.by_index[gone.index] = None",
    ),
    Mutant(
        "one key more than allowed",
        "registry",
        "return self.keys_max - len(self.by_key)",
        "return self.keys_max + 1 - len(self.by_key)",
    ),
)

MUTANTS = WATCHES + TABLES + NAMES
