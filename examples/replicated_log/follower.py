"""A follower: fetches from the leader without end, and appends the records to its own log.

It may be killed at any moment. Started again it goes on where its files end.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Final

from examples.replicated_log.child import Starter, run_child, say
from examples.replicated_log.segments import SegmentedLog
from examples.replicated_log.wire import Connection

WAIT_MS: Final = 500
BYTES_MAX: Final = 1024 * 1024
OFFSET_OUT_OF_RANGE: Final = 1


class LeaderRefused(Exception):
    """The leader answered a fetch with an error that this follower cannot recover from."""


async def follow(log: SegmentedLog, connection: Connection, replica_id: int) -> None:
    """Copies the leader's log until cancelled. ConnectionError: the leader has gone."""
    while True:
        answer = await connection.call(
            "follower_fetch",
            replica_id=replica_id,
            offset=log.log_end_offset,
            log_start_offset=log.log_start_offset,
            wait_ms=WAIT_MS,
            bytes_max=BYTES_MAX,
        )
        leader_log_start = answer.header.get("log_start_offset", 0)
        if answer.header["error"] == OFFSET_OUT_OF_RANGE and log.log_end_offset < leader_log_start:
            log.reset(leader_log_start)
            continue
        if answer.header["error"] != 0:
            raise LeaderRefused(f"replica {replica_id} at {log.log_end_offset}: {answer.header}")
        log.append_copy(answer.body)
        log.trim(leader_log_start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leader-port", required=True, type=int, help="where the leader listens on this machine")
    parser.add_argument("--directory", required=True, type=Path, help="where the log's files are")
    parser.add_argument("--id", required=True, type=int, help="this replica's id")
    options = parser.parse_args()

    async def run(_: Starter) -> None:
        log = SegmentedLog(options.directory)
        connection = await Connection.open(options.leader_port)
        say("ready", log_end_offset=log.log_end_offset)
        try:
            await follow(log, connection, options.id)
        except asyncio.CancelledError:
            await connection.close()
            raise
        finally:
            log.close()

    run_child(run)


if __name__ == "__main__":
    main()
