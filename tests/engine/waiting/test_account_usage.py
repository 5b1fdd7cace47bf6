"""The usage of an account is counted wherever things are created or released, and its limits are exact."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, OperationBatch, ReplicaSets
from purgatory.engine.calls import Apply, CancelAll, PassTime, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.memory_estimate import KEY_BYTES, VALUE_BYTES, WATCH_LIST_BYTES, name_bytes
from purgatory.engine.waiting.tables import Owner

TOPICS = ["orders", "payments", "a topic that is forgotten when nobody waits on it"]
KEYS = ["one", "two", "three"]
WAITS = ["produce", "delete", "fetch", "signal", "composite"]
ITEMS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=3, unique_by=lambda item: item[0]
)

STEP = st.one_of(
    st.tuples(
        st.sampled_from(WAITS),
        st.integers(0, 2),  # owner
        ITEMS,
        st.sampled_from([0, 5, 50]),  # timeout
    ),
    st.tuples(st.just("mark"), st.integers(0, 2), st.integers(0, 8), st.integers(0, 1)),
    st.tuples(st.just("count"), st.integers(0, 2), st.integers(1, 3), st.integers(0, 1)),
    st.tuples(st.just("value"), st.integers(0, 2), st.integers(1, 3), st.integers(0, 1)),
    st.tuples(st.just("lead"), st.integers(0, 2), st.integers(0, 4), st.integers(0, 1)),
    st.tuples(st.sampled_from(["cancel", "drop", "remove", "pass"]), st.integers(0, 2), st.just(0), st.just(0)),
)


class TwoAccounts:
    """Two accounts with three owners, and an engine with a clock."""

    def __init__(self) -> None:
        self.engine = Engine(EngineLimits(signal_keys_max=2, signal_values_bytes_max=4, partitions_max=3), 0)
        self.usage = [AccountUsage(), AccountUsage()]
        self.owners = [self.engine.add_owner(self.usage[number % 2]) for number in range(3)]
        self.now_ms = 0
        self.last_id = 0

    def take(self, step: tuple) -> None:
        what, number, given, last = step
        engine, owner = self.engine, self.owners[number]
        if what in WAITS:
            self.last_id += 1
            register(engine, owner, what, self.last_id, given, last, self.now_ms)
        elif what == "mark":
            batch = EventBatch(
                [codes.HIGH_WATERMARK], partitions=[(TOPICS[number], 0)], item_indexes=[0], offsets=[given]
            )
            engine.perform(None, Apply(batch, usage=self.usage[last]), self.now_ms)
        elif what == "count":
            batch = EventBatch([codes.KEY_SIGNALLED], keys=[KEYS[number]], item_indexes=[0], offsets=[given])
            engine.perform(None, Apply(batch, usage=self.usage[last]), self.now_ms)
        elif what == "value":
            batch = EventBatch([codes.KEY_SIGNALLED], keys=[KEYS[number]], flags=[last], values=[b"x" * given])
            engine.perform(None, Apply(batch, usage=self.usage[last]), self.now_ms)
        elif what == "lead":
            sets = ReplicaSets(replicas=list(range(given + 1)), leader_id=0)
            batch = EventBatch(
                [codes.LEADERSHIP], partitions=[(TOPICS[number], 0)], item_indexes=[0], offsets=[given],
                leader_epochs=[given], flags=[1], replica_sets=[sets],
            )  # fmt: skip
            engine.perform(None, Apply(batch, usage=self.usage[last]), self.now_ms)
        elif what == "cancel":
            engine.perform(owner, CancelAll(), self.now_ms)
        elif what == "drop":
            engine.remove_owner(owner, self.now_ms)
            self.owners[number] = engine.add_owner(self.usage[number % 2])
        elif what == "remove":
            batch = EventBatch([codes.PARTITION_REMOVED], partitions=[(TOPICS[number], 0)], item_indexes=[0])
            engine.perform(None, Apply(batch), self.now_ms)
        else:
            self.now_ms += 20
            engine.perform(None, PassTime(100), self.now_ms)
        engine.take_completions()

    def recount(self) -> None:
        """Recount everything by walking the engine, and compare."""
        self.engine.check()
        operations: Counter[AccountUsage] = Counter()
        items: Counter[AccountUsage] = Counter()
        views, _ = self.engine.inspection.list_pending(0, 1_000)
        for view in views:
            owner = self.engine._pending.owners[view.owner_id]
            assert owner is not None
            operations[owner.usage] += 1
            items[owner.usage] += len(view.items)
        partitions = self.engine._partitions
        keys = self.engine._keys
        made = Counter(partition.account for partition in partitions.by_name.values())
        held_keys = Counter(key.holder for key in keys.by_key.values() if key.references)
        assert items.total() == self.engine.pending_items
        for usage in [*self.usage, partitions.unowned, keys.unowned]:
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
        for usage in self.usage:
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


def register(
    engine: Engine,
    owner: Owner,
    what: str,
    operation_id: int,
    items: list[tuple[int, int]],
    timeout_ms: int,
    now_ms: int,
) -> list[int]:
    """Register one operation; returns the codes of its refusal, if any."""
    kinds = {"produce": codes.PRODUCE, "delete": codes.DELETE_RECORDS, "fetch": codes.FETCH, "signal": codes.SIGNAL}
    kinds["composite"] = codes.COMPOSITE
    places = [place for place, _ in items]
    if what == "composite":  # each of its items is a partition or a key, by its offset
        places = [place + len(TOPICS) * (value % 2) for place, value in items]
    batch = OperationBatch(
        [operation_id],
        partitions=[] if what == "signal" else [(topic, 0) for topic in TOPICS],
        keys=KEYS if what in ("signal", "composite") else [],
        item_counts=[len(items)],
        item_indexes=places,
        offsets=[max(value, 1) if what == "signal" else value for _, value in items],
        timeouts_ms=[timeout_ms],
        min_bytes=[3] if what == "fetch" else [],
        required_terms=[1] if what == "composite" and len(items) == 3 else [],
    )
    return [refusal.code for refusal in engine.perform(owner, Register(kinds[what], batch), now_ms).refusals]


@settings(deadline=None)
@given(st.lists(STEP, max_size=40))
def test_counts_are_those_of_a_recount(steps: list[tuple]) -> None:
    accounts = TwoAccounts()
    for step in steps:
        accounts.take(step)
        accounts.recount()
    for owner in accounts.owners:
        accounts.engine.remove_owner(owner, accounts.now_ms)
    accounts.recount()
    assert all((held.operations, held.items, held.keys) == (0, 0, 0) for held in accounts.usage)
    assert accounts.engine._wakeups.fetches.item_count == 0


@pytest.mark.parametrize("what", WAITS)
@pytest.mark.parametrize(("limit", "below"), [("operations_max", 2), ("items_max", 5)], ids=["operations", "items"])
def test_a_share_is_kept_to_the_operation(what: str, limit: str, below: int) -> None:
    engine = Engine(EngineLimits(), 0)
    mine, others = AccountUsage(), AccountUsage()
    setattr(mine, limit, below)
    owner, other = engine.add_owner(mine), engine.add_owner(others)
    two = [(0, 7), (1, 7)]
    assert register(engine, owner, what, 1, two, 50, 0) == []
    assert register(engine, owner, what, 2, two, 50, 0) == []
    assert register(engine, owner, what, 3, two, 50, 0) == [codes.RESOURCE_EXHAUSTED]
    if limit == "items_max":
        assert register(engine, owner, what, 4, [(0, 7)], 50, 0) == []
        assert register(engine, owner, what, 5, [(0, 7)], 50, 0) == [codes.RESOURCE_EXHAUSTED]
    assert register(engine, other, what, 1, two, 50, 0) == []
    engine.perform(owner, CancelAll(), 0)
    assert register(engine, owner, what, 6, two, 50, 0) == []


@pytest.mark.parametrize("what", WAITS)
def test_items_of_all_pending_operations_have_an_exact_limit(what: str) -> None:
    engine = Engine(EngineLimits(pending_items_max=3), 0)
    owner = engine.add_owner()
    assert register(engine, owner, what, 1, [(0, 7), (1, 7)], 50, 0) == []
    assert register(engine, owner, what, 2, [(0, 7), (1, 7)], 50, 0) == [codes.RESOURCE_EXHAUSTED]
    assert register(engine, owner, what, 3, [(0, 7)], 50, 0) == []
    assert register(engine, owner, what, 4, [(0, 7)], 50, 0) == [codes.RESOURCE_EXHAUSTED]


def test_partitions_and_keys_have_shares() -> None:
    engine = Engine(EngineLimits(), 0)
    mine = AccountUsage()
    mine.partitions_max = mine.keys_max = 1
    owner = engine.add_owner(mine)
    assert register(engine, owner, "produce", 1, [(0, 7)], 50, 0) == []
    assert register(engine, owner, "produce", 2, [(1, 7)], 50, 0) == [codes.RESOURCE_EXHAUSTED]
    assert register(engine, owner, "produce", 3, [(0, 7)], 50, 0) == []
    event = EventBatch([codes.HIGH_WATERMARK], partitions=[(TOPICS[1], 0)], item_indexes=[0], offsets=[1])
    assert [refusal.code for refusal in engine.perform(None, Apply(event, usage=mine), 0).refusals] == [
        codes.RESOURCE_EXHAUSTED
    ]
    assert engine.perform(None, Apply(event, usage=AccountUsage()), 0).refusals == []
    assert register(engine, owner, "produce", 4, [(1, 7)], 50, 0) == []
    assert register(engine, owner, "signal", 5, [(0, 7)], 50, 0) == []
    assert register(engine, owner, "signal", 6, [(0, 7), (1, 7)], 50, 0) == [codes.RESOURCE_EXHAUSTED]
    assert register(engine, owner, "signal", 7, [(0, 8)], 50, 0) == []
    assert register(engine, owner, "composite", 8, [(0, 9), (0, 7), (1, 8)], 50, 0) == [], "named before"
    assert register(engine, owner, "composite", 9, [(0, 9), (1, 9)], 50, 0) == [codes.RESOURCE_EXHAUSTED]
    event = EventBatch([codes.KEY_SIGNALLED], keys=[KEYS[2]])
    assert engine.perform(None, Apply(event, usage=AccountUsage()), 0).refusals == []
    assert register(engine, owner, "composite", 10, [(2, 9)], 50, 0) == [codes.RESOURCE_EXHAUSTED], "it is idle"


def test_while_memory_is_short_only_known_marks_move() -> None:
    engine = Engine(EngineLimits(), 0)
    known = (TOPICS[0], 0)
    engine.perform(
        None, Apply(EventBatch([codes.HIGH_WATERMARK], partitions=[known], item_indexes=[0], offsets=[1])), 0
    )

    def refused(kind: int, name: tuple[str, int] = known, **columns: list) -> list[str]:
        batch = EventBatch([kind], partitions=[name], keys=["new"], item_indexes=[0], **columns)
        return [refusal.field for refusal in engine.perform(None, Apply(batch, is_full=True), 0).refusals]

    assert refused(codes.HIGH_WATERMARK, offsets=[2]) == []
    assert refused(codes.LEADER_APPEND, offsets=[9], byte_positions=[90]) == []
    assert refused(codes.HIGH_WATERMARK, ("new", 0), offsets=[2]) == ["topic_partition"]
    assert refused(codes.FOLLOWER_PROGRESS, offsets=[2], replica_ids=[4]) == ["follower_progress"]
    assert refused(codes.HIGH_WATERMARK, offsets=[3], leader_epochs=[1]) == ["leader_epoch"]
    assert refused(codes.KEY_SIGNALLED, offsets=[1]) == ["key_signalled.key"]
    assert refused(codes.PARTITION_REMOVED) == []


def test_positions_are_thinned_while_memory_is_short() -> None:
    engine = Engine(EngineLimits(), 0)
    for offset in range(1, 400):
        batch = EventBatch(
            [codes.LEADER_APPEND], partitions=[(TOPICS[0], 0)], item_indexes=[0], offsets=[offset],
            byte_positions=[offset * 10],
        )  # fmt: skip
        assert engine.perform(None, Apply(batch, is_full=offset > 100), 0).refusals == []
    assert len(engine._partitions.by_name[TOPICS[0], 0].positions) < 100


def test_character_of_a_name_takes_one_byte_or_four() -> None:
    for letter, size in (("x", 1), ("\u00fc", 4)):
        assert name_bytes((letter * 200, 0)) - name_bytes((letter * 100, 0)) == 100 * size
