"""Shared by the middleware for ASGI and WSGI: the tokens of a request, the judgement of its wait, the fate of a request
that could not wait, and error answers.

Tokens come from callers, so everything in them is checked, and the daemon checks the rest.
"""

import asyncio
import json
import logging
import math
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Generic, Literal, TypeVar, get_args

from purgatory_client import errors
from purgatory_client.aio import AsyncClient
from purgatory_client.argument_checks import milliseconds
from purgatory_client.middleware.breaker import Breaker
from purgatory_client.middleware.signing import Key, checked_keys, sign, verified
from purgatory_client.results import Outcome, PartitionResult, Result
from purgatory_client.sources.position_tokens import Positions
from purgatory_client.waits import ByPartition

HEADER: Final = "Purgatory-Token"
STALE_HEADER: Final = "Purgatory-Stale"
SCOPE_KEY: Final = "purgatory.exchange"
"""Where an application finds the `Exchange` of its request: in the scope of ASGI, and in the environ of WSGI."""
TOKENS_MAX: Final = 16
POSITIONS_MAX: Final = 2_000
"""Positions in the tokens of one request together, as many as a wait may have by default."""
LATE_S_MAX: Final = 2.0
"""Seconds after the timeout of a wait in which the daemon must answer; then it counts as unreachable."""
SERVERS_S_MAX: Final = 1.0
"""Seconds for which a request waits, once its positions are reached, to learn which servers have them."""
EPOCHS_S_MAX: Final = 1.0
"""Seconds for which a response waits for the epochs of its token."""
ENDED: Final = frozenset({3, 74})
"""Error codes of a position whose history has ended: there is nothing left to wait for."""
FAILED_WAITS: Final = {HTTPStatus.GATEWAY_TIMEOUT: "not-reached", HTTPStatus.SERVICE_UNAVAILABLE: "unavailable"}
"""Answers to requests that could be served without the wait, and the reason that the header then gives."""

OnTimeout = Literal["refuse", "serve", "primary"]
Client = TypeVar("Client")

_logger = logging.getLogger("purgatory_client")
_exchange: "ContextVar[Exchange | None]" = ContextVar("purgatory exchange", default=None)


def wrote(offsets: ByPartition) -> None:
    """Tell the middleware what the request that is being served has written. May be called repeatedly.

    Args:
        offsets: The mark that shows when readers see the write, and the offset that it must reach: {"pg/main/r1": lsn}.

    Raises:
        InvalidRequest: An offset or name is invalid, or no request is being served by the middleware here.
    """
    exchange = _exchange.get()
    if exchange is None:
        raise errors.InvalidRequest(
            "wrote", "no request is being served here; add the middleware ReadYourWrites to the app"
        )
    exchange.add(Positions(offsets))


def readable_replicas(database: str, replicas: Iterable[str]) -> list[str]:
    """Those of the replicas from which the request that is being served may read. None of them: read from the primary.

    Args:
        database: The beginning of the names of its marks: "pg/main", "mysql/main".
        replicas: Names of servers, as the source has them. All of them are returned if no request is being served.
    """
    exchange = _exchange.get()
    return list(replicas) if exchange is None else exchange.readable_replicas(database, replicas)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response in place of the application's."""

    status: HTTPStatus
    headers: list[tuple[str, str]]
    body: bytes


class Exchange:
    """The tokens of one request. Raises InvalidRequest if a received token is invalid.

    Attributes:
        received: The positions that the caller has sent, of any cluster.
        awaited: Those of them that this application waits for.
        written: The positions that the handler has reported with `wrote`.
        stale: Why the caller's writes may be missing: "not-reached" or "unavailable". Empty: they can be read.
        from_primary: Whether the handler should read from the primary: the wait has failed, or the daemon has not said
            which servers have the positions.
        must_wait: Whether the wait for the positions is still to come.
        reached_on: The servers that have the awaited positions, by database: {"pg/main": {"r1", "r2"}}.
    """

    stale = ""
    from_primary = False
    reached_on: Mapping[str, Collection[str]]

    def __init__(self, headers: Iterable[str], prefixes: Collection[str], keys: tuple[bytes, ...] = ()) -> None:
        self.reached_on = {}
        self.received = Positions({})
        tokens = [token.strip() for token in ",".join(headers).split(",")]  # a proxy may have joined several headers
        if len(tokens) > TOKENS_MAX:
            raise errors.InvalidRequest("token", f"{len(tokens)} tokens in one request; at most {TOKENS_MAX}")
        count = 0  # of all tokens, also if they have the same marks: reading one takes as long as reading another
        for token in filter(None, tokens):
            positions = Positions.of_token(verified(token, keys), positions_max=POSITIONS_MAX)
            if (count := count + len(positions.offsets)) > POSITIONS_MAX:
                raise errors.InvalidRequest("token", f"{count} positions in one request; at most {POSITIONS_MAX}")
            self.received = self.received.merge(positions)
        self.awaited: Final = self.received.select(lambda name: name.startswith(tuple(prefixes)))
        self.must_wait = bool(self.awaited.offsets)
        self.written = Positions({})
        self._lock: Final = threading.Lock()

    def add(self, written: Positions) -> None:
        """Add written positions. Threads of one handler may do so at the same time."""
        with self._lock:
            self.written = self.written.merge(written)

    def readable_replicas(self, database: str, replicas: Iterable[str]) -> list[str]:
        """As the function of this name, for this request."""
        if self.from_primary or any(name.startswith(f"{database}/") for name in self.written.offsets):
            return []  # what it has written itself has hardly reached a replica yet
        reached = self.reached_on.get(database)
        return [name for name in replicas if reached is None or name in reached]

    def judge(self, result: Result) -> Answer | None:
        """The answer if the positions were not reached. None: the application may read."""
        if result.satisfied:
            return None
        if result.outcome in {Outcome.CANCELLED, Outcome.SHUTTING_DOWN}:
            return _unavailable(f"the wait ended: {result.outcome.name.lower().replace('_', ' ')}")
        open_marks = [one for one in result.partitions.values() if one.error_code not in {0, *ENDED}]
        if open_marks:
            return _too_late(open_marks)
        ended = {one.name for one in result.partitions.values() if one.error_code in ENDED}
        # As a repr, because callers choose the names.
        _logger.info("no longer waiting for %s: their history has ended", sorted(ended))
        self.received = self.received.select(lambda name: name not in ended)
        return None

    def following(self, written: Positions) -> Positions:
        """The positions that the caller sends from now on: those that it sent, and the written ones."""
        # A write whose epoch is unknown may belong to a newer history than the one that the caller knows. With the
        # caller's epoch, its wait would end together with that history.
        unknown = written.offsets.keys() - written.leader_epochs.keys()
        epochs = {name: epoch for name, epoch in self.received.leader_epochs.items() if name not in unknown}
        return Positions(self.received.offsets, epochs).merge(written)

    @contextmanager
    def active(self) -> Iterator[None]:
        """In the block, `wrote` adds to this exchange. Threads and tasks that are started there inherit it."""
        before = _exchange.set(self)
        try:
            yield
        finally:
            _exchange.reset(before)


class Middleware(Generic[Client]):
    """The arguments of both kinds.

    Args:
        app: The application.
        client: The client to wait with. It stays open; close it with the application.
        timeout: Seconds to wait before the answer is 504.
        prefixes: Wait only for marks whose names begin with one of these, and pass the others on: a token may contain
            positions of clusters that this application does not read from. By default all.
        header: The name of the header, in requests and responses.
        fail_when_stale: Answer 504 at once when a mark has been stale for this many seconds. None: wait.
        on_timeout: What happens to a request whose positions are not reached in time, or while the daemon does not
            answer. "refuse": 504 or 503. "serve": it is served, and the response has the header `Purgatory-Stale`.
            "primary": it is served, and should read from the primary (`Exchange.from_primary`, `readable_replicas`).
        keys: Sign tokens with the first of these keys, and accept only tokens that one of them has signed. Each is a
            secret of 16 bytes or more. None: tokens are not signed.

    Attributes:
        counts: How many requests have waited, by the end of their wait: "reached", "not-reached" and "unavailable".
    """

    def __init__(
        self,
        app: Any,  # noqa: ANN401 - each framework has types of its own for applications
        client: Client,
        *,
        timeout: float = 5.0,
        prefixes: Collection[str] = ("",),
        header: str = HEADER,
        fail_when_stale: float | None = None,
        on_timeout: OnTimeout = "refuse",
        keys: Sequence[Key] = (),
    ) -> None:
        milliseconds(timeout)
        milliseconds(fail_when_stale, "stale_timeout_ms")
        if isinstance(prefixes, str) or not prefixes:
            raise errors.InvalidRequest("prefixes", f"{prefixes!r}; give a list of prefixes, such as ['pg/main/']")
        if on_timeout not in get_args(OnTimeout):
            raise errors.InvalidRequest("on_timeout", f"{on_timeout!r}; must be one of {get_args(OnTimeout)}")
        self.app: Final = app
        self.client: Final = client
        self.header: Final = header
        self.timeout: Final = timeout
        self.prefixes: Final = tuple(prefixes)
        self.fail_when_stale: Final = fail_when_stale
        self.on_timeout: Final[OnTimeout] = on_timeout
        self.counts: Final = Counter[str]()
        self._keys: Final = checked_keys(keys)
        # A late answer about epochs must not let reads go without their wait, so each has its own breaker.
        self._waits: Final = Breaker()
        self._lookups: Final = Breaker()
        self._counting: Final = threading.Lock()

    async def admit(self, client: AsyncClient, tokens: Iterable[str]) -> Exchange | Answer:
        """Wait for the positions in a request's tokens. An answer: the application must not be called."""
        begun = self._begin(tokens)
        return await self._finish(client, begun) if isinstance(begun, Exchange) and begun.must_wait else begun

    def _begin(self, tokens: Iterable[str]) -> Exchange | Answer:
        """The part that needs no client, in any thread: all of it if there is nothing to wait for, or no answer."""
        try:
            exchange = Exchange(tokens, self.prefixes, self._keys)
        except errors.PurgatoryClientError as error:
            return _refusal(error)
        if exchange.must_wait and self._waits.is_open:
            return self._ended(exchange, _unavailable("the daemon does not answer"))
        return exchange

    async def _finish(self, client: AsyncClient, exchange: Exchange) -> Exchange | Answer:
        try:
            answer = await self._waits.call(
                client, exchange.awaited, lambda: self._wait(client, exchange), self.timeout + LATE_S_MAX
            )
        except errors.PurgatoryClientError as error:
            answer = _refusal(error)
        return self._ended(exchange, answer)

    def _ended(self, exchange: Exchange, answer: Answer | None) -> Exchange | Answer:
        exchange.must_wait = False
        reason = "reached" if answer is None else FAILED_WAITS.get(answer.status)
        if reason is not None:
            with self._counting:
                self.counts[reason] += 1
        if answer is None:
            return exchange
        if reason is None:
            return answer
        if self.on_timeout == "refuse":
            return answer
        exchange.from_primary = self.on_timeout == "primary"
        exchange.stale = "" if exchange.from_primary else reason
        return exchange

    def _headers_of(self, exchange: Exchange, written: Positions) -> list[tuple[str, str]]:
        """The headers of a response that begins now. `written`: with epochs, if they are known."""
        found = [(STALE_HEADER, exchange.stale)] if exchange.stale else []
        if written.offsets:
            found.append((self.header, sign(exchange.following(written).token, self._keys)))
        return found

    async def _wait(self, client: AsyncClient, exchange: Exchange) -> Answer | None:
        result = await client.wait_for(exchange.awaited, timeout=self.timeout, fail_when_stale=self.fail_when_stale)
        if (answer := exchange.judge(result)) is None:
            try:
                async with asyncio.timeout(SERVERS_S_MAX):
                    exchange.reached_on = await client.reached_on(result)
            except (TimeoutError, errors.PurgatoryClientError) as error:  # the wait itself has succeeded
                _logger.warning(
                    "a request reads from the primary: no answer on which servers have its write: %r", error
                )
                exchange.from_primary = True
        return answer

    async def _with_epochs(self, client: AsyncClient, written: Positions) -> Positions:
        try:
            return await self._lookups.call(client, written, lambda: client.with_epochs(written.offsets), EPOCHS_S_MAX)
        except errors.PurgatoryClientError as error:  # the write itself has succeeded
            level = logging.DEBUG if isinstance(error, errors.Unavailable) else logging.WARNING  # the breaker warns
            _logger.log(level, "a token has no leader epochs, because the daemon did not return them: %r", error)
            return written


def _refusal(error: errors.PurgatoryClientError) -> Answer:
    """The answer for an error before the wait had ended. Raises the error if it is not the caller's or the daemon's."""
    match error:
        case errors.InvalidRequest():
            return _answer(HTTPStatus.BAD_REQUEST, f"invalid token: {error}")
        case errors.Unavailable() | errors.LimitExceeded() | errors.NoAnswer() | errors.SessionClosed():
            return _unavailable(str(error))
        case errors.PermissionDenied() if not isinstance(error, errors.Unauthenticated):
            return _answer(HTTPStatus.FORBIDDEN, f"this service may not wait for a mark in the token: {error}")
        case _:
            raise error


def _too_late(marks: list[PartitionResult]) -> Answer:
    estimates = [one.estimated_remaining for one in marks]
    known = [estimate for estimate in estimates if estimate is not None]
    headers = [("Retry-After", str(math.ceil(max(known))))] if len(known) == len(marks) else []
    return _answer(
        HTTPStatus.GATEWAY_TIMEOUT,
        "your write cannot be read here yet",
        headers,
        marks=[
            {
                "name": one.name,
                "required": one.required_offset,
                "reached": one.reached_offset,
                "eta_ms": None if one.estimated_remaining is None else round(one.estimated_remaining * 1_000),
                "stale_reason": one.stale_reason or None,
            }
            for one in marks
        ],
    )


def _unavailable(detail: str) -> Answer:
    return _answer(HTTPStatus.SERVICE_UNAVAILABLE, detail, [("Retry-After", "1")])


def _answer(status: HTTPStatus, detail: str, headers: Iterable[tuple[str, str]] = (), **more: object) -> Answer:
    """A problem document (RFC 9457)."""
    body = json.dumps({"title": status.phrase, "status": int(status), "detail": detail, **more}).encode()
    fixed = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
    return Answer(status, [*fixed, *headers], body)
