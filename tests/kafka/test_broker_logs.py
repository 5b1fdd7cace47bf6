"""The brokers' logs as a second witness of the history check: they reveal errors in the record and in answers."""

import pytest

from tests.kafka.history.broker_logs import BrokerLogs, CommittedOffset, commits_of, records_of
from tests.kafka.history.history_judge import GONE, Answer, RecordedStep, wrong_answers
from tests.kafka.history.history_record import WrittenRecord
from tests.kafka.history.log_check import contradictions, marks_at_the_end, raised_steps, steps_of_logs

PAYMENTS = ("kafka/payments", 0)
BILLING = ("kafka/billing/payments", 0)
BATCH = "baseOffset: {0} lastOffset: {1} count: {2} baseSequence: 0 lastSequence: 0 producerId: {3} producerEpoch: 0 partitionLeaderEpoch: 0 isTransactional: {4} isControl: {5} deleteHorizonMs: OptionalLong.empty position: 0 LogAppendTime: {6} size: 78 magic: 2"  # noqa: E501 - as the tool prints it
RECORD = "| offset: {0} LogAppendTime: {1} keySize: -1 valueSize: 1 sequence: 0 headerKeys: [] payload: payments:1:{0}"
MARKER = "| offset: {0} LogAppendTime: {1} keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: {2} coordinatorEpoch: 0"  # noqa: E501 - as the tool prints it
COMMIT = '| offset: {0} LogAppendTime: {1} keySize: 23 valueSize: 24 sequence: 0 headerKeys: [] key: {{"type":"1","data":{{"group":"billing","topic":"payments","partition":0}}}} payload: {2}'  # noqa: E501 - as the tool prints it
VALUE = '{{"version":"4","data":{{"offset":{0},"leaderEpoch":-1,"metadata":"","commitTimestamp":1}}}}'

PRINTED = [
    "Log starting offset: 0",
    BATCH.format(0, 1, 2, 7, "true", "false", 1000),
    RECORD.format(0, 1000),
    RECORD.format(1, 1000),
    BATCH.format(2, 2, 1, 8, "true", "false", 2000),
    RECORD.format(2, 2000),
    BATCH.format(3, 3, 1, 7, "true", "true", 3000),
    MARKER.format(3, 3000, "COMMIT"),
    BATCH.format(4, 4, 1, 8, "true", "true", 9000),
    MARKER.format(4, 9000, "ABORT"),
    BATCH.format(5, 5, 1, -1, "false", "false", 20_000),
    RECORD.format(5, 20_000),
]
PRINTED_COMMITS = [COMMIT.format(0, 4000, VALUE.format(2)), COMMIT.format(1, 30_000, "<DELETE>")]
SENT = {"payments:1:0": 0.9, "payments:1:1": 0.9, "payments:1:2": 1.9, "payments:1:5": 19.9}
WRITTEN = [WrittenRecord(PAYMENTS, value, int(value[-1]), begun_s, begun_s + 0.2) for value, begun_s in SENT.items()]
CHANGES = [RecordedStep(BILLING, 2, 3.9, 4.1), RecordedStep(BILLING, GONE, 29.9, 30.1)]


def logs() -> BrokerLogs:
    """Two committed records, an aborted one, one without a transaction; a committed offset and its tombstone."""
    return BrokerLogs({(PAYMENTS, 1): list(records_of(PRINTED, 0.0))}, list(commits_of(PRINTED_COMMITS, 0.0)))


def test_logs_are_read_as_kafka_prints_them() -> None:
    """Aborted records and markers are invisible, which is settled only once the transaction has ended."""
    records = logs().records[PAYMENTS, 1]
    assert [(one.offset, one.is_visible, one.settled_s) for one in records] == [
        (0, True, 3.0),
        (1, True, 3.0),
        (2, False, 9.0),
        (3, False, 3.0),
        (4, False, 9.0),
        (5, True, 20.0),
    ]
    assert logs().commits == [CommittedOffset(BILLING, 2, 4.0), CommittedOffset(BILLING, GONE, 30.0)]


def test_open_transactions_are_not_settled() -> None:
    """Records in an open transaction, and those after them, are not settled."""
    assert [one.offset for one in records_of(PRINTED[:8], 0.0)] == [0, 1]


@pytest.mark.parametrize(
    ("target", "answered_s", "is_right"),
    [(2, 4.5, True), (3, 8.0, False), (3, 9.5, True), (5, 9.5, True), (6, 25.0, False), (5, 3.0, False)],
)
def test_a_mark_may_be_raised_over_what_nobody_sees(target: int, answered_s: float, is_right: bool) -> None:
    """A mark may be raised over aborted records and markers of ended transactions, but not over a visible record."""
    answer = Answer(BILLING, target, 1.0, 1.1, 100.0, answered_s, True)
    steps = [*CHANGES, *raised_steps([*CHANGES, *steps_of_logs(logs())], logs(), {"payments"})]
    assert (wrong_answers(steps, [answer], 3.0) == []) is is_right


def test_a_record_that_agrees_with_the_logs_has_no_contradictions() -> None:
    """A record without contradictions matches the logs in every value and time."""
    assert contradictions(WRITTEN, SENT, CHANGES, logs(), ()) == []


@pytest.mark.parametrize(
    ("written", "sent", "changes", "why"),
    [
        ([*WRITTEN, WrittenRecord(PAYMENTS, "payments:1:9", 9, 1.0, 1.1)], SENT, CHANGES, "not in the log"),
        ([WRITTEN[0]._replace(acknowledged_s=0.92)], SENT, CHANGES, "before it was in the log"),
        (WRITTEN, SENT | {"payments:1:2": 5.0}, CHANGES, "what nobody had sent"),
        (WRITTEN, {key: at_s for key, at_s in SENT.items() if key[-1] != "5"}, CHANGES, "what nobody had sent"),
        (WRITTEN, SENT, [*CHANGES, RecordedStep(BILLING, 3, 8.0, 8.1)], "not in the log"),
        (WRITTEN, SENT, CHANGES[1:], "nobody has done it"),
        (WRITTEN, SENT, [CHANGES[0]._replace(begun_s=4.5, acknowledged_s=None), CHANGES[1]], "nobody has done it"),
        (WRITTEN, SENT, CHANGES[:1], "nobody has done it"),
    ],
)
def test_contradictions_are_found(
    written: list[WrittenRecord], sent: dict[str, float], changes: list[RecordedStep], why: str
) -> None:
    """Records and commits that are only in the record, only in the logs, or at another time are contradictions."""
    assert any(why in told for told in contradictions(written, sent, changes, logs(), ()))


def test_marks_at_the_end_are_those_of_the_logs() -> None:
    """A topic's final mark is the end of its log. A group's is between its committed offset and the next visible
    record; a deleted group may have none.
    """
    seen = logs()
    assert marks_at_the_end(seen, {"payments": 1}) == {PAYMENTS: (6, 6), BILLING: (GONE, 0)}
    assert marks_at_the_end(seen._replace(commits=seen.commits[:1]), {"payments": 1})[BILLING] == (2, 5)
    assert PAYMENTS not in marks_at_the_end(seen, {"payments": 2})
