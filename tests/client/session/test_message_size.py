"""Batches fit the daemon's message limit: they are split by size as well as by number of operations.

Single waits, and batches that are halved because the limit is unknown, are subjects of tests/conformance.
"""

import pytest
from purgatory_client import waits
from purgatory_client.batches import Entry, produce
from purgatory_client.errors import LimitExceeded
from purgatory_client.session.session_core import SessionCore

from tests.client.session.wire_script import opened, receipt, registered, sent

LONG_TOPIC = "t" * 240
LIMIT_BYTES = 64 << 10


def single_waits(count: int, partitions: int) -> list[Entry]:
    """Waits for partitions with long names, each for a different one."""
    return [
        waits.produce({(f"{LONG_TOPIC}{number}", partition): 1 for partition in range(partitions)}, timeout=5)
        for number in range(count)
    ]


def one_batch(count: int, partitions: int) -> Entry:
    """The same waits as one batch of columns."""
    names = [(f"{LONG_TOPIC}{number}", partition) for number in range(count) for partition in range(partitions)]
    return produce(names, indexes=range(len(names)), offsets=[1], item_counts=[partitions] * count)


def core_with(entries: list[Entry], stated_bytes: int = LIMIT_BYTES) -> SessionCore:
    core = SessionCore("s", 1_000_000)
    opening = opened()
    opening.opened.message_bytes_max = stated_bytes
    core.receive(opening, 0.0)
    for entry in entries:
        core.submit(entry, 0.0)
    return core


def test_no_message_of_columns_is_larger_than_the_daemon_accepts() -> None:
    core = core_with([one_batch(100, 20)])
    ids: list[int] = []
    batch_id = 0
    while messages := sent(core, 0.0):
        assert max(message.ByteSize() for message in messages) <= LIMIT_BYTES
        ids += [one for batch in registered(messages) for one in batch]
        for _ in messages:
            batch_id += 1
            core.receive(receipt(batch_id), 0.0)
    assert ids == list(range(1, 101))


@pytest.mark.parametrize("stated_bytes", [LIMIT_BYTES, 0])
def test_an_operation_that_is_too_large_fails_alone(stated_bytes: int) -> None:
    """An operation that is too large fails with both sizes in its error; the others are sent. The default limit is 4
    MiB.
    """
    partitions = 400 if stated_bytes else 20_000
    first, last = single_waits(2, 1)
    [too_large] = single_waits(1, partitions)
    core = core_with([first, too_large, last], stated_bytes)
    assert registered(sent(core, 0.0)) == [[1], [3]]
    [(ended, error)] = core.take_too_large()
    assert ended is too_large
    assert isinstance(error, LimitExceeded)
    assert f"the daemon accepts {stated_bytes or 4 << 20}: split it" in str(error)
    assert core.take_too_large() == []
