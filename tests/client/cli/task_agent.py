"""An agent that may be killed at any time: it writes down each task that it begins, and how it ended.

    python -m tests.client.cli.task_agent ADDRESS FOLDER COUNT

For the task N, which waits for the signal `job-N`, the folder has N.task (its id) and then N.end (its end).
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters
from mcp.types import CallToolResult, Request, RequestParams, Result

from purgatory.cli.mcp_tasks import IDENTIFIER


class Task(Result):
    """A task. Its other fields are in `model_extra`."""

    model_config = Result.model_config | {"extra": "allow"}
    result_type: Literal["task"] | Literal["complete"] = "complete"
    task_id: str = ""
    status: str = ""


class Created(Task):
    result_type: Literal["task"] = "task"


class TaskName(RequestParams):
    task_id: str


class Get(Request[TaskName, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"


class Cancel(Request[TaskName, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"


class KnowsTasks(ClientExtension):
    """Declares the extension. Tasks are handed on as they are."""

    identifier = IDENTIFIER

    def claims(self) -> Sequence[ResultClaim[Any]]:
        async def never(_: Created, __: ClaimContext) -> CallToolResult:
            raise NotImplementedError

        return [ResultClaim(result_type="task", model=Created, resolve=never)]


async def begun(client: Client, tool: str, **arguments: object) -> str:
    """Call a tool that is answered with a task. Returns its id."""
    created = await client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(created, Created), created
    return created.task_id


async def asked(client: Client, task_id: str) -> Task:
    return await client.session.send_request(Get(params=TaskName(task_id=task_id)), Task)


def kept(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


async def work(client: Client, folder: Path, count: int) -> None:
    for number in range(count):
        if not (folder / f"{number}.task").exists():
            task_id = await begun(client, "wait", targets=[f"signal:job-{number}"], timeout_seconds=1_000)
            kept(folder / f"{number}.task", task_id)
    for number in range(count):
        while not (folder / f"{number}.end").exists():
            task = await asked(client, (folder / f"{number}.task").read_text())
            if task.status != "working":
                kept(folder / f"{number}.end", json.dumps([task.status, task.model_extra]))


async def main(address: str, folder: Path, count: int) -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "purgatory", "mcp", "--address", address])
    while True:
        try:  # the program of the tools may be killed too, and the daemon be away
            async with Client(server, extensions=[KnowsTasks()]) as client:
                await work(client, folder, count)
                return
        except* Exception as error:  # noqa: BLE001
            print(error.exceptions, file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
