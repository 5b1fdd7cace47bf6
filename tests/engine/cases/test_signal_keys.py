"""Signal keys and their values: what each account has, what is forgotten for want of room, and how much memory it is.

Keys belong to the account that signalled them: one account pushes out its own keys, not those of others.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, OperationBatch, Refusal
from purgatory.engine.calls import Apply, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX, EngineLimits
from purgatory.engine.memory_estimate import VALUE_BYTES

KEYS_MAX = 10
VALUES_MAX = 100


class Shared:
    """An engine and its accounts, by name."""

    def __init__(self, keys_max: int = KEYS_MAX, values_max: int = VALUES_MAX) -> None:
        self.engine = Engine(EngineLimits(signal_keys_max=keys_max, signal_values_bytes_max=values_max), 0)
        self.accounts = {name: AccountUsage(name) for name in "abc"}
        self._waits = 0

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
