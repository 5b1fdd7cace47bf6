"""Signals on an engine alone: keys and values, decisions of another shard, and silences.

Keys belong to the account that signalled them: one account pushes out its own keys, not those of others.
"""

from collections import Counter
from collections.abc import Callable
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch
from purgatory.engine.calls import Apply, PassTime
from purgatory.engine.engine import Engine
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX, EngineLimits
from purgatory.engine.marks.registry import SignalKey
from purgatory.engine.memory_estimate import VALUE_BYTES
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.engine.waiting.tables import Owner
from tests.engine.adapter import number_of, value_of
from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import events_of, parts_of

LIMITS = "limits signal_keys_max=10 signal_values_bytes_max=100"
ALONE = "limits signal_keys_max=10"
"""The oracle knows no accounts, and nothing of shards."""


def test_restored_keys_belong_to_their_accounts() -> None:
    signals = ["account ann", "signal a*3 value=1", "account bob", "signal b*3"]
    before, after = EngineLevel.played(LIMITS, *signals), EngineLevel.played(LIMITS, "account ann", "account bob")
    for key, count, value, failed, account in before.engine.snapshots.save_keys():
        after.engine.snapshots.restore_key(key, count, value, failed, after.accounts[account])
    after.answer("signal c*100")
    assert after.answer("known ann") == ["a-0 a-1 a-2"]
    assert after.answer("known bob") == [" ".join(f"c-{number}" for number in range(93, 100))]


def test_value_has_a_maximum_length() -> None:
    engine = Engine(EngineLimits(), 0)
    values = [b"x" * SIGNAL_VALUE_BYTES_MAX, b"x" * (SIGNAL_VALUE_BYTES_MAX + 1)]
    batch = EventBatch([codes.KEY_SIGNALLED] * 2, keys=["job"], item_indexes=[0, 0], values=values)
    (refusal,) = engine.perform(None, Apply(batch), 0).refusals
    assert (refusal.index, refusal.code, refusal.field) == (1, codes.INVALID_ARGUMENT, "key_signalled.value")
    assert refusal.message == "has 4097 bytes; at most 4096 are allowed"


def test_memory_counts_values() -> None:
    """Also for the account that waits on the key; no longer when the key is forgotten."""
    level = EngineLevel.played("limits signal_keys_max=2", "account bob", "await b:1 a@9", "account ann", "signal a")
    engine, waiting, number = level.engine, level.accounts["bob"], 10**993
    before, used = engine.memory_bytes(), int(waiting.name_bytes)
    assert level.answer(f"signal b value={number}") == []
    with_b = engine.memory_bytes()
    assert with_b - before >= 1_000
    assert level.answer("signal c") == []
    assert with_b - engine.memory_bytes() == 1_000 + VALUE_BYTES, "b was forgotten for c"
    assert waiting.name_bytes == used
    assert level.answer(f"signal a value={number}") == []
    assert waiting.name_bytes == used + 1_000 + VALUE_BYTES
    level.answer("cancel b:1")
    assert waiting.name_bytes == 0


Model = dict[str, tuple[str, int]]
"""Owner and length of the value of each key, in order of the last signal."""


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sampled_from([0, 1, 12, 123])), max_size=60))
def test_keys_that_are_kept_are_those_of_a_model(steps: list[tuple[str, int, int]]) -> None:
    """The account with the most keys, or bytes of values, loses its first. If the one that needs room has any, its
    need counts. Among others with equal use, any may lose one.
    """
    level = EngineLevel.played("limits signal_keys_max=6 signal_values_bytes_max=20")
    model: Model = {}
    for name, number, value in steps:
        key, length = f"{name}{number}", len(value_of(value))
        level.answer(f"account {name}")
        level.answer(f"signal {key} value={value}")
        level.engine.check()
        _, known_length = model.get(key, (name, 0))
        is_full = key not in model and len(model) == 6
        possible = after_a_drop(model, name, 1, lambda _: 1) if is_full else [model]
        possible = [{other: of for other, of in one.items() if other != key} for one in possible]
        fitting: list[Model] = []
        while possible:
            one = possible.pop()
            if known_length or sum(size for _, size in one.values()) + length <= 20:
                fitting.append({**one, key: (name, known_length or length)})
            else:
                possible += after_a_drop(one, name, length, lambda size: size)
        known = [level.known(account) for account in "abc"]
        same = [one for one in fitting if [by_owner(one, account) for account in "abc"] == known]
        assert same, f"{known} is none of {fitting}"
        model = same[0]


def by_owner(model: Model, account: str) -> list[str]:
    return [key for key, (owner, _) in model.items() if owner == account]


def after_a_drop(model: Model, newest: str, more: int, size: Callable[[int], int]) -> list[Model]:
    """The model without the first key of the account with the most: one for each that it may be."""
    held = Counter[str]()
    for owner, length in model.values():
        held[owner] += size(length)
    if held[newest]:
        held[newest] += more
    most = [owner for owner in held if held[owner] == max(held.values())]
    losers = [newest] if newest in most else most
    firsts = [next(key for key in by_owner(model, owner) if size(model[key][1])) for owner in losers]
    return [{key: of for key, of in model.items() if key != first} for first in firsts]


# Signals that the shard of their key has decided, at another shard: two engines, of which one decides.

SIGNALS = ["", "value=1", "value=2", "failed", "value=3 failed"]


def shard(*lines: str) -> EngineLevel:
    """A shard with a wait for each count of the key. The count is its id."""
    return EngineLevel.played(ALONE, *[f"await {count} job@{count}" for count in range(1, 5)], *lines)


def key_of(level: EngineLevel) -> SignalKey:
    key = level.engine.snapshots.keys.get("job")
    assert key is not None
    return key


def decision(level: EngineLevel) -> str:
    """The last signal of a key, for other shards."""
    key = key_of(level)
    at = f"segment={int(key.value_at)} log_start={int(key.failed_at)}"
    return f"signal job 1 value={number_of(key.value)} {at} decided{' failed' if key.failed else ''}"


def ends(level: EngineLevel, *lines: str) -> dict[int, tuple[int, int]]:
    """Outcome and value of each wait that these lines end."""
    found: dict[int, tuple[int, int]] = {}
    for line in lines:
        level.apply([event for part in parts_of(line) for event in events_of(part)])
        level.engine.check()
        found |= {row.operation_id: (row.outcome, row.items[0].value) for _, row in level.ended()}
    return found


def decided(*signals: str) -> tuple[EngineLevel, list[str], dict[int, tuple[int, int]]]:
    """A shard that decides these signals, its decisions, and which waits they end there."""
    level, decisions, found = shard(), list[str](), dict[int, tuple[int, int]]()
    for signal in signals:
        found |= ends(level, f"signal job 1 {signal}")
        decisions.append(decision(level))
    return level, decisions, found


def test_waits_end_alike_in_any_order_of_decided_signals() -> None:
    for signals in product(SIGNALS, repeat=3):
        level, decisions, expected = decided(*signals)
        for order in permutations(decisions):
            other = shard()
            assert ends(other, *order) == expected, (signals, order)
            assert key_of(other).count == key_of(level).count


def test_restored_key_that_failed_decides_as_before() -> None:
    for signals in product(SIGNALS, repeat=2):
        level, _, _ = decided(*signals)
        key, restored_level = key_of(level), EngineLevel()
        if key.failed and key.value_at <= key.failed_at:
            restored_level.engine.snapshots.restore_key(*level.engine.snapshots.save_key("job")[:-1])
            assert ends(shard(), decision(restored_level)) == ends(shard(), decision(level)), signals


@pytest.mark.parametrize("is_held", [False, True])
def test_key_that_its_shard_forgot_gets_the_new_value(is_held: bool) -> None:
    level = shard() if is_held else EngineLevel.played(ALONE)
    ends(level, f"signal job 1 value=1 decided{'' if is_held else ' failed'}")
    before = level.engine.memory_bytes()
    ends(level, "signal job 1 value=123 decided")
    assert (number_of(key_of(level).value), key_of(level).failed) == (123, False)
    if not is_held:
        assert level.engine.memory_bytes() - before == len(value_of(123)) - len(value_of(1))
    assert level.answer("await 9 job") == ["9 satisfied: job@1 at 2 value 123"]


def test_late_decision_wakes_nobody_twice() -> None:
    level, late = shard(), "signal job 1 value=1 segment=2 decided"
    assert ends(level, late) == {1: (codes.SATISFIED, 0), 2: (codes.SATISFIED, 0)}
    assert ends(level, late, late) == {3: (codes.SATISFIED, 1)}


# Silences and stale timeouts in a restored engine.


def restored(level: EngineLevel) -> tuple[Engine, Owner]:
    """Another engine, 500 ms later, with operation 1 of the first one."""
    octets = level.engine.snapshots.save_above(level.engine_owner(), 0).to_bytes()
    other = Engine(EngineLimits(), 500)
    owner = other.add_owner()
    owner.highest_operation_id = 1
    assert other.restore(owner, SavedOperations.from_bytes(octets), b"", 500) == 1
    return other, owner


def test_silence_starts_again_with_a_restored_engine() -> None:
    """No one could signal while the daemon was down, so the wait gets its whole heartbeat timeout again; its deadline
    stays.
    """
    other, owner = restored(EngineLevel.played("await 1 job heartbeat_timeout_ms=100 timeout=1000", "pass 90"))
    assert other.perform(None, PassTime(10), 599).ended == 0
    view = other.inspection.describe(owner, 1)
    assert view is not None
    assert view.deadline_ms == 1_000
    assert other.perform(None, PassTime(10), 600).ended == 1
    (completions,) = other.take_completions()
    assert list(completions.error_codes) == [codes.HEARTBEAT_MISSED]


def test_stale_timeout_of_a_restored_wait_begins_again() -> None:
    other, _ = restored(EngineLevel.played("composite 1 orders-0@5 stale_timeout_ms=100 timeout=1000"))
    waits, stale = other.stale_waits, {("orders", 0): 1_000}
    assert waits.due(waits.slots(), stale, 599) == []
    assert len(waits.due(waits.slots(), stale, 600)) == 1
