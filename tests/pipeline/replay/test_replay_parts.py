"""Single parts of a replay, each compared with a simpler implementation."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from purgatory_pipeline.engine_rows.engine_batches import complete_operations
from purgatory_pipeline.engine_rows.row_chunk import RowChunk
from purgatory_pipeline.replay.division import ALL_KEYS, Connections, balanced, pack_bins
from purgatory_pipeline.replay.open_operations import find
from purgatory_pipeline.replay.replay_sums import rounded
from purgatory_pipeline.replay.replay_task import pack, unpack
from purgatory_pipeline.replay.run_files import windows

from purgatory.extensions.archive.schema import EVENTS, OUTCOMES, REGISTRATIONS

INTEGERS = st.integers(-(2**63), 2**63 - 1)
KEYS = st.lists(st.tuples(st.integers(0, 5), st.one_of(st.integers(0, 9), INTEGERS)), max_size=40)


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(KEYS, KEYS)
def test_operations_are_found_by_session_and_id(wanted: list[tuple[int, int]], among: list[tuple[int, int]]) -> None:
    found = find(*(column([key[i] for key in keys]) for keys in (wanted, among) for i in range(2)))
    for key, at in zip(wanted, found.tolist(), strict=True):
        assert (among[at] == key) if at >= 0 else (key not in among)


def test_a_packed_chunk_comes_back() -> None:
    columns = {"call": column([1, 2]), "name": np.zeros(2, np.int32), "flag": np.ones(2, bool)}
    chunk = RowChunk(EVENTS, columns, [("orders", 0), ("ключ", -1)], column([0]), [(None, [1, 2], [], 3, None)])
    assert repr(unpack(pack(chunk))) == repr(chunk)


def rows(table: str, calls: list[int], times: list[int] | None = None) -> RowChunk:
    return RowChunk(table, {"call": column(calls), "time": column(calls if times is None else times)})


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12).map(sorted), max_size=8),
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12).map(sorted), max_size=8),
    st.integers(1, 40),
)
def test_windows_hold_whole_calls_in_order(events: list[list[int]], ends: list[list[int]], rows_min: int) -> None:
    """All rows occur once, in order of calls, and no call is in two windows, even if chunks overlap."""
    chunks = [rows(EVENTS, calls) for calls in events] + [rows(OUTCOMES, calls) for calls in ends]
    chunks.sort(key=lambda chunk: chunk.first_call)
    seen: dict[str, list[int]] = {EVENTS: [], OUTCOMES: []}
    last_call = -1
    for window in windows(chunks, rows_min=rows_min):
        calls = [call for chunk in window.tables.values() for call in chunk.columns["call"].tolist()]
        assert min(calls) > last_call
        last_call = max(calls)
        for table, chunk in window.tables.items():
            seen[table] += chunk.columns["call"].tolist()
    assert seen == {EVENTS: sorted(chain(*events)), OUTCOMES: sorted(chain(*ends))}


def test_operations_that_are_not_all_there_are_left_out() -> None:
    columns = {
        "call": column([1] * 7),
        "item": column([1, 0, 1, 0, 0, 1, 0]),
        "item_count": column([2, 2, 2, 1, 3, 3, 1]),
    }
    whole = complete_operations(RowChunk(OUTCOMES, columns))
    assert whole.starts.tolist() == [0, 2, 3]
    assert whole.counts.tolist() == [2, 1, 1]
    assert whole.incomplete == 2


@given(st.lists(st.one_of(st.integers(0, 2**50), st.integers(0, 10).map(lambda digits: 10**digits)), min_size=1))
def test_waits_are_rounded_by_less_than_a_percent(waits: list[int]) -> None:
    """A wait stays as it is up to a second, and within 0.5 % beyond; the order stays."""
    found = rounded(column(sorted(waits)))
    assert np.all(np.diff(found) >= 0)
    for wait, value in zip(sorted(waits), found.tolist(), strict=True):
        assert value == wait if wait < 1_000 else abs(value - wait) <= 0.005 * wait


def registrations(operations: list[list[int]], partition: int | None = None) -> RowChunk:
    """Operations on these partitions of "orders" (or, with -1, keys)."""
    flat = [name for names in operations for name in names]
    columns = {
        "call": column([number for number, names in enumerate(operations) for _ in names]),
        "session": column([1] * len(flat)),
        "operation": column([number for number, names in enumerate(operations) for _ in names]),
        "item": column([item for names in operations for item in range(len(names))]),
        "item_count": column([len(names) for names in operations for _ in names]),
        "name": column(flat),
    }
    names = [("orders", place) if partition is None else (f"key-{place}", partition) for place in range(12)]
    return RowChunk(REGISTRATIONS, columns, names)


OPERATIONS = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True), min_size=1, max_size=12)


@given(OPERATIONS, st.data())
def test_names_are_connected_through_operations(operations: list[list[int]], data: st.DataObject) -> None:
    expected = {name: {name} for names in operations for name in names}
    for names in operations:
        merged = set().union(*(expected[name] for name in names))
        for name in merged:
            expected[name] = merged
    chunk = registrations(operations)
    cut = data.draw(st.integers(0, len(chunk)))
    whole = Connections(100)
    for part in (chunk.slice(0, cut), chunk.slice(cut, len(chunk))):
        found = Connections(100)
        if len(part):
            found.add(part)
        whole.merge(found)
    roots = {name: whole.root(("orders", name)) for name in expected}
    assert {one: {other for other in roots if roots[other] == roots[one]} for one in roots} == expected


def test_more_keys_than_are_remembered_stay_together() -> None:
    """The engine's choice of keys to forget depends on all keys, so they are one group, which is not divided."""
    chunk = registrations([[number] for number in range(12)], partition=-1)
    apart, together = Connections(12), Connections(11)
    for connections in (apart, together):
        connections.add(chunk)
    (many,) = pack_bins([apart], bins=4, cores=4)
    (one,) = pack_bins([together], bins=4, cores=4)
    assert len(many.bins) == 12
    assert len(one.all_bins) == 1
    assert set(one.groups_of([("key-3", -1), ("never seen", -1)]).tolist()) == {one.groups[ALL_KEYS]}


@given(OPERATIONS, st.integers(1, 6), st.integers(1, 4))
def test_every_operation_has_one_bin_and_finds_its_events_there(
    operations: list[list[int]], bins: int, cores: int
) -> None:
    chunk = registrations(operations)
    connections = Connections(100)
    connections.add(chunk)
    (assignment,) = pack_bins([connections], bins, cores)
    at = assignment.bins_of_operations(chunk)
    events = RowChunk(EVENTS, {"call": np.arange(12), "name": np.arange(12)}, chunk.names)
    event_rows, event_bins = assignment.rows_of_events(events)
    told = list(zip(event_rows.tolist(), event_bins.tolist(), strict=True))
    assert len(told) == len(set(told))
    for number, names in enumerate(operations):
        own = set(at[chunk.columns["operation"] == number].tolist())
        assert len(own) == 1
        assert all((name, *own) in told for name in names)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 5))
def test_bins_are_balanced(weights: list[int], bins: int) -> None:
    """Each weight is in one bin, the heaviest bin is first, and bins differ by one weight at most."""
    found = balanced(weights, bins)
    sums = [sum(weights[thing] for thing in own) for own in found]
    assert sorted(chain(*found)) == list(range(len(weights)))
    assert sums == sorted(sums, reverse=True)
    assert sums[0] - sums[-1] <= max(weights)


def test_a_group_that_is_too_large_is_divided() -> None:
    operations = np.arange(10_000)
    columns = {"call": operations, "session": operations % 3, "operation": operations, "name": operations * 0}
    chunk = RowChunk(REGISTRATIONS, columns, [("orders", 0)])
    connections = Connections(100)
    connections.add(chunk)
    (assignment,) = pack_bins([connections], bins=8, cores=4)
    counts = np.bincount(assignment.bins_of_operations(chunk))
    assert len(assignment.all_bins) == 4
    assert counts[counts > 0].min() > 2_300
