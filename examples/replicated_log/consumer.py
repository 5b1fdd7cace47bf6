"""The consumer: reads the log from its start by long poll, checks that offsets follow each other, keeps what it got.

What it got goes to a file as records, for the proof. It ends when it has as many as it was told there will be.
"""

import argparse
from pathlib import Path
from typing import Final

from examples.replicated_log.child import Starter, run_child, say
from examples.replicated_log.log_records import decode_all, encode
from examples.replicated_log.wire import Connection

MIN_BYTES: Final = 2048
WAIT_MS: Final = 300
BYTES_MAX: Final = 256 * 1024


class WrongRecord(Exception):
    """The leader gave an error, a record out of order, or one that is not committed."""


async def consume(connection: Connection, records: int, kept: Path) -> None:
    """Reads `records` records into the file `kept`."""
    offset = 0
    with kept.open("wb") as file:
        while offset < records:
            answer = await connection.call(
                "consumer_fetch", offset=offset, min_bytes=MIN_BYTES, wait_ms=WAIT_MS, bytes_max=BYTES_MAX
            )
            header = answer.header
            if header["error"] != 0:
                raise WrongRecord(f"fetch at {offset}: {header}")
            for record in decode_all(answer.body):
                if record.offset != offset or record.offset >= header["high_watermark"]:
                    raise WrongRecord(f"record {record.offset} where {offset} was due: {header}")
                file.write(encode(record))
                offset += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leader-port", required=True, type=int, help="where the leader listens on this machine")
    parser.add_argument("--records", required=True, type=int, help="how many records there will be")
    parser.add_argument("--keep", required=True, type=Path, help="where to write what was read")
    options = parser.parse_args()

    async def run(_: Starter) -> None:
        connection = await Connection.open(options.leader_port)
        say("ready")
        await consume(connection, options.records, options.keep)
        say("done", records=options.records)
        await connection.close()

    run_child(run)


if __name__ == "__main__":
    main()
