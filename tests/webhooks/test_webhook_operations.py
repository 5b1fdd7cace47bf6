"""Webhooks as an operator sees them: `purgatory status`, dead letters, certificate authorities, replaced secrets."""

import json
import signal
import ssl
from pathlib import Path
from typing import Any

import pytest

from examples.secure_demo.authority import Authority
from purgatory.extension import StartupError
from tests.client.cli.test_commands import purgatory
from tests.client.cli.test_completion import completed
from tests.kit.daemon import ServeDaemon, StartDaemon
from tests.kit.eventually import wait_until
from tests.webhooks.callbacks import CallbackCaller, Lives, webhook_flags
from tests.webhooks.receiver import SECRET, WebhookReceiver

MANY = 100
"""More results than a session may have open at a time."""


def webhooks_of(address: str) -> dict[str, Any]:
    """The webhooks in `purgatory status --json`."""
    answer = purgatory("status", "--json", address=address)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)["webhooks"]
    return found


def test_status_counts_webhooks(serve_daemon: ServeDaemon, tmp_path: Path) -> None:
    """Every undelivered result counts, also those that are queued and those restored after a kill; results that were
    delivered, given up or dropped with their session do not.
    """
    lives = Lives(serve_daemon, tmp_path, retry_ms=200)
    idle = {"undelivered": 0, "paused": 0, "dead_letters": 0, "oldest": None}
    keys = [f"key-{number}" for number in range(MANY)]
    with WebhookReceiver(lambda _received: 500) as receiver:
        first = lives.start()
        assert webhooks_of(first.address) == idle
        assert (
            "webhooks: 0 undelivered, 0 waiting for a retry, 0 dead letters\n"
            in purgatory("status", address=first.address).stdout
        )
        with CallbackCaller(first.address) as caller:
            caller.register("many", receiver.url(), keys)
            caller.register("closed", receiver.url(), ["closed"])
            caller.signal("closed", *keys)
            wait_until(lambda: webhooks_of(first.address)["undelivered"] == MANY + 1)
            assert webhooks_of(first.address)["oldest"] is not None
            purgatory("close", "closed", address=first.address)
            assert webhooks_of(first.address)["undelivered"] == MANY
            # Delivered behind results that fail: these are acknowledged later, but are not undelivered.
            receiver.answer = lambda received: 204 if received.operation_id % 2 == 0 else 500
            wait_until(lambda: webhooks_of(first.address)["undelivered"] < MANY)
            receiver.answer = lambda _received: 500
            left = webhooks_of(first.address)["undelivered"]
            assert caller.unacknowledged() >= left
            caller.signal("durable")  # its response waits for the disk, which then also has everything before it
        lives.kill(first)
        second = lives.start()
        with CallbackCaller(second.address) as caller:
            wait_until(lambda: webhooks_of(second.address)["undelivered"] == caller.unacknowledged() > 0)
            receiver.answer = lambda received: 410 if received.operation_id == MANY else 204
            wait_until(lambda: webhooks_of(second.address) == idle | {"dead_letters": 1})
            assert "0 waiting for a retry, 1 dead letter\n" in purgatory("status", address=second.address).stdout


def test_attempts_of_all_resends_are_counted(
    serve_daemon: ServeDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lives = Lives(serve_daemon, tmp_path)
    with WebhookReceiver(lambda _received: 410) as receiver:
        first = lives.start()
        with CallbackCaller(first.address) as caller:
            caller.register("dead", receiver.url(), ["dead"])
            caller.signal("dead")
            wait_until(lambda: [letter.attempts for letter in caller.dead_letters()] == [1])
            for attempts in (2, 3):
                assert purgatory("dead-letters", "--resend-all", address=first.address).returncode == 0
                wait_until(lambda: [letter.attempts for letter in caller.dead_letters()] == [attempts])  # noqa: B023
            caller.signal("durable")  # its response waits for the disk, which then also has everything before it
        lives.kill(first)
        second = lives.start()
        with CallbackCaller(second.address) as caller:
            assert [letter.attempts for letter in caller.dead_letters()] == [3]
            webhook_id = caller.dead_letters()[0].webhook_id
            assert purgatory("dead-letters", "--resend", webhook_id, address=second.address).returncode == 0
            wait_until(lambda: [letter.attempts for letter in caller.dead_letters()] == [4])
            assert "4 attempts: HTTP 410" in purgatory("dead-letters", address=second.address).stdout
    assert len(receiver.received) == 4
    assert "was given up after 4 attempts" in caplog.text


def test_letters_are_resent_and_deleted_by_command(serve_daemon: ServeDaemon, tmp_path: Path) -> None:
    """The shell completes ids. An id of no letter is reported on stderr with exit code 16; the others are deleted."""
    daemon = serve_daemon(*webhook_flags(tmp_path))
    with WebhookReceiver(lambda _received: 410) as receiver, CallbackCaller(daemon.address) as caller:
        caller.register("dead", receiver.url(), ["dead-1", "dead-2", "dead-3"])
        caller.signal("dead-1", "dead-2", "dead-3")
        wait_until(lambda: len(caller.dead_letters()) == 3)
        one, two, three = sorted(letter.webhook_id for letter in caller.dead_letters())
        for option in ("--resend", "--delete"):  # on a busy machine, completion gives up before the daemon answers
            wait_until(lambda: completed(f"dead-letters {option} ", daemon.address) == [one, two, three])  # noqa: B023

        listed = purgatory("dead-letters", address=daemon.address)
        assert (listed.returncode, all(letter in listed.stdout for letter in (one, two, three))) == (0, True)
        resent = purgatory("dead-letters", "--resend", "nobody", address=daemon.address)
        assert (resent.returncode, resent.stdout) == (16, "")
        assert "no such dead letter: nobody" in resent.stderr
        resent = purgatory("dead-letters", "--resend", "nobody", "--json", address=daemon.address)
        assert (resent.returncode, json.loads(resent.stdout)) == (16, {"resent": 0, "unknown_webhook_ids": ["nobody"]})
        deleted = purgatory("dead-letters", "--delete", one, "--delete", "no[b]ody", address=daemon.address)
        assert (deleted.returncode, deleted.stdout) == (16, "deleted 1 letter\n")
        assert "no such dead letter: no[b]ody" in deleted.stderr
        deleted = purgatory("dead-letters", "--delete", two, "--delete", three, "--json", address=daemon.address)
        assert (deleted.returncode, json.loads(deleted.stdout)) == (0, {"deleted": 2})
        assert purgatory("dead-letters", address=daemon.address).stdout == "no dead letters\n"
        nothing = purgatory("dead-letters", "--resend-all", address=daemon.address)
        assert (nothing.returncode, nothing.stdout) == (16, "no dead letters\n")
        assert len(receiver.received) == 3


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


def test_receiver_of_a_private_authority_needs_the_authority(
    serve_daemon: ServeDaemon, tmp_path: Path, served_context: tuple[Authority, ssl.SSLContext]
) -> None:
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
    flags = webhook_flags(tmp_path)
    (tmp_path / "webhook-secrets").write_text(OF_URLS, "utf-8")
    with pytest.raises(StartupError, match=r"webhooks\.secret_file") as raised:
        serve_daemon(*flags)
    assert "_____" not in str(raised.value)
