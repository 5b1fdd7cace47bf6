"""One attempt to deliver a webhook: a POST to an allowed host, and what became of it."""

import asyncio
import logging
import ssl
from typing import Final, NamedTuple

import httpcore

from purgatory.service.webhooks.callback_rules import CallbackNotAllowed, CallbackRules
from purgatory.service.webhooks.pinned_network import PinnedNetwork, Resolve

LOGGER: Final = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 16_384
"""What is read of an answer, so that its connection can be used again; a longer one's is closed."""
KEPT_S: Final = 5.0
"""How long an unused connection is kept."""
RETRY_AFTER_S_MAX: Final = 3_600
GONE: Final = 410

DELIVERED, REFUSED, UNREACHABLE, NOT_ALLOWED = "delivered", "refused", "unreachable", "not_allowed"
"""What becomes of an attempt: refused is any answer but 2xx; unreachable is no answer in time."""


class Attempt(NamedTuple):
    """What became of one attempt. `reason` is for people; `retry_after_s` is what the receiver asked for."""

    end: str
    reason: str = ""
    retry_after_s: int = 0
    is_final: bool = False
    """The receiver wants no more of this."""


class WebhookPoster:
    """Sends POSTs over connections that are kept for a while, follows no redirects, and asks no proxy."""

    def __init__(
        self, rules: CallbackRules, resolve: Resolve, *, timeout_ms: int, posts_max: int, ssl_context: ssl.SSLContext
    ) -> None:
        self._rules: Final = rules
        self._timeout_s: Final = timeout_ms / 1_000
        self._pool: Final = httpcore.AsyncConnectionPool(
            ssl_context,
            max_connections=posts_max,
            keepalive_expiry=KEPT_S,
            network_backend=PinnedNetwork(rules, resolve),
        )

    async def post(self, url: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Attempt:
        """Raises nothing: whatever goes wrong is what became of the attempt."""
        try:
            target = self._rules.check_url(url)
            host = f"[{target.host}]" if ":" in target.host else target.host
            address = f"{target.scheme}://{host}:{target.port}{target.target}"
            async with asyncio.timeout(self._timeout_s):
                return await self._post(address, headers, body)
        except CallbackNotAllowed as error:
            return Attempt(NOT_ALLOWED, str(error))
        except TimeoutError:
            return Attempt(UNREACHABLE, f"no answer within {self._timeout_s:g} s")
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            return Attempt(UNREACHABLE, f"{type(error).__name__}: {error}")
        except Exception as error:
            LOGGER.exception("a webhook could not be sent; it is tried again")
            return Attempt(UNREACHABLE, f"{type(error).__name__}: {error}")

    async def _post(self, address: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Attempt:
        whole = [*headers, (b"content-length", str(len(body)).encode()), (b"user-agent", b"purgatory")]
        async with self._pool.stream("POST", address, headers=whole, content=body) as response:
            read = 0
            async for part in response.aiter_stream():
                read += len(part)
                if read > ANSWER_BYTES_MAX:
                    break
            return _attempt_of(response)

    async def close(self) -> None:
        await self._pool.aclose()


def _attempt_of(response: httpcore.Response) -> Attempt:
    status = response.status
    if 200 <= status < 300:
        return Attempt(DELIVERED)
    asked = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
    retry_after_s = min(int(asked), RETRY_AFTER_S_MAX) if asked.isdigit() else 0
    reason = f"HTTP {status}" + (", and redirects are not followed" if 300 <= status < 400 else "")
    return Attempt(REFUSED, reason, retry_after_s, is_final=status == GONE)
