"""The log in memory that tests use keeps what every replicated log promises."""

import time

import pytest

from tests.fleet.log_contract import LogContract, OpenShard
from tests.fleet.memory_log import MemoryLog


@pytest.fixture
def open_shard() -> OpenShard:
    origin = MemoryLog(time.time(), 0.0)
    origin.create(2)
    shards = [MemoryLog(time.time(), 0.0) for _ in range(2)]
    for shard in shards:
        shard.put(origin.entries[0])
    return shards.__getitem__


class TestMemoryLog(LogContract): ...
