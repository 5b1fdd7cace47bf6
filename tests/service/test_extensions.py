"""The daemon runs with no extension and with each one alone; the use of a missing one is refused with a message."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from purgatory.extension import StartupError, chosen
from purgatory.extensions.installed import ALL
from purgatory.service.settings import ArchiveSettings, Settings
from tests.conftest import StartDaemon

NAMES = [extension.name for extension in ALL]


def fetch(address: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    """Return status and text of a page, or of a call."""
    request = urllib.request.Request(f"http://{address}{path}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow  # starts six daemons
@pytest.mark.parametrize("loaded", ["none", *NAMES])
def test_daemon_with_these_extensions(start_daemon: StartDaemon, loaded: str) -> None:
    """The daemon serves a wait, its metrics and its probes. The page and the calls of webhooks exist only with their
    extension.
    """
    daemon = start_daemon("--extensions", loaded)
    address, service = daemon.http_address, "/purgatory.v1.PurgatoryService"
    wait = {"operation": {"timeoutMs": 0, "signal": {"keys": [{"key": "jobs/7"}]}}}
    status, text = fetch(address, f"{service}/Wait", json.dumps(wait).encode())
    assert (status, json.loads(text)["result"]["outcome"]) == (200, "OUTCOME_EXPIRED")
    assert fetch(address, "/readyz") == (200, "ready\n")
    assert "purgatory_pending_operations" in fetch(address, "/metrics")[1]
    assert fetch(address, "/")[0] == (200 if loaded == "page" else 404)
    status, text = fetch(address, f"{service}/ListDeadLetters", b"{}")
    assert status == (200 if loaded == "webhooks" else 501), text
    register = {
        "sessionId": "s1",
        "batch": {"rows": {"operations": []}},
        "callbackUrl": "https://example.com/",
    }
    status, text = fetch(address, f"{service}/Register", json.dumps(register).encode())
    assert (status, "callback_url" in text) == (400, True), text


def test_unknown_extension() -> None:
    """An unknown extension is refused, with the known names."""
    with pytest.raises(StartupError, match="unknown extension 'webhook'; known: all, none, tracing, archive"):
        chosen(ALL, Settings(extensions="page webhook"))


def test_setting_of_an_extension_that_is_not_loaded(tmp_path: Path) -> None:
    """The setting is refused, because it would have no effect."""
    settings = Settings(extensions="page", archive=ArchiveSettings(uri=str(tmp_path)))
    with pytest.raises(StartupError, match=r"archive.uri is set, but the extension archive is not loaded"):
        chosen(ALL, settings)
    assert [extension.name for extension in chosen(ALL, Settings(extensions="page"))] == ["page"]
