"""The cases: what a client must do when results arrive, connections break, the daemon refuses, or a caller cancels.

Each case is one rule of "How to write a client" in docs/grpc.md. It gets a client without a session, and leaves it
without one. A case raises CaseFailed or AssertionError when the client breaks the rule.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import grpc

from examples.secure_demo.authority import Authority
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.conformance.client_process import ClientProcess
from tests.conformance.scripted_daemon import Registered, ScriptedDaemon

Case = Callable[[ClientProcess], Awaitable[None]]

TIMEOUT_MS: Final = 60_000
SMALL_BYTES: Final = 64 << 10
"""A message limit for the cases about size."""
LONG_TOPIC: Final = "t" * 240
SETTLE_S: Final = 0.3
"""How long a case looks for something that must not happen. The first retry of a client comes within 50 ms or so."""


@asynccontextmanager
async def opened(
    client: ClientProcess, scripted: ScriptedDaemon | None = None, **options: object
) -> AsyncIterator[ScriptedDaemon]:
    """A scripted daemon, and the client with a session on it, which is closed at the end."""
    async with scripted or ScriptedDaemon() as daemon:
        client.open(daemon.address, **options)
        yield daemon
        await client.close()


async def is_served(client: ClientProcess, daemon: ScriptedDaemon, name: str | None = None) -> None:
    """The wait `name`, or a new one, is the only one that is pending. It is registered, and gets its result."""
    name = name or client.wait()
    await daemon.registered(1)
    daemon.complete()
    assert await client.ended(name) == ["satisfied"], "the wait gets its result"


async def delivers_each_result_once(client: ClientProcess) -> None:
    """Results are matched by operation id, acknowledged, and dropped when they are repeated."""
    async with opened(client) as daemon:
        names = client.waits(3)
        operations = await daemon.registered(3)
        assert [one.operation_id for one in operations] == [1, 2, 3], f"ids count from 1: {operations}"
        daemon.complete(names[1])
        assert await client.ended(names[1]) == ["satisfied"]
        daemon.complete(names[0], names[2])
        daemon.repeat_results()
        assert await client.ended(*names) == ["satisfied"] * 3
        await daemon.until(lambda: [s.acknowledged for s in daemon.sessions.values()] == [3], "3 acknowledged results")
        assert client.line_count == 3, f"{client.line_count} results for 3 operations"


async def serves_waits_one_after_another(client: ClientProcess) -> None:
    """A hundred waits in turn leave nothing behind that the client, or its runtime, would complain about."""
    async with opened(client) as daemon:
        for count in range(1, 101):
            name = client.wait()
            await daemon.registered(count)
            daemon.complete(name)
            await client.ended(name)
    assert "Warning" not in client.errors, client.errors


async def accepts_large_results(client: ClientProcess) -> None:
    """A message of results may have more than the 4 MiB that gRPC libraries accept by default."""
    async with opened(client) as daemon:
        name = client.wait()
        await daemon.registered(1)
        daemon.complete(padding_bytes=6 << 20)
        assert await client.ended(name) == ["satisfied"]
        assert len(daemon.openings) == 1, f"the stream broke: {daemon}"


async def resumes_after_a_cut(client: ClientProcess) -> None:
    """A cut connection costs nothing: the session is resumed with the last sequence number and incarnation."""
    async with opened(client) as daemon:
        names = client.waits(3)
        await daemon.registered(3)
        daemon.complete(names[0])
        await client.ended(names[0])
        daemon.cut()
        await daemon.opened(2)
        daemon.complete(*names[1:])
        assert await client.ended(*names) == ["satisfied"] * 3
        first, second = daemon.openings
        [session] = daemon.sessions.values()
        assert second.session_id == first.session_id, "the same session"
        assert (second.last_sequence, second.incarnation) == (1, session.incarnation), f"resumed by {second}"
        assert len(daemon.operations) == 3, f"each operation is registered once: {daemon}"


async def sends_a_lost_batch_again(client: ClientProcess) -> None:
    """Messages in flight when the connection broke are sent again under the same ids. A timeout of 0 stays 0."""
    async with opened(client) as daemon:
        first = client.wait()
        await daemon.registered(1)
        daemon.batches_lost = 1
        second = client.wait(timeout_ms=0)
        await daemon.until(lambda: daemon.batches_lost == 0, "a batch")
        daemon.cut()
        operations = await daemon.registered(2)
        assert [one.operation_id for one in operations] == [1, 2], f"same ids: {daemon}"
        assert operations[1].timeout_ms == 0, f"a request for an answer at once: {operations[1]}"
        daemon.complete()
        assert await client.ended(first, second) == ["satisfied"] * 2


async def registers_again_with_the_remaining_time(client: ClientProcess) -> None:
    """A daemon that has forgotten the session gets what is pending again, in order of ids, with what remains of its
    timeout; results count from 1 again. The time that a result says it waited includes the time before.
    """
    async with opened(client) as daemon:
        began = time.monotonic()
        names = client.waits(3)
        await daemon.registered(3)
        before = time.monotonic()
        daemon.complete(names[0])
        await client.ended(names[0])
        daemon.cut(unreachable=True)
        daemon.forget()
        await asyncio.sleep(0.2)  # time that must be missing from the timeouts
        elapsed_ms = (time.monotonic() - before) * 1_000
        daemon.restore()
        again = await daemon.registered(2)
        longest_ms = (time.monotonic() - began) * 1_000
        assert {one.topic for one in again} == set(names[1:]), f"what is pending: {again}"
        assert again[0].operation_id < again[1].operation_id, f"in order of ids: {again}"
        check_remaining(again, elapsed_ms, longest_ms)
        daemon.complete()
        assert await client.ended(*names) == ["satisfied"] * 3
        waited_ms = [client.waited_ms(name) for name in names]  # the scripted daemon's own results say 0
        assert waited_ms[0] == 0, f"{waited_ms}; the first one was not sent again"
        assert min(waited_ms[1:]) >= elapsed_ms - 1, f"{waited_ms}, of them {elapsed_ms} before"


async def registers_again_with_the_time_of_an_extension(client: ClientProcess) -> None:
    """More time that anybody gave to a wait is sent to a daemon that has forgotten the session; less, not."""
    async with opened(client) as daemon:
        longer, same, last = client.waits(3)
        await daemon.registered(3)
        daemon.extend(longer, 10 * TIMEOUT_MS)
        daemon.extend(same, 1)
        daemon.complete(last)
        await client.ended(last)  # so the messages before have been read
        daemon.cut(unreachable=True)
        daemon.forget()
        daemon.restore()
        again = {one.topic: one.timeout_ms for one in await daemon.registered(2)}
        assert 9 * TIMEOUT_MS < again[longer] <= 10 * TIMEOUT_MS, f"the extension: {again}"
        assert again[same] <= TIMEOUT_MS, f"as before: {again}"
        daemon.complete()
        assert await client.ended(longer, same) == ["satisfied"] * 2


def check_remaining(operations: list[Registered], elapsed_ms: float, longest_ms: float) -> None:
    for one in operations:
        at_least, at_most = TIMEOUT_MS - longest_ms - 1, TIMEOUT_MS - elapsed_ms + 1
        assert at_least <= one.timeout_ms <= at_most, f"sent with {one.timeout_ms} ms, not {at_least} to {at_most}"


async def notices_another_incarnation(client: ClientProcess) -> None:
    """A session of another incarnation is new, even if `resumed` says otherwise."""
    async with opened(client) as daemon:
        first, second = client.waits(2)
        await daemon.registered(2)
        daemon.complete(first)
        await client.ended(first)
        daemon.claims_to_resume = True
        daemon.cut(unreachable=True)
        daemon.forget()
        daemon.restore()
        again = await daemon.registered(1)
        assert [one.topic for one in again] == [second], f"what is pending: {again}"
        daemon.complete()  # has the sequence number 1 again
        assert await client.ended(second) == ["satisfied"]


async def notices_that_its_session_is_in_use(client: ClientProcess) -> None:
    """If another client has registered operations in the session, waits fail or get higher ids; they do not hang."""
    async with opened(client) as daemon:
        daemon.foreign_ids = 5
        name = client.wait()
        tasks = [asyncio.create_task(client.ended(name)), asyncio.create_task(daemon.registered(1))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        daemon.complete()
        tasks[1].cancel()
        assert await tasks[0] in (["satisfied"], ["refused"])


async def limits_messages_to_the_stated_size(client: ClientProcess) -> None:
    """Batches are cut by `message_bytes_max`, so that none is refused; an operation that is larger alone is refused."""
    async with opened(client, ScriptedDaemon(bytes_stated=SMALL_BYTES, bytes_enforced=SMALL_BYTES)) as daemon:
        names = [client.wait(topic=f"{LONG_TOPIC}{number}", partitions=20) for number in range(40)]
        too_large = client.wait(topic=LONG_TOPIC, partitions=400)
        names.append(client.wait())
        assert await client.ended(too_large) == ["refused"]
        await daemon.registered(41)
        daemon.complete()
        assert await client.ended(*names) == ["satisfied"] * 41
        assert len(daemon.openings) == 1, f"a message was too large: {daemon}"


async def halves_what_is_refused_for_its_size(client: ClientProcess) -> None:
    """Where the limit is not stated, a batch that ends the stream with RESOURCE_EXHAUSTED is halved, not repeated."""
    async with opened(client, ScriptedDaemon(bytes_stated=0, bytes_enforced=SMALL_BYTES)) as daemon:
        names = [client.wait(topic=f"{LONG_TOPIC}{number}", partitions=20) for number in range(40)]
        await daemon.registered(40)
        too_large = client.wait(topic=LONG_TOPIC, partitions=400)
        assert await client.ended(too_large) == ["refused"]
        names.append(client.wait())
        await daemon.registered(41)
        daemon.complete()
        assert await client.ended(*names) == ["satisfied"] * 41


async def reports_a_lasting_refusal(client: ClientProcess) -> None:
    """A batch that is always refused by RESOURCE_EXHAUSTED fails at the latest when the timeout of its waits is over.
    Then the session goes on.
    """
    async with opened(client) as daemon:
        daemon.batches_refused = grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await client.ended(client.wait(timeout_ms=100)) == ["refused"]
        assert daemon.batches, "it was sent"
        daemon.batches_refused = None
        await is_served(client, daemon)


async def fails_a_batch_that_is_refused_for_good(client: ClientProcess) -> None:
    """A batch that is refused by INVALID_ARGUMENT fails at once, and is not sent again."""
    async with opened(client) as daemon:
        daemon.batches_refused = grpc.StatusCode.INVALID_ARGUMENT
        assert await client.ended(client.wait()) == ["refused"]
        assert len(daemon.batches) == 1, f"sent again: {daemon}"


async def leaves_a_silent_daemon(client: ClientProcess) -> None:
    """After three heartbeat intervals without a message the client ends the stream and opens another."""
    async with opened(client, ScriptedDaemon(heartbeat_interval_ms=50)) as daemon:
        daemon.sends_heartbeats = False
        name = client.wait()
        await daemon.opened(2)
        daemon.sends_heartbeats = True
        await is_served(client, daemon, name)


async def sends_heartbeats(client: ClientProcess) -> None:
    """An idle client sends heartbeats on a bidirectional stream. Over StreamResults it sends none."""
    async with opened(client, ScriptedDaemon(heartbeat_interval_ms=100)) as daemon:
        name = client.wait()
        await daemon.registered(1)
        if not daemon.is_unary:
            await daemon.until(lambda: daemon.heartbeats >= 3, "three heartbeats")
        daemon.complete()
        assert await client.ended(name) == ["satisfied"]
        assert len(daemon.openings) == 1, f"one stream: {daemon}"


async def does_not_wait_for_opened_for_ever(client: ClientProcess) -> None:
    """A daemon that accepts a stream and never sends `opened` is left, and tried again."""
    async with opened(client, open_timeout_ms=200) as daemon:
        daemon.answers_openings = False
        name = client.wait()
        await daemon.until(lambda: daemon.attempts >= 2, "a second attempt")
        daemon.answers_openings = True
        await is_served(client, daemon, name)


async def gives_up(client: ClientProcess) -> None:
    """Without a connection for give_up_after_ms pending waits fail: if `opened` never arrives, if nothing listens, and
    after a connection was lost.
    """
    async with opened(client, give_up_after_ms=300) as daemon:
        daemon.answers_openings = False
        assert await client.ended(client.wait()) == ["unreachable"]
    async with opened(client, give_up_after_ms=300) as daemon:
        daemon.cut(unreachable=True)
        assert await client.ended(client.wait()) == ["unreachable"]
        daemon.restore()
    async with opened(client, give_up_after_ms=1_000) as daemon:  # long enough to connect on a busy machine
        name = client.wait()
        await daemon.registered(1)
        daemon.cut(unreachable=True)
        assert await client.ended(name) == ["unreachable"]
        daemon.restore()


async def tries_again_after_passing_statuses(client: ClientProcess) -> None:
    """Streams that end with UNAVAILABLE, INTERNAL, UNKNOWN, ABORTED, CANCELLED or DEADLINE_EXCEEDED, or for a shutdown,
    are opened again.
    """
    codes = grpc.StatusCode
    async with opened(client) as daemon:
        name = client.wait()
        await daemon.registered(1)
        passing = (codes.UNAVAILABLE, codes.INTERNAL, codes.UNKNOWN, codes.ABORTED, codes.CANCELLED)
        for count, status in enumerate((*passing, codes.DEADLINE_EXCEEDED, codes.OK), 2):
            daemon.end_streams(status)
            await daemon.opened(count)
        daemon.end_streams(codes.OK, wire.GoingAway.REASON_SHUTTING_DOWN)
        await daemon.opened(9)
        daemon.complete()
        assert await client.ended(name) == ["satisfied"]
        assert len(daemon.batches) == 1, f"registered once: {daemon}"


async def stops_at_final_statuses(client: ClientProcess) -> None:
    """PERMISSION_DENIED, UNAUTHENTICATED and other final statuses fail what is pending, and are not retried."""
    for status in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED):
        async with ScriptedDaemon() as daemon:
            daemon.openings_refused = status
            client.open(daemon.address)
            assert await client.ended(client.wait()) == ["refused"], status.name
            await asyncio.sleep(SETTLE_S / 3)
            assert daemon.attempts == 1, f"retried {status.name}: {daemon}"
            await client.close()


async def leaves_a_session_that_was_taken_over(client: ClientProcess) -> None:
    """After REASON_TAKEN_OVER the client neither opens the session again nor closes it."""
    async with opened(client) as daemon:
        names = client.waits(2)
        await daemon.registered(2)
        daemon.end_streams(grpc.StatusCode.OK, wire.GoingAway.REASON_TAKEN_OVER)
        assert await client.ended(*names) == ["taken_over"] * 2
        await asyncio.sleep(SETTLE_S)
        assert len(daemon.openings) == 1, f"opened again: {daemon}"
    assert not daemon.closed, f"closed what is another's: {daemon}"


async def ends_with_a_session_that_was_closed(client: ClientProcess) -> None:
    """After REASON_SESSION_CLOSED pending waits fail, and the session is not opened again."""
    async with opened(client) as daemon:
        name = client.wait()
        await daemon.registered(1)
        daemon.end_streams(grpc.StatusCode.OK, wire.GoingAway.REASON_SESSION_CLOSED)
        assert await client.ended(name) == ["closed"]
        await asyncio.sleep(SETTLE_S)
        assert len(daemon.openings) == 1, f"opened again: {daemon}"


async def cancels(client: ClientProcess) -> None:
    """A cancelled wait ends here at once. The cancel is repeated until the daemon has answered it, and is sent later if
    that cannot be reached now; the operation is not registered again.
    """
    async with opened(client) as daemon:
        first, second, third = client.waits(3)
        await daemon.registered(3)
        daemon.cancels_lost = 1
        client.cancel(first)
        assert await client.ended(first) == ["cancelled"]
        await daemon.until(lambda: daemon.cancels_lost == 0, "a cancel")
        daemon.cut()
        await daemon.until(lambda: first in daemon.cancelled, "the cancel again")
        daemon.cut(unreachable=True)
        client.cancel(second)
        assert await client.ended(second) == ["cancelled"]
        daemon.restore()
        await daemon.until(lambda: second in daemon.cancelled, "a cancel when it is connected again")
        daemon.complete(first, second)  # results that have no wait any more
        daemon.cut()
        daemon.forget()
        await daemon.until(lambda: len(daemon.operations) == 1, "the third operation again")
        assert [one.topic for one in daemon.operations] == [third], f"cancelled operations again: {daemon}"
        daemon.complete()
        assert await client.ended(third) == ["satisfied"]


async def closes(client: ClientProcess) -> None:
    """Closing fails what is pending, and closes the session at the daemon."""
    async with ScriptedDaemon() as daemon:
        client.open(daemon.address)
        name = client.wait()
        await daemon.registered(1)
        await client.close()
        assert await client.ended(name) == ["closed"]
        assert daemon.closed == [daemon.openings[0].session_id], f"not closed: {daemon}"
        await asyncio.sleep(SETTLE_S / 3)
        assert len(daemon.openings) == 1, f"opened again: {daemon}"


async def uses_tls_and_a_token(client: ClientProcess) -> None:
    """With a CA file the connection is encrypted and the daemon verified, and each call carries the token."""
    authority = Authority("conformance")
    issued = authority.issue("purgatory", hosts=("127.0.0.1", "localhost"))
    credentials = grpc.ssl_server_credentials([(issued.key_pem, issued.certificate_pem)])
    with tempfile.NamedTemporaryFile(suffix=".crt") as ca:
        ca.write(authority.certificate_pem)
        ca.flush()
        async with opened(client, ScriptedDaemon(credentials=credentials), ca=ca.name, token="sesame") as daemon:
            await is_served(client, daemon)
        assert daemon.authorizations == {"Bearer sesame"}, f"sent {daemon.authorizations}"


CASES: Final[dict[str, Case]] = {
    name: case for name, case in globals().items() if asyncio.iscoroutinefunction(case) and case is not is_served
}
