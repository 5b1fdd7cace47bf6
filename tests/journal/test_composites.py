"""Composite waits in the journal: what was true or lost before a crash is so afterwards."""

from pathlib import Path

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.service.translate.operations import OperationRun
from tests.journal.kit import JournaledHost, picture
from tests.kit.served_host import apply_events

PARTITIONS = [("t", 0), ("t", 1), ("t", 2)]
KEYS = ["job", "job/failed"]


def register(journaled: JournaledHost, operation_ids: list[int], required_terms: list[int]) -> None:
    """Register composites on all partitions and both keys; the last key is the failure arm."""
    session = journaled.session
    count = len(operation_ids)
    batch = OperationBatch(
        operation_ids, partitions=PARTITIONS, keys=KEYS, item_counts=[5], item_indexes=[0, 1, 2, 3, 4] * count,
        offsets=[5, 5, 5, 2, 1] * count, timeouts_ms=[60_000], unless_counts=[1],
        required_terms=required_terms,
    )  # fmt: skip
    journaled.host.gate.check_batch(session, count, count * 5)
    journaled.host.registration(session).register([OperationRun(codes.COMPOSITE, batch)], [])


async def mark(journaled: JournaledHost, partition: int, kind: int, offset: int = -1) -> None:
    """An event of a partition."""
    await apply_events(journaled.host, EventBatch([kind], partitions=[("t", partition)], offsets=[offset]))


async def signal(journaled: JournaledHost, key: str) -> None:
    await apply_events(journaled.host, EventBatch([codes.KEY_SIGNALLED], keys=[key]))


def seen(journaled: JournaledHost, operation_id: int) -> tuple[int, int, list[int]]:
    """The required terms of a pending operation, the size of its failure arm, and the error code of each term."""
    view = journaled.host.engine.inspection.describe(journaled.session.owner, operation_id)
    assert view is not None, f"operation {operation_id} has ended"
    return view.required_terms, view.unless_count, [item.error_code for item in view.items]


async def test_terms_survive_a_crash(tmp_path: Path) -> None:
    """Terms that were true (though their mark has fallen) or lost are restored as such; what is left to come decides
    as it would have without the crash.
    """
    first = await JournaledHost.start(tmp_path / "data")
    register(first, [1, 2, 3, 4], required_terms=[3, 2, 2, 4])
    await mark(first, 0, codes.LEADER_APPEND, 9)
    await mark(first, 0, codes.HIGH_WATERMARK, 7)
    await mark(first, 0, codes.TRUNCATION, 2)
    await mark(first, 1, codes.HIGH_WATERMARK, 1)
    await mark(first, 1, codes.PARTITION_REMOVED)
    await signal(first, "job")
    await first.host.journal.durable()
    before = picture(first.host)
    assert [row[0] for row in before["sessions"]["a"][3]] == [4], "with the lost term, four cannot come true"
    await first.die(tmp_path / "data", tmp_path / "copy")

    second = await JournaledHost.start(tmp_path / "copy")
    second.host.engine.check()
    assert picture(second.host)["sessions"]["a"][4] == before["sessions"]["a"][4]
    assert [seen(second, number) for number in (1, 2, 3)] == [(needed, 1, [0, 3, 7, 7, 7]) for needed in (3, 2, 2)]
    register(second, [5], required_terms=[1])
    assert seen(second, 5) == (1, 1, [7, 7, 7, 7, 7]), "the mark has fallen, and there is a new partition"
    await mark(second, 2, codes.HIGH_WATERMARK, 5)
    await signal(second, "job/failed")
    ended = {row[0]: (row[2], row[6][0]) for row in picture(second.host)["sessions"]["a"][3]}
    assert ended[1] == (codes.FAILED, [0, 3, 0, 7, codes.UNLESS_REACHED])
    assert ended[2] == ended[3] == (codes.SATISFIED, [0, 3, 0, 7, 7])
    assert ended[5] == (codes.SATISFIED, [7, 7, 0, 7, 7])
    await second.stop()
