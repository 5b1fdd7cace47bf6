"""Results for a registration that nobody had to wait for: as many and as large as the daemon's, with nothing in them.

It knows the wire alone, and is quick to import.
"""

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import result_pb2

__all__ = ["echoed"]


def echoed(batch: wire.RegisterBatch) -> result_pb2.ResultColumns:
    """Results of the size of ours for single-partition operations."""
    columns = batch.columns
    answer = result_pb2.ResultColumns(kind=columns.kind, partitions=columns.partitions)
    answer.operation_id.extend(columns.operation_id)
    answer.outcome.append(result_pb2.OUTCOME_SATISFIED)
    answer.item_index.extend(columns.item_index)
    answer.required_offset.extend(columns.offset)
    answer.reached_offset.extend(columns.offset[-1:])
    return answer
