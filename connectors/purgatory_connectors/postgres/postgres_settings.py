"""Settings of a PostgreSQL source: servers, login parameters, how the servers form a group."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from psycopg import Error
from psycopg.conninfo import make_conninfo
from purgatory_client.sources.source_names import escaped_group

from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory_connectors.postgres.server_group import SLOT, GroupSettings
from purgatory_connectors.publisher.mark_rules import DERIVED
from purgatory_connectors.publisher.polled_source import POLL_OPTIONS

ENVIRONMENT_PREFIX: Final = "PURGATORY_POSTGRES_"

_OWN: Final = (
    *POLL_OPTIONS, "servers", "discover", "quorum", "lossless_promotion", "system_identifier", "forget_after_s",
)  # fmt: skip
_NO_LIBPQ: Final = ("host", "hostaddr", "port", "replication", "target_session_attrs", "load_balance_hosts")
_LIBPQ: Final = re.compile(r"[a-z_]+")
_HOST: Final = re.compile(r"(\[[^\]]+\]|[^:\[\]]+)(?::([0-9]+))?")


class ServerSettings(NamedTuple):
    """A server that is polled directly: its name in marks and its libpq connection parameters."""

    name: str
    parameters: Mapping[str, str]


class PostgresSettings(NamedTuple):
    """All settings of the source. `uri` has the options of the file named by `config` too."""

    uri: SourceUri
    servers: tuple[ServerSettings, ...]
    group: GroupSettings

    @classmethod
    def of_uri(cls, uri: SourceUri) -> "PostgresSettings":
        """Read the settings from an address. Raises SourceUriInvalid.

        The source's own options are part of the address. libpq's options ("user", "sslmode", "passfile" ...) may be
        there too, or unprefixed in the file named by `config`, or in libpq's own environment variables (PGUSER,
        PGPASSFILE). In the file, "server.NAME.user" applies to one server only.
        """
        uri = replace(uri, options={**_config(uri), **uri.options})
        servers = _servers(uri)
        group = GroupSettings(
            tuple(server.name for server in servers),
            finds_replicas=uri.choice("discover", "true", "false") == "true",
            quorum=uri.number("quorum", None),
            lossless_promotion=uri.choice("lossless_promotion", "false", "true") == "true",
            system_id=uri.number("system_identifier", None),
            forget_after_s=uri.number("forget_after_s", 3600),
        )
        return cls(uri, servers, group)


def _config(uri: SourceUri) -> dict[str, str]:
    """The keys of the file as written; environment variables take precedence."""
    config = uri.config(ENVIRONMENT_PREFIX)
    return {key if key.startswith("server.") else key.replace(".", "_"): value for key, value in config.items()}


def _servers(uri: SourceUri) -> tuple[ServerSettings, ...]:
    names, options = uri.listed("servers"), uri.options
    if names and len(names) != len(uri.hosts):
        raise SourceUriInvalid(f"source {uri.text!r}: {len(names)} names in `servers` for {len(uri.hosts)} hosts")
    shared = {key: value for key, value in options.items() if key not in _OWN and "." not in key}
    for key in shared:
        if key in _NO_LIBPQ or not _LIBPQ.fullmatch(key):
            raise SourceUriInvalid(f"source {uri.text!r}: unknown option {key!r}; known: {', '.join(_OWN)} and libpq's")
    try:
        make_conninfo("", **shared)
    except Error as error:
        raise SourceUriInvalid(f"source {uri.text!r}: {str(error).strip()}; known: {', '.join(_OWN)}") from None
    if uri.path:
        shared["dbname"] = uri.path
    servers = []
    for index, address in enumerate(uri.hosts):
        match = _HOST.fullmatch(address)
        if match is None:
            raise SourceUriInvalid(f"source {uri.text!r}: {address!r} is not host or host:port")
        host = match[1].strip("[]")
        hosts = [one.rpartition(":")[0] or one for one in uri.hosts]
        name = names[index] if names else host if hosts.count(match[1]) == 1 else address
        own = {
            key.removeprefix(f"server.{name}."): value
            for key, value in options.items()
            if key.startswith(f"server.{name}.")
        }
        port = {"port": match[2]} if match[2] else {}
        servers.append(ServerSettings(_checked(uri, name), {**shared, "host": host, **port, **own}))
    if len({server.name for server in servers}) < len(servers):
        raise SourceUriInvalid(f"source {uri.text!r}: two servers have the same name; set others with servers=A,B")
    return tuple(servers)


def _checked(uri: SourceUri, name: str) -> str:
    if name in DERIVED or name.startswith(SLOT) or escaped_group(name) != name or len(name) > 100:
        raise SourceUriInvalid(
            f"source {uri.text!r}: invalid server name {name!r}; "
            f"allowed: up to 100 characters, no slash, not {', '.join(DERIVED)} nor {SLOT}..."
        )
    return name
