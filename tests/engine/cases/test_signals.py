"""Signals on an engine alone: keys and values, decisions of another shard, and silences.

Keys belong to the account that signalled them: one account pushes out its own keys, not those of others.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, OperationBatch, Refusal
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX, EngineLimits
from purgatory.engine.marks.registry import SignalKey
from purgatory.engine.marks.signals import DECIDED_FLAG, FAILED_FLAG
from purgatory.engine.memory_estimate import VALUE_BYTES
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.engine.waiting.tables import Owner
from tests.scripts.engine_level import EngineLevel

KEYS_MAX = 10
VALUES_MAX = 100


class Shared:
    """An engine and its accounts, by name."""

    def __init__(self, keys_max: int = KEYS_MAX, values_max: int = VALUES_MAX) -> None:
        self.engine = Engine(EngineLimits(signal_keys_max=keys_max, signal_values_bytes_max=values_max), 0)
        self.accounts = {name: AccountUsage(name) for name in "abc"}

    def signal(
        self, name: str, *keys: str, value: bytes = b"", failed: bool = False, count: int = 1, is_full: bool = False
    ) -> list[Refusal]:
        batch = EventBatch(
            [codes.KEY_SIGNALLED] * len(keys), keys=list(keys), item_indexes=list(range(len(keys))), offsets=[count],
            flags=[int(failed)], values=[value] * len(keys),
        )  # fmt: skip
        refusals = self.engine.perform(None, Apply(batch, usage=self.accounts[name], is_full=is_full), 0).refusals
        self.engine.check()
        return refusals

    def wait(self, name: str, *keys: str) -> Callable[[], None]:
        """Wait for more signals of each key than it gets; returns how to cancel the wait."""
        owner = self.engine.add_owner(self.accounts[name])
        batch = OperationBatch([1], keys=list(keys), item_indexes=list(range(len(keys))), item_counts=[len(keys)],
            offsets=[1_000])  # fmt: skip
        assert self.engine.perform(owner, Register(codes.SIGNAL, batch), 0).refusals == []
        return lambda: self.engine.remove_owner(owner, 0)

    def known(self, name: str) -> list[str]:
        return [key for key, _, _, _, account in self.engine.snapshots.save_keys() if account == name]

    def state(self, key: str) -> tuple[int, bytes, int]:
        _, count, value, failed, _ = self.engine.snapshots.save_key(key)
        return count, value, failed != 0


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.mark.parametrize("value", [b"", b"x" * 20], ids=["keys", "values"])
@pytest.mark.parametrize("has_waits", [False, True], ids=["signals", "waits too"])
def test_flood_of_one_account_forgets_its_own_oldest_keys(value: bytes, has_waits: bool) -> None:
    shared = Shared()
    shared.signal("a", "a/job", value=b"disk full", failed=True, count=3)
    if has_waits:
        shared.wait("b", *numbered("b/waited", 6))
    flood = numbered("b/", 1_000)
    for key in flood:
        assert shared.signal("b", key, value=value) == []
    assert shared.state("a/job") == (3, b"disk full", True)
    kept = min(KEYS_MAX - 1 - 6 * has_waits, 4 if value else KEYS_MAX)
    assert shared.known("b") == flood[-kept:]


def test_key_belongs_to_the_first_account_that_signals_it() -> None:
    shared = Shared()
    shared.wait("b", "job")
    shared.signal("a", "job")
    shared.signal("c", "job", value=b"1")
    assert shared.known("a") == ["job"]
    assert [int(one.value_bytes) for one in shared.accounts.values()] == [1, 0, 0]


def test_account_above_its_share_of_values_forgets_its_own_first() -> None:
    """Values of keys with waits cannot be forgotten: if its own take all of its share, its next value is refused, and
    another account's is not.
    """
    shared = Shared()
    shared.accounts["b"].value_bytes_max = 60
    shared.signal("a", "a", value=b"x" * 20)
    shared.signal("b", *numbered("b", 4), value=b"x" * 20)
    assert shared.known("b") == ["b1", "b2", "b3"]
    cancel = shared.wait("b", "b1", "b2", "b3")
    (refusal,) = shared.signal("b", "b4", value=b"x")
    assert (refusal.code, refusal.field) == (codes.RESOURCE_EXHAUSTED, "key_signalled.value")
    assert "60 bytes in your current share" in refusal.message
    assert shared.signal("a", "a1", value=b"x" * 20) == []
    cancel()
    assert shared.signal("b", "b4", value=b"x") == []
    assert (shared.known("a"), shared.known("b")) == (["a", "a1"], ["b2", "b3", "b4"])


def test_restored_keys_belong_to_their_accounts() -> None:
    before, after = Shared(), Shared()
    for number in range(3):
        before.signal("a", f"a{number}", value=b"x")
        before.signal("b", f"b{number}")
    for key, count, value, failed, account in before.engine.snapshots.save_keys():
        after.engine.snapshots.restore_key(key, count, value, failed, after.accounts[account])
    after.signal("b", *numbered("c", 100))
    assert after.known("a") == ["a0", "a1", "a2"]
    assert after.known("b") == numbered("c", 100)[-7:]


def test_value_has_a_maximum_length() -> None:
    shared = Shared(values_max=10_000)
    assert shared.signal("a", "job", value=b"x" * SIGNAL_VALUE_BYTES_MAX) == []
    (refusal,) = shared.signal("a", "job", value=b"x" * (SIGNAL_VALUE_BYTES_MAX + 1))
    assert (refusal.code, refusal.field) == (codes.INVALID_ARGUMENT, "key_signalled.value")
    assert refusal.message == "has 4097 bytes; at most 4096 are allowed"


def test_idle_keys_make_room_for_values() -> None:
    """Beyond the limit of all values, the idle keys with a value whose last signal is oldest are forgotten. Keys
    without a value and keys with waits never are. If no others have values, the value is refused and nothing changes.
    """
    shared = Shared(values_max=10)
    shared.signal("a", "plain")
    shared.signal("a", "held", "a", "b", value=b"123")
    shared.wait("a", "held")
    assert shared.signal("a", "c", value=b"1234") == []
    assert shared.known("a") == ["plain", "b", "c", "held"]
    (refusal,) = shared.signal("a", "d", value=b"12345678")
    assert (refusal.code, refusal.field) == (codes.RESOURCE_EXHAUSTED, "key_signalled.value")
    assert shared.known("a") == ["plain", "b", "c", "held"]
    assert shared.signal("a", "d", value=b"1234567") == []
    assert shared.known("a") == ["plain", "d", "held"]


def test_order_in_which_values_are_forgotten() -> None:
    """A further signal, a heartbeat and the end of the last wait each move a key to the end of the order."""
    shared = Shared(values_max=12)
    shared.signal("a", "a", "b", "c", "d", value=b"123")
    cancel = shared.wait("a", "a")
    shared.signal("a", "b")
    shared.signal("a", "c", count=0)
    cancel()
    for key, left in (("e", ["b", "c", "a", "e"]), ("f", ["c", "a", "e", "f"]), ("g", ["a", "e", "f", "g"])):
        assert shared.signal("a", key, value=b"123") == []
        assert shared.known("a") == left


def test_limit_of_values_has_no_upper_bound() -> None:
    """As for the other limits, a number beyond 64 bits means no limit."""
    assert Shared(values_max=10**30).signal("a", "job", value=b"123") == []


def test_memory_counts_values() -> None:
    """The estimate rises by a value, also for the account that waits on the key, and falls when the key is forgotten.
    While memory is short, a value is refused, and a signal of a known key is not.
    """
    shared = Shared(keys_max=2, values_max=10_000)
    engine, waiting, kilobyte = shared.engine, shared.accounts["b"], b"x" * 1_000
    cancel = shared.wait("b", "a")
    before, used = engine.memory_bytes(), int(waiting.name_bytes)
    assert shared.signal("a", "a", value=kilobyte, is_full=True) != []
    assert shared.signal("a", "a", is_full=True) == []
    assert shared.signal("a", "b", value=kilobyte) == []
    with_b = engine.memory_bytes()
    assert with_b - before >= 1_000
    assert shared.signal("a", "c") == []
    assert with_b - engine.memory_bytes() == 1_000 + VALUE_BYTES, "b was forgotten for c"
    assert waiting.name_bytes == used
    assert shared.signal("a", "a", value=kilobyte) == []
    assert waiting.name_bytes == used + 1_000 + VALUE_BYTES
    cancel()
    assert waiting.name_bytes == 0


Model = dict[str, tuple[str, int]]
"""Owner and length of the value of each key, in order of the last signal."""


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 4)), max_size=60))
def test_keys_that_are_kept_are_those_of_a_model(steps: list[tuple[str, int, int]]) -> None:
    """The account with the most keys, or bytes of values, loses its first. If the one that needs room has any, what it
    needs counts. Of others with equal use, any may lose one.
    """
    shared = Shared(6, 9)
    model: Model = {}
    for name, number, length in steps:
        key = f"{name}{number}"
        shared.signal(name, key, value=b"x" * length)
        _, known_length = model.get(key, (name, 0))
        is_full = key not in model and len(model) == 6
        possible = after_a_drop(model, name, 1, lambda _: 1) if is_full else [model]
        possible = [{other: of for other, of in one.items() if other != key} for one in possible]
        fitting: list[Model] = []
        while possible:
            one = possible.pop()
            if known_length or sum(size for _, size in one.values()) + length <= 9:
                fitting.append({**one, key: (name, known_length or length)})
            else:
                possible += after_a_drop(one, name, length, lambda size: size)
        known = [shared.known(account) for account in "abc"]
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

COUNTS = [1, 2, 3, 4]
SIGNALS = [(b"", False), (b"a", False), (b"b", False), (b"", True), (b"c", True)]
"""Value, and whether it failed."""

Ended = dict[int, tuple[int, bytes]]


def waiting_engine() -> Engine:
    """An engine with a wait for each count of the key. The count is its id."""
    engine = Engine(EngineLimits(), 0)
    batch = OperationBatch(
        list(COUNTS), keys=["job"], item_indexes=[0] * len(COUNTS), offsets=list(COUNTS), item_counts=[1]
    )
    engine.perform(engine.add_owner(), Register(codes.SIGNAL, batch), 0)
    return engine


def key_of(engine: Engine) -> SignalKey:
    key = engine.snapshots.keys.get("job")
    assert key is not None
    return key


def apply(engine: Engine, value: bytes, flags: int, value_at: int = 0, failed_at: int = 0) -> None:
    batch = EventBatch(
        [codes.KEY_SIGNALLED], keys=["job"], offsets=[1], values=[value], flags=[flags],
        segment_base_offsets=[value_at], log_start_offsets=[failed_at],
    )  # fmt: skip
    assert engine.perform(None, Apply(batch), 0).refusals == []
    engine.check()


def decided(engine: Engine) -> tuple[bytes, int, int, int]:
    """The arguments of `apply` for other shards, after a signal."""
    key = key_of(engine)
    return key.value, DECIDED_FLAG | (FAILED_FLAG if key.failed else 0), int(key.value_at), int(key.failed_at)


def ended(engine: Engine) -> Ended:
    """Outcome and value of each wait that has ended."""
    found: Ended = {}
    for batch in engine.take_completions():
        values = dict(batch.signal_values)
        for row in range(len(batch)):
            found[batch.operation_ids[row]] = batch.outcomes[row], values.get(row, b"")
    return found


def test_waits_end_alike_in_any_order_of_decided_signals() -> None:
    for signals in product(SIGNALS, repeat=3):
        owner = waiting_engine()
        decisions = []
        for value, failed in signals:
            apply(owner, value, FAILED_FLAG if failed else 0)
            decisions.append(decided(owner))
        expected = ended(owner)
        for order in permutations(decisions):
            other = waiting_engine()
            for decision in order:
                apply(other, *decision)
            assert ended(other) == expected, (signals, order)
            assert key_of(other).count == key_of(owner).count


def test_restored_key_that_failed_decides_as_before() -> None:
    for signals in product(SIGNALS, repeat=2):
        owner = waiting_engine()
        for value, failed in signals:
            apply(owner, value, FAILED_FLAG if failed else 0)
        key = key_of(owner)
        if not key.failed or key.value_at > key.failed_at:
            continue
        restored = Engine(EngineLimits(), 0)
        restored.snapshots.restore_key(*owner.snapshots.save_key("job")[:-1])
        found = []
        for engine in (owner, restored):
            other = waiting_engine()
            apply(other, *decided(engine))
            found.append(ended(other))
        assert found[0] == found[1], signals


@pytest.mark.parametrize("is_held", [False, True])
def test_key_that_its_shard_forgot_gets_the_new_value(is_held: bool) -> None:
    engine = waiting_engine() if is_held else Engine(EngineLimits(), 0)
    apply(engine, b"old", DECIDED_FLAG | (0 if is_held else FAILED_FLAG))
    before = engine.memory_bytes()
    apply(engine, b"newer", DECIDED_FLAG)
    assert (key_of(engine).value, key_of(engine).failed) == (b"newer", False)
    if not is_held:
        assert engine.memory_bytes() - before == len(b"newer") - len(b"old")
    batch = OperationBatch([9], keys=["job"], item_indexes=[0], offsets=[1])
    engine.perform(engine.add_owner(), Register(codes.SIGNAL, batch), 0)
    assert ended(engine)[9] == (codes.SATISFIED, b"newer")


def test_late_decision_wakes_nobody_twice() -> None:
    engine = waiting_engine()
    apply(engine, b"a", DECIDED_FLAG, value_at=2)
    assert ended(engine) == {1: (codes.SATISFIED, b""), 2: (codes.SATISFIED, b"")}
    apply(engine, b"a", DECIDED_FLAG, value_at=2)
    apply(engine, b"a", DECIDED_FLAG, value_at=2)
    assert ended(engine) == {3: (codes.SATISFIED, b"a")}


# Waits that require a heartbeat: what a restored engine, and signals that are refused, do to a silence.


def restored(level: EngineLevel) -> tuple[Engine, Owner]:
    """Another engine, 500 ms later, with operation 1 of the first one."""
    octets = level.engine.snapshots.save_above(level.engine_owner(), 0).to_bytes()
    other = Engine(EngineLimits(), 500)
    owner = other.add_owner()
    owner.highest_operation_id = 1
    assert other.restore(owner, SavedOperations.from_bytes(octets), b"", 500) == 1
    return other, owner


def test_silence_starts_again_with_a_restored_engine() -> None:
    """Nobody could signal while the daemon was down, so the wait gets its whole heartbeat timeout again; its deadline
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


def test_refused_signals_of_an_account_keep_its_keys_alive() -> None:
    """The key of the account that signalled it last, and the wait whose key nobody has signalled; no other ones."""
    engine = Engine(EngineLimits(), 0)
    worker, other = AccountUsage(), AccountUsage()
    batch = partial(OperationBatch, timeouts_ms=[1_000], heartbeat_timeouts_ms=[100])
    engine.perform(engine.add_owner(worker), Register(codes.SIGNAL, batch([1], keys=["first"])), 0)
    owner = engine.add_owner(other)
    engine.perform(owner, Register(codes.SIGNAL, batch([1, 2], keys=["job", "third"], item_indexes=[0, 1])), 0)
    engine.perform(None, Apply(EventBatch([codes.KEY_SIGNALLED], keys=["job"], offsets=[0]), usage=worker), 10)
    engine.note_refused_events(worker, 90)
    assert engine.perform(None, PassTime(10), 100).ended == 1
    assert engine.perform(None, PassTime(10), 189).ended == 0
    assert engine.perform(None, PassTime(10), 190).ended == 2


def test_signal_refused_for_want_of_room_ends_the_silence() -> None:
    engine = Engine(EngineLimits(signal_values_bytes_max=1), 0)
    batch = OperationBatch([1], keys=["job"], timeouts_ms=[1_000], heartbeat_timeouts_ms=[100])
    engine.perform(engine.add_owner(), Register(codes.SIGNAL, batch), 0)
    signal = EventBatch([codes.KEY_SIGNALLED], keys=["job"], offsets=[1], values=[b"large"])
    assert [refusal.code for refusal in engine.perform(None, Apply(signal), 90).refusals] == [codes.RESOURCE_EXHAUSTED]
    assert engine.perform(None, PassTime(10), 189).ended == 0
    assert engine.perform(None, PassTime(10), 190).ended == 1
