"""The consumer: reads the log from its start by long poll, checks that offsets follow each other, keeps what it got.

What it got goes to a file as records, for the proof. It ends when it has `records` of them.
"""

import asyncio
from pathlib import Path
from typing import Final

from examples.replicated_log.child import Starter, run_child, say
from examples.replicated_log.log_file import decode_all
from examples.replicated_log.wire import call, connect

MIN_BYTES: Final = 2048
WAIT_S: Final = 0.3
BYTES_MAX: Final = 256 * 1024


class WrongRecord(Exception):
    """The leader gave a record out of order, or one that is not committed."""


async def consume(_: Starter, leader_port: int, records: int, keep: str) -> None:
    """Read `records` records into the file `keep`."""
    consumed = bytearray()
    offset = 0
    async with connect(leader_port) as channel:
        while offset < records:
            answer = await call(
                channel, "consumer_fetch", offset=offset, min_bytes=MIN_BYTES, wait_s=WAIT_S, bytes_max=BYTES_MAX
            )
            for record in decode_all(answer.body):
                if record.offset != offset or offset >= answer.fields["high_watermark"]:
                    raise WrongRecord(f"record {record.offset} where {offset} was due: {answer.fields}")
                offset += 1
            consumed += answer.body
    await asyncio.to_thread(Path(keep).write_bytes, consumed)
    say("done", records=records)


if __name__ == "__main__":
    run_child(consume)
