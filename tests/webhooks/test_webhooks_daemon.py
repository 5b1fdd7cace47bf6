"""Webhooks end to end: a whole daemon, and real HTTP servers that accept, refuse, redirect, hang or die."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import webhook_pb2
from tests.client.cli.test_commands import purgatory
from tests.kit.daemon import DaemonThread, ServeDaemon
from tests.kit.eventually import wait_until
from tests.kit.forked_daemon import WEBHOOKS
from tests.webhooks.callbacks import CallbackCaller, Lives, webhook_flags
from tests.webhooks.receiver import DROP, HANG, WebhookReceiver


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


def test_one_refused_result_does_not_hold_others_back(caller: CallbackCaller) -> None:
    with WebhookReceiver(lambda one: 500 if one.operation_id == 1 else 200) as receiver:
        keys = [f"poison-{number}" for number in range(40)]
        caller.register("poison", receiver.url(), keys)
        caller.signal(*keys)
        receiver.wait_for(lambda all_: len({one.operation_id for one in all_}) == 40)
        assert caller.unacknowledged() == 40
        receiver.answer = lambda _one: 200
        wait_until(lambda: caller.unacknowledged() == 0)


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


def test_results_survive_a_kill_between_end_and_delivery(serve_daemon: ServeDaemon, tmp_path: Path) -> None:
    lives = Lives(serve_daemon, tmp_path)
    keys = [f"kill-{number}" for number in range(30)]
    with WebhookReceiver(lambda _received: 503) as receiver:
        first = lives.start()
        with CallbackCaller(first.address) as caller:
            caller.register("kill", receiver.url(), keys)
            caller.signal(*keys[:20])
            receiver.wait_for(lambda all_: len({one.operation_id for one in all_}) == 20)
        lives.kill(first)
        before = {one.operation_id: one.webhook_id for one in receiver.received}
        receiver.received.clear()
        receiver.answer = lambda _received: 200
        second = lives.start()
        receiver.wait_for(lambda all_: len({one.operation_id for one in all_}) == 20)
        with CallbackCaller(second.address) as caller:
            caller.signal(*keys[20:])
            received = receiver.wait_for(lambda all_: len({one.operation_id for one in all_}) == 30)
            wait_until(lambda: caller.unacknowledged() == 0)
            assert caller.register("kill", receiver.url(), keys).already_known == 30
    after = {one.operation_id: one.webhook_id for one in received}
    assert {number: after[number] for number in before} == before


def test_what_is_given_up_is_a_dead_letter_and_can_be_sent_again(
    serve_daemon: ServeDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An undelivered result is listed with the reason, also after a kill, until it is finally delivered."""
    lives = Lives(serve_daemon, tmp_path, "--webhooks-give-up-ms", "1")
    with WebhookReceiver(lambda _received: 500) as receiver:
        first = lives.start()
        with CallbackCaller(first.address) as caller:
            caller.register("dead", receiver.url(), ["dead-1", "dead-2", "dead-3"])
            caller.signal("dead-1", "dead-2", "dead-3")
            wait_until(lambda: len(caller.dead_letters()) == 3)
            assert caller.unacknowledged() == 0
            caller.signal("durable")  # its response waits for the disk, which then also has everything before it
        lives.kill(first)
        second = lives.start()
        with CallbackCaller(second.address) as caller:
            letters = caller.dead_letters()
            assert {letter.result.operation_id for letter in letters} == {1, 2, 3}
            assert {(letter.session_id, letter.callback_url) for letter in letters} == {("dead", receiver.url())}
            assert all("HTTP 500" in letter.last_error and letter.attempts for letter in letters)
            receiver.answer = lambda _received: 200
            receiver.received.clear()
            some = webhook_pb2.ResendDeadLettersRequest(webhook_ids=[letters[0].webhook_id, "nobody"])
            answer = caller.stub.ResendDeadLetters(some)
            assert (answer.resent, list(answer.unknown_webhook_ids)) == (1, ["nobody"])
            wait_until(lambda: len(caller.dead_letters()) == 2)
            by_command = purgatory("dead-letters", "--resend-all", "--json", address=second.address)
            assert json.loads(by_command.stdout) == {"resent": 2}
            wait_until(lambda: not caller.dead_letters())
        received = receiver.wait_for(lambda all_: len(all_) == 3)
    assert {one.webhook_id for one in received} == {letter.webhook_id for letter in letters}
    assert "was given up after" in caplog.text


def test_a_deleted_dead_letter_is_never_sent_again(serve_daemon: ServeDaemon, tmp_path: Path) -> None:
    """Neither a redelivery that has begun nor a daemon that is killed and restarted sends it; others are unaffected."""
    lives = Lives(serve_daemon, tmp_path, "--webhooks-give-up-ms", "2000", retry_ms=200)
    with WebhookReceiver(lambda _received: 410) as receiver:
        first = lives.start()
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
        lives.kill(first)
        receiver.answer = lambda _received: 200
        receiver.received.clear()
        with CallbackCaller(lives.start().address) as caller:
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
