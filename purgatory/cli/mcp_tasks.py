"""Waits as tasks of the Model Context Protocol: the extension of the specification of 2026-07-28.

A call that waits is answered at once with a task, and the agent asks for its end. The daemon keeps the task, as the
only operation of a session of its own, and the task's id names both: it outlives the agent and this program, and with a
journal the daemon too.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypedDict, cast

from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    RequestParams,
)
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import InvalidRequest, NotFound, PurgatoryClientError, SessionTakenOver
from purgatory_client.results import Outcome, Result
from purgatory_client.session.detached_sessions import Collected
from purgatory_client.waits import Wait
from pydantic import Field

from purgatory.cli.render import item_lines, outcome_text

IDENTIFIER: Final = "io.modelcontextprotocol/tasks"
OPERATION_ID: Final = 1
TASK_ID: Final = re.compile(rf"mcp-[0-9]{{1,14}}-[\w-]+/{OPERATION_ID}", re.ASCII)
"""Session and operation; the number is the time of the beginning, in milliseconds."""
HOLD_S: Final = 5.0
"""`tasks/get` waits for the end for this long, before it answers that the task is working."""
POLL_MS: Final = 500
TTL_MS: Final = 600_000
"""The default of the daemon's `session.ttl_ms`: it keeps a task for this long after the last question."""

Call = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    task_id: str


class Waited(TypedDict):
    """How a wait ended."""

    outcome: Annotated[
        str, Field(description="satisfied, failed (it can never hold), expired, cancelled or shutting down.")
    ]
    waited_seconds: float
    details: Annotated[
        list[str], Field(description="For each target: the position reached, and the reason if it fell short.")
    ]


AS_TASK: Final[Waited] = {"outcome": "pending", "waited_seconds": 0.0, "details": []}
"""The answer of a tool in whose place the agent gets a task."""


ASKED: Final[ContextVar[list[str] | None]] = ContextVar("ASKED", default=None)
"""In a call that may be answered with a task: the id of the one that it has created."""


async def begin(client: AsyncClient, wait: Wait) -> bool:
    """Register the wait as a task. False: the agent that calls does not know tasks."""
    asked = ASKED.get()
    if asked is None:
        return False
    session_id = f"mcp-{round(time.time() * 1000)}-{secrets.token_urlsafe(16)}"
    registered = await client.register(session_id, OPERATION_ID, wait)
    for refusal in registered.refusals.values():
        raise refusal
    asked.append(f"{session_id}/{OPERATION_ID}")
    return True


def waited(answer: Result, wait: Wait | None = None) -> Waited:
    """How a wait ended, for an agent."""
    lines = item_lines(answer, wait)
    return {"outcome": outcome_text(answer.outcome), "waited_seconds": answer.waited, "details": lines}


class Tasks(Extension):
    """Answers calls of tools with tasks, and questions about them."""

    identifier = IDENTIFIER

    def __init__(self, client: AsyncClient) -> None:
        self._client: Final = client

    def methods(self) -> Sequence[MethodBinding]:
        handlers = {"tasks/get": self._get, "tasks/cancel": self._cancel}
        return [MethodBinding(method, TaskParams, handler) for method, handler in handlers.items()]

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: Call, call_next: CallNext) -> HandlerResult:
        """Let the tool register its wait as a task, if the agent knows tasks."""
        if not _knows_tasks(ctx) or (params.arguments or {}).get("timeout_seconds") == 0:
            return await call_next(ctx)
        asked: list[str] = []
        before = ASKED.set(asked)
        try:
            result = await call_next(ctx)
        finally:
            ASKED.reset(before)
        return {"resultType": "task", **_task(asked[0], "working")} if asked else result

    async def _get(self, ctx: Call, params: TaskParams) -> HandlerResult:
        session_id = _session_of(ctx, params)
        try:
            collecting = cast("AsyncGenerator[Collected, None]", self._client.results(session_id))
            async with aclosing(collecting) as results, asyncio.timeout(HOLD_S):
                # The next batch is never asked for: that would acknowledge this one, and the daemon would drop it.
                collected = await anext(results, None)
        except (TimeoutError, SessionTakenOver):  # pending; or the same agent asks once more
            return _task(params.task_id, "working")
        except PurgatoryClientError as error:
            raise _failure(params, error) from error
        if collected is None:
            raise _failure(params)
        [answer] = collected.results
        if answer.outcome == Outcome.CANCELLED:
            return _task(params.task_id, "cancelled", answer.waited)
        ended = waited(answer)
        content = [{"type": "text", "text": json.dumps(ended)}]
        result = {"content": content, "structuredContent": ended, "isError": False}
        return {**_task(params.task_id, "completed", answer.waited), "result": result}

    async def _cancel(self, ctx: Call, params: TaskParams) -> HandlerResult:
        try:
            await self._client.cancel([OPERATION_ID], session_id=_session_of(ctx, params))
        except PurgatoryClientError as error:
            raise _failure(params, error) from error
        return {}


def _knows_tasks(ctx: Call) -> bool:
    capabilities = ctx.session.client_capabilities
    return bool(capabilities and capabilities.extensions and IDENTIFIER in capabilities.extensions)


def _session_of(ctx: Call, params: TaskParams) -> str:
    if not _knows_tasks(ctx):
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {IDENTIFIER: {}}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"declare the extension {IDENTIFIER}", needed)
    if not TASK_ID.fullmatch(params.task_id):
        raise _failure(params)
    return params.task_id.rpartition("/")[0]


def _failure(params: TaskParams, error: PurgatoryClientError | None = None) -> MCPError:
    if error is None or isinstance(error, NotFound | InvalidRequest):
        return MCPError(INVALID_PARAMS, f"no task {params.task_id!r}: it was not asked for in time, or never began")
    return MCPError(INTERNAL_ERROR, f"the daemon cannot answer, ask again: {error}")


def _task(task_id: str, status: str, waited_s: float = 0.0) -> dict[str, Any]:
    began_s = int(task_id.split("-")[1]) / 1000
    began, updated = (datetime.fromtimestamp(at, UTC).isoformat() for at in (began_s, began_s + waited_s))
    times = {"createdAt": began, "lastUpdatedAt": updated, "ttlMs": TTL_MS, "pollIntervalMs": POLL_MS}
    return {"taskId": task_id, "status": status, **times}
