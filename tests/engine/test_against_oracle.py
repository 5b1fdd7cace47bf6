"""The engine against the oracle: hypothesis draws calls, both get them, and all visible state must be equal after each.

The simulator does the same with long runs; here they are short, and every failure is shrunk to its shortest form.
"""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import plain
from tests.engine.pair import Pair

NAMES = [("orders", 0), ("orders", 1)]
KEYS = [("a", -1), ("b", -1)]
OFFSETS = st.integers(0, 12)
EPOCHS = st.sampled_from([-1, -1, -1, 0, 1, 2])
REPLICA_IDS = st.integers(1, 3)
SETS = st.lists(REPLICA_IDS, max_size=3, unique=True).map(tuple)
NAME = st.sampled_from(NAMES)
TIMEOUTS = st.integers(1, 30)
STALE_TIMEOUTS = st.sampled_from([-1, -1, 0, 5, 15])
LOCAL_ERRORS = st.sampled_from([0, 0, 0, 10])
Drawn = list[plain.Operation] | list[plain.Event] | dict[plain.Name, int] | int | str


def items(names: list[plain.Name], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[plain.Item, ...]]:
    """One or two items with different names."""
    chosen = st.permutations(names)
    drawn = st.lists(st.fixed_dictionaries(fields), min_size=1, max_size=2)
    return st.builds(
        lambda order, ones: tuple(plain.Item(name, **one) for name, one in zip(order, ones, strict=False)),
        chosen,
        drawn,
    )


def operations(kind: int, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[plain.Operation]:
    """An operation of a kind; its id is assigned when it is registered."""
    return st.builds(
        lambda timeout_ms, stale_timeout_ms, one: plain.Operation(
            kind, 0, timeout_ms, stale_timeout_ms=stale_timeout_ms, **one
        ),
        TIMEOUTS,
        STALE_TIMEOUTS,
        st.fixed_dictionaries(fields),
    )


def events(types: list[int], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[plain.Event]:
    return st.builds(
        lambda event_type, name, epoch, one: plain.Event(event_type, name, epoch=epoch, **one),
        st.sampled_from(types),
        NAME,
        EPOCHS,
        st.fixed_dictionaries(fields),
    )


SIGNALS = st.builds(
    lambda key, count: plain.Event(plain.KEY_SIGNALLED, key, count), st.sampled_from(KEYS), st.integers(-1, 3)
)
OPERATION = st.one_of(
    operations(plain.PRODUCE, items=items(NAMES, offset=OFFSETS, epoch=EPOCHS, local_error=LOCAL_ERRORS)),
    operations(plain.DELETE_RECORDS, items=items(NAMES, offset=st.integers(-1, 12), local_error=LOCAL_ERRORS)),
    operations(
        plain.SIGNAL, items=items(KEYS, offset=st.integers(1, 4)), any_key=st.booleans(), from_now=st.booleans()
    ),
    operations(
        plain.FETCH,
        items=items(
            NAMES,
            offset=OFFSETS,
            epoch=EPOCHS,
            max_bytes=st.sampled_from([1, 5, 100]),
            last_epoch=EPOCHS,
            throttled=st.sampled_from([False, False, True]),
        ),
        min_bytes=st.integers(1, 12),
        replica_id=st.sampled_from([-1, -1, 2]),
        isolation=st.sampled_from([plain.READ_UNCOMMITTED, plain.READ_COMMITTED]),
        follower_reads=st.booleans(),
    ),
)
EVENT = st.one_of(
    events(
        [plain.LEADER_APPEND],
        offset=OFFSETS,
        position=st.sampled_from([-1, -1, 0, 10, 20, 30]),
        segment=st.sampled_from([-1, -1, 0, 5, 10]),
    ),
    events([plain.FOLLOWER_PROGRESS], offset=OFFSETS, replica_id=REPLICA_IDS, log_start=st.integers(-1, 8)),
    events([plain.HIGH_WATERMARK, plain.LOG_START_OFFSET, plain.TRUNCATION], offset=OFFSETS),
    events([plain.LAST_STABLE_OFFSET], offset=st.integers(-1, 12)),
    events([plain.STORAGE_FAILED, plain.STORAGE_ONLINE]),
    events([plain.PARTITION_REMOVED], flag=st.integers(0, 1)),
    events([plain.REPLICA_STATE], replica_id=REPLICA_IDS, flag=st.integers(0, 3)),
    events(
        [plain.IN_SYNC_REPLICAS],
        in_sync=SETS,
        proposed=SETS,
        leader_id=st.sampled_from([-1, 1, 1, 2]),
        min_in_sync=st.sampled_from([-1, -1, 1, 2]),
    ),
    events(
        [plain.LEADERSHIP],
        offset=st.integers(-1, 12),
        flag=st.integers(0, 1),
        leader_id=st.sampled_from([-1, 1, 2]),
        replicas=SETS,
    ),
    SIGNALS,
)
STEP = st.one_of(
    st.lists(OPERATION, min_size=1, max_size=1),
    st.lists(EVENT, min_size=1, max_size=3),
    st.integers(0, 40),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 40), min_size=1),
    st.sampled_from(["cancel", "cancel all", "cancel orders-0", "cancel a", "new owner", "shut down"]),
)


def take(pair: Pair, owner_id: int, next_id: int, step: Drawn) -> int:
    """Take one drawn step and return the current owner id."""
    if isinstance(step, int):
        pair.advance(step)
    elif isinstance(step, dict):
        pair.fail_stale(step)
    elif step == "cancel":
        pair.cancel(owner_id, [next_id, max(1, next_id - 1), max(1, next_id - 3)])
    elif step == "cancel all":
        pair.cancel_all(owner_id)
    elif step == "cancel orders-0":
        pair.cancel_name(("orders", 0))
    elif step == "cancel a":
        pair.cancel_name(("a", -1))
    elif step == "new owner":
        pair.remove_owner(owner_id)
        return pair.add_owner()
    elif step == "shut down":
        pair.shut_down(1)
    elif isinstance(step[0], plain.Operation):
        pair.register(owner_id, [step[0]._replace(operation_id=next_id)])
    else:
        pair.apply([event for event in step if isinstance(event, plain.Event)])
    return owner_id


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=30), st.sampled_from([1, 1, 4]), st.sampled_from([5, 30_000]), st.booleans())
def test_engine_equals_oracle(drawn: list[Drawn], tick_ms: int, lag_max_ms: int, strict: bool) -> None:
    """For any calls in any order, engine and oracle agree, and in the end nothing is left."""
    pair = Pair(plain.Settings(tick_ms=tick_ms, wheel_size=4, lag_max_ms=lag_max_ms, strict=strict))
    owner_id = pair.add_owner()
    for next_id, step in enumerate(drawn, 1):
        owner_id = take(pair, owner_id, next_id, step)
        pair.compare_everything()
    pair.heal()
