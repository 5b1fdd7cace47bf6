"""The command line `purgatory-source`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer
from purgatory_client import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import InvalidRequest

from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.lineage_store import LineageStore
from purgatory_connectors.publisher.publisher import Publisher, Source
from purgatory_connectors.source_program import Supervisor, start_logging, until_stopped

EXIT_REFUSED: Final = 2
_EXTRAS: Final = {
    "kafka": ("confluent_kafka", "aiokafka"),
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "poll": ("httpcore", "jsonpointer", "sqlalchemy"),
}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Publish positions of Kafka, PostgreSQL, Redis and others to Purgatory daemons (docs/sources.md).",
)

Where = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="HOST:PORT[,HOST:PORT...], or a whole address with ?OPTION=VALUE&...")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the address. Can be repeated."),
]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        envvar="PURGATORY_ADDRESS",
        metavar="HOST:PORT[,...]",
        help="A daemon to publish to, or several of which one serves. Can be repeated; each receives all marks.",
    ),
]
Tls = Annotated[bool, typer.Option("--tls", help="Connect to the daemons with TLS; trusts public authorities.")]
TlsCa = Annotated[Path | None, typer.Option(envvar="PURGATORY_TLS_CA", help="Authorities to trust (PEM).")]
TlsCertificate = Annotated[
    Path | None, typer.Option(envvar="PURGATORY_TLS_CERTIFICATE", help="The client certificate (PEM).")
]
TlsKey = Annotated[
    Path | None, typer.Option(envvar="PURGATORY_TLS_KEY", help="The private key of the certificate (PEM).")
]
TokenFile = Annotated[
    Path | None, typer.Option(envvar="PURGATORY_TOKEN_FILE", help="A file that contains the bearer token.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar="PURGATORY_SOURCE_STATE_DIR",
        help="Directory for the lineages of marks. With it, a restart detects breaks that happened in between. "
        "Default: in memory.",
    ),
]
LogFormat = Annotated[str, typer.Option(envvar="PURGATORY_LOG_FORMAT", help="text or json, on stderr.")]
LogLevel = Annotated[str, typer.Option(envvar="PURGATORY_LOG_LEVEL", help="debug, info, warning or error.")]
Supervised = Annotated[bool, typer.Option("--supervised", hidden=True)]


def _add_command(scheme: str, text: str) -> None:
    """All connectors take the same options; settings of a single connector are part of its address."""

    def run(
        address: Where,
        option: Options = None,
        to: To = None,
        tls: Tls = False,
        tls_ca: TlsCa = None,
        tls_certificate: TlsCertificate = None,
        tls_key: TlsKey = None,
        token_file: TokenFile = None,
        state_dir: StateDir = None,
        log_format: LogFormat = "text",
        log_level: LogLevel = "info",
        supervised: Supervised = False,
    ) -> None:
        try:
            uri = _uri(scheme, address, option or ())
            start_logging(log_format, log_level)
            supervisor = Supervisor.of_this_process() if supervised else None

            def client_of(daemon: str) -> Callable[[], AsyncClient]:
                return lambda: AsyncClient(
                    daemon,
                    name="source",
                    tls=tls,
                    tls_ca=tls_ca,
                    tls_certificate=tls_certificate,
                    tls_key=tls_key,
                    token=(supervisor.token if supervisor is not None else "") or token_file,
                )

            clients = {daemon: client_of(daemon) for daemon in to or (DEFAULT_ADDRESS,)}
            asyncio.run(_run_publisher(uri, clients, supervisor, state_dir))
        except (SourceRefused, SourceUriInvalid, InvalidRequest) as error:
            print(f"purgatory-source: {error}", file=sys.stderr)
            raise typer.Exit(EXIT_REFUSED) from None

    app.command(scheme, help=text)(run)


_add_command(
    "kafka",
    "Publish the ends of topics and the committed offsets of consumer groups.\n\n"
    "Settings of librdkafka, such as sasl.password, are read from the file that the option `config` names, or from "
    "variables like PURGATORY_KAFKA_SASL_PASSWORD.",
)
_add_command(
    "postgres",
    "Publish how far servers have replayed the log.\n\n"
    "User and password are read from the file that the option `config` names, from PGPASSFILE, or from variables like "
    "PURGATORY_POSTGRES_PASSWORD.",
)
_add_command(
    "redis",
    "Publish the replication offsets of Redis or Valkey servers.\n\n"
    "User and password are read from the file that the option `config` names, or from variables like "
    "PURGATORY_REDIS_PASSWORD.",
)
_add_command(
    "poll",
    "Publish any number that only rises, from an HTTP server or a database: poll+http://..., poll+sql://...\n\n"
    "Headers, user and password are read from the file that the option `config` names, or from variables like "
    "PURGATORY_POLL_HEADER_AUTHORIZATION and PURGATORY_POLL_PASSWORD.",
)


def open_source(uri: SourceUri) -> Source:
    """Create the connector for an address. Raises SourceRefused, SourceUriInvalid."""
    for package in _EXTRAS[uri.kind]:
        if find_spec(package) is None:
            raise SourceRefused(f"{uri.kind} sources need {package}: pip install 'purgatory-waits[{uri.kind}]'")
    opened: Source = import_module(f"purgatory_connectors.{uri.kind}").open_source(uri)
    return opened


def main() -> None:
    """The console script `purgatory-source`."""
    app()


async def _run_publisher(
    uri: SourceUri,
    clients: Mapping[str, Callable[[], AsyncClient]],
    supervisor: Supervisor | None,
    state_dir: Path | None,
) -> None:
    source = open_source(uri)
    if supervisor is not None:
        supervisor.announce(source.name)
    publisher = Publisher(source, clients, LineageStore(state_dir))
    await until_stopped(publisher.run())


def _uri(kind: str, address: str, options: Sequence[str]) -> SourceUri:
    text = address if "://" in address else f"{kind}://{address}"
    for option in options:
        if "=" not in option:
            raise SourceUriInvalid(f"--option {option}: write it as NAME=VALUE")
        text += ("&" if "?" in text else "?") + quote(option, safe="=/,:")
    uri = SourceUri.parse(text)
    if uri.kind != kind:
        raise SourceUriInvalid(f"not a {kind} address: {address!r}; use the command {uri.kind}")
    return uri
