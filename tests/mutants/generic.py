"""Mutants of the generic purgatory and of a program's own operations."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "claimed twice",
        "generic/purgatory",
        "        is_winner = operation.purgatory_take_ticket()\n",
        "        operation.purgatory_take_ticket()\n        is_winner = True\n",
    ),
    Mutant(
        "an operation that ends while it is being registered stays watched",
        "generic/purgatory",
        "        if has_ended:\n            self._unlink(operation)\n",
        "",
    ),
    Mutant(
        "a key outlives its last watcher",
        "generic/purgatory",
        "                if not watchers:\n                    del self._watchers[key]\n",
        "",
    ),
    Mutant("an ended operation keeps its timer", "generic/purgatory", "            self._wheel.remove(slot)\n", ""),
    Mutant(
        "an ended operation that was due stays due", "generic/purgatory", "            self._due.pop(slot, None)\n", ""
    ),
    Mutant("slots are not used again", "generic/purgatory", "            self._free_slots.append(slot)\n", ""),
    Mutant(
        "an ended operation is kept in memory", "generic/purgatory", "            self._operations[slot] = None\n", ""
    ),
    Mutant(
        "watched counts operations instead of keys",
        "generic/purgatory",
        "            self.watched -= len(operation.purgatory_keys)\n",
        "            self.watched -= 1\n",
    ),
    Mutant("a key counts as often as it is named", "generic/purgatory", "list(dict.fromkeys(keys))", "list(keys)"),
    Mutant(
        "a call from try_complete is let through",
        "generic/purgatory",
        "        if self._is_evaluating:\n            raise ReentrantCall",
        "        if self._is_evaluating and self.is_closed:\n            raise ReentrantCall",
    ),
    Mutant("shutdown still takes operations", "generic/purgatory", "            self.is_closed = True\n", ""),
    Mutant(
        "a timeout in the past waits for ever",
        "generic/purgatory",
        "            self._due[operation.purgatory_slot] = None\n",
        "            pass\n",
    ),
    Mutant(
        "what is due at once does not count against the limit",
        "generic/purgatory",
        "self._wheel.advance(now_ms, limit - len(slots), slots)",
        "self._wheel.advance(now_ms, limit, slots)",
    ),
    Mutant(
        "an expired operation counts as cancelled",
        "generic/purgatory",
        "self._claim(operation, EXPIRED)",
        "self._claim(operation, CANCELLED)",
    ),
    Mutant(
        "no second look after watching",
        "generic/purgatory",
        "self._watch(operation, keys)\n            if self._evaluate(operation):\n                return True\n",
        "self._watch(operation, keys)\n",
    ),
    Mutant(
        "timers run although they are disabled",
        "generic/purgatory",
        "            elif self._timer_enabled:\n",
        "            else:\n",
    ),
    Mutant(
        "effects of effects are left for the next call",
        "generic/purgatory",
        "while self._runs_effects and len(self._actions) > 0:",
        "if self._runs_effects and len(self._actions) > 0:",
    ),
    Mutant(
        "on_expiration runs whatever the outcome",
        "generic/operation",
        "        if operation.outcome == EXPIRED:\n            operation",
        "        if operation.outcome != SATISFIED:\n            operation",
    ),
    Mutant(
        "what an effect raises is swallowed",
        "generic/operation",
        "        on_error(operation, error)\n",
        "        del error\n",
    ),
    Mutant("newest effects run first", "generic/operation", "self._operations.popleft()", "self._operations.pop()"),
    Mutant(
        "an operation forced from outside completes behind the purgatory's back",
        "generic/purgatory",
        "            operation.purgatory_claim = self._claim_from_outside\n",
        "",
    ),
)
