"""An agent waits for a job in one call, with the tools of `purgatory mcp`.

The client of the `mcp` package plays the agent and starts the command as a real one would. It waits for a job that
sends a signal when it is done, and for a log that does not get far enough in time.

Prints:
    tools: caught_up, pending, signal, wait
    job: satisfied
    log: expired, import/log-0: reached 7 of 9
    pending: 0
"""

import asyncio
import os
import sys
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from purgatory_client import AsyncClient

ADDRESS = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")


async def ask(agent: Client, tool: str, **arguments: object) -> Any:  # noqa: ANN401 - JSON
    result = await agent.call_tool(tool, arguments)
    if result.is_error:
        raise SystemExit(f"{tool}: {result.content}")
    return result.structured_content


async def job(client: AsyncClient) -> None:
    """What the agent waits for, in another program: it works, reports how far its log is, and signals its end."""
    await client.advance("import/log-0", high_watermark=7)
    await client.signal_key("job-17")


async def main() -> None:
    # An agent's program passes few variables on: those that the command needs are given here.
    environment = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "purgatory", "mcp", "--address", ADDRESS], env=environment
    )
    async with Client(command) as agent, AsyncClient(ADDRESS) as client:
        print("tools:", ", ".join(sorted(tool.name for tool in (await agent.list_tools()).tools)))
        waiting = asyncio.create_task(ask(agent, "wait", targets=["signal:job-17"], timeout_seconds=30))
        await job(client)
        print("job:", (await waiting)["outcome"])
        late = await ask(agent, "wait", targets=["import/log-0@9"], timeout_seconds=0.1)
        print(f"log: {late['outcome']}, {late['details'][0].split(', ')[0]}")
        print("pending:", (await ask(agent, "pending"))["matching"])


if __name__ == "__main__":
    asyncio.run(main())
