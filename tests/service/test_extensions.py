"""The daemon runs with no extension and with each one alone; the use of a missing one is refused with a message."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from purgatory.extension import StartupError, chosen
from purgatory.extensions.installed import ALL, ALL_SETTINGS
from purgatory.service.setting_sources import load_settings
from tests.kit.daemon import RunDaemon

NAMES = [extension.name for extension in ALL]


@pytest.mark.parametrize("loaded", ["none", *NAMES])
async def test_daemon_with_these_extensions(run_daemon: RunDaemon, loaded: str) -> None:
    """The page, and the calls and counts of webhooks, exist only with their extension."""
    daemon = await run_daemon("--extensions", loaded)
    service = "/purgatory.v1.PurgatoryService"
    wait = {"operation": {"timeoutMs": 0, "signal": {"keys": [{"key": "jobs/7"}]}}}
    register = {"sessionId": "s1", "batch": {"rows": {}}, "callbackUrl": "https://example.com/"}
    async with aiohttp.ClientSession(f"http://{daemon.http_address}") as http:

        async def page(path: str) -> tuple[int, str]:
            async with http.get(path) as answer:
                return answer.status, await answer.text()

        async def call(method: str, body: object) -> tuple[int, Any]:
            async with http.post(f"{service}/{method}", json=body) as answer:
                return answer.status, await answer.json()

        status, answer = await call("Wait", wait)
        assert (status, answer["result"]["outcome"]) == (200, "OUTCOME_EXPIRED")
        assert await page("/readyz") == (200, "ready\n")
        assert "purgatory_pending_operations" in (await page("/metrics"))[1]
        assert (await page("/"))[0] == (200 if loaded == "page" else 404)
        assert (await call("ListDeadLetters", {}))[0] == (200 if loaded == "webhooks" else 501)
        assert ("webhooks" in (await call("GetStatus", {}))[1]) == (loaded == "webhooks")
        status, answer = await call("Register", register)
        assert (status, "callback_url" in answer["message"]) == (400, True), answer


def test_unknown_extension_is_refused_with_the_known_names() -> None:
    with pytest.raises(StartupError, match="unknown extension 'webhook'; known: all, none, fleet, tracing, archive"):
        chosen(ALL, ALL_SETTINGS(extensions="page webhook"))


def test_setting_of_an_extension_that_is_not_loaded_is_refused(tmp_path: Path) -> None:
    settings = load_settings({"extensions": "page", "archive": {"uri": str(tmp_path)}}, ALL_SETTINGS)
    with pytest.raises(StartupError, match=r"archive.uri is set, but the extension archive is not loaded"):
        chosen(ALL, settings)
    assert [extension.name for extension in chosen(ALL, ALL_SETTINGS(extensions="page"))] == ["page"]
