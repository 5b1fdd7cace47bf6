"""Store the mark with the result in one transaction: a consumer that is killed at any moment repeats and skips nothing.

A projection adds up orders. The sum and the position of the next order are committed together, here in SQLite, so a
restart continues there. The mark is reported after the commit, and at the start, in case the last report was lost.

Prints:
    killed before a commit: the sum is 30, the mark is 2
    killed after a commit, before its report: the sum is 100, the mark is 4
    not killed: the sum is 210, the mark is 6; the reader is satisfied
"""

import asyncio
import os
import signal
import sqlite3
import sys
import tempfile

from purgatory_client import AsyncClient, Client

ADDRESS = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")
MARK = "projection/sums-0"
ORDERS = [10, 20, 30, 40, 50, 60]  # a partition: the position of an order is its index
RUNS = {"before 2": "killed before a commit", "after 3": "killed after a commit, before its report", "": "not killed"}


def consume(store: sqlite3.Connection, killed_at: str) -> None:
    [first] = store.execute("SELECT position FROM progress").fetchone()
    with Client(ADDRESS) as client:
        client.advance(MARK, high_watermark=first)
        for position, order in enumerate(ORDERS[first:], first):
            with store:  # commits both or, if the process dies in it, neither
                store.execute("UPDATE sums SET total = total + ?", [order])
                store.execute("UPDATE progress SET position = ?", [position + 1])
                if killed_at == f"before {position}":
                    os.kill(os.getpid(), signal.SIGKILL)
            if killed_at == f"after {position}":
                os.kill(os.getpid(), signal.SIGKILL)
            client.advance(MARK, high_watermark=position + 1)


async def main(path: str) -> None:
    store = sqlite3.connect(path)
    store.executescript("CREATE TABLE sums AS SELECT 0 AS total; CREATE TABLE progress AS SELECT 0 AS position")
    async with AsyncClient(ADDRESS) as client:
        reader = asyncio.create_task(client.produce({MARK: len(ORDERS)}, timeout=30))
        for killed_at, text in RUNS.items():
            await (await asyncio.create_subprocess_exec(sys.executable, __file__, path, killed_at)).wait()
            total, mark = store.execute("SELECT total, position FROM sums, progress").fetchone()
            end = "" if killed_at else f"; the reader is {(await reader).outcome.name.lower()}"
            print(f"{text}: the sum is {total}, the mark is {mark}{end}")
    store.close()


if __name__ == "__main__":
    if sys.argv[1:]:
        consume(sqlite3.connect(sys.argv[1]), sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(f"{folder}/sums.db"))
