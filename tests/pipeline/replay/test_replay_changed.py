"""A replay under another policy does what the engine does, call by call, when it is told a history as changed."""

import random
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from purgatory_pipeline.analytics.replay.load.run_files import RunContext
from purgatory_pipeline.analytics.replay.play.replay_sums import ReplaySums
from purgatory_pipeline.analytics.replay.policy import Policy, parse_policy
from purgatory_pipeline.analytics.replay.replay_task import ReplayPlan, replay_run

from purgatory.engine import codes
from purgatory.engine.waiting.tables import Owner
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.run_details import RunDetails
from tests.archive.archive_replay import events_of, operations_of
from tests.pipeline.replay.recorded_run import chunks_of, record_run

BATCHES = 200
Row = dict[str, Any]
Ends = dict[tuple[int, int], tuple[str, int]]
"""By session and id: outcome and wait."""

POLICIES = {
    "longer": (["timeout_ms=*3"], []),
    "shorter": (["timeout_ms=-5"], []),
    "of a topic": (["orders:timeout_ms=40", "signal:timeout_ms=+30"], []),
    "of a kind": (["fetch:timeout_ms=7", "min_bytes=*4"], []),
    "few bytes": (["min_bytes=1"], []),
    "in sync": (["min_in_sync_replicas=3"], []),
    "in sync of a topic": (["orders:min_in_sync_replicas=+1", "timeout_ms=*2"], []),
    "slow": ([], ["2=+20ms"]),
    "two slow": (["timeout_ms=*2"], ["2=+3ms", "3=+400ms"]),
}


class CallByCall:
    """The rows of a history as a policy would have them, given to an engine one after the other."""

    def __init__(self, tables: dict[str, pa.Table], details: RunDetails, first_ms: int, policy: Policy) -> None:
        self.policy = policy
        self.engine = details.make_engine(first_ms)
        self.now_ms = first_ms
        self.owners: dict[int, Owner] = {}
        self.sessions: dict[int, int] = {}
        self.ends: Ends = {}
        self.in_sync_known: set[tuple[str, int]] = set()
        self.followed: set[tuple[str, int]] = set()
        timed = [entry for table in tables for entry in self.timed(table, tables[table].to_pylist())]
        timed.sort(key=lambda entry: entry[:3])
        last_ms = max((entry[3] for entry in timed), default=first_ms)
        for at_ms, _, _, _, table, rows in timed:
            if at_ms <= last_ms:
                self.pass_time(at_ms)
                self.do(table, rows)
        self.pass_time(last_ms)
        self.take()

    def timed(self, table: str, rows: list[Row]) -> list[tuple[int, int, int, int, str, list[Row]]]:
        """(when, call, row, when in life, table, rows) of what is told at once."""
        if table == schema.EVENTS:
            kept = [row for row in rows if row["refusal_code"] == schema.ACCEPTED and self.tells(row)]
            return [
                (row["time_ms"] + self.delay(row), row["call_number"], row["row"], row["time_ms"], table, [row])
                for row in kept
            ]
        calls: defaultdict[int, list[Row]] = defaultdict(list)
        for row in rows:
            if table in {schema.REGISTRATIONS, schema.CALLS} and row.get("refusal_code", 0) == schema.ACCEPTED:
                calls[row["call_number"]].append(row)
        return [(own[0]["time_ms"], call, 0, own[0]["time_ms"], table, own) for call, own in calls.items()]

    def delay(self, row: Row) -> int:
        """How much later an event is heard."""
        slow = dict(self.policy.slow_replicas)
        return slow.get(row["replica_id"], 0) if row["type"] == "follower_progress" else 0

    def tells(self, row: Row) -> bool:
        """False of a pushed mark, where a policy moves marks and this one follows from the replicas."""
        name = row["topic"], row["partition"]
        if row["type"] == "in_sync_replicas" and row["in_sync"]:
            self.in_sync_known.add(name)
        elif row["type"] == "leadership":
            (self.followed.discard if row["flags"] else self.followed.add)(name)
        elif row["type"] == "partition_removed":
            self.in_sync_known.discard(name)
            self.followed.discard(name)
        follows = name in self.in_sync_known and name not in self.followed
        return not (self.policy.moves_marks and row["type"] == "high_watermark" and follows)

    def pass_time(self, until_ms: int) -> None:
        """What is due expires at its own millisecond."""
        while 0 <= (due_ms := self.engine.next_expiration_ms()) <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.engine.advance_clock(self.now_ms, 1_000)
        self.now_ms = max(self.now_ms, until_ms)

    def do(self, table: str, rows: list[Row]) -> None:
        """One call, or one event."""
        if table == schema.EVENTS:
            self.engine.apply(events_of([self.changed_event(rows[0])]), self.now_ms)
        elif table == schema.REGISTRATIONS:
            kind = {name: code for code, name in codes.KIND_NAMES.items()}[rows[0]["kind"]]
            first: dict[int, Row] = {row["operation_id"]: row for row in reversed(rows)}
            batch = operations_of([self.changed_operation(row, first[row["operation_id"]]) for row in rows])
            assert not self.engine.register(self.owner(rows[0]), kind, batch, self.now_ms).refusals
        else:
            self.other_call(rows[0], {(row["topic"], row["partition"]) for row in rows})

    def other_call(self, row: Row, names: set[tuple[str, int]]) -> None:
        """A cancel, or the end."""
        if row["call"] == schema.CANCEL:
            self.engine.cancel(self.owner(row), row["operation_ids"], self.now_ms)
        elif row["call"] == schema.FAIL_STALE:
            self.engine.fail_stale(self.owner(row), row["operation_ids"], names, self.now_ms)
        elif row["call"] == schema.CANCEL_SESSION:
            self.engine.cancel_all(self.owner(row), self.now_ms)
        elif row["call"] == schema.CANCEL_PARTITION:
            self.engine.cancel_partition((row["topic"], row["partition"]), self.now_ms)
        elif row["call"] == schema.CANCEL_KEY:
            self.engine.cancel_key(row["topic"], self.now_ms)
        else:
            self.engine.shut_down(self.now_ms, 10**6)

    def changed_operation(self, row: Row, first: Row) -> Row:
        """A registration as the policy has it; topics are those of first items."""
        timeout_ms, min_bytes = row["timeout_ms"], row["min_bytes"] or 1
        for change in self.policy.changes:
            names = {"", None if first["kind"] == "signal" else first["topic"]}
            kinds = {0, {name: code for code, name in codes.KIND_NAMES.items()}[row["kind"]]}
            if change.topic not in names or change.kind not in kinds:
                continue
            if change.name == "timeout_ms":
                timeout_ms = self.changed(change.how, change.value, timeout_ms)
            elif change.name == "min_bytes":
                min_bytes = self.changed(change.how, change.value, min_bytes)
        return row | {"timeout_ms": timeout_ms, "min_bytes": min_bytes}

    def changed_event(self, row: Row) -> Row:
        """An event as the policy has it."""
        changes = [change for change in self.policy.changes if change.name == "min_in_sync_replicas"]
        if row["type"] != "in_sync_replicas" or not changes:
            return row
        minimum = row["min_in_sync_replicas"]
        for change in changes:
            if change.topic in {"", row["topic"]}:
                minimum = self.changed(change.how, change.value, max(1, minimum or 1))
        return row | {"min_in_sync_replicas": minimum}

    @staticmethod
    def changed(how: str, value: float, before: int) -> int:
        """One number."""
        return max(min(before, 1), round(value if how == "=" else before * value if how == "*" else before + value))

    def owner(self, row: Row) -> Owner:
        """The session's."""
        session = row["session_number"]
        if session not in self.owners:
            self.owners[session] = self.engine.add_owner()
            self.sessions[self.owners[session].owner_id] = session
        return self.owners[session]

    def take(self) -> None:
        """What has ended."""
        for completions in self.engine.take_completions():
            session = self.sessions[completions.owner_id]
            ends = zip(completions.operation_ids, completions.outcomes, completions.waited_ms, strict=True)
            self.ends |= {(session, number): (codes.OUTCOME_NAMES[how], waited) for number, how, waited in ends}


@pytest.mark.parametrize("name", POLICIES)
def test_a_changed_history_ends_as_the_engine_ends_it(name: str) -> None:
    """Under each policy every operation has the outcome and the wait that it has when told one call after the other.

    Each policy changes how something ends in one of the lives, so more than life is compared with itself.
    """
    policy = parse_policy(*POLICIES[name])
    verdicts: Counter[str] = Counter()
    for seed in range(1, 6):
        recorded = record_run(7 * len(name) + seed, BATCHES)
        tables = recorded.tables()
        expected = CallByCall(tables, recorded.details, recorded.first_ms, policy).ends
        facts = RunContext(recorded.run_id, recorded.details, recorded.first_ms, recorded.now_ms)
        chunks = chunks_of(tables, random.Random(seed))
        batches = replay_run(ReplayPlan("", (policy,)), facts, chunks, ReplaySums(), results=True)
        rows = [row for batch in batches for row in batch.to_pylist()]
        found = {
            (row["session_number"], row["operation_id"]): (row["replayed"], row["replayed_waited_ms"]) for row in rows
        }
        assert {key: end for key, end in found.items() if end[0] is not None} == expected
        assert {row["policy"] for row in rows} <= {policy.label}
        verdicts.update(row["verdict"] for row in rows)
    assert verdicts["different"]
