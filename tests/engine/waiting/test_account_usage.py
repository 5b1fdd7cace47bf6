"""The usage of an account is counted wherever things are created or released; scripts/limits has its limits."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.engine import Engine
from purgatory.engine.memory_estimate import (
    ITEM_BYTES,
    KEY_BYTES,
    OPERATION_BYTES,
    POSITION_BYTES,
    VALUE_BYTES,
    WATCH_LIST_BYTES,
    name_bytes,
)
from tests.scripts.engine_level import EngineLevel

SESSIONS = {"a": "ann", "b": "bob", "c": "ann"}
"""The account of each session."""
PARTITION = st.sampled_from(["orders-0", "payments-0", "a-topic-that-is-forgotten-when-nobody-waits-on-it-0"])
KEY = st.sampled_from(["one", "two", "three"])
OFFSET = st.integers(0, 5)
TIMEOUT = st.sampled_from([0, 5, 50])


def items(*names: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(st.one_of(*names), OFFSET)
    several = st.lists(pairs, min_size=1, max_size=3, unique_by=lambda pair: pair[0])
    return several.map(lambda some: " ".join(f"{name}@{max(offset, 1)}" for name, offset in some))


WAITS = st.builds(
    "{} {}:{{id}} {} timeout={}".format,
    st.sampled_from(["produce", "delete-records"]) | st.just("fetch"),
    st.sampled_from(list(SESSIONS)),
    items(PARTITION),
    TIMEOUT,
)
OTHER_WAITS = st.builds(
    "{0[0]} {1}:{{id}} {0[1]} timeout={2}".format,
    st.tuples(st.just("await"), items(KEY))
    | st.tuples(st.just("composite"), items(PARTITION, KEY) | items(PARTITION, KEY).map("{} required_terms=1".format)),
    st.sampled_from(list(SESSIONS)),
    TIMEOUT,
)
LINES = st.one_of(
    WAITS,
    OTHER_WAITS,
    st.builds("high-watermark {} {}".format, PARTITION, OFFSET),
    st.builds("lead {} {} replicas=0..{} leader_id=0".format, PARTITION, OFFSET, OFFSET),
    st.builds("signal {} {}".format, KEY, st.integers(1, 3)),
    st.builds("signal {} value={}{}".format, KEY, st.sampled_from([1, 12, 123]), st.sampled_from(["", " failed"])),
    st.builds("{} {}".format, st.sampled_from(["cancel-all", "close"]), st.sampled_from(list(SESSIONS))),
    st.builds("remove {}".format, PARTITION),
    st.just("jump 20"),
)


def recount(engine: Engine, accounts: list[AccountUsage]) -> None:
    """Recount everything by walking the engine, and compare."""
    engine.check()
    operations: Counter[AccountUsage] = Counter()
    items: Counter[AccountUsage] = Counter()
    views, _ = engine.inspection.list_pending(0, 1_000)
    for view in views:
        owner = engine._pending.owners[view.owner_id]
        assert owner is not None
        operations[owner.usage] += 1
        items[owner.usage] += len(view.items)
    partitions = engine._partitions
    keys = engine._keys
    made = Counter(partition.account for partition in partitions.by_name.values())
    held_keys = Counter(key.holder for key in keys.by_key.values() if key.references)
    assert items.total() == engine.pending_items
    for usage in [*accounts, partitions.unowned, keys.unowned]:
        assert usage.operations == operations[usage]
        assert usage.items == items[usage]
        assert usage.partitions == made[usage]
        assert usage.keys == held_keys[usage]
    placed = [partition for partition in partitions.by_index if partition is not None]
    known_keys = [key for key in keys.by_index if key is not None]
    assert partitions.bytes == sum(partition.weighed_bytes for partition in placed)
    for key in known_keys:
        value_bytes = VALUE_BYTES + len(key.value) if key.value else 0
        list_bytes = WATCH_LIST_BYTES if key.composite_waits is not None else 0
        assert key.bytes == KEY_BYTES + name_bytes(key.name) + value_bytes + list_bytes
    for usage in accounts:
        assert usage.name_bytes == sum(
            partition.weighed_bytes for partition in placed if partition.account is usage
        ) + sum(key.bytes for key in known_keys if (key.holder if key.references else key.account) is usage)
        owned = [key for key in known_keys if key.account is usage]
        assert usage.owned_keys == len(owned)
        assert usage.value_bytes == sum(len(key.value) for key in owned)
        assert usage.held_value_bytes == sum(len(key.value) for key in owned if key.references)
    for partition in placed:
        before = partition.weighed_bytes
        partitions.weigh(partition)
        assert partition.weighed_bytes == before, f"{partition.name} was not weighed when it changed"


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ann", "bob"]), LINES), max_size=40))
def test_counts_are_those_of_a_recount(lines: list[tuple[str, str]]) -> None:
    level = EngineLevel.played("limits signal_keys_max=2 signal_values_bytes_max=10 partitions_max=3")
    for number, (account, line) in enumerate(lines, 1):
        for session, owner in SESSIONS.items():
            level.answer(f"account {owner}")
            level.owner(session)
        level.answer(f"account {account}")
        level.answer(line.format(id=number))
        recount(level.engine, list(level.accounts.values()))
    for session in list(level.owners):
        level.close_session(session)
    accounts = list(level.accounts.values())
    recount(level.engine, accounts)
    assert all((held.operations, held.items, held.keys) == (0, 0, 0) for held in accounts)
    assert level.engine._wakeups.fetches.item_count == 0


def test_positions_are_thinned_while_memory_is_short() -> None:
    appends = [f"append orders-0 {offset} position={offset * 10}" for offset in range(1, 400)]
    level = EngineLevel.played("limits partitions_max=1", *appends[:100], "memory short", *appends[100:])
    assert level.answer("marks orders-0")[0].endswith("log end 399, min in sync 1")
    assert len(level.engine._partitions.by_name["orders", 0].positions) < 100


def test_character_of_a_name_takes_one_byte_or_four() -> None:
    for letter, size in (("x", 1), ("\u00fc", 4)):
        assert name_bytes((letter * 200, 0)) - name_bytes((letter * 100, 0)) == 100 * size


def test_memory_of_an_account_and_of_the_engine_grows_with_what_they_hold() -> None:
    level = EngineLevel.played("limits partitions_max=3", "account ann", "produce 1 orders-0@1 orders-1@2")
    ann, engine = level.accounts["ann"], level.engine
    assert ann.memory_bytes() == OPERATION_BYTES + 2 * ITEM_BYTES + ann.name_bytes
    before, named = engine.memory_bytes(), ann.name_bytes
    level.answer("append orders-2 10")
    partition = engine._partitions.by_name["orders", 2]
    added = partition.weighed_bytes
    assert engine.memory_bytes() - before == ann.name_bytes - named == added
    level.answer("append orders-2 20 position=200")
    assert partition.weighed_bytes - added == len(partition.positions) * POSITION_BYTES > 0
