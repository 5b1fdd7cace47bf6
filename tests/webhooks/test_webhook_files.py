"""The files that webhooks need, with a whole daemon: certificate authorities of receivers, and replaced secrets."""

import signal
import ssl
from pathlib import Path

import pytest

from examples.secure_demo.authority import Authority
from purgatory.extension import StartupError
from tests.kit.daemon import ServeDaemon, StartDaemon
from tests.kit.eventually import wait_until
from tests.webhooks.callbacks import CallbackCaller, webhook_flags
from tests.webhooks.receiver import SECRET, WebhookReceiver

OF_URLS = "whsec_" + "_" * 43
"""`secrets.token_urlsafe(32)` may return this: receivers drop characters outside the standard alphabet."""
OTHER_SECRET = "whsec_" + "Zm9ydHktdHdvIG9yZGVycyBhbmQgdGhyZWU="


@pytest.fixture
def served_context(tmp_path: Path) -> tuple[Authority, ssl.SSLContext]:
    """A private authority, and the TLS settings of a receiver with a certificate from it."""
    authority = Authority("A private authority")
    issued = authority.issue("receiver", hosts=["127.0.0.1"])
    files = tmp_path / "receiver.crt", tmp_path / "receiver.key"
    files[0].write_bytes(issued.certificate_pem)
    files[1].write_bytes(issued.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return authority, context


def test_a_receiver_with_a_certificate_of_a_private_authority(
    serve_daemon: ServeDaemon, tmp_path: Path, served_context: tuple[Authority, ssl.SSLContext]
) -> None:
    """A daemon with the authority delivers. Without it, the daemon sends nothing and the letter has the reason."""
    authority, context = served_context
    ca_file = tmp_path / "authority.crt"
    ca_file.write_bytes(authority.certificate_pem)
    daemon = serve_daemon(*webhook_flags(tmp_path, "--webhooks-ca-file", str(ca_file)))
    with WebhookReceiver(tls=context) as receiver, CallbackCaller(daemon.address) as caller:
        caller.register("known", receiver.url(), ["known"])
        caller.signal("known")
        received = receiver.wait_for(lambda all_: len(all_) == 1)
        wait_until(lambda: caller.unacknowledged() == 0)
        assert received[0].operation_id == 1
        stranger = serve_daemon(*webhook_flags(tmp_path, "--webhooks-give-up-ms", "50"))
        with CallbackCaller(stranger.address) as other:
            other.register("unknown", receiver.url(), ["unknown"])
            other.signal("unknown")
            wait_until(lambda: bool(other.dead_letters()))
            assert "certificate" in other.dead_letters()[0].last_error
        assert len(receiver.received) == 1
        assert not receiver.unsigned


def test_a_secret_is_replaced_while_the_daemon_runs(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """After SIGHUP, webhooks are signed with the new secret, and so are retries of earlier ones. A file that cannot be
    used changes nothing and is named in the log.
    """
    daemon = start_daemon(*webhook_flags(tmp_path))
    secret_file = tmp_path / "webhook-secrets"
    with CallbackCaller(daemon.address) as caller:

        def delivers(session_id: str, secret: str) -> None:
            with WebhookReceiver(secret=secret) as receiver:
                caller.register(session_id, receiver.url(), [session_id])
                caller.signal(session_id)
                receiver.wait_for(lambda all_: len(all_) == 1)
                wait_until(lambda: caller.unacknowledged() == 0)

        delivers("before", SECRET)
        secret_file.write_text(OTHER_SECRET, "utf-8")
        daemon.process.send_signal(signal.SIGHUP)
        delivers("after", OTHER_SECRET)
        for count, broken in enumerate(("no secret", OF_URLS), 1):
            secret_file.write_text(broken, "utf-8")
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: daemon.log.count("still using the previous secrets") >= count)  # noqa: B023
            delivers(f"later-{count}", OTHER_SECRET)


def test_a_daemon_does_not_start_with_unusable_secrets(serve_daemon: ServeDaemon, tmp_path: Path) -> None:
    """The error names the setting and does not show the secret."""
    flags = webhook_flags(tmp_path)
    (tmp_path / "webhook-secrets").write_text(OF_URLS, "utf-8")
    with pytest.raises(StartupError, match=r"webhooks\.secret_file") as raised:
        serve_daemon(*flags)
    assert "_____" not in str(raised.value)
