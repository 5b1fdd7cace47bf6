"""The session without a daemon: scripted wire messages in, wire messages and ended waits out."""

import random
from collections import Counter

import pytest
from purgatory_client import waits
from purgatory_client.batches import WaitBatch
from purgatory_client.errors import InvalidRequest, LimitExceeded, OperationIdInUse, ProtocolError
from purgatory_client.results import Outcome, Result, ResultColumns
from purgatory_client.session.session_core import SessionCore
from purgatory_client.wire.sizes import WINDOW

from purgatory.v1 import purgatory_service_pb2
from tests.client.session.wire_script import many, opened, receipt, registered, results, sent

pytestmark = pytest.mark.sockets


def produce(offset: int = 1, timeout: float | None = 5) -> waits.Wait:
    return waits.produce({"orders-3": offset}, timeout=timeout)


def open_core(pending_max: int = 1_000_000, now: float = 0.0) -> SessionCore:
    core = SessionCore("s", pending_max)
    core.receive(opened(), now)
    return core


def submit(core: SessionCore, count: int, now: float = 0.0) -> list[waits.Wait]:
    fresh = [produce(offset) for offset in range(1, count + 1)]
    for wait in fresh:
        core.submit(wait, now)
    return fresh


def core_with_sent(count: int) -> tuple[SessionCore, list[waits.Wait]]:
    """An open session that has sent `count` waits, and these waits."""
    core = open_core()
    fresh = submit(core, count)
    sent(core, 0.0)
    return core, fresh


def timeouts_sent(core: SessionCore, now: float) -> list[list[int]]:
    return [list(message.register.columns.timeout_ms) for message in sent(core, now)]


def test_nothing_is_sent_before_the_session_is_open() -> None:
    core = SessionCore("s", 100)
    submit(core, 3)
    assert core.next_message(0.0) is None
    assert core.wake_at() is None
    opening = core.open_message().open
    assert (opening.session_id, opening.last_sequence, opening.columns) == ("s", 0, True)
    core.receive(opened(), 0.0)
    assert registered(sent(core, 0.0)) == [[1, 2, 3]]


def test_waits_of_one_kind_share_a_batch_and_kinds_do_not() -> None:
    core = open_core()
    for wait in (
        produce(1),
        waits.signal(["k"], timeout=5),
        produce(2),
        produce(3, None),
        waits.signal({"k": 2}, timeout=5),
    ):
        core.submit(wait, 0.0)
    messages = sent(core, 0.0)
    assert registered(messages) == [[1, 2], [3, 4], [5]]
    first, second, third = (message.register.columns for message in messages)
    assert list(first.timeout_ms) == [5_000]
    assert list(third.timeout_ms) == []
    assert list(second.keys) == ["k"]
    assert list(second.offset) == [1, 2]


def test_results_end_waits_and_are_acknowledged_later() -> None:
    """A result ends its wait; the acknowledgement is delayed until more results arrive, or half a second has passed."""
    core, (first, second) = core_with_sent(2)
    core.receive(receipt(1), 0.0)
    ended = core.receive(results(1, [2, 1]), 1.0)
    assert [wait for wait, _ in ended] == [second, first]
    result = ended[0][1]
    assert isinstance(result, Result)
    assert result.satisfied
    assert result.partitions["orders-3"].required_offset == 2
    assert core.pending == 0
    assert [message.WhichOneof("message") for message in sent(core, 1.1)] == ["heartbeat"]
    assert core.wake_at() == pytest.approx(1.5)
    (acknowledgement,) = sent(core, 1.5)
    assert acknowledgement.acknowledge.sequence == 2


@pytest.mark.parametrize(("kept", "at_once"), [(0, 5_000), (4, 2)], ids=["by-default", "half-of-what-is-kept"])
def test_many_results_are_acknowledged_at_once(kept: int, at_once: int) -> None:
    """Many results are acknowledged at once, because the daemon refuses registrations when it stores too many."""
    core = SessionCore("s", 1_000_000)
    opening = opened()
    opening.opened.unacknowledged_results_max = kept
    core.receive(opening, 0.0)
    submit(core, at_once)
    sent(core, 0.0)
    core.receive(results(1, list(range(1, at_once))), 0.1)
    assert sent(core, 0.1) == []
    core.receive(results(at_once, [at_once]), 0.1)
    assert sent(core, 0.1)[0].acknowledge.sequence == at_once


def test_repeated_results_are_dropped() -> None:
    core, _ = core_with_sent(4)
    assert len(core.receive(results(1, [1, 2]), 0.0)) == 2
    assert core.receive(results(1, [1, 2]), 0.0) == []
    ended = core.receive(results(2, [2, 3, 4]), 0.0)
    assert [wait.operation_id for wait, _ in ended if isinstance(wait, waits.Wait)] == [3, 4]


def test_missing_results_are_an_error() -> None:
    core, _ = core_with_sent(2)
    with pytest.raises(ProtocolError, match="results 1 to 4 are missing"):
        core.receive(results(5, [1]), 0.0)


@pytest.mark.parametrize(
    ("highest", "again"), [(9, []), (6, [[7, 8, 9]]), (3, [[4, 5], [6, 7, 8, 9]])], ids=["knows-all", "batch", "both"]
)
def test_what_is_above_the_highest_id_is_sent_again(highest: int, again: list[list[int]]) -> None:
    core = open_core()
    submit(core, 5)
    core.submit(many(4), 0.0)
    sent(core, 0.0)
    core.connection_lost(0.5)
    assert core.next_message(1.0) is None
    core.submit(produce(99), 1.0)
    assert core.open_message().open.last_sequence == 0
    core.receive(opened(resumed=True, highest=highest), 2.0)
    assert registered(sent(core, 2.0)) == [*again, [10]]
    assert len(core.receive(results(1, list(range(1, 11))), 2.0)) == 7


def test_a_resent_wait_has_the_time_that_remains() -> None:
    """Time without a connection counts against a wait's timeout, but at least 1 ms remains, because 0 would request
    an immediate answer. A wait that is sent at once keeps its whole timeout.
    """
    core = open_core()
    core.submit(produce(1), 0.0)
    core.submit(many(2, 3_000), 0.0)
    core.submit(waits.signal(["k"], timeout=0), 0.0)
    assert sorted(timeouts_sent(core, 0.0)) == [[0], [3_000], [5_000]]
    core.connection_lost(1.0)
    core.receive(opened(), 4.0)
    assert sorted(timeouts_sent(core, 4.0)) == [[0], [1], [1_000]]


def test_the_first_connection_costs_a_wait_no_time() -> None:
    core = SessionCore("s", 10)
    core.submit(produce(), 0.0)
    core.connection_lost(1.0)
    core.submit(waits.signal(["k"], timeout=5), 2.0)
    core.receive(opened(), 3.0)
    assert timeouts_sent(core, 3.0) == [[2_000], [5_000]]


def test_ids_of_somebody_else_s_incarnation_are_in_use() -> None:
    """If another client created the session again, waits whose ids it has used fail at once, instead of ending with
    its results. Waits with higher ids are registered, and new waits get ids above those.
    """
    core = open_core()
    core.receive(opened(incarnation="first"), 0.0)
    submit(core, 2)
    batch = many(4)
    core.submit(batch, 0.0)
    sent(core, 0.0)
    core.connection_lost(0.5)
    ended = core.receive(opened(highest=4, incarnation="second"), 1.0)
    assert [type(answer) for _, answer in ended] == [OperationIdInUse, OperationIdInUse]
    assert [position for position in range(4) if batch.outcomes[position] == Outcome.REFUSED] == [0, 1]
    assert registered(sent(core, 1.0)) == [[5, 6]]
    assert core.receive(results(1, [1, 2, 3, 4]), 1.0) == []
    ((wait, _),) = core.receive(results(5, [5, 6]), 1.0)
    assert wait is batch
    (fresh,) = submit(core, 1)
    sent(core, 1.0)
    assert fresh.operation_id == 7


def test_ids_go_on_above_what_the_daemon_knows() -> None:
    core = SessionCore("s", 10)
    core.receive(opened(resumed=True, highest=41), 0.0)
    submit(core, 1)
    assert registered(sent(core, 0.0)) == [[42]]


def test_a_refusal_whose_receipt_was_lost_comes_as_a_result() -> None:
    core, (refused,) = core_with_sent(1)
    row = {"operation_id": 1, "kind": 1, "outcome": 6, "refusal": {"code": 8, "message": "too many"}}
    message = purgatory_service_pb2.SessionResponse(results={"first_sequence": 1, "rows": {"results": [row]}})
    ((wait, error),) = core.receive(message, 0.0)
    assert wait is refused
    assert isinstance(error, LimitExceeded)


def test_a_refusal_whose_receipt_was_lost_comes_in_columns_too() -> None:
    core, (first, second, third) = core_with_sent(3)
    assert core.receive(results(1, [1]), 0.0)[0][0] is first
    core.connection_lost(1.0)
    core.receive(opened(resumed=True, highest=3), 2.0)
    message = results(1, [1, 2, 3], Outcome.REFUSED)
    message.results.columns.outcome[0] = Outcome.SATISFIED
    message.results.columns.refusals.add(operation_id=2, code=3, field="offset", message="-5 is negative")
    message.results.columns.refusals.add(operation_id=3, code=8, message="too many")
    (wait, invalid), (other, limit) = core.receive(message, 2.0)
    assert (wait, other) == (second, third)
    assert isinstance(invalid, InvalidRequest)
    assert invalid.field == "offset"
    assert isinstance(limit, LimitExceeded)


def test_a_refused_batch_ends_all_of_it() -> None:
    core, _ = core_with_sent(3)
    message = purgatory_service_pb2.SessionResponse(
        receipt={"batch_id": 1, "batch_refusal": {"code": 3, "message": "unreadable"}}
    )
    ended = core.receive(message, 0.0)
    assert [type(error) for _, error in ended] == [InvalidRequest] * 3
    assert core.pending == 0


def test_columns_of_one_value_or_none_are_those_of_all() -> None:
    core = open_core()
    batch = many(3)
    core.submit(batch, 0.0)
    sent(core, 0.0)
    message = results(1, [])
    message.results.columns.operation_id.extend([1, 2, 3])
    message.results.columns.outcome.append(Outcome.SATISFIED)
    message.results.columns.item_count.append(1)
    message.results.columns.required_offset.extend([4, 5, 6])
    message.results.columns.reached_offset.append(9)
    ((_, answer),) = core.receive(message, 0.0)
    assert isinstance(answer, ResultColumns)
    assert answer.outcomes == [1, 1, 1]
    assert answer.waited_ms == answer.lateness_ms == answer.error_codes == [0, 0, 0]
    assert (answer.required_offsets, answer.reached_offsets) == ([4, 5, 6], [9, 9, 9])
    assert answer.estimated_remaining_ms == answer.paces_per_second == [-1, -1, -1]
    assert [answer.name_of(item) for item in range(3)] == ["orders-3"] * 3


def test_large_batches_are_cut_and_wait_for_receipts() -> None:
    core = SessionCore("s", 1_000_000)
    core.receive(opened(batch_max=100), 0.0)
    core.submit(many(2_000), 0.0)
    first = sent(core, 0.0)
    assert [len(ids) for ids in registered(first)] == [100] * WINDOW
    core.receive(receipt(1), 0.0)
    core.receive(receipt(2), 0.0)
    assert registered(sent(core, 0.0)) == [list(range(801, 901)), list(range(901, 1_001))]


def test_waits_share_a_batch_while_the_window_is_full() -> None:
    core = open_core()
    for _ in range(WINDOW):
        submit(core, 1)
        assert len(registered(sent(core, 0.0))) == 1
    for _ in range(50):
        submit(core, 1)
        assert sent(core, 0.0) == []
    core.receive(receipt(1), 0.0)
    assert [len(ids) for ids in registered(sent(core, 0.0))] == [50]


def test_an_unsent_wait_is_cancelled_silently() -> None:
    core = open_core()
    first, second = submit(core, 2)
    batch = many(3)
    core.submit(batch, 0.0)
    core.cancel(first)
    core.cancel(batch)
    assert registered(sent(core, 0.0)) == [[1]]
    assert second.operation_id == 1


def test_a_cancel_that_may_be_lost_is_sent_again() -> None:
    core, waiting = core_with_sent(3)
    core.cancel(waiting[0])
    core.cancel(waiting[2])
    sent(core, 0.0)
    core.connection_lost(0.5)
    core.receive(opened(resumed=True, highest=2), 1.0)
    (message,) = sent(core, 1.0)
    assert list(message.cancel.operation_ids) == [1]


def test_a_batch_of_columns_is_cancelled_with_what_is_left_of_it() -> None:
    core = SessionCore("s", 1_000)
    core.receive(opened(batch_max=2), 0.0)
    batch = many(40)
    core.submit(batch, 0.0)
    sent(core, 0.0)
    core.receive(results(1, [1, 3]), 0.0)
    core.cancel(batch)
    messages = sent(core, 0.0)
    assert registered(messages) == []
    assert list(messages[0].cancel.operation_ids) == [2, *range(4, 41)]


@pytest.mark.parametrize("seed", range(20))
def test_each_wait_ends_once_whatever_is_lost(seed: int) -> None:
    """With a model daemon and a connection that loses messages in both directions, each wait ends once."""
    generator = random.Random(seed)
    core = SessionCore("s", 10_000)
    daemon = ModelDaemon(generator)
    ends: Counter[waits.Wait | WaitBatch] = Counter()
    total = 0
    for step in range(400):
        now = step * 0.1
        if step < 200:
            fresh: list[waits.Wait | WaitBatch] = [produce() for _ in range(generator.randrange(4))]
            if generator.random() < 0.1:
                fresh.append(many(generator.randrange(1, 6)))
            for wait in fresh:
                core.submit(wait, now)
            total += len(fresh)
        daemon.lossy = step < 300
        if not core.opened or daemon.dead or generator.random() < (0.2 if step < 300 else 0.0):
            core.connection_lost(now)
            forget = step < 300 and generator.random() < 0.1
            daemon.connect(core.open_message(), forget=forget)
        for message in sent(core, now):
            daemon.take(message)
        for answer in daemon.answers():
            for wait, _ in core.receive(answer, now):
                ends[wait] += 1
    assert core.pending == 0
    assert set(ends.values()) == {1}
    assert len(ends) == total


class ModelDaemon:
    """A minimal daemon that keeps the protocol's promises: ids, sequence numbers, resending until acknowledged."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator
        self.known = False
        self.highest = 0
        self.pending: list[int] = []
        self.outbox: list[int] = []
        self.acknowledged = 0
        self.written = 0
        self.replies: list[purgatory_service_pb2.SessionResponse] = []
        self.dead = False
        self.lossy = True

    def connect(self, message: purgatory_service_pb2.SessionRequest, *, forget: bool) -> None:
        if forget:
            self.__init__(self.generator)  # type: ignore[misc]
        self.acknowledged = max(self.acknowledged, message.open.last_sequence if self.known else 0)
        self.written = self.acknowledged
        self.replies = [opened(resumed=self.known, highest=self.highest)]
        self.known = True
        self.dead = False

    def take(self, message: purgatory_service_pb2.SessionRequest) -> None:
        self.dead = self.dead or (self.lossy and self.generator.random() < 0.1)
        if self.dead:
            return
        if message.HasField("register"):
            columns = message.register.columns
            fresh = [one for one in columns.operation_id if one > self.highest]
            self.highest = max([self.highest, *fresh])
            self.pending.extend(fresh)
            self.replies.append(receipt(message.register.batch_id))
        elif message.HasField("acknowledge"):
            assert message.acknowledge.sequence <= len(self.outbox)
            self.acknowledged = message.acknowledge.sequence

    def answers(self) -> list[purgatory_service_pb2.SessionResponse]:
        ending = [one for one in self.pending if self.generator.random() < 0.3]
        self.pending = [one for one in self.pending if one not in ending]
        self.outbox.extend(ending)
        if self.written < len(self.outbox):
            self.replies.append(results(self.written + 1, self.outbox[self.written :]))
            self.written = len(self.outbox)
        replies, self.replies = self.replies, []
        lost = (
            self.generator.randrange(len(replies) + 1) if self.lossy and self.generator.random() < 0.1 else len(replies)
        )
        self.dead = self.dead or lost < len(replies)
        return [] if not replies else replies[:lost]
