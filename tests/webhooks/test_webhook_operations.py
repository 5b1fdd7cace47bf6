"""Webhooks as an operator sees them: `purgatory status`, and dead letters that are resent and deleted."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client.cli.test_commands import purgatory
from tests.client.cli.test_completion import completed
from tests.kit.daemon import ServeDaemon
from tests.kit.eventually import wait_until
from tests.webhooks.callbacks import CallbackCaller, Lives, webhook_flags
from tests.webhooks.receiver import WebhookReceiver

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
    """Each resend that fails adds to the attempts of a dead letter, also after the daemon was killed and restarted."""
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

        resent = purgatory("dead-letters", "--resend", "nobody", address=daemon.address)
        assert (resent.returncode, resent.stdout) == (16, "")
        assert "no such dead letter: nobody" in resent.stderr
        deleted = purgatory("dead-letters", "--delete", one, "--delete", "no[b]ody", address=daemon.address)
        assert (deleted.returncode, deleted.stdout) == (16, "deleted 1 letter\n")
        assert "no such dead letter: no[b]ody" in deleted.stderr
        deleted = purgatory("dead-letters", "--delete", two, "--delete", three, "--json", address=daemon.address)
        assert (deleted.returncode, json.loads(deleted.stdout)) == (0, {"deleted": 2})
        assert purgatory("dead-letters", address=daemon.address).stdout == "no dead letters\n"
        nothing = purgatory("dead-letters", "--resend-all", address=daemon.address)
        assert (nothing.returncode, nothing.stdout) == (16, "no dead letters\n")
        assert len(receiver.received) == 3
