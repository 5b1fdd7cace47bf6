"""The live page of a real daemon in a real browser, calls as the page makes them, and waits of every kind to show."""

import asyncio
import json
import random
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from playwright.sync_api import Browser, Page, ViewportSize
from purgatory_client import AsyncClient, batches, events
from purgatory_client.blocking import Client

from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S

TIMEOUT_MS = 30_000
STICKING_OUT = Path(__file__).with_name("sticking_out.js").read_text("utf-8")


@dataclass
class WatchedPage:
    """A page, its console messages, and the hosts that it contacted."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def view(self, address: str) -> None:
        """Go to a view, as following a link does."""
        self.page.evaluate("(address) => { location.hash = address }", address)

    def wait_for_text(self, selector: str, text: str) -> None:
        """Wait until an element shows this text."""
        self.page.wait_for_function(
            """([selector, text]) =>
              [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text))""",
            arg=[selector, text],
        )

    def wait_for_figure(self, name: str, value: str) -> None:
        """Wait until the figure with this name has this value."""
        self.page.wait_for_function(
            """([name, value]) => [...document.querySelectorAll(".figure")].some((one) =>
              one.querySelector("dt").textContent === name && one.querySelector("dd span").textContent === value)""",
            arg=[name, value],
        )

    def wait_live(self) -> None:
        self.page.wait_for_selector('#state[data-state="live"]')

    def sticking_out(self) -> list[str]:
        out: list[str] = self.page.evaluate(STICKING_OUT)
        return out


def size_of(page: Page) -> tuple[int, int]:
    """The heap in kB after a collection, and the number of nodes, including those that are only referenced."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return round(metrics["JSHeapUsedSize"] / 1_000), round(metrics["Nodes"])


@contextmanager
def watched_page(
    browser: Browser,
    http_address: str,
    *,
    width: int = 1280,
    height: int = 900,
    scheme: Literal["light", "dark"] = "light",
    address: str = "#/now",
    is_let_in: bool = True,
    expected: Sequence[str] = (),
) -> Iterator[WatchedPage]:
    """Open the page in its own window; once it is live, or earlier if it is expected to be refused at first.

    At the end, each console message must contain an `expected` text, and no other host may have been contacted.
    """
    viewport: ViewportSize = {"width": width, "height": height}
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    try:
        page = context.new_page()
        origin = f"http://{http_address}"
        seen = WatchedPage(page)
        page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"{origin}/{address}")
        if is_let_in:
            seen.wait_live()
        yield seen
        assert [said for said in seen.complaints if not any(one in said for one in expected)] == []
        assert [request for request in seen.requests if not request.startswith(origin + "/")] == []
    finally:
        context.close()


TOPIC_OF_ITS_OWN = "refunds"


def call(daemon: DaemonProcess, method: str, request: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Make a call in JSON, as the page does."""
    asked = urllib.request.Request(
        f"http://{daemon.http_address}/purgatory.v1.PurgatoryService/{method}",
        json.dumps(request).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.load(answer)


def register(daemon: DaemonProcess, session: str, kind: str, **columns: Any) -> None:  # noqa: ANN401
    """Register operations of a kind in a session: columns of the request in JSON."""
    batch = {"kind": f"OPERATION_KIND_{kind}", "operationId": [1], "timeoutMs": [600_000]} | columns
    answer = call(daemon, "Register", {"sessionId": session, "batch": {"columns": batch}})
    assert answer["receipt"].get("accepted") == len(batch["operationId"]), answer


def register_one(
    daemon: DaemonProcess, session: str, offset: int, timeout_ms: int = 600_000, *, topic: str = TOPIC_OF_ITS_OWN
) -> None:
    """Register one wait for an offset of partition 0, as operation 1 of a session."""
    register(daemon, session, "PRODUCE", partitions=[{"topic": topic}], offset=[offset], timeoutMs=[timeout_ms])


def report(daemon: DaemonProcess, offset: int, partition: int = 0, topic: str = TOPIC_OF_ITS_OWN) -> None:
    """Report the high watermark of a partition."""
    mark = {"topicPartition": {"topic": topic, "partition": partition}, "highWatermark": {"offset": offset}}
    call(daemon, "Advance", {"rows": {"events": [mark]}})


def signal_key(daemon: DaemonProcess, key: str) -> None:
    call(daemon, "Advance", {"rows": {"events": [{"keySignalled": {"key": key}}]}})


SESSION: Final = "checkout"
HOT_TOPIC: Final = "orders"
PARTITIONS: Final = 24
HOSTILE_KEY: Final = '<img src="http://nowhere.invalid/x.png" onerror="alert(1)">\u202e\u0007\x1b[31mred\u200b'
HOSTILE_TOPIC: Final = '"><script>alert(2)</script>\u2066${alert(3)}' + "w" * 60
"""`HOSTILE_KEY` and this contain HTML, terminal colours, and characters that change the direction of text."""
WAITS: Final = 1_000
CROWD: Final = 200_000
CROWD_PARTITIONS: Final = 100
PER_BATCH: Final = 20_000
HOUR_MS: Final = 3_600_000
NEVER: Final = 1 << 40
URGENT: Final = 5
URGENT_SESSION: Final = "3f2a90cc81b74d6e9a55e01b7c64d8f0"


def register_waits(client: Client) -> None:
    """Register `WAITS` waits in one session, a quarter of each kind, for minutes to hours. The last produce and signal
    waits have hostile names. A few partitions have most of the waits.
    """
    each = WAITS // 4
    numbers = range(each)
    timeouts_ms = [600_000 + number * 20_000 for number in numbers]
    skewed = [number % PARTITIONS if number % 3 == 0 else number % 3 for number in numbers[:-1]]
    made = [
        batches.produce(
            [*((HOT_TOPIC, partition) for partition in range(PARTITIONS)), (HOSTILE_TOPIC, 0)],
            indexes=[*skewed, PARTITIONS],
            offsets=[10_000 + 4 * number for number in numbers],
            timeouts_ms=timeouts_ms,
        ),
        batches.fetch(
            [("payments", 0)],
            indexes=[0] * each,
            offsets=[500] * each,
            min_bytes=[1_000_000] * each,
            timeouts_ms=timeouts_ms,
        ),
        batches.delete_records([("audit", 0)], indexes=[0] * each, offsets=[900] * each, timeouts_ms=timeouts_ms),
        batches.signal(
            [*(f"nightly-{number}" for number in range(40)), HOSTILE_KEY],
            indexes=[*(number % 40 for number in numbers[:-1]), 40],
            timeouts_ms=timeouts_ms,
        ),
    ]
    for place, batch in enumerate(made):
        client.register(SESSION, 1 + place * each, batch)


def register_crowd(client: Client, count: int = CROWD) -> None:
    """Register `count` waits for one to forty hours, evenly over the logarithm of the time, and five of ten minutes."""
    names = [("orders", partition) for partition in range(CROWD_PARTITIONS)]
    for first in range(0, count, PER_BATCH):
        timeouts_ms = [int(HOUR_MS * 40 ** (number / count)) for number in range(first, first + PER_BATCH)]
        indexes = [number % CROWD_PARTITIONS for number in range(PER_BATCH)]
        batch = batches.produce(names, indexes=indexes, offsets=[NEVER] * PER_BATCH, timeouts_ms=timeouts_ms)
        client.register("crowd", first + 1, batch)
    urgent = batches.produce(
        [("Urgent-Refunds", 0)], indexes=[0] * URGENT, offsets=[NEVER] * URGENT, timeouts_ms=[600_000] * URGENT
    )
    client.register(URGENT_SESSION, 1, urgent)


def tell_marks(client: Client, step: int = 0) -> None:
    """Push the marks of the partitions, further ahead with a larger `step`. One replica of orders lags behind."""
    told = []
    for partition in range(PARTITIONS):
        name = (HOT_TOPIC, partition)
        end = 9_000 + partition * 10 + step * 20
        if step == 0:
            told.append(events.leadership(name, is_leader=True, leader_epoch=3, leader_id=1, replica_ids=[1, 2, 3]))
            told.append(events.in_sync_replicas(name, [1, 2, 3], leader_id=1, min_in_sync_replicas=2))
        told.append(events.log_end_offset(name, end + 2_000))
        told.append(events.follower_progress(name, 2, end + 1_900))
        told.append(events.follower_progress(name, 3, end))
    client.advance_many(told).raise_for_refusals()


@contextmanager
def steady_load(address: str) -> Iterator[None]:
    """Load the daemon until the block ends: most waits are satisfied, some expire, in a constant proportion."""
    ending = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(load(address, ending)))
    thread.start()
    try:
        yield
        assert thread.is_alive(), "the load ended by itself"
    finally:
        ending.set()
        thread.join(PATIENCE_S)


async def load(address: str, ending: threading.Event) -> None:
    """Register 300 waits a second, up to 2.5 s ahead of the marks, with timeouts of 0.3 s to a minute."""
    chance, mark = random.Random(42), 10_000
    partitions = [("clicks", partition) for partition in range(12)]
    waits = set[asyncio.Task[object]]()
    async with AsyncClient(address, name="storefront") as client:
        while not ending.is_set():
            mark += 8
            places = [min(int(chance.expovariate(0.4)), len(partitions) - 1) for _ in range(12)]
            offsets = [mark + chance.randint(1, 500) for _ in places]
            timeouts_ms = [round(300 * 200 ** chance.random()) for _ in places]
            batch = client.produce_many(partitions, indexes=places, offsets=offsets, timeouts_ms=timeouts_ms)
            wait: asyncio.Task[object] = asyncio.create_task(batch)
            waits.add(wait)
            wait.add_done_callback(waits.discard)
            await client.advance_many([events.high_watermark(partition, mark) for partition in partitions])
            await asyncio.sleep(0.04)
    await asyncio.gather(*waits, return_exceptions=True)
