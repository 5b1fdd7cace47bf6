"""Results for a registration that nobody had to wait for: as many and as large as the daemon's, with nothing in them.

It knows the wire alone, and is quick to import.
"""

from __future__ import annotations

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import result_pb2

__all__ = ["echoed"]


def echoed(batch: wire.RegisterBatch) -> result_pb2.ResultColumns:
    """Results of the size of ours for single-partition operations."""
    columns = batch.columns
    count = len(columns.operation_id)
    answer = result_pb2.ResultColumns(kind=columns.kind, partitions=columns.partitions)
    answer.operation_id.extend(columns.operation_id)
    answer.outcome.extend([result_pb2.OUTCOME_SATISFIED] * count)
    zeros, none = [0] * count, [-1] * count
    offsets = columns.offset if len(columns.offset) == count else [columns.offset[0]] * count
    answer.waited_ms.extend(zeros)
    answer.lateness_ms.extend(zeros)
    answer.item_index.extend(columns.item_index if len(columns.item_index) == count else zeros)
    answer.error_code.extend(zeros)
    answer.required_offset.extend(offsets)
    answer.reached_offset.extend(offsets)
    answer.log_start_offset.extend(zeros)
    answer.estimated_remaining_ms.extend(none)
    answer.pace_per_second.extend([-1.0] * count)
    return answer
