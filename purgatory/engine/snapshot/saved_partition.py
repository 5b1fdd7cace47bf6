"""Serialization of one partition: all state reported by events. Its waits are saved with the operations."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.marks.partition import Partition, Replica
from purgatory.engine.snapshot.codec import ColumnReader, ColumnWriter

__all__ = ["partition_from", "partition_to"]

REPLICA_COLUMNS: Final = 7
DEAD: Final = 1
FENCED: Final = 2


def partition_to(partition: Partition) -> bytes:
    """Serialize the state of a partition."""
    writer = ColumnWriter()
    # Read by position, and stored in journals on disk: new values go to the end, and none may be removed.
    scalars: vec[i64] = vec[i64]([
        1 if partition.storage_failed else 0,
        1 if partition.is_leader else 0,
        partition.leader_epoch,
        partition.leader_id,
        partition.log_start_offset,
        partition.log_end_offset,
        partition.high_watermark,
        partition.first_unstable_offset,
        partition.min_in_sync_replicas,
        partition.unchanged_events,
        partition.stale_events,
        partition.first_mark,
        partition.first_ms,
    ])  # fmt: skip
    writer.add(scalars)
    writer.add_list(partition.in_sync)
    writer.add_list(partition.proposed)
    replicas: list[int] = []
    for replica in partition.replicas.values():
        replicas += replica_to(replica)
    writer.add_list(replicas)
    writer.add(partition.positions.offsets)
    writer.add(partition.positions.segments)
    writer.add(partition.positions.positions)
    writer.add(partition.positions.reaches)
    writer.add_list(partition.epochs.epochs)
    writer.add_list(partition.epochs.start_offsets)
    return writer.to_bytes()


def replica_to(replica: Replica) -> list[int]:
    """The state of a replica as integers; its membership is stored in the sets themselves."""
    return [
        replica.replica_id,
        int(replica.log_end_offset),
        int(replica.log_start_offset),
        int(replica.last_caught_up_ms),
        int(replica.last_fetch_ms),
        int(replica.leader_end_at_last_fetch),
        (DEAD if replica.dead else 0) + (FENCED if replica.fenced else 0),
    ]


def partition_from(partition: Partition, octets: bytes) -> None:
    """Restore the output of `partition_to` into a new partition."""
    reader = ColumnReader(octets)
    scalars = reader.column()
    partition.storage_failed = scalars[0] != 0
    partition.is_leader = scalars[1] != 0
    partition.leader_epoch = scalars[2]
    partition.leader_id = scalars[3]
    partition.log_start_offset = scalars[4]
    partition.log_end_offset = scalars[5]
    partition.high_watermark = scalars[6]
    partition.first_unstable_offset = scalars[7]
    partition.min_in_sync_replicas = scalars[8]
    partition.unchanged_events = scalars[9]
    partition.stale_events = scalars[10]
    partition.first_mark = scalars[11]
    partition.first_ms = scalars[12]
    partition.in_sync = [int(member) for member in reader.column()]
    partition.proposed = [int(member) for member in reader.column()]
    replicas = [int(value) for value in reader.column()]
    # With `know`, because `replica` would search both sets for each id; the flags are set once, by `mark_members`
    # below.
    for first in range(0, len(replicas), REPLICA_COLUMNS):
        replica_from(partition.know(replicas[first]), replicas[first : first + REPLICA_COLUMNS])
    # The sets were restored above, so this sets the flags that are not saved; it also counts the in-sync set.
    partition.mark_members()
    positions = partition.positions
    positions.offsets = reader.column()
    positions.segments = reader.column()
    positions.positions = reader.column()
    positions.reaches = reader.column()
    partition.epochs.epochs.extend([int(epoch) for epoch in reader.column()])
    partition.epochs.start_offsets.extend([int(offset) for offset in reader.column()])


def replica_from(replica: Replica, values: list[int]) -> None:
    """Restore the output of `replica_to` into a new replica."""
    replica.log_end_offset = values[1]
    replica.log_start_offset = values[2]
    replica.last_caught_up_ms = values[3]
    replica.last_fetch_ms = values[4]
    replica.leader_end_at_last_fetch = values[5]
    replica.dead = values[6] & DEAD != 0
    replica.fenced = values[6] & FENCED != 0
