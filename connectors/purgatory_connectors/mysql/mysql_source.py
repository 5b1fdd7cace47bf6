"""The MySQL source: polls the executed GTIDs of each server, for the marks "mysql/NAME/SERVER/SOURCE".

PyMySQL blocks, so each server has a thread of its own.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pymysql
from purgatory_client.errors import InvalidRequest
from purgatory_client.sources.gtids import executed_of

from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.mysql.gtid_group import GtidGroup, ServerState
from purgatory_connectors.publisher.mark_rules import DERIVED, StaleMark
from purgatory_connectors.publisher.observation import End, Observation
from purgatory_connectors.publisher.polled_source import (
    POLL_OPTIONS,
    POSITION_MAX,
    PolledSource,
    Unreadable,
    named_servers,
)

_SOURCES_MAX: Final = 1_000
_TLS: Final = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity")
_REFUSALS: Final = (1044, 1045, 1130, 1142, 1227, 1698, 1862, 2059, 3118)
"""Access denied, a host that is not allowed, a missing right, an expired password, an unknown way to log in, a locked
account."""
_MYSQL_IDENTITY: Final = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'group_replication_group_name', "
    "'group_replication_gtid_assignment_block_size')"
)


class ServerReader:
    """Keeps a connection to one server. Only `read` and `close` of the server's own thread use it."""

    def __init__(self, login: Mapping[str, Any]) -> None:
        self._login: Final = login
        self._connection: pymysql.Connection[Any] | None = None
        self._identity: dict[str, str] = {}

    def read(self) -> ServerState:
        """Connect if necessary, and ask once. Raises Unreadable."""
        try:
            if self._connection is None:
                self._connection = pymysql.connect(**self._login)
                version: str = self._connection.get_server_info()  # type: ignore[no-untyped-call]
                is_mariadb = "mariadb" in version.lower()
                self._identity = {} if is_mariadb else dict(self._rows(_MYSQL_IDENTITY))
            return self._ask()
        except (pymysql.Error, OSError, InvalidRequest, LookupError, ValueError, RuntimeError) as error:
            self.close()  # RuntimeError: without `cryptography`, for a login with caching_sha2_password
            code = error.args[0] if isinstance(error, pymysql.Error) and error.args else 0
            advice = "; look at PURGATORY_MYSQL_USER and PURGATORY_MYSQL_PASSWORD" if code in _REFUSALS else ""
            reason = error.args[-1] if error.args else repr(error)
            raise Unreadable(f"{reason}{advice}", is_refused=bool(advice)) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _ask(self) -> ServerState:
        if self._identity:
            # `gtid_mode` can change while the server runs.
            ((mode, text),) = self._rows("SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed")
            if mode != "ON":
                raise Unreadable("its gtid_mode is not ON", is_refused=True)
            own = self._identity["server_uuid"].lower()
        else:
            ((text, own),) = self._rows("SELECT @@GLOBAL.gtid_current_pos, @@GLOBAL.server_id")
        executed = executed_of(text)
        if len(executed) > _SOURCES_MAX or any(one.newest > POSITION_MAX for one in executed.values()):
            raise Unreadable(f"it has more than {_SOURCES_MAX} sources, or a number above {POSITION_MAX}")
        group = self._identity.get("group_replication_group_name", "").lower()
        is_in_blocks = self._identity.get("group_replication_gtid_assignment_block_size", "1") != "1"
        return ServerState(str(own), executed, group, is_in_blocks)

    def _rows(self, query: str) -> Sequence[Any]:
        assert self._connection is not None
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            rows: Sequence[Any] = cursor.fetchall()
            return rows


class MysqlSource(PolledSource[ServerState]):
    """Its targets are the servers, by name. Raises SourceUriInvalid."""

    def __init__(self, uri: SourceUri) -> None:
        uri = uri.merged("PURGATORY_MYSQL_")
        hosts = named_servers(uri)
        options = {name.replace(".", "_"): value for name, value in uri.options.items()}
        for name in options.keys() - {*POLL_OPTIONS, *_TLS, "servers", "quorum", "user", "password"}:
            raise SourceUriInvalid(f"source {uri.text!r}: unknown option {name!r}; TLS has {', '.join(_TLS)}")
        super().__init__("mysql", uri, tuple(hosts), poll_ms=20)
        self._quorum: Final = uri.number("quorum", None)
        login: dict[str, Any] = {
            "user": options.get("user"),
            "password": options.get("password", ""),
            "autocommit": True,
        }
        for name in options.keys() & set(_TLS):
            login[name] = options[name] == "true" if "verify" in name else options[name]
        login |= {f"{name}_timeout": self._timeout_s for name in ("connect", "read", "write")}
        self._readers: Final = {name: ServerReader({**login, **_place(uri, host)}) for name, host in hosts.items()}
        # One thread each: a question waits there until an earlier one, whose time was up, has ended.
        self._threads: Final = {name: ThreadPoolExecutor(1, f"mysql-{name}") for name in hosts}
        self._group = GtidGroup(tuple(hosts), self._quorum, {}, {}, 0.0)

    async def read(self, target: str) -> ServerState:
        return await asyncio.get_running_loop().run_in_executor(self._threads[target], self._readers[target].read)

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for name, reader in self._readers.items():
            await loop.run_in_executor(self._threads[name], reader.close)

    def begin(self, published: Mapping[str, int]) -> None:
        listed = {mark: at for mark, at in published.items() if mark.partition("/")[0] in {*self._readers, *DERIVED}}
        self.publisher.observe(Observation(self.prefix + mark, 0, None) for mark in published.keys() - listed.keys())
        identities: dict[str, str] = {}
        for mark in listed:
            lineage, key = self.publisher.replicator.lineage((self.prefix + mark, 0)), mark.partition("/")[2]
            if lineage is not None and lineage.identity:
                number = int(lineage.identity.partition("/")[0])
                if number >= int(identities.get(key, "0/").partition("/")[0]):
                    identities[key] = lineage.identity
        self._group = GtidGroup(tuple(self._readers), self._quorum, listed, identities, time.monotonic())

    def apply(self, target: str, reading: ServerState | Unreadable, now: float) -> list[Observation]:
        if isinstance(reading, Unreadable):
            changes = self._group.mark_stale(target, str(reading), now)
        else:
            changes = self._group.observe(target, reading, now)
        return [one._replace(topic=self.prefix + one.topic) for one in changes]

    def stale(self) -> list[StaleMark]:
        wanted = frozenset(topic.removeprefix(self.prefix) for topic, _ in self.publisher.demand)
        return self._group.stale(wanted, time.monotonic())

    def needs(self, mark: str) -> Iterable[str]:
        server = mark.partition("/")[0]
        return self._readers if server in DERIVED else {server} & self._readers.keys()

    async def ends(self, names: Sequence[str]) -> list[End]:
        """The newest transaction of each source at its own server, or at any of its group, read after the call began.
        Raises SourceStale.
        """
        ends = []
        for name in names:
            key = name.removeprefix(self.prefix).partition("/")[2]
            writers = self._group.writers(key)
            if not writers:
                raise SourceStale(f"{name}: the server that writes {key} is not available or not listed")
            states = [await self.asked(one) for one in writers]
            if self._group.writers(key) != writers or any(key not in state.executed for state in states):
                raise SourceStale(f"{name}: {writers[0]} no longer writes {key}")
            ends.append(End(name, 0, max(state.executed[key].newest for state in states)))
        return ends


def _place(uri: SourceUri, host: str) -> dict[str, str | int]:
    name, _, port = host.rpartition(":") if host.rpartition(":")[2].isdecimal() else (host, "", "3306")
    if not name or int(port) > 65_535 or uri.path:
        raise SourceUriInvalid(f"source {uri.text!r}: {host!r} must be host or host:port, without a database")
    return {"host": name.strip("[]"), "port": int(port)}
