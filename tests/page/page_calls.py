"""Calls in JSON, as the page makes them."""

import json
import urllib.request
from typing import Any

from tests.kit.daemon import DaemonProcess

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


def register_one(
    daemon: DaemonProcess,
    session: str,
    offset: int,
    timeout_ms: int = 600_000,
    *,
    topic: str = TOPIC_OF_ITS_OWN,
) -> None:
    """Register one wait for an offset of partition 0, as operation 1 of a session."""
    columns = {
        "kind": "OPERATION_KIND_PRODUCE",
        "partitions": [{"topic": topic, "partition": 0}],
        "operationId": [1],
        "itemIndex": [0],
        "offset": [offset],
        "timeoutMs": [timeout_ms],
    }
    answer = call(daemon, "Register", {"sessionId": session, "batch": {"columns": columns}})
    assert answer["receipt"].get("accepted") == 1, answer
