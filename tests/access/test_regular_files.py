"""Files named in settings must be regular files, or links to regular files."""

import asyncio
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from purgatory.extensions.webhooks.signing import CannotSendWebhooks, WebhookSigner
from purgatory.extensions.webhooks.webhooks import WebhooksSettings, _ssl_context
from purgatory.service.access.access_policy import read_policy
from purgatory.service.access.json_web_tokens import JsonWebTokens
from purgatory.service.access.tokens import AccessError, read_tokens
from purgatory.service.setting_sources import SettingsError, load_settings
from purgatory.service.settings import TlsSettings
from purgatory.service.transport.certificate_files import CannotUseCertificates, read_tls_material
from purgatory.service.transport.watched_file import read_regular_file


def _read_key_set(path: Path) -> None:
    asyncio.run(JsonWebTokens(str(path), "issuer", "audience", "sub").load())


def _read_certificate(path: Path) -> None:
    read_tls_material(TlsSettings(certificate_file=path, key_file=path), datetime.now(UTC))


READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "policy": (read_policy, AccessError),
    "tokens": (read_tokens, AccessError),
    "key set": (_read_key_set, AccessError),
    "certificate": (_read_certificate, CannotUseCertificates),
    "webhook secrets": (WebhookSigner.from_file, CannotSendWebhooks),
    "webhook authorities": (
        lambda path: _ssl_context(WebhooksSettings(allowed_hosts="a", secret_file=path, ca_file=path)),
        CannotSendWebhooks,
    ),
    "settings": (lambda path: load_settings({"config": str(path)}), SettingsError),
}


@pytest.fixture(params=["FIFO", "device", "folder"])
def no_regular_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    if request.param == "FIFO":
        os.mkfifo(path)
        # If the FIFO is opened after all, the reader gets data, so that the test fails instead of hanging.
        threading.Thread(target=path.write_text, args=("x",), daemon=True).start()
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused(reader: str, no_regular_file: Path) -> None:
    read, error = READERS[reader]
    with pytest.raises(error, match="not a regular file"):
        read(no_regular_file)


def test_links_to_a_regular_file_are_followed(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "key").write_bytes(b"content")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "key").symlink_to("..data/key")
    assert read_regular_file(tmp_path / "key") == b"content"
