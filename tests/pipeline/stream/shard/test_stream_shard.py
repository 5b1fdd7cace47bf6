"""One shard of a stream, without Spark: its outcomes, its state, and the rows that it sets aside."""

from typing import Any

import pyarrow as pa
import pytest
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.stream import shard_state
from purgatory_pipeline.stream.shard import PlayedRows, Shard
from purgatory_pipeline.stream.stream_rows import ROWS

from purgatory.engine.codes import (
    DELETE_RECORDS,
    FOLLOWER_PROGRESS,
    HIGH_WATERMARK,
    IN_SYNC_REPLICAS,
    KEY_SIGNALLED,
    LEADER_APPEND,
    LOG_START_OFFSET,
    PRODUCE,
    SIGNAL,
)
from tests.histories.worlds.spark import driven
from tests.pipeline.stream.simulated_history import Row, outcomes_of


def produce(at_ms: int, operation_id: int, offset: int, **more: Any) -> Row:  # noqa: ANN401 - values of any column
    return {
        "at_ms": at_ms, "kind": PRODUCE, "caller": "a", "operation_id": operation_id, "timeout_ms": 1_000,
        "item": 0, "item_count": 1, "topic": "t", "partition": 0, "offset": offset,
    } | more  # fmt: skip


def mark(at_ms: int, offset: int, **more: Any) -> Row:  # noqa: ANN401 - see produce
    return {"at_ms": at_ms, "type": HIGH_WATERMARK, "topic": "t", "partition": 0, "offset": offset} | more


def heartbeat(at_ms: int) -> Row:
    return {"at_ms": at_ms}


def play(shard: Shard, *rows: Row) -> PlayedRows:
    return shard.play(pa.Table.from_pylist(list(rows), schema=ROWS))


def again(shard: Shard) -> Shard:
    return shard_state.from_bytes(shard_state.to_bytes(shard), shard.delay_ms, number=shard.number)


def ends(played: PlayedRows) -> list[tuple[int, str, int]]:
    """Id, outcome and wait of each operation."""
    return [(row[1], row[4], row[5]) for row in outcomes_of(played.outcomes)]


def test_a_mark_answers_and_time_expires_without_rows_of_their_own() -> None:
    """Operations complete in the batch of the row that satisfies them, at its time; a heartbeat lets them expire."""
    shard = Shard()
    assert ends(play(shard, produce(100, 7, 5), produce(110, 8, 50), mark(200, 5))) == [(7, "satisfied", 100)]
    assert shard.pending == 1
    assert ends(play(again(shard), heartbeat(5_000))) == [(8, "expired", 1_000)]


def test_a_registration_long_before_the_first_mark_of_its_partition() -> None:
    """Nothing is known of the partition for a day, and the state that waits is saved all the while."""
    shard, day_ms = Shard(), 86_400_000
    play(shard, produce(100, 1, 5, timeout_ms=2 * day_ms))
    for hour in range(24):
        shard = again(shard)
        assert ends(play(shard, heartbeat(hour * 3_600_000))) == []
    assert ends(play(shard, mark(day_ms, 6))) == [(1, "satisfied", day_ms - 100)]


def test_rows_wait_for_the_delay_and_are_then_played_in_order_of_time() -> None:
    """A mark that arrives before the registration, but happened after it, counts after it."""
    shard = Shard(delay_ms=500)
    assert ends(play(shard, mark(300, 5))) == []
    shard = again(shard)
    assert ends(play(shard, produce(200, 1, 5))) == []
    assert ends(play(again(shard), heartbeat(801))) == [(1, "satisfied", 100)]


def test_what_is_due_at_the_horizon_still_waits_for_rows_of_that_millisecond() -> None:
    """With a delay a millisecond is played as a whole: an operation sent again in the one in which it expires counts
    once, though the batches were cut between.
    """
    shard = Shard(delay_ms=10)
    play(shard, produce(100, 1, 5))
    assert ends(play(shard, heartbeat(1_110))) == []
    shard = again(shard)
    assert ends(play(shard, produce(1_100, 1, 5), heartbeat(1_111))) == [(1, "expired", 1_000)]
    assert shard.pending == 0


def test_late_rows_are_set_aside_as_they_came() -> None:
    """A row whose time has been played changes nothing, and comes out with its columns."""
    shard = Shard(delay_ms=100)
    play(shard, heartbeat(1_000))
    shard = again(shard)
    played = play(shard, produce(899, 3, 9), mark(850, 9), produce(950, 4, 1))
    late = played.late.select(["at_ms", "operation_id", "offset"]).to_pylist()
    assert late == [{"at_ms": 899, "operation_id": 3, "offset": 9}, {"at_ms": 850, "operation_id": None, "offset": 9}]
    assert again(shard).late == 2
    assert ends(play(shard, heartbeat(9_000))) == [(4, "expired", 1_000)]


def test_of_events_only_the_first_shard_tells_that_they_came_late() -> None:
    """Events go to all shards; the side tables have each once."""
    first, second = Shard(number=0), Shard(number=1)
    for shard in (first, second):
        play(shard, heartbeat(1_000))
    assert [play(shard, mark(10, 1)).late.num_rows for shard in (first, second)] == [1, 0]
    assert [play(shard, produce(10, 1, 1)).late.num_rows for shard in (first, second)] == [1, 1]


def test_an_operation_that_is_sent_again_counts_once_while_it_waits() -> None:
    """In the same batch, in a later one, and, once it has ended, as a new one."""
    shard = Shard()
    assert ends(play(shard, produce(1, 1, 5), produce(2, 1, 5), produce(3, 2, 5))) == []
    shard = again(shard)
    assert ends(play(shard, produce(4, 1, 5), mark(10, 5))) == [(1, "satisfied", 9), (2, "satisfied", 7)]
    assert ends(play(shard, produce(20, 1, 6), mark(30, 6), produce(40, 1, 7), mark(50, 7))) == [
        (1, "satisfied", 10),
        (1, "satisfied", 10),
    ]
    assert shard.pending == 0


def test_an_operation_sent_twice_that_is_satisfied_at_once_has_one_outcome() -> None:
    """A producer's retry has the same time; the first has ended in that millisecond."""
    shard = Shard()
    play(shard, mark(1, 10))
    assert ends(play(shard, produce(5, 1, 5), produce(5, 1, 5))) == [(1, "satisfied", 0)]
    assert ends(play(shard, produce(6, 2, 5, timeout_ms=-1), produce(6, 2, 5, timeout_ms=-1))) == [(2, "refused", 0)]


@pytest.mark.parametrize(
    "row",
    [
        produce(5, 1, 5, item_count=2),
        produce(5, 1, 5, item=1),
        produce(5, 1, 5, kind=99),
        produce(5, 0, 5),
        mark(5, 5, type=99),
    ],
)
def test_what_no_engine_could_take_is_set_aside(row: Row) -> None:
    """A row of an incomplete operation or of an unknown kind changes nothing."""
    shard = Shard()
    played = play(shard, row, mark(6, 1))
    assert (played.malformed.num_rows, played.late.num_rows, ends(played), shard.pending) == (1, 0, [], 0)
    assert "incomplete" in played.malformed.column("reason")[0].as_py()


def test_a_row_that_lost_its_operation_does_not_spoil_the_one_before_it() -> None:
    """Rows belong together if they say so, not because they are neighbours."""
    shard = Shard()
    stray = produce(5, 2, 5, item=1, item_count=2)
    played = play(shard, produce(5, 1, 5), stray, produce(5, 1, 5, item=1, caller="b"), mark(6, 5))
    assert ends(played) == [(1, "satisfied", 1)]
    assert played.malformed.num_rows == 2


def test_an_event_may_give_some_of_its_sets_of_replicas() -> None:
    """Lists that are not given are empty: here two replicas are in sync, of which one has fetched nothing."""
    shard = Shard()
    in_sync = {
        "at_ms": 1, "type": IN_SYNC_REPLICAS, "topic": "t", "partition": 0, "in_sync": [1, 2], "leader_id": 1,
    }  # fmt: skip
    append = mark(2, 5, type=LEADER_APPEND)
    fetched = mark(4, 5, type=FOLLOWER_PROGRESS, replica_id=2)
    assert ends(play(shard, in_sync, append, produce(3, 1, 5))) == []
    assert ends(play(shard, fetched)) == [(1, "satisfied", 1)]


def test_what_the_engine_refuses_says_why() -> None:
    """An operation ends as refused, an event is set aside, each with the field at fault."""
    played = play(Shard(), produce(5, 1, -5), mark(6, -7))
    assert outcomes_of(played.outcomes)[0][4:] == (
        "refused", 0, "produce.partitions[0].required_offset: -5 is not in 0..2305843009213693951",
    )  # fmt: skip
    assert played.malformed.num_rows == 1
    assert "-7" in played.malformed.column("reason")[0].as_py()


def test_nothing_is_kept_of_what_has_ended() -> None:
    """A thousand operations later the state is as large as before, apart from the marks."""
    shard = Shard()
    play(shard, mark(1, 0))
    before = len(shard_state.to_bytes(shard))
    play(shard, *[produce(2 + number, number + 1, 5) for number in range(1_000)], mark(5_000, 5), heartbeat(9_000))
    assert shard.pending == 0
    assert len(shard_state.to_bytes(shard)) <= before + 16


@pytest.mark.parametrize("version", [0, shard_state.VERSION + 1])
def test_a_shard_in_another_format_is_refused(version: int) -> None:
    """The message has the remedy."""
    octets = bytes([version]) + shard_state.to_bytes(Shard())[1:]
    with pytest.raises(PipelineError, match=f"in format {version}; .* use the one that saved it"):
        shard_state.from_bytes(octets, 0)


@pytest.mark.parametrize("kept", [1, 5, 9, 40, 120])
def test_a_shard_cut_short_is_refused(kept: int) -> None:
    """However little of it is there."""
    shard = Shard()
    play(shard, mark(1, 0), *[produce(2 + number, number + 1, 5) for number in range(50)])
    octets = shard_state.to_bytes(shard)
    assert len(octets) > kept
    with pytest.raises(PipelineError, match="corrupt or truncated"):
        shard_state.from_bytes(octets[:kept], 0)


def test_a_partition_of_which_nothing_is_known_but_its_name_survives() -> None:
    """One item of two is answered before an event names its partition; at the end it tells that partition's mark."""
    first = produce(1, 1, -1, kind=DELETE_RECORDS, item_count=2)
    second = first | {"item": 1, "partition": 1, "offset": 5}
    shard = Shard()
    play(shard, first, second)
    loaded = again(shard)
    play(loaded, mark(2, 40), mark(3, 28, type=LOG_START_OFFSET))
    [outcome] = outcomes_of(play(loaded, heartbeat(5_000)).outcomes)
    assert [item[5] for item in outcome[6]] == [28, 0]
    assert loaded.engine is not None
    assert loaded.engine.inspection.partition_names() == [("t", 0)]


def test_counts_of_signals_survive() -> None:
    """A key that was signalled before anybody waits is known after the state was saved."""
    shard = Shard()
    play(shard, {"at_ms": 1, "type": KEY_SIGNALLED, "topic": "k", "offset": 3})
    wait = produce(2, 1, 3, kind=SIGNAL, topic="k", partition=None)
    assert ends(play(again(shard), wait)) == [(1, "satisfied", 0)]


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_history_ends_as_by_the_engine_itself(seed: int) -> None:
    """All kinds of operation and event, rows out of order, cut into batches at random, 1 to 16 shards, saved and loaded
    between batches: the same outcomes, times, codes and items.
    """
    life = driven(seed, 300)
    assert life.differing == [], life.how
    assert life.outcomes > 0
