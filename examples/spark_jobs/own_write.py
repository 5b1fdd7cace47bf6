"""A web handler that reads its caller's own write from a table that Spark maintains.

python -m examples.spark_jobs.own_write      needs Java; starts its own daemon and Spark, and exits by itself

    POST /customers/ann               the body is an amount. 202: {"after": 7}, once the order has landed
    GET  /customers/ann?after=7       200: {"total": 120}, including that order; 503 if Spark is behind for 10 s

Spark maintains a total per customer, some hundred milliseconds behind. A read with `after` waits for the batch that
contains that write; a read without it returns the present total.
"""

import asyncio
import json
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from purgatory_client import Client
from purgatory_pipeline.listener import PurgatoryListener
from purgatory_pipeline.spark.spark_session import spark_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.local_daemon import serving
from examples.long_poll import ask
from examples.spark_jobs.landing import Landing

JOB: Final = "totals"
BEHIND_S_MAX: Final = 10.0
ORDERS: Final = 5
ATTEMPTS_MAX: Final = 6


class TotalsTable:
    """Totals by customer, in SQLite. Spark writes, and the web handler reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as connection, connection:
            connection.execute("CREATE TABLE totals (customer TEXT PRIMARY KEY, total INTEGER NOT NULL)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def write(self, changed: DataFrame, _: int) -> None:
        """Write a micro-batch. Rows are totals, not differences, so writing them again after a crash changes
        nothing.
        """
        rows = [(row.customer, row.total) for row in changed.collect()]
        with closing(self._connect()) as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO totals VALUES (?, ?)", rows)

    def read(self, customer: str) -> int:
        with closing(self._connect()) as connection:
            found = connection.execute("SELECT total FROM totals WHERE customer = ?", (customer,)).fetchone()
        return 0 if found is None else int(found[0])


class TotalsHandler(BaseHTTPRequestHandler):
    """One request, in its own thread."""

    landing: Landing
    table: TotalsTable
    purgatory: Client

    def do_POST(self) -> None:
        customer = urlsplit(self.path).path.rpartition("/")[2]
        amount = int(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(202, {"after": self.landing.land([{"customer": customer, "amount": amount}])})

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        after = parse_qs(url.query).get("after")
        if after:
            mark = {f"spark/{JOB}/source0-0": int(after[0])}
            if not self.purgatory.produce(mark, timeout=BEHIND_S_MAX).satisfied:
                self._answer(503, {"error": f"Spark has not processed order {after[0]} yet"})
                return
        self._answer(200, {"total": self.table.read(url.path.rpartition("/")[2])})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        octets = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(octets)))
        self.end_headers()
        self.wfile.write(octets)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Suppress the log line for each request."""


def start_totals(session: SparkSession, landing: Landing, table: TotalsTable, folder: Path) -> StreamingQuery:
    """Start the job that maintains the table."""
    orders = landing.stream(session, "customer string, amount long")
    totals = orders.groupBy("customer").agg(F.sum("amount").alias("total"))
    writer = totals.writeStream.outputMode("update").queryName(JOB).foreachBatch(table.write)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


@contextmanager
def own_write_app(session: SparkSession, folder: Path, daemon: str) -> Iterator[str]:
    """Run the job, its listener and the web server; yields the server's address."""
    landing, table = Landing(folder / "landing"), TotalsTable(folder / "totals.db")
    listener = PurgatoryListener(daemon, state=folder / "lineages")
    session.streams.addListener(listener)
    query = start_totals(session, landing, table, folder)
    try:
        with Client(daemon) as purgatory:
            handler = type("Handler", (TotalsHandler,), {"landing": landing, "table": table, "purgatory": purgatory})
            with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
                thread = threading.Thread(target=server.serve_forever)
                thread.start()
                try:
                    yield f"127.0.0.1:{server.server_address[1]}"
                finally:
                    server.shutdown()
                    thread.join()
    finally:
        query.stop()
        session.streams.removeListener(listener)
        listener.close()


def shop(address: str, tell: Callable[[str], None]) -> list[int]:
    """Write some orders and read the total after each; returns these totals."""
    totals = []
    for number in range(1, ORDERS + 1):
        _, said = ask(address, "POST", "/customers/ann", "10")
        _, at_once = ask(address, "GET", "/customers/ann")
        totals.append(total_after(address, json.loads(said)["after"]))
        tell(f"order {number} of 10: at once {json.loads(at_once)['total']}, after the wait {totals[-1]}")
    return totals


def total_after(address: str, order: int) -> int:
    """Read the total that includes this order, and ask again while Spark is behind.

    Raises:
        TimeoutError: Spark was behind for too long.
    """
    for _ in range(ATTEMPTS_MAX):
        status, body = ask(address, "GET", f"/customers/ann?after={order}")
        if status == HTTPStatus.OK:
            return int(json.loads(body)["total"])
    raise TimeoutError(f"the last answer was {status}: {body}")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="own-write-") as name:
        folder = Path(name)
        async with serving(folder) as daemon:
            with own_write_app(spark_session("own write"), folder, daemon) as address:
                await asyncio.to_thread(shop, address, print)


if __name__ == "__main__":
    asyncio.run(main())
