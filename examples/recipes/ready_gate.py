"""A service that takes requests once its projection has caught up, and is not held up again when it is restarted.

The source in this recipe takes the place of Kafka's: it reports that the log of `orders` ends at 100, later at 250. The
service asks the daemon's HTTP port, as `purgatory ready` and a probe of Kubernetes do.

Prints:
    first start: 503, 60 records behind
    the projection has processed 100 of 250
    second start: 200, ready
"""

import asyncio
import json
import os
from http.client import HTTPConnection
from urllib.parse import urlsplit

from purgatory_client import AsyncClient
from purgatory_client.sources.source_link import EndsWanted, MarkEnd, SourceLink, SourceState

ORDERS = "recipe-ready/billing/orders"
LOG = {"end": 100}


async def answer_as_kafka_does(link: SourceLink) -> None:
    await link.report(SourceState.LIVE)
    async for message in link:
        if isinstance(message, EndsWanted):
            await link.answer_ends(message.ask_id, [MarkEnd(ORDERS, 0, LOG["end"])])


def look() -> tuple[int, dict[str, object]]:
    """One start of the service: status and state of its gate."""
    http = HTTPConnection(urlsplit(os.environ.get("PURGATORY_HTTP_URL", "http://127.0.0.1:7441")).netloc)
    http.request("GET", f"/v1/ready?name=web-0&marks={ORDERS}")
    answer = http.getresponse()
    return answer.status, json.load(answer)


async def main() -> None:
    address = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")
    async with AsyncClient(address) as client, client.attach_source("recipe", ["recipe-ready/"]) as link:
        source = asyncio.create_task(answer_as_kafka_does(link))
        await client.advance((ORDERS, 0), high_watermark=40)
        status, gate = await asyncio.to_thread(look)
        print(f"first start: {status}, {gate['lag']} records behind")
        LOG["end"] = 250
        await client.advance((ORDERS, 0), high_watermark=100)
        print(f"the projection has processed 100 of {LOG['end']}")
        status, gate = await asyncio.to_thread(look)
        print(f"second start: {status}, {'ready' if gate['ready'] else 'not ready'}")
        source.cancel()


if __name__ == "__main__":
    asyncio.run(main())
