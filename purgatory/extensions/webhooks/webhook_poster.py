"""One attempt to deliver a webhook: a POST to an allowed host, and its result."""

import logging
import math
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from purgatory.extensions.webhooks.callback_rules import CallbackNotAllowed, CallbackRules
from purgatory.service.fair_queue import Turn, next_loop_turn
from purgatory.service.transport.outbound import Answer, NoAnswer, Outbound, Resolve

LOGGER: Final = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 16_384
"""Maximum size of a response body. Only the status matters; the body is read so that the connection can be reused."""
RETRY_AFTER_S_MAX: Final = 3_600
DIGITS_MAX: Final = 9
"""Leading digits of `Retry-After` that are read: far more seconds than the maximum, yet cheap to parse."""
GONE: Final = 410

DELIVERED, REFUSED, UNREACHABLE, NOT_ALLOWED = "delivered", "refused", "unreachable", "not_allowed"
"""Results of an attempt. REFUSED: any status other than 2xx. UNREACHABLE: no response in time."""


class Attempt(NamedTuple):
    """Result of one attempt. `reason` is a message for people; `retry_after_s` was requested by the receiver."""

    end: str
    reason: str = ""
    retry_after_s: int = 0
    is_final: bool = False
    """Whether the receiver asked not to be called again (410 Gone)."""


class WebhookPoster:
    """Sends POST requests over pooled connections. Follows no redirects and uses no proxy."""

    def __init__(
        self,
        rules: CallbackRules,
        resolve: Resolve,
        *,
        timeout_ms: int,
        posts_max: int,
        ssl_context: ssl.SSLContext,
        turn: Turn = next_loop_turn,
    ) -> None:
        self._rules: Final = rules
        self._outbound: Final = Outbound(
            timeout_s=timeout_ms / 1_000,
            answer_bytes_max=ANSWER_BYTES_MAX,
            ssl_context=ssl_context,
            resolve=resolve,
            choose=rules.allowed_addresses,
            connections_max=posts_max,
            turn=turn,
        )

    async def post(self, url: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Attempt:
        """Send one request. Raises nothing: every error becomes the result of the attempt."""
        try:
            target = self._rules.check_url(url)
            host = f"[{target.host}]" if ":" in target.host else target.host
            address = f"{target.scheme}://{host}:{target.port}{target.target}"
            whole = [*headers, (b"user-agent", b"purgatory")]
            return _attempt_of(await self._outbound.exchange("POST", address, whole, body))
        except CallbackNotAllowed as error:
            return Attempt(NOT_ALLOWED, str(error))
        except NoAnswer as error:
            return Attempt(UNREACHABLE, str(error))
        except Exception as error:
            LOGGER.exception("a webhook could not be sent; it will be retried")
            return Attempt(UNREACHABLE, f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        await self._outbound.close()


def _attempt_of(answer: Answer) -> Attempt:
    status = answer.status
    if 200 <= status < 300:
        return Attempt(DELIVERED)
    asked = next((value for name, value in answer.headers if name.lower() == b"retry-after"), b"")
    reason = f"HTTP {status}" + (", and redirects are not followed" if 300 <= status < 400 else "")
    return Attempt(REFUSED, reason, retry_after_s(asked, datetime.now(UTC)), is_final=status == GONE)


def retry_after_s(value: bytes, now: datetime) -> int:
    """The pause requested by a `Retry-After` header, given in seconds or as an HTTP date (RFC 9110, 10.2.3).

    At most `RETRY_AFTER_S_MAX`; 0 for a date in the past or an invalid value.
    """
    if value.isdigit():
        return min(int(value[:DIGITS_MAX]), RETRY_AFTER_S_MAX)
    try:
        until = parsedate_to_datetime(value.decode("ascii"))
        if until.tzinfo is None:  # written as "-0000"; HTTP dates are in UTC
            until = until.replace(tzinfo=UTC)
        left_s = (until - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):  # the value is untrusted input
        return 0
    return min(max(0, math.ceil(left_s)), RETRY_AFTER_S_MAX)
