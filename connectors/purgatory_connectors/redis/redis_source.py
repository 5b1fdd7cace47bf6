"""The Redis source: polls `INFO replication` of each server.

Marks are under "redis/NAME/": SERVER, any, all and quorum.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from redis._parsers import _AsyncRESP2Parser
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError

from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.publisher.mark_rules import DERIVED, StaleMark
from purgatory_connectors.publisher.observation import End, Observation
from purgatory_connectors.publisher.polled_source import (
    POLL_OPTIONS,
    POSITION_MAX,
    PolledSource,
    Unreadable,
    named_servers,
)
from purgatory_connectors.redis.replica_group import ReplicaGroup, ServerState

ANSWER_BYTES_MAX: Final = 1 << 16
"""`INFO replication` has about 1,000 bytes, and 100 for each replica."""


class BoundedParser(_AsyncRESP2Parser):
    """The package's parser of protocol 2, which has no limits, and does not let the loop run while it has data.

    Raises InvalidResponse for an answer that is longer or nested too deeply; the package then closes the connection.
    """

    async def read_response(self, disable_decoding: bool = False) -> Any:  # noqa: ANN401 - as in the package
        self._left = ANSWER_BYTES_MAX
        try:
            return await super().read_response(disable_decoding)
        except RecursionError:
            raise InvalidResponse("its answer is nested too deeply") from None

    async def _read(self, length: int) -> bytes:
        self._count(length)
        octets: bytes = await super()._read(length)
        return octets

    async def _readline(self) -> bytes:
        line: bytes = await super()._readline()
        self._count(len(line) + 2)
        return line

    def _count(self, length: int) -> None:
        self._left -= length
        if self._left < 0:
            raise InvalidResponse(f"its answer is longer than {ANSWER_BYTES_MAX:,} bytes")


class RedisSource(PolledSource[ServerState]):
    """Its targets are the servers, by name. Raises SourceUriInvalid."""

    def __init__(self, uri: SourceUri) -> None:
        uri = uri.merged("PURGATORY_REDIS_")
        hosts = named_servers(uri)
        super().__init__("redis", uri, tuple(hosts), poll_ms=20)
        self._quorum: Final = uri.number("quorum", None)
        self._clients: Final = {name: _client(uri, host) for name, host in hosts.items()}
        self._group = ReplicaGroup(tuple(hosts), self._quorum, {}, (), 0.0)

    async def read(self, target: str) -> ServerState:
        try:
            return _state_of(await self._clients[target].info("replication"))
        except NoPermissionError as error:
            raise Unreadable(f"{error}; the user needs the right +info", is_refused=True) from error
        except AuthenticationError as error:
            raise Unreadable(
                f"{error}; look at PURGATORY_REDIS_USER and PURGATORY_REDIS_PASSWORD", is_refused=True
            ) from error
        except (RedisError, OSError) as error:
            raise Unreadable(str(error) or type(error).__name__) from error
        except (LookupError, TypeError, ValueError) as error:
            raise Unreadable(f"its INFO replication is not that of Redis 4 or newer: {error!r}") from error

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def begin(self, published: Mapping[str, int]) -> None:
        unlisted = published.keys() - {*self._clients, *DERIVED}
        self.publisher.observe(Observation(self.prefix + mark, 0, None) for mark in unlisted)
        published = {mark: position for mark, position in published.items() if mark not in unlisted}
        lineages = [self.publisher.replicator.lineage((self.prefix + mark, 0)) for mark in published]
        known = [(*one.retired, one.identity) for one in lineages if one is not None and one.identity]
        # Each break changes the history of all marks, so the longest list is the most recent one.
        histories = max(known, key=len, default=())
        self._group = ReplicaGroup(tuple(self._clients), self._quorum, published, histories, time.monotonic())

    def apply(self, target: str, reading: ServerState | Unreadable, now: float) -> list[Observation]:
        if isinstance(reading, Unreadable):
            changes = self._group.mark_stale(target, str(reading), now)
        else:
            changes = self._group.observe(target, reading, now)
        return [one._replace(topic=self.prefix + one.topic) for one in changes]

    def stale(self) -> list[StaleMark]:
        return [StaleMark(mark, seen_at, reason) for mark, (seen_at, reason) in self._group.stale().items()]

    def needs(self, mark: str) -> Iterable[str]:
        return self._clients if mark in DERIVED else {mark} & self._clients.keys()

    async def ends(self, names: Sequence[str]) -> list[End]:
        """The primary's offset, read after the call began. Raises SourceStale."""
        primary = self._group.primary
        if primary is None:
            raise SourceStale(f"{self.prefix}: no primary is available, or more than one")
        state = await self.asked(primary)
        # After a promotion during the query, this end may be lost.
        if not state.is_primary or state.history != self._group.history:
            raise SourceStale(f"{self.prefix}: {primary} is no longer the primary")
        return [End(name, 0, state.position) for name in names]


def _client(uri: SourceUri, host: str) -> Redis:
    """A client of one server. The options that are not the source's own are those of the package `redis`."""
    own = {*POLL_OPTIONS, "servers", "quorum", "user", "password"}
    others = {option.replace(".", "_"): value for option, value in uri.options.items() if option not in own}
    scheme = uri.scheme.replace("valkey", "redis")
    login: dict[str, Any] = {"username": uri.options.get("user"), "password": uri.options.get("password")}
    # Protocol 2 is what all versions speak, and the only retries are those of the source.
    url = f"{scheme}://{host}/?{urlencode({**others, 'protocol': '2'})}"
    try:
        client = Redis.from_url(url, **login, retry=Retry(NoBackoff(), 0), parser_class=BoundedParser)
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call] # checks the options, without connecting
    except (TypeError, ValueError) as error:
        raise SourceUriInvalid(f"source {uri.text!r}: {error}; see the options of the Python package redis") from error
    return client


def _state_of(info: Mapping[str, Any]) -> ServerState:
    """The state in an answer. Raises Unreadable: a replica without its primary may be loading other data."""
    is_primary = info["role"] == "master"
    if not is_primary and info["master_link_status"] != "up":
        raise Unreadable("it is not connected to its primary, or still loads its data")
    position = info["master_repl_offset" if is_primary else "slave_repl_offset"]
    if not 0 <= position <= POSITION_MAX:
        raise ValueError(position)
    # `second_repl_offset` is the first offset that is not of the earlier history.
    return ServerState(
        is_primary, info["master_replid"], position, info["master_replid2"], info["second_repl_offset"] - 1
    )
