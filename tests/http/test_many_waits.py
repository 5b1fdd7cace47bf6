"""A thousand waits over HTTP, each on its own connection."""

import asyncio
import json
from collections import Counter

from tests.http.raw_http import request
from tests.kit.daemon import RunDaemon
from tests.kit.eventually import eventually

SERVICE = "/purgatory.v1.PurgatoryService"
COUNT = 1_000
IN_FLIGHT = 200
PARTITION = {"topicPartition": {"topic": "orders", "partition": 3}}
WAIT = {"operation": {"timeoutMs": 600_000, "produce": {"partitions": [PARTITION | {"requiredOffset": 42}]}}}
ADVANCE = {"rows": {"events": [PARTITION | {"highWatermark": {"offset": 100}}]}}


async def test_a_thousand_waits_end_with_one_advance(run_daemon: RunDaemon) -> None:
    """With default settings no wait is refused or closed without a response, and probes are served at the same time."""
    daemon = await run_daemon()
    host, _, port = daemon.http_address.rpartition(":")

    async def send(method: str, body: object) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(host, int(port))
        open_writers.append(writer)
        path = f"{SERVICE}/{method}"
        writer.write(request("POST", path, {"content-type": "application/json"}, json.dumps(body).encode()))
        return reader

    async def call(method: str, body: object) -> dict[str, object]:
        return await answer_of(await send(method, body))

    async def all_pending() -> bool:
        kinds = (await call("GetStatus", {}))["kinds"]
        assert isinstance(kinds, list)
        return sum(int(kind.get("pending", 0)) for kind in kinds) == len(waits)

    open_writers: list[asyncio.StreamWriter] = []
    waits: list[asyncio.StreamReader] = []
    try:
        while len(waits) < COUNT:
            waits += [await send("Wait", WAIT) for _ in range(IN_FLIGHT)]
            await eventually(all_pending, "the waits are registered")
        assert "receipt" in await call("Advance", ADVANCE)
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*map(answer_of, waits))
        outcomes = Counter(answer.get("result", answer).get("outcome", str(answer)) for answer in answers)  # type: ignore[attr-defined]
        assert outcomes == {"OUTCOME_SATISFIED": COUNT}
    finally:
        for writer in open_writers:
            writer.close()


async def answer_of(reader: asyncio.StreamReader) -> dict[str, object]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next(int(line.partition(b":")[2]) for line in head.splitlines() if line.startswith(b"content-length"))
    answer: dict[str, object] = json.loads(await reader.readexactly(length))
    return answer
