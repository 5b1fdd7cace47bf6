"""Load that makes daemons store snapshots soon, and what daemons show of the last one."""

import contextlib
import time
import uuid
from typing import Final

import grpc

from purgatory.v1 import event_pb2, purgatory_service_pb2_grpc
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.fleet import Member
from tests.kit.messages import high_watermark

SNAPSHOTS: Final = ("--fleet-snapshot-bytes", "20000")
CALM: Final = ("--fleet-silence-ms", "600000")
"""A standby takes over only if the leader resigns, however busy the machine is."""


def until_trimmed(leader: Member) -> None:
    """Report marks of new partitions until two snapshots have been stored, so that the log has been trimmed."""

    def is_trimmed() -> bool:
        leader.start_if_ended()
        report(leader, 50)
        time.sleep(0.1)  # a daemon looks for the need of a snapshot every few seconds
        # A line of its own, after both the snapshot and trimming.
        return leader.log.count("stored a snapshot") >= 2

    wait_until(is_trimmed, "two snapshots are stored")


def knows_snapshot(member: Member) -> bool:
    """Whether a daemon shows the position and the age of the last snapshot."""
    view = member.view()
    return bool(view["snapshot_position"] >= 0 and 0 < view["snapshot_age_s"] < PATIENCE_S)


def report(leader: Member, count: int) -> None:
    """Report as many marks to one daemon, in one call."""
    with grpc.insecure_channel(leader.grpc_address) as channel, contextlib.suppress(grpc.RpcError):
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        stub.Advance(
            wire.AdvanceRequest(
                rows=event_pb2.EventRows(events=[high_watermark(f"mark-{uuid.uuid4()}", 1) for _ in range(count)]),
                all_shards=True,
            ),
            timeout=5,
        )
