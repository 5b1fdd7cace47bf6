"""A follower: fetches from the leader without end, and appends the records to its own log.

It may be killed at any moment. Restarted, it continues where its file ends.
"""

from pathlib import Path
from typing import Final

from examples.replicated_log.child import Starter, run_child, say
from examples.replicated_log.log_file import LogFile
from examples.replicated_log.wire import Message, connect, open_stream

WAIT_S: Final = 0.5
BYTES_MAX: Final = 1024 * 1024


async def follow(_: Starter, leader_port: int, directory: str, replica_id: int) -> None:
    """Copy the leader's log until cancelled, or until the leader has gone."""
    log = LogFile(Path(directory))
    try:
        async with connect(leader_port) as channel:
            stream = open_stream(channel, "follower_fetch")
            say("ready", log_end_offset=log.log_end_offset)
            while True:
                fields = {
                    "replica_id": replica_id,
                    "offset": log.log_end_offset,
                    "log_start_offset": log.log_start_offset,
                    "wait_s": WAIT_S,
                    "bytes_max": BYTES_MAX,
                }
                await stream.write(Message(fields))
                answer = await stream.read()
                if not isinstance(answer, Message):
                    raise ConnectionError(f"the leader has ended the stream: {await stream.details()}")
                leader_log_start = answer.fields["log_start_offset"]
                if log.log_end_offset < leader_log_start:
                    log.reset(leader_log_start)
                log.append_copy(answer.body)
                log.trim(leader_log_start)
    finally:
        log.close()


if __name__ == "__main__":
    run_child(follow)
