"""A follower process: `python -m examples.replicated_log.follower PORT LOG_FILE REPLICA_ID`.

It fetches from the leader without end and appends the records to its own log. It can be killed at any moment; a new
process continues at the end of its file. It exits when the leader is gone.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from examples.replicated_log.log_file import LogFile
from examples.replicated_log.wire import Message, connect, open_stream

WAIT_S: Final = 0.5
BYTES_MAX: Final = 1024 * 1024


async def follow(leader_port: int, log: LogFile, replica_id: int) -> None:
    async with connect(leader_port) as channel:
        stream = open_stream(channel, "follower_fetch")
        while True:
            # Asking for an offset says that everything below it has been stored.
            fields = {"replica_id": replica_id, "offset": log.log_end_offset, "log_start_offset": log.log_start_offset}
            await stream.write(Message({**fields, "wait_s": WAIT_S, "bytes_max": BYTES_MAX}))
            answer = await stream.read()
            if not isinstance(answer, Message):
                return
            log.append_copy(answer.body)
            log.trim(answer.fields["log_start_offset"])


if __name__ == "__main__":
    followed = LogFile(Path(sys.argv[2]))
    print(followed.log_end_offset, flush=True)  # read by the process that started this one
    asyncio.run(follow(int(sys.argv[1]), followed, int(sys.argv[3])))
