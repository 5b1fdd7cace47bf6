"""Mutants of the tape: many calls played in one must do what they would have done one by one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a tape does not say whom it refused",
        "tape",
        "                played.refused_ids.append(operation_id)\n",
        "                pass\n",
    ),
    Mutant(
        "items of a refused operation are taken for the next one's",
        "tape",
        "            kind.next_item += columns.item_count(row)\n",
        "            kind.next_item += 0 if operation_id in played.refused_ids else columns.item_count(row)\n",
    ),
    Mutant(
        "an id on a tape may be used again",
        "tape",
        "            owner.highest_operation_id = operation_id\n",
        "",
    ),
    Mutant(
        "what is due expires at the instant of the step after it",
        "tape",
        "                self.now_ms = due_ms\n",
        "                self.now_ms = until_ms\n",
    ),
    Mutant(
        "what is due expires after the step of its instant",
        "tape",
        "if due_ms < 0 or due_ms > until_ms:",
        "if due_ms < 0 or due_ms >= until_ms:",
    ),
    Mutant(
        "what a tape shuts down counts as cancelled",
        "tape",
        "CANCELLED if step == CANCEL else SHUTTING_DOWN",
        "CANCELLED",
    ),
    Mutant("expirations that were not due are not told", "tape", "        return count\n", "        return 0\n"),
    Mutant(
        "waits on a key are not cancelled by a tape",
        "tape",
        "                    self._wakeups.cancel_entries(key.waits, CANCELLED, now_ms)\n",
        "                    pass\n",
    ),
    Mutant(
        "a tape's events begin anew with each step",
        "tape",
        "        stop = self._next_event + count\n        while",
        "        self._next_event = 0\n        stop = count\n        while",
    ),
)
