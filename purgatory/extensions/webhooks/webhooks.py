"""The webhooks of a daemon: delivers results of sessions with a callback, and keeps and resends undelivered ones."""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from google.protobuf.timestamp_pb2 import Timestamp
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import BaseModel, model_validator

from purgatory import sizes
from purgatory.extensions.webhooks.callback_rules import CallbackNotAllowed, CallbackRules
from purgatory.extensions.webhooks.deliveries import DeadLetters, Deliveries, RetrySchedule
from purgatory.extensions.webhooks.signing import CannotSendWebhooks, WebhookSigner, body_of
from purgatory.extensions.webhooks.webhook_poster import (
    DELIVERED,
    NOT_ALLOWED,
    REFUSED,
    UNREACHABLE,
    Attempt,
    WebhookPoster,
)
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.errors import invalid_argument
from purgatory.service.fair_queue import REGISTRATIONS
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Listener
from purgatory.service.sessions.session import Callback, Callbacks, Session, SessionKey, WebhookCounts
from purgatory.service.settings import Count, DurationMs, FilePath, HostNames, SettingsGroup, setting
from purgatory.service.translate.result_slices import ResultSlice
from purgatory.service.translate.results import fill_row
from purgatory.service.transport.outbound import system_addresses
from purgatory.service.transport.watched_file import WatchedFile, read_regular_file
from purgatory.v1 import result_pb2, webhook_pb2

LOGGER: Final = logging.getLogger(__name__)

POSTS_MAX: Final = 64
"""POSTs in flight; at most half to new, slow or silent hosts."""
POSTS_PER_HOST_MAX: Final = 4
"""POSTs in flight to one host; a host that is new or does not answer gets 1."""
TIMEOUT_MS: Final = 10_000
"""Time for a receiver to answer before the attempt fails."""
RETRY_FIRST_MS: Final = 5_000
"""Pause after the first failed attempt; doubles with each further one, minus a random part of up to half."""
RETRY_LONGEST_MS: Final = 3_600_000
RELOAD_INTERVAL_S: Final = 5.0
MANY_PARTITIONS: Final = 50
"""Results with more partitions are encoded on a thread: one with 2,000 would block the event loop for 20 ms."""
KEPT_GRACE_S: Final = 0.5
QUEUE_KEY: Final = "\0webhooks"
"""Key under which deliveries take turns in the fair queue; not a valid principal."""


class Webhooks(Listener, Callbacks):
    """Sends the results of sessions with a callback. As a listener it provides metrics and memory use to its host."""

    def __init__(self, host: Host, settings: "WebhooksSettings") -> None:
        """Raises `CannotSendWebhooks`."""
        self._host: Final = host
        self._rules: Final = CallbackRules(
            settings.allowed_hosts.split(), allow_http=settings.allow_http, allow_private=settings.allow_private
        )
        self._caller: Final = host.fair_queue.join(QUEUE_KEY)
        self._poster: Final = WebhookPoster(
            self._rules,
            system_addresses,
            timeout_ms=TIMEOUT_MS,
            posts_max=POSTS_MAX,
            ssl_context=_ssl_context(settings),
            turn=self._take_turn,
        )
        self._signer = WebhookSigner()
        self._secrets: WatchedFile | None = None
        if settings.secret_file is not None:
            self._secrets = WatchedFile("webhook secrets", settings.secret_file, self._take_secrets)
            self._secrets.take()
        schedule = RetrySchedule(RETRY_FIRST_MS, RETRY_LONGEST_MS, settings.give_up_ms)
        self.deliveries: Final = Deliveries(
            schedule, posts_max=POSTS_MAX, posts_per_host_max=POSTS_PER_HOST_MAX, turn=self._take_turn
        )
        self.letters: Final = DeadLetters(settings.dead_letters_max, self._letter_changed)
        self.undelivered = 0
        """Results of sessions with a callback that are neither delivered nor dead letters."""
        self.resending: Final[dict[str, Redelivery]] = {}
        self._watching: asyncio.Task[None] | None = None

    # Sessions.

    def check_url(self, url: str) -> None:
        """Check a callback URL.

        Raises:
            RpcError: The URL is not allowed.
        """
        try:
            self._rules.check_url(url)
        except CallbackNotAllowed as error:
            raise invalid_argument("callback_url", str(error)) from None

    def attach(self, session: Session, url: str) -> None:
        """Set a session's callback, unless it already has this one, and start to send its results.

        An empty URL keeps the callback that the session has, if any.

        Raises:
            RpcError: The results of the session already have another destination.
        """
        if url and (session.callback is None or session.callback.url != url):
            if not session.is_blank or session.stream is not None:
                raise invalid_argument("callback_url", _other_callback(session))
            session.callback = Callback(url, secrets.token_hex(16))
        if session.callback is not None and session.stream is None:
            self._start(session, session.callback)

    def detach_if_finished(self, session: Session) -> None:
        """Start a session's time to live once all its results are done. Call this whenever that may be the case."""
        if isinstance(session.stream, CallbackStream) and session.is_finished and not session.dropped:
            self._host.sessions.detach_callback(session, self._host.time.now_ms())

    def _start(self, session: Session, callback: Callback) -> None:
        stream = CallbackStream(session, callback, self._host_of(callback.url), self)
        self._host.sessions.attach_callback(session, stream)
        self._host.journal.changed(session)
        stream.wake()

    def counts(self) -> WebhookCounts:
        oldest_s = self.deliveries.oldest_s
        oldest_ms = None if oldest_s is None else int(oldest_s * 1_000)
        return WebhookCounts(self.undelivered, self.deliveries.paused, len(self.letters), oldest_ms)

    # Life cycle.

    def restore(self, letters: Sequence[tuple[int, bytes]]) -> None:
        """Restore the letters from the journal, given by number."""
        for number, content in letters:
            self.letters.restore(number, content)

    def start(self) -> None:
        """Continue with the sessions that were restored."""
        for session in self._host.sessions.with_callback():
            self.attach(session, "")
            self.detach_if_finished(session)
        self._watching = asyncio.create_task(self._watch_secrets(), name="webhook secrets")

    async def stop(self, grace_s: float) -> None:
        """Finish the POSTs in flight and, without a journal, also send queued results, within `grace_s`.

        With a journal, unresponsive receivers are not waited for, because the next daemon sends these results again.
        """
        if self._watching is not None:
            self._watching.cancel()
        keeps = self._host.journal.keeps
        await self.deliveries.close(min(grace_s, KEPT_GRACE_S) if keeps else grace_s, start_more=not keeps)
        await self._poster.close()

    def reload(self) -> None:
        """Reload the secrets. If the file cannot be used, this is logged and the current secrets stay in force."""
        if self._secrets is not None:
            try:
                self._secrets.take()
            except CannotSendWebhooks as error:
                LOGGER.error("%s; still using the previous secrets", error)  # noqa: TRY400 - the message is complete

    # Used by deliveries.

    async def attempt(self, url: str, webhook_id: str, session_id: str, result: result_pb2.Result) -> Attempt:
        if len(result.partitions) > MANY_PARTITIONS:
            body = await asyncio.to_thread(body_of, session_id, result)
        else:
            with self._host.holds.of("webhook"):
                body = body_of(session_id, result)
        return await self._poster.post(url, self._signer.headers(webhook_id, body), body.encode())

    def acknowledge(self, session: Session, sequence: int) -> None:
        if not session.dropped:
            self._host.acknowledge(session, sequence)
            self.detach_if_finished(session)

    def give_up(self, session: Session, webhook_id: str, result: result_pb2.Result, attempts: int, why: str) -> None:
        assert session.callback is not None, f"session {session.session_id!r} has no callback"
        letter = webhook_pb2.DeadLetter(
            webhook_id=webhook_id,
            callback_url=session.callback.url,
            session_id=session.session_id,
            principal=session.account.principal,
            result=result,
        )
        self.keep(letter, attempts, why)

    # Dead letters.

    def keep(self, letter: webhook_pb2.DeadLetter, attempts: int, why: str) -> None:
        """Keep a letter whose delivery has failed, possibly not for the first time. `attempts`: over all series."""
        now = Timestamp()
        now.GetCurrentTime()
        letter.attempts, letter.last_error = attempts, why
        letter.given_up_time.CopyFrom(now)
        LOGGER.error(
            "webhook %s to %s was given up after %d attempts: %s", letter.webhook_id, letter.callback_url, attempts, why
        )
        self.letters.add(letter)

    def resend(self, letter: webhook_pb2.DeadLetter) -> None:
        """Send a letter again, as if for the first time. Does nothing while the letter is already being sent."""
        if letter.webhook_id not in self.resending:
            webhook = Redelivery(letter, self._host_of(letter.callback_url), self)
            self.resending[letter.webhook_id] = webhook
            self.deliveries.add(webhook)

    def resending_failed(self, letter: webhook_pb2.DeadLetter, attempts: int, why: str) -> None:
        self.resending.pop(letter.webhook_id, None)
        self.keep(letter, letter.attempts + attempts, why)

    def delete(self, letter: webhook_pb2.DeadLetter) -> None:
        """Delete a letter, also while it is being sent again, or because it was delivered."""
        webhook = self.resending.pop(letter.webhook_id, None)
        if webhook is not None:
            self.deliveries.abandon(webhook)
        self.letters.remove(letter.webhook_id)

    def may_see(self, account: Account, letter: webhook_pb2.DeadLetter) -> bool:
        return letter.principal == account.principal or ADMIN in account.grants.everywhere

    # As a listener.

    def held_bytes(self) -> int:
        return self.letters.held_bytes

    def metrics(self) -> Iterable[Metric]:
        attempts = CounterMetricFamily("purgatory_webhook_attempts", "POSTs of webhooks, by result.", labels=["end"])
        for end in (DELIVERED, REFUSED, UNREACHABLE, NOT_ALLOWED):
            attempts.add_metric([end], self.deliveries.attempts.get(end, 0))
        yield attempts
        for gauge, value, text in (
            ("webhooks_in_flight", self.deliveries.in_flight, "POSTs in flight."),
            ("webhooks_paused", self.deliveries.paused, "Failed webhooks that will be retried."),
            ("webhooks_undelivered", self.undelivered, "Results neither delivered nor given up."),
            (
                "webhook_oldest_seconds",
                self.deliveries.oldest_s or 0.0,
                "Age of the oldest delivery that has neither succeeded nor been given up.",
            ),
            ("webhook_dead_letters", len(self.letters), "Dead letters kept."),
            (
                "webhook_dead_letter_space_ratio",
                self.letters.fill_ratio,
                "Share of the space for dead letters in use, by number or bytes, whichever is larger.",
            ),
        ):
            yield GaugeMetricFamily(f"purgatory_{gauge}", text, value)
        yield CounterMetricFamily("purgatory_webhooks_given_up", "Webhooks given up.", self.letters.given_up)
        yield CounterMetricFamily(
            "purgatory_webhooks_lost", "Dead letters dropped because there were too many.", self.letters.dropped
        )

    # Internals.

    def _host_of(self, url: str) -> str:
        """The host of a callback; empty if only earlier settings allowed it: each attempt will fail with the reason."""
        try:
            return self._rules.check_url(url).host
        except CallbackNotAllowed:
            return ""

    async def _take_turn(self) -> None:
        await self._host.fair_queue.turn(self._caller, REGISTRATIONS)

    def _letter_changed(self, number: int, content: bytes) -> None:
        self._host.journal.dead_letter_changed(number, content)

    def _take_secrets(self, path: Path) -> None:
        self._signer = WebhookSigner.from_file(path)

    async def _watch_secrets(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            if self._secrets is not None and self._secrets.has_settled():
                self.reload()


class CallbackStream:
    """The stream of one session with a callback. It exists for as long as results may be waiting.

    It replaces the client's stream: it takes results from the session's outbox, sends and acknowledges them. Results
    stay in the outbox (and in the journal) until they are acknowledged, and while too many are unacknowledged,
    registrations of the session are refused. Up to `WEBHOOKS_OPEN_MAX` results are open at a time. They are
    acknowledged in order: results behind one that keeps failing are sent, but not acknowledged.
    """

    def __init__(self, session: Session, callback: Callback, host: str, owner: Webhooks) -> None:
        self.session: Final = session
        self.callback: Final = callback
        self.host: Final = host
        self.owner: Final = owner
        self._open: Final[dict[int, ResultDelivery]] = {}
        """Unacknowledged deliveries by sequence number, in order."""
        self._undelivered: Final[set[int]] = set()
        self._counted = 0
        """This stream's part of `owner.undelivered`."""
        self._is_scheduled = False
        self.is_closed = False

    def wake(self) -> None:
        """Schedule a look into the outbox. Called while the engine is working, so nothing is sent here."""
        if not self._is_scheduled and not self.is_closed:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._take_some)

    def taken_over(self) -> None:
        raise AssertionError(f"session {self.session.session_id!r} has a callback, and was read from a stream")

    def session_closed(self) -> None:
        """Stop sending: the results are no longer needed."""
        self.is_closed = True
        for delivery in self._open.values():
            self.owner.deliveries.abandon(delivery)
        self._count()

    def _count(self) -> None:
        """Update the number of undelivered results. Results delivered before an older one are still in the outbox."""
        is_current = not self.is_closed and self.session.stream is self
        delivered = len(self._open) - len(self._undelivered)
        undelivered = self.session.outbox.unacknowledged - delivered if is_current else 0
        self.owner.undelivered += undelivered - self._counted
        self._counted = undelivered

    def _take_some(self) -> None:
        self._is_scheduled = False
        while len(self._open) < sizes.WEBHOOKS_OPEN_MAX and not self.is_closed:
            sequence, slices = self.session.outbox.take(1)
            if not slices:
                break
            delivery = self._open[sequence] = ResultDelivery(self, sequence, slices[0])
            self._undelivered.add(sequence)
            self.owner.deliveries.add(delivery)
        self._count()

    def ended(self, sequence: int) -> None:
        """A result was delivered or became a dead letter: acknowledge the results up to the first undelivered one."""
        self._undelivered.discard(sequence)
        last = 0
        for number in list(self._open):
            if number in self._undelivered:
                break
            del self._open[number]
            last = number
        if last:
            self.owner.acknowledge(self.session, last)
        self.wake()


class ResultDelivery:
    def __init__(self, stream: CallbackStream, sequence: int, part: ResultSlice) -> None:
        self._stream: Final = stream
        self._sequence: Final = sequence
        self._part: Final = part
        operation_id = part.completions.operation_ids[part.start]
        self._webhook_id: Final = f"{stream.callback.token}.{operation_id}"

    @property
    def host(self) -> str:
        return self._stream.host

    @property
    def sender(self) -> SessionKey:
        return self._stream.session.key

    @property
    def is_wanted(self) -> bool:
        return not self._stream.is_closed

    async def attempt(self) -> Attempt:
        stream = self._stream
        return await stream.owner.attempt(
            stream.callback.url, self._webhook_id, stream.session.session_id, self._result()
        )

    def delivered(self) -> None:
        self._stream.ended(self._sequence)

    def given_up(self, attempts: int, reason: str) -> None:
        self._stream.owner.give_up(self._stream.session, self._webhook_id, self._result(), attempts, reason)
        self._stream.ended(self._sequence)

    def _result(self) -> result_pb2.Result:
        result = result_pb2.Result()
        part = self._part
        fill_row(result, part, part.start, part.item_start, part.fetched_start)
        return result


class Redelivery:
    """A dead letter that is being sent again, with its original webhook id."""

    def __init__(self, letter: webhook_pb2.DeadLetter, host: str, owner: Webhooks) -> None:
        self._letter: Final = letter
        self.host: Final = host
        self.sender: Final = (letter.principal, "dead letters")
        self._owner: Final = owner

    @property
    def is_wanted(self) -> bool:
        """False once the letter has been deleted."""
        return self._letter.webhook_id in self._owner.resending

    async def attempt(self) -> Attempt:
        letter = self._letter
        return await self._owner.attempt(letter.callback_url, letter.webhook_id, letter.session_id, letter.result)

    def delivered(self) -> None:
        self._owner.delete(self._letter)

    def given_up(self, attempts: int, reason: str) -> None:
        self._owner.resending_failed(self._letter, attempts, reason)


def _ssl_context(settings: "WebhooksSettings") -> ssl.SSLContext:
    """The TLS settings. The file of authorities is read only if there are allowed hosts.

    Raises:
        CannotSendWebhooks: The file cannot be read.
    """
    if not settings.allowed_hosts:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if settings.ca_file is None:
            return ssl.create_default_context()
        return ssl.create_default_context(cadata=read_regular_file(settings.ca_file).decode("ascii"))
    except (OSError, ValueError) as error:
        raise CannotSendWebhooks(f"cannot read {settings.ca_file} (webhooks.ca_file): {error}") from None


def _other_callback(session: Session) -> str:
    if session.callback is None:
        return "the session is read from a stream; a callback needs a session of its own"
    return "the session has another callback; another one needs a session of its own"


class WebhooksSettings(SettingsGroup):
    """Webhooks: results that are POSTed to a callback (docs/webhooks.md)."""

    allowed_hosts: HostNames = setting(
        "",
        "Hosts that callers may name in callback URLs, separated by spaces: host, host:port, host:* for any port, "
        "*.example.org for all names below. Empty: no callbacks.",
    )
    allow_http: bool = setting(False, "Also accept http:// URLs; webhooks are then signed, but not encrypted.")
    allow_private: bool = setting(
        False, "Also connect to allowed hosts with private, loopback or link-local addresses."
    )
    secret_file: FilePath | None = setting(
        None, "Secrets for signing webhooks, whsec_..., one per line. Reloaded when it changes."
    )
    ca_file: FilePath | None = setting(None, "Authorities to trust for receivers (PEM). Default: those of the system.")
    give_up_ms: DurationMs = setting(
        86_400_000, "A result that is undeliverable for this long becomes a dead letter. A restart resets this time."
    )
    dead_letters_max: Count = setting(
        1_000, "Dead letters kept. At the limit, the oldest letter of the principal with the most is dropped."
    )

    @model_validator(mode="after")
    def _signed(self) -> Self:
        if self.allowed_hosts and self.secret_file is None:
            raise ValueError("webhooks are signed: allowed_hosts needs secret_file")
        return self


class WithWebhooks(BaseModel):
    webhooks: WebhooksSettings = WebhooksSettings()
