"""One shard of a stream, without Spark: its outcomes, its state, and the rows that it sets aside."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from purgatory_pipeline.cli import main
from purgatory_pipeline.engine_rows.integers import Integers
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.stream import shard_state
from purgatory_pipeline.stream.shard import PlayedRows, Shard
from purgatory_pipeline.stream.stream_rows import ROWS

from purgatory.engine.codes import DELETE_RECORDS, HIGH_WATERMARK, KEY_SIGNALLED, LOG_START_OFFSET, PRODUCE, SIGNAL
from tests.histories.worlds.stream import Drive
from tests.pipeline.stream.simulated_history import Row, outcomes_of

PARTITIONS = 1_000


def produce(at_ms: int, operation_id: int, offset: int, **more: Any) -> Row:  # noqa: ANN401 - values of any column
    return {
        "at_ms": at_ms, "kind": PRODUCE, "caller": "a", "operation_id": operation_id, "timeout_ms": 1_000,
        "item": 0, "item_count": 1, "topic": "t", "partition": 0, "offset": offset,
    } | more  # fmt: skip


def mark(at_ms: int, offset: int, **more: Any) -> Row:  # noqa: ANN401 - see produce
    return {"at_ms": at_ms, "type": HIGH_WATERMARK, "topic": "t", "partition": 0, "offset": offset} | more


def signal(at_ms: int) -> Row:
    return {"at_ms": at_ms, "type": KEY_SIGNALLED, "topic": "k"}


def heartbeat(at_ms: int) -> Row:
    return {"at_ms": at_ms}


def play(shard: Shard, *rows: Row) -> PlayedRows:
    return shard.play(pa.Table.from_pylist(list(rows), schema=ROWS))


def again(shard: Shard) -> Shard:
    return shard_state.from_bytes(
        shard_state.to_bytes(shard), shard.delay_ms, number=shard.number, forget_ms=shard.forget_ms
    )


def ends(played: PlayedRows) -> list[tuple[int, str, int]]:
    """Id, outcome and wait of each operation."""
    return [(row[1], row[4], row[5]) for row in outcomes_of(played.outcomes)]


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


def test_what_the_engine_refuses_says_why() -> None:
    played = play(Shard(), produce(5, 1, -5), mark(6, -7))
    assert outcomes_of(played.outcomes)[0][4:] == (
        "refused", 0, "produce.partitions[0].required_offset: -5 is not in 0..2305843009213693951",
    )  # fmt: skip
    assert played.malformed.num_rows == 1
    assert "-7" in played.malformed.column("reason")[0].as_py()


@pytest.mark.parametrize("kept", [1, 5, 9, 40, 120])
def test_a_shard_cut_short_is_refused(kept: int) -> None:
    shard = Shard()
    play(shard, mark(1, 0), *[produce(2 + number, number + 1, 5) for number in range(50)])
    octets = shard_state.to_bytes(shard)
    assert len(octets) > kept
    with pytest.raises(PipelineError, match="corrupt or truncated"):
        shard_state.from_bytes(octets[:kept], 0)


def test_pending_waits_are_listed_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The longest first, of the state before the next micro-batch; names cannot write to the terminal."""
    layout = shard_state.write_layout(str(tmp_path), 2)
    assert main(["pending", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 pending before micro-batch 0 in 2 shards\n"
    for number, rows in enumerate(
        ([produce(5, 1, 1_050), mark(6, 1_042)], [produce(3, 2, 7, topic="a\x1b[2J"), mark(9, 5)])
    ):
        shard = layout.load(number, 0, 0)
        play(shard, *rows)
        layout.save(shard, 1)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text("v1")
    assert main(["pending", str(tmp_path)]) == 0
    assert capsys.readouterr().out.replace("\u00a0", " ").splitlines() == [
        "a/2  produce, waited 6 ms, 994 ms left: a\\u001b[2J-0 -1 of 7",
        "a/1  produce, waited 1 ms, 999 ms left: t-0 1,042 of 1,050",
        "2 pending before micro-batch 1 in 2 shards",
    ]
    assert main(["pending", str(tmp_path), "--topic-prefix", "t", "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["items"][0]["required_offset"] == 1_050
    assert main(["pending", str(tmp_path / "elsewhere")]) == 2


@pytest.mark.parametrize("row", [produce(5, 1, 5, kind=99), produce(5, 0, 5), mark(5, 5, type=99)])
def test_what_no_engine_could_take_is_set_aside(row: Row) -> None:
    shard = Shard()
    played = play(shard, row, mark(6, 1))
    assert (played.malformed.num_rows, played.late.num_rows, ends(played), shard.pending) == (1, 0, [], 0)
    assert "incomplete" in played.malformed.column("reason")[0].as_py()


def test_a_partition_of_which_nothing_is_known_but_its_name_survives() -> None:
    """One item of two is answered before an event names its partition; at the end it has that partition's mark."""
    first = produce(1, 1, -1, kind=DELETE_RECORDS, item_count=2)
    second = first | {"item": 1, "partition": 1, "offset": 5}
    shard = Shard()
    play(shard, first, second)
    loaded = again(shard)
    play(loaded, mark(2, 40), mark(3, 28, type=LOG_START_OFFSET))
    [outcome] = outcomes_of(play(loaded, heartbeat(5_000)).outcomes)
    assert [item[5] for item in outcome[6]] == [28, 0]


@pytest.mark.parametrize("age_ms", [99, 100, 101])
def test_mark_without_waits_is_forgotten_after_the_time(age_ms: int) -> None:
    """Also where the shard is restarted in between, and where a late event names the mark. The next event counts."""
    shard = Shard(forget_ms=100)
    now_ms = 1_000 + age_ms
    play(shard, mark(900, 7), mark(1_000, 7), signal(1_000))
    for at_ms in (1_050, now_ms):
        shard = again(shard)
        play(shard, mark(999, 8), heartbeat(at_ms))
    shard = again(shard)
    waits = [produce(now_ms, 1, 7), produce(now_ms, 2, 1, kind=SIGNAL, topic="k", partition=None)]
    known = ends(play(shard, *waits))
    assert known == ([(1, "satisfied", 0), (2, "satisfied", 0)] if age_ms < 100 else [])
    later = sorted(ends(play(again(shard), mark(now_ms + 5, 7), signal(now_ms + 5))))
    assert known + later == [(id_, "satisfied", 0 if age_ms < 100 else 5) for id_ in (1, 2)]


def test_mark_that_a_pending_operation_names_is_not_forgotten() -> None:
    """Although one of the operation's items was reached long before. The mark goes after the operation has ended."""
    first = produce(1, 1, 5, item_count=2, timeout_ms=1_000)
    shard = Shard(forget_ms=100)
    play(shard, first, first | {"item": 1, "partition": 1}, mark(1, 7))
    play(shard := again(shard), heartbeat(900))
    shard = again(shard)
    assert ends(play(shard, produce(900, 2, 7))) == [(2, "satisfied", 0)]
    shard = again(shard)
    assert ends(play(shard, heartbeat(1_001))) == [(1, "expired", 1_000)]
    assert ends(play(again(shard), produce(1_001, 3, 7))) == []


def test_age_of_marks_counts_from_the_first_run_that_forgets() -> None:
    shard = Shard()
    play(shard, mark(1, 7), signal(1), heartbeat(500))
    shard = shard_state.from_bytes(shard_state.to_bytes(shard), 0, forget_ms=100)
    play(shard := again(shard), heartbeat(599))
    shard = again(shard)
    assert len(shard.named_ms) == 2
    play(shard, heartbeat(600))
    assert again(shard).named_ms == {}


def test_many_pending_operations_are_saved_in_a_few_bytes_each() -> None:
    """A batch is answered while they wait, in the end all of them expire, and the state has only marks."""
    pending, rng = 100_000, np.random.default_rng(2)
    shard = Shard()
    shard.play(produces(rng, 1, pending, 0, 2**40 + rng.integers(0, 1_000_000, pending)))
    assert len(shard_state.to_bytes(shard)) < 16 * pending
    shard = again(shard)
    marks = [mark(2_000, 5, topic="orders", partition=partition) for partition in range(PARTITIONS)]
    rows = [produces(rng, pending + 1, 1_000, 1_000, np.full(1_000, 5)), pa.Table.from_pylist(marks, schema=ROWS)]
    answered = shard.play(pa.concat_tables(rows, promote_options="default")).outcomes.column("operation_id").to_pylist()
    assert sorted(answered) == list(range(pending + 1, pending + 1_001))
    ended = play(shard, heartbeat(4_000_000)).outcomes
    assert pc.count_distinct(ended.column("operation_id")).as_py() == ended.num_rows == pending
    assert ended.column("outcome").unique().to_pylist() == ["expired"]
    assert len(shard_state.to_bytes(shard)) < 50_000


def produces(rng: np.random.Generator, first_id: int, count: int, at_ms: int, offsets: Integers) -> pa.Table:
    """Operations of one item each, over all partitions, at random times in a second."""
    columns = {
        "at_ms": np.sort(at_ms + rng.integers(0, 1_000, count)),
        "kind": pa.repeat(pa.scalar(PRODUCE, pa.int8()), count),
        "operation_id": np.arange(first_id, first_id + count),
        "timeout_ms": rng.integers(1_000_000, 3_600_000, count),
        "topic": pa.repeat("orders", count),
        "partition": rng.integers(0, PARTITIONS, count).astype(np.int32),
        "offset": offsets,
    }
    return pa.table(columns)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("crowded", [False, True])
def test_a_history_ends_as_by_the_engine_itself(seed: int, crowded: bool) -> None:
    """All kinds of operation and event, rows out of order, cut into batches at random, 1 to 16 shards, saved and loaded
    between batches: the same outcomes, times, codes and items.
    """
    drive = Drive(seed, 60 if crowded else 150, crowded=crowded)
    assert drive.complaints() == []
    assert drive.history.outcomes
