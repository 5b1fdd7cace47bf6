"""A replay under another policy has the same results as an engine that runs the changed history call by call."""

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from purgatory_pipeline.replay.policy import Policy, parse_policy
from purgatory_pipeline.replay.replay_sums import ReplaySums
from purgatory_pipeline.replay.replay_task import ReplayPlan, replay_run

from purgatory.engine import codes
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.waiting.tables import Owner
from purgatory.extensions.archive import schema
from tests.archive.archive_replay import KIND_OF, Row, events_of, operations_of, repeat_call
from tests.pipeline.replay.lives import RecordedLife, chunks_of, record_life

Ends = dict[tuple[int, int], tuple[str, int]]
"""Outcome and wait, by session and id."""

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
    """An engine that is given the rows of a history, changed by a policy, one call after the other."""

    def __init__(self, life: RecordedLife, policy: Policy) -> None:
        self.policy = policy
        self.engine = life.facts.details.make_engine(life.facts.first_ms)
        self.now_ms = life.facts.first_ms
        self.owners: dict[int, Owner] = {}
        self.in_sync_known: set[tuple[str, int]] = set()
        self.followed: set[tuple[str, int]] = set()
        timed = [entry for table, rows in life.tables.items() for entry in self.timed(table, rows.to_pylist())]
        timed.sort(key=lambda entry: entry[:3])
        last_ms = life.facts.last_ms  # also of the last outcome, which no call here has
        for at_ms, _, _, _, table, rows in timed:
            if at_ms <= last_ms:
                self.pass_time(at_ms)
                self.do(table, rows)
        self.pass_time(last_ms)

    def timed(self, table: str, rows: list[Row]) -> list[tuple[int, int, int, int, str, list[Row]]]:
        """(time, call, row, recorded time, table, rows) of each call or event."""
        if table == schema.EVENTS:
            kept = [row for row in rows if row["refusal_code"] == schema.ACCEPTED and self.is_kept(row)]
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
        slow = dict(self.policy.slow_replicas)
        return slow.get(row["replica_id"], 0) if row["type"] == "follower_progress" else 0

    def is_kept(self, row: Row) -> bool:
        """False for a pushed mark that follows from the replicas, if the policy moves marks."""
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
        """Expire each operation at its own millisecond."""
        while 0 <= (due_ms := self.engine.next_expiration_ms()) <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.engine.perform(None, PassTime(1_000), self.now_ms)
        self.now_ms = max(self.now_ms, until_ms)

    def do(self, table: str, rows: list[Row]) -> None:
        if table == schema.EVENTS:
            self.engine.perform(None, Apply(events_of([self.changed_event(rows[0])])), self.now_ms)
        elif table == schema.REGISTRATIONS:
            first: dict[int, Row] = {row["operation_id"]: row for row in reversed(rows)}
            batch = operations_of([self.changed_operation(row, first[row["operation_id"]]) for row in rows])
            receipt = self.engine.perform(self.owner(rows[0]), Register(KIND_OF[rows[0]["kind"]], batch), self.now_ms)
            assert not receipt.refusals
        else:
            names = {(row["topic"], row["partition"]) for row in rows}
            repeat_call(self.engine, lambda: self.owner(rows[0]), rows[0], names, self.now_ms, limit=10**6)

    def changed_operation(self, row: Row, first: Row) -> Row:
        """A registration under the policy. The topic of an operation is that of its first item."""
        values = {"timeout_ms": row["timeout_ms"], "min_bytes": row["min_bytes"] or 1}
        topics = {"", None if first["kind"] == "signal" else first["topic"]}
        for change in self.policy.changes:
            if change.name in values and change.topic in topics and change.kind in {0, KIND_OF[row["kind"]]}:
                values[change.name] = self.changed(change.how, change.value, values[change.name])
        return row | values

    def changed_event(self, row: Row) -> Row:
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
        return max(min(before, 1), round(value if how == "=" else before * value if how == "*" else before + value))

    def owner(self, row: Row) -> Owner:
        session = row["session_number"]
        if session not in self.owners:
            self.owners[session] = self.engine.add_owner()
        return self.owners[session]

    def ends(self) -> Ends:
        sessions = {owner.owner_id: session for session, owner in self.owners.items()}
        return {
            (sessions[ended.owner_id], number): (codes.OUTCOME_NAMES[outcome], waited)
            for ended in self.engine.take_completions()
            for number, outcome, waited in zip(ended.operation_ids, ended.outcomes, ended.waited_ms, strict=True)
        }


@pytest.mark.parametrize("name", POLICIES)
def test_a_changed_history_ends_as_the_engine_ends_it(tmp_path: Path, name: str) -> None:
    """Under each policy every operation has the outcome and the wait of the history call by call.

    Each policy must change how something ends in one of the lives; otherwise only unchanged histories were compared.
    """
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
        assert {key: end for key, end in found.items() if end[0] is not None} == CallByCall(life, policy).ends()
        assert {row["policy"] for row in rows} <= {policy.label}
        verdicts.update(row["verdict"] for row in rows)
    assert verdicts["different"]
