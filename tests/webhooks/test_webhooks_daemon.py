"""Webhooks end to end: a whole daemon, and real HTTP servers that accept, refuse, redirect, hang or die; and as an
operator sees them: `purgatory status`, dead letters, certificate authorities, replaced secrets.
"""

import json
import re
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from examples.secure_demo.authority import Authority
from purgatory.extension import StartupError
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import webhook_pb2
from tests.client.cli.test_commands import purgatory
from tests.client.cli.test_pages import completed
from tests.kit.daemon import DaemonProcess, DaemonThread, ServeDaemon, StartDaemon
from tests.kit.eventually import wait_until
from tests.kit.forked_daemon import WEBHOOKS
from tests.webhooks.receiver import DROP, HANG, SECRET, CallbackCaller, WebhookReceiver, webhook_flags


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    """One daemon that retries after 20 ms and gives up after a day."""
    soon = {f"{WEBHOOKS}.TIMEOUT_MS": 2_000}
    daemon = DaemonThread(*webhook_flags(tmp_path_factory.mktemp("webhooks")), constants=soon)
    yield daemon
    daemon.stop()


@pytest.fixture
def caller(shared_daemon: DaemonThread) -> Iterator[CallbackCaller]:
    with CallbackCaller(shared_daemon.address) as one:
        yield one


def status_of(raised: pytest.ExceptionInfo[Any]) -> tuple[grpc.StatusCode, str]:
    return raised.value.code(), raised.value.details()


def test_a_result_is_posted_signed_and_then_acknowledged(caller: CallbackCaller) -> None:
    with WebhookReceiver() as receiver:
        receipt = caller.register("plain", receiver.url("/hook?a=b"), ["plain-1", "plain-2"])
        assert (receipt.accepted, receiver.received) == (2, [])
        caller.signal("plain-1", "plain-2")
        received = receiver.wait_for(lambda all_: len(all_) == 2)
        wait_until(lambda: caller.unacknowledged() == 0)
    first = min(received, key=lambda one: one.operation_id)
    assert first.path == "/hook?a=b"
    assert first.payload["type"] == "operation.ended"
    data = first.payload["data"]
    assert (data["sessionId"], data["result"]["operationId"], data["result"]["outcome"]) == (
        "plain",
        "1",
        "OUTCOME_SATISFIED",
    )
    assert data["result"]["partitions"][0]["key"] == "plain-1"
    assert len({one.webhook_id for one in received}) == 2
    assert not receiver.unsigned


def test_what_fails_is_sent_again_with_the_same_id(caller: CallbackCaller) -> None:
    """Errors, redirects, silence and closed connections are retried under the same id; redirects are not followed."""
    answers = [500, 302, DROP, HANG, 429]
    with WebhookReceiver(lambda _received: answers.pop(0) if answers else 200) as receiver:
        caller.register("stubborn", receiver.url(), ["stubborn"])
        caller.signal("stubborn")
        received = receiver.wait_for(lambda all_: len(all_) == 6)
        wait_until(lambda: caller.unacknowledged() == 0)
    assert {one.path for one in received} == {"/hook"}
    assert len({one.webhook_id for one in received}) == 1


def test_url_that_is_not_allowed_is_refused_with_nothing_registered(caller: CallbackCaller) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        caller.register("never", "https://elsewhere.example/hook", ["never"])
    code, message = status_of(raised)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert re.match("callback_url: .* not among webhooks.allowed_hosts", message)
    with pytest.raises(grpc.RpcError) as raised:
        caller.stub.CloseSession(wire.CloseSessionRequest(session_id="never"))
    assert status_of(raised)[0] is grpc.StatusCode.NOT_FOUND


def test_session_is_read_by_a_callback_or_by_streams(caller: CallbackCaller) -> None:
    with WebhookReceiver() as receiver:
        caller.register("one reader", receiver.url(), ["reader-1"])
        caller.register("one reader", "", ["reader-2"], first_id=2)  # the session keeps its callback
        caller.register("by stream", "", ["reader-3"])
        acknowledge = wire.AcknowledgeRequest(session_id="one reader", sequence=0)
        read = wire.StreamResultsRequest(session_id="one reader")
        for refused in (
            lambda: caller.register("one reader", receiver.url("/other"), ["x"], first_id=3),
            lambda: caller.register("by stream", receiver.url(), ["x"], first_id=2),
            lambda: caller.stub.Acknowledge(acknowledge),
            lambda: next(caller.stub.StreamResults(read)),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                refused()
            assert status_of(raised)[0] is grpc.StatusCode.INVALID_ARGUMENT
        caller.signal("reader-1", "reader-2")
        received = receiver.wait_for(lambda all_: len(all_) == 2)
    assert {one.operation_id for one in received} == {1, 2}
    caller.stub.CloseSession(wire.CloseSessionRequest(session_id="by stream"))


def test_a_closed_session_sends_nothing_more(caller: CallbackCaller) -> None:
    with WebhookReceiver(lambda _received: 500) as receiver:
        caller.register("closed", receiver.url(), ["closed"])
        caller.signal("closed")
        receiver.wait_for(lambda all_: len(all_) >= 2)
        closed = caller.stub.CloseSession(wire.CloseSessionRequest(session_id="closed"))
        assert closed.results_dropped == 1
        receiver.answer = lambda _received: 200
        caller.register("after", receiver.url("/after"), ["closed"])
        receiver.wait_for(lambda all_: any(one.path == "/after" for one in all_))
    wait_until(lambda: caller.unacknowledged() == 0)


def test_a_refused_registration_is_posted_too(caller: CallbackCaller) -> None:
    with WebhookReceiver() as receiver:
        receipt = caller.register("refused", receiver.url(), ["x" * 300])
        assert receipt.accepted == 0
        (received,) = receiver.wait_for(lambda all_: len(all_) == 1)
    assert received.payload["data"]["result"]["outcome"] == "OUTCOME_REFUSED"


def durable_flags(folder: Path, *more: str) -> list[str]:
    """Flags of daemons with webhooks, one after another on one journal."""
    return webhook_flags(folder, "--data-dir", str(folder / "data"), *more)


def test_results_survive_a_kill_between_end_and_delivery(start_daemon: StartDaemon, tmp_path: Path) -> None:
    flags = durable_flags(tmp_path)
    keys = [f"kill-{number}" for number in range(30)]
    with WebhookReceiver(lambda _received: 503) as receiver:
        first = start_daemon(*flags)
        with CallbackCaller(first.address) as caller:
            caller.register("kill", receiver.url(), keys)
            caller.signal(*keys[:20])
            receiver.wait_for(lambda all_: len({one.operation_id for one in all_}) == 20)
        first.kill()
        before = {one.operation_id: one.webhook_id for one in receiver.received}
        receiver.received.clear()
        receiver.answer = lambda _received: 200
        second = start_daemon(*flags)
        receiver.wait_for(lambda all_: len({one.operation_id for one in all_}) == 20)
        with CallbackCaller(second.address) as caller:
            caller.signal(*keys[20:])
            received = receiver.wait_for(lambda all_: len({one.operation_id for one in all_}) == 30)
            wait_until(lambda: caller.unacknowledged() == 0)
            assert caller.register("kill", receiver.url(), keys).already_known == 30
    after = {one.operation_id: one.webhook_id for one in received}
    assert {number: after[number] for number in before} == before


def test_what_is_given_up_is_a_dead_letter_and_can_be_sent_again(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """A refused result is listed with the reason and the number of all attempts, also after a kill, until it is finally
    delivered.
    """
    flags = durable_flags(tmp_path)
    with WebhookReceiver(lambda _received: 410) as receiver:
        first = start_daemon(*flags)
        with CallbackCaller(first.address) as caller:
            caller.register("dead", receiver.url(), ["dead-1", "dead-2", "dead-3"])
            caller.signal("dead-1", "dead-2", "dead-3")
            wait_until(lambda: [letter.attempts for letter in caller.dead_letters()] == [1, 1, 1])
            assert caller.unacknowledged() == 0
            assert purgatory("dead-letters", "--resend-all", address=first.address).returncode == 0
            wait_until(lambda: [letter.attempts for letter in caller.dead_letters()] == [2, 2, 2])
            caller.signal("durable")  # its response waits for the disk, which then also has everything before it
        first.kill()
        second = start_daemon(*flags)
        with CallbackCaller(second.address) as caller:
            letters = caller.dead_letters()
            assert {letter.result.operation_id for letter in letters} == {1, 2, 3}
            assert {(letter.session_id, letter.callback_url) for letter in letters} == {("dead", receiver.url())}
            assert {(letter.attempts, letter.last_error) for letter in letters} == {(2, "HTTP 410")}
            assert purgatory("dead-letters", address=second.address).stdout.count("2 attempts: HTTP 410") == 3
            receiver.answer = lambda _received: 200
            receiver.received.clear()
            some = ("--resend", letters[0].webhook_id, "--resend", "nobody")
            by_command = purgatory("dead-letters", *some, "--json", address=second.address)
            assert json.loads(by_command.stdout) == {"resent": 1, "unknown_webhook_ids": ["nobody"]}
            wait_until(lambda: len(caller.dead_letters()) == 2)
            assert caller.stub.ResendDeadLetters(webhook_pb2.ResendDeadLettersRequest()).resent == 2
            wait_until(lambda: not caller.dead_letters())
        received = receiver.wait_for(lambda all_: len(all_) == 3)
    assert {one.webhook_id for one in received} == {letter.webhook_id for letter in letters}
    assert "was given up after 2 attempts" in first.log


def test_a_deleted_dead_letter_is_never_sent_again(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Neither a redelivery that has begun nor a daemon that is killed and restarted sends it; others are unaffected."""
    flags = durable_flags(tmp_path, "--webhooks-give-up-ms", "2000")
    with WebhookReceiver(lambda _received: 410) as receiver:
        first = start_daemon(*flags)
        with CallbackCaller(first.address) as caller:
            caller.register("deleted", receiver.url(), ["deleted-1", "deleted-2"])
            caller.signal("deleted-1", "deleted-2")
            wait_until(lambda: len(caller.dead_letters()) == 2)
            one, other = [letter.webhook_id for letter in caller.dead_letters()]
            receiver.answer = lambda _received: 500
            receiver.received.clear()
            caller.stub.ResendDeadLetters(webhook_pb2.ResendDeadLettersRequest(webhook_ids=[one]))
            receiver.wait_for(lambda all_: len(all_) >= 1)
            request = webhook_pb2.DeleteDeadLettersRequest(webhook_ids=[one, "nobody"])
            answer = caller.stub.DeleteDeadLetters(request)
            assert (answer.deleted, list(answer.unknown_webhook_ids)) == (1, ["nobody"])
        first.kill()
        receiver.answer = lambda _received: 200
        receiver.received.clear()
        with CallbackCaller(start_daemon(*flags).address) as caller:
            assert [letter.webhook_id for letter in caller.dead_letters()] == [other]
            caller.stub.ResendDeadLetters(webhook_pb2.ResendDeadLettersRequest())
            wait_until(lambda: not caller.dead_letters())
        assert [one.webhook_id for one in receiver.received] == [other]


def test_a_session_with_a_callback_lives_while_anything_waits(serve_daemon: ServeDaemon, tmp_path: Path) -> None:
    """While an operation is pending, it outlives its time to live, unlike a session without a reader. Once its last
    result is delivered, its time to live starts, and it is removed.
    """
    lives = ("--session-ttl-ms", "100", "--session-heartbeat-interval-ms", "100")
    daemon = serve_daemon(*webhook_flags(tmp_path, *lives))
    with WebhookReceiver() as receiver, CallbackCaller(daemon.address) as caller:
        caller.register("waits", receiver.url(), ["waits"])
        caller.register("unread", "", ["unread"])
        wait_until(lambda: sessions_of(caller) == 1)
        caller.signal("waits")
        receiver.wait_for(lambda all_: len(all_) == 1)
        wait_until(lambda: sessions_of(caller) == 0)


def sessions_of(caller: CallbackCaller) -> int:
    status: wire.GetStatusResponse = caller.stub.GetStatus(wire.GetStatusRequest())
    return status.sessions


def test_a_private_address_is_refused_at_the_connection(serve_daemon: ServeDaemon, tmp_path: Path) -> None:
    flags = [*webhook_flags(tmp_path, "--webhooks-give-up-ms", "1"), "--no-webhooks-allow-private"]
    daemon = serve_daemon(*flags)
    with WebhookReceiver() as receiver, CallbackCaller(daemon.address) as caller:
        caller.register("private", f"http://localhost:{receiver.port}/hook", ["private"])
        caller.signal("private")
        wait_until(lambda: len(caller.dead_letters()) == 1)
        assert "not public" in caller.dead_letters()[0].last_error
        assert not receiver.received


MANY = 100
"""More results than a session may have open at a time."""


def webhooks_of(address: str) -> dict[str, Any]:
    """The webhooks in `purgatory status --json`."""
    answer = purgatory("status", "--json", address=address)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)["webhooks"]
    return found


def test_status_counts_webhooks(tmp_path: Path) -> None:
    """Every undelivered result counts, also those that are queued and those restored after a kill; results that were
    delivered, given up or dropped with their session do not.
    """
    idle = {"undelivered": 0, "paused": 0, "dead_letters": 0, "oldest": None}
    keys = [f"key-{number}" for number in range(MANY)]

    def start(name: str) -> DaemonProcess:
        constants = {f"{WEBHOOKS}.RETRY_{which}_MS": 200 for which in ("FIRST", "LONGEST")}
        return DaemonProcess(tmp_path / name, durable_flags(tmp_path), constants=constants)

    with WebhookReceiver(lambda _received: 500) as receiver:
        with start("first") as first, CallbackCaller(first.address) as caller:
            assert webhooks_of(first.address) == idle
            shown = purgatory("status", address=first.address).stdout
            assert "webhooks: 0 undelivered, 0 waiting for a retry, 0 dead letters\n" in shown
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
        with start("second") as second, CallbackCaller(second.address) as caller:
            wait_until(lambda: webhooks_of(second.address)["undelivered"] == caller.unacknowledged() > 0)
            receiver.answer = lambda received: 410 if received.operation_id == MANY else 204
            wait_until(lambda: webhooks_of(second.address) == idle | {"dead_letters": 1})
            assert "0 waiting for a retry, 1 dead letter\n" in purgatory("status", address=second.address).stdout


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


def test_receiver_of_a_private_authority_needs_the_authority(serve_daemon: ServeDaemon, tmp_path: Path) -> None:
    authority = Authority("A private authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("receiver", hosts=["127.0.0.1"]).write(tmp_path, "receiver"))
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
