"""Random lives of a host with an archive, replayed: unchanged they end as they did, however rows are cut or divided;
under another policy as on an engine that runs the changed history call by call.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.engine_rows.arrow_chunks import chunk_of
from purgatory_pipeline.engine_rows.row_chunk import TABLES, Name, RowChunk
from purgatory_pipeline.replay.division import BinAssignment, Connections, pack_bins
from purgatory_pipeline.replay.policy import UNCHANGED, Change, Policy, parse_policies, parse_policy
from purgatory_pipeline.replay.replay_sums import COUNTER, EQUAL, ReplaySums, frames_of
from purgatory_pipeline.replay.replay_task import ReplayPlan, assign_bins, pack, replay_run, unpack
from purgatory_pipeline.replay.run_files import RunContext, find_runs, windows
from purgatory_pipeline.replay.run_replay import RunReplay

from purgatory.engine import codes
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.waiting.tables import Owner
from purgatory.extensions.archive import schema
from tests.archive.archive_kit import KIND_OF, Row, events_of, operations_of, read_table, repeat_call
from tests.histories.worlds.archive import Life

STEPS = 400


class RecordedLife(NamedTuple):
    """A run in an archive of its own: its context, and its rows by table."""

    facts: RunContext
    tables: dict[str, pa.Table]


def write_life(folder: Path, seed: int, *, roomy: bool = False) -> None:
    async def live() -> None:
        life = Life(folder, seed, roomy=roomy)
        await life.live(STEPS)
        await life.end()

    asyncio.run(live())


def record_life(folder: Path, seed: int, *, roomy: bool = False) -> RecordedLife:
    """Write the run of a random life to an empty folder, and read it back."""
    write_life(folder, seed, roomy=roomy)
    (run,) = find_runs(find_archive(str(folder)))
    return RecordedLife(run.facts, {table: read_table(folder, table) for table in schema.TABLES})


def chunks_of(life: RecordedLife, rng: random.Random, rows_max: int = 60) -> list[RowChunk]:
    """All rows in chunks of random sizes, as if from many files and row groups, by first call."""
    chunks = []
    for table in TABLES:
        rows, start = life.tables[table], 0
        while start < rows.num_rows:
            size = rng.randint(1, rows_max)
            chunks.append(chunk_of(table, rows.slice(start, size), Counter()))
            start += size
    return sorted((chunk for chunk in chunks if len(chunk)), key=lambda chunk: chunk.first_call)


Ends = dict[tuple[int, int], tuple[str, int]]
"""Outcome and wait, by session and id."""

POLICIES: dict[str, tuple[Any, ...]] = {
    "longer": (["timeout_ms=*3"], []),
    "shorter": (["timeout_ms=-5"], []),
    "of a topic": (["orders:timeout_ms=40", "signal:timeout_ms=+30"], []),
    "of a kind": (["fetch:timeout_ms=7", "min_bytes=*4"], []),
    "few bytes": (["min_bytes=1"], []),
    "in sync": (["min_in_sync_replicas=3"], []),
    "in sync of a topic": (["orders:min_in_sync_replicas=+1", "timeout_ms=*2"], []),
    "slow": ([], ["2=+20ms"]),
    "two slow": (["timeout_ms=*2"], ["2=+3ms", "3=+400ms"]),
    "without one": ([], [], ["2"]),
    "without two": (["timeout_ms=*2"], ["1=+5ms"], ["2", "3"]),
    "leaders move": ([], [], [], "30ms"),
}


def changed(change: Change, before: int) -> int:
    new = {"=": change.value, "*": before * change.value, "+": before + change.value}[change.how]
    return max(min(before, 1), round(new))


def changed_operation(policy: Policy, row: Row, first: Row) -> Row:
    """A registration under the policy. The topic of an operation is that of its first item."""
    values = {"timeout_ms": row["timeout_ms"], "min_bytes": row["min_bytes"] or 1}
    topics = {"", None if first["kind"] == "signal" else first["topic"]}
    for change in policy.changes:
        if change.name in values and change.topic in topics and change.kind in {0, KIND_OF[row["kind"]]}:
            values[change.name] = changed(change, values[change.name])
    return row | values


REPLICA_EVENTS = ("follower_progress", "replica_state")


def changed_events(policy: Policy, rows: list[Row]) -> Iterator[Row]:
    """The events under the policy, each at its time. If it moves marks, pushed ones that follow from the replicas are
    left out.
    """
    slow, gone = dict(policy.slow_replicas), set(policy.without_replicas)
    in_sync_known: set[Name] = set()
    followed: set[Name] = set()
    with_gone: set[Name] = set()
    leaders: dict[Name, int] = {}
    roles: dict[Name, tuple[int, int]] = {}
    moving_until: dict[Name, int] = {}
    for row in rows:
        new, name, event_type = dict(row), (row["topic"], row["partition"]), row["type"]
        if event_type == "in_sync_replicas" and row["in_sync"]:
            in_sync_known.add(name)
        elif event_type == "leadership":
            (followed.discard if row["flags"] else followed.add)(name)
        elif event_type == "partition_removed":
            for known in (in_sync_known, followed, with_gone):
                known.discard(name)
            leaders.pop(name, None)
        follows = name in in_sync_known and name not in followed
        if policy.moves_marks and event_type == "high_watermark" and follows:
            continue
        if event_type in {"in_sync_replicas", "leadership"}:
            if row["leader_id"] is not None and row["leader_id"] >= 0:
                leaders[name] = row["leader_id"]
            if leaders.get(name) in gone or (row["in_sync"] and gone.issuperset(row["in_sync"])):
                with_gone.add(name)
            elif event_type == "in_sync_replicas" and row["in_sync"]:
                with_gone.discard(name)
            for column in ("in_sync", "proposed") if name not in with_gone else ():
                new[column] = [one for one in row[column] or [] if one not in gone]
        if event_type == "follower_progress":
            new["time_ms"] += slow.get(row["replica_id"], 0)
        if event_type in REPLICA_EVENTS and row["replica_id"] in gone and name not in with_gone:
            new |= {"type": "replica_state", "flags": 1}
        until = moving_until.get(name, 0)
        if event_type == "leadership":
            before, roles[name] = roles.get(name), (row["flags"], row["leader_epoch"])
            if before not in {None, roles[name]} and row["time_ms"] >= until:
                moving_until[name] = row["time_ms"] + policy.leader_move_ms
        new["time_ms"] = max(new["time_ms"], until)
        for change in policy.named("min_in_sync_replicas") if event_type == "in_sync_replicas" else ():
            if change.topic in {"", row["topic"]}:
                new["min_in_sync_replicas"] = changed(change, max(1, new["min_in_sync_replicas"] or 1))
        yield new


def changed_calls(life: RecordedLife, policy: Policy) -> list[tuple[str, list[Row]]]:
    """Each event and each other call of a history under a policy, with its table, by time."""
    calls: defaultdict[tuple[int, int, int], list[Row]] = defaultdict(list)
    table_of = {}
    for table in (schema.REGISTRATIONS, schema.CALLS, schema.EVENTS):
        rows = [row for row in life.tables[table].to_pylist() if row.get("refusal_code", 0) == schema.ACCEPTED]
        for row in changed_events(policy, rows) if table == schema.EVENTS else rows:
            key = row["time_ms"], row["call_number"], row.get("row", 0)
            calls[key].append(row)
            table_of[key] = table
    return [(table_of[key], calls[key]) for key in sorted(calls)]


def ends_call_by_call(life: RecordedLife, policy: Policy) -> Ends:
    """How an engine ends the operations if it is given the changed history, one call after the other."""
    now_ms, last_ms = life.facts.first_ms, life.facts.last_ms
    engine = life.facts.details.make_engine(now_ms)
    owners: defaultdict[int, Owner] = defaultdict(engine.add_owner)
    for table, rows in [*changed_calls(life, policy), ("", [{"time_ms": last_ms}])]:
        first = rows[0]
        if first["time_ms"] > last_ms:
            continue
        while 0 <= (due_ms := engine.next_expiration_ms()) <= first["time_ms"]:
            now_ms = max(now_ms, due_ms)
            engine.perform(None, PassTime(1_000), now_ms)  # each at its own millisecond
        now_ms = max(now_ms, first["time_ms"])
        if table == schema.EVENTS:
            engine.perform(None, Apply(events_of(rows)), now_ms)
        elif table == schema.REGISTRATIONS:
            heads = {row["operation_id"]: row for row in reversed(rows)}
            batch = operations_of([changed_operation(policy, row, heads[row["operation_id"]]) for row in rows])
            owner = owners[first["session_number"]]
            assert not engine.perform(owner, Register(KIND_OF[first["kind"]], batch), now_ms).refusals
        elif table == schema.CALLS:
            names = {(row["topic"], row["partition"]) for row in rows}
            repeat_call(engine, partial(owners.__getitem__, first["session_number"]), first, names, now_ms, limit=10**6)
    sessions = {owner.owner_id: session for session, owner in owners.items()}
    return {
        (sessions[ended.owner_id], number): (codes.OUTCOME_NAMES[outcome], waited)
        for ended in engine.take_completions()
        for number, outcome, waited in zip(ended.operation_ids, ended.outcomes, ended.waited_ms, strict=True)
    }


@pytest.mark.parametrize("name", POLICIES)
def test_a_changed_history_ends_as_the_engine_ends_it(tmp_path: Path, name: str) -> None:
    """Each policy must change how something ends in one of the lives; otherwise only unchanged ones were compared."""
    policy = parse_policy(*POLICIES[name])
    verdicts: Counter[str] = Counter()
    for seed in range(1, 4):
        life = record_life(tmp_path / str(seed), 7 * len(name) + seed, roomy=True)  # longer waits meet no limit
        chunks = chunks_of(life, random.Random(seed))
        batches = replay_run(ReplayPlan("", (policy,)), life.facts, chunks, ReplaySums(), results=True)
        rows = [row for batch in batches for row in batch.to_pylist()]
        found = {
            (row["session_number"], row["operation_id"]): (row["replayed"], row["replayed_waited_ms"]) for row in rows
        }
        assert {key: end for key, end in found.items() if end[0] is not None} == ends_call_by_call(life, policy)
        assert {row["policy"] for row in rows} <= {policy.label}
        verdicts.update(row["verdict"] for row in rows)
    assert verdicts["different"]


BINS = 5


def replayed(
    facts: RunContext, parts: Iterable[list[RowChunk]], policies: Sequence[Policy] = (UNCHANGED,)
) -> ReplaySums:
    sums = ReplaySums()
    for chunks in parts:
        run = RunReplay(facts, policies, sums)
        for window in windows(chunks, facts.first_ms, rows_min=20):
            run.take(window)
        run.finish()
    return sums


def chunks_of_bin(chunks: list[RowChunk], assignment: BinAssignment, number: int) -> list[RowChunk]:
    """The rows that one bin receives, by first call."""
    found = []
    for chunk in chunks:
        spread_out, bins = assign_bins(chunk, assignment, Counter())
        if (bins == number).any():
            found.append(unpack(pack(spread_out.take(bins == number).with_names_used(few=1))))
    return sorted(found, key=lambda chunk: chunk.first_call)


@pytest.mark.parametrize("seed", range(1, 25))
def test_every_operation_ends_as_recorded(tmp_path: Path, seed: int) -> None:
    """Once each, also when the run is divided over bins, even where one group of partitions is divided. Half of the
    lives have wide limits, because with more keys than the engine remembers no group is divided.
    """
    life = record_life(tmp_path, seed, roomy=seed % 2 == 0)
    chunks = chunks_of(life, random.Random(seed))
    connections = Connections(life.facts.details.engine_limits().signal_keys_max)
    for chunk in chunks:
        if chunk.table in {schema.REGISTRATIONS, schema.EVENTS}:
            connections.add(chunk)
    (assignment,) = pack_bins([connections], bins=BINS, cores=3)
    assert (max(map(len, assignment.bins)) > 1) == (seed % 2 == 0)
    ended = life.tables[schema.OUTCOMES].column("item").to_pylist().count(0)
    assert ended > 100
    whole = replayed(life.facts, [chunks])
    divided = replayed(life.facts, (chunks_of_bin(chunks, assignment, number) for number in range(BINS)))
    for sums in (whole, divided):
        rows = [row for row in sums.table().to_pylist() if row["player"] != COUNTER]
        assert {row["verdict"] for row in rows} == {EQUAL}
        assert sum(row["operations"] for row in rows) == ended
        assert all(row["before"] == row["replayed"] for row in rows)
    assert whole.counts["outcomes"] == ended


@pytest.mark.parametrize("seed", range(1, 7))
def test_kinds_that_no_policy_touches_are_equal_in_all_lines(tmp_path: Path, seed: int) -> None:
    """All lines count the same operations, also if rows are lost from some call on."""
    life = record_life(tmp_path, seed)
    calls = pc.max(life.tables[schema.OUTCOMES].column("call_number")).as_py()
    facts = replace(life.facts, in_doubt_from=random.Random(seed).randint(calls // 2, calls))
    policies = parse_policies(parse_policy(), ["produce:timeout_ms=1,400"])
    sums = replayed(facts, [chunks_of(life, random.Random(seed))], policies).table().to_pandas()
    frames = frames_of(sums, policies)
    for name in ("outcomes", "waits"):
        untouched = frames[name][frames[name]["kind"] != "produce"]
        first, *others = [
            lines.drop(columns="policy").reset_index(drop=True) for _, lines in untouched.groupby("policy")
        ]
        assert [first.equals(lines) for lines in others] == [True, True]
        assert set(first["kind"]) == {"fetch", "delete_records", "signal", "composite"}
    assert set(frames["changes"]["kind"]) == {"produce"}
    overall = frames["outcomes"][frames["outcomes"]["topic"].isna()]
    in_doubt = overall.groupby("kind")["in_doubt"].first().sum()
    replayed_once = sums[sums["player"] == 0]["operations"].sum()
    assert set(overall.groupby("policy")["operations"].sum()) == {replayed_once - in_doubt}
    assert in_doubt > 0
