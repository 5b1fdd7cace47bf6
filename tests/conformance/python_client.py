"""The Python client as a program for the conformance test: `python -m tests.conformance.python_client`."""

import asyncio
import sys
from typing import Final

from purgatory_client import AsyncClient, errors

ENDINGS: Final[tuple[tuple[type[errors.PurgatoryClientError], str], ...]] = (
    (errors.Unavailable, "unreachable"),
    (errors.SessionTakenOver, "taken_over"),
    (errors.SessionClosed, "closed"),
    (errors.ClientClosed, "closed"),
    (errors.PurgatoryClientError, "refused"),
)


def open_client(address: str, options: dict[str, str]) -> AsyncClient:
    return AsyncClient(
        address,
        give_up_after=int(options.get("give_up_after_ms", "30000")) / 1_000,
        open_timeout=int(options.get("open_timeout_ms", "10000")) / 1_000,
        tls_ca=options.get("ca"),
        token=options.get("token"),
    )


async def wait(client: AsyncClient, name: str, timeout_ms: int, topic: str, partitions: int) -> None:
    try:
        offsets = {(topic, number): 1 for number in range(partitions)}
        result = await client.produce(offsets, timeout=timeout_ms / 1_000)
        ending = f"{result.outcome.name.lower()} {round(result.waited * 1_000)}"
    except asyncio.CancelledError:
        ending = "cancelled"
    except errors.PurgatoryClientError as error:
        ending = next(ending for kind, ending in ENDINGS if isinstance(error, kind))
    print(name, ending, flush=True)


async def main() -> None:
    client = AsyncClient()
    waits: dict[str, asyncio.Task[None]] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        match line.split():
            case ["open", address, *options]:
                client = open_client(address, dict(option.split("=", 1) for option in options))
            case ["wait", name, timeout_ms, topic, partitions]:
                task = wait(client, name, int(timeout_ms), topic, int(partitions))
                waits[name] = asyncio.create_task(task)
            case ["cancel", name]:
                waits[name].cancel()
            case ["close"]:
                await client.close()
                await asyncio.gather(*waits.values())
                print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
