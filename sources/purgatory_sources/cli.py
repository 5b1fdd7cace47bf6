"""The command line of sources."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer
from purgatory_client import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import InvalidRequest

from purgatory_sources.errors import ExtraMissing, SourceRefused, SourceUriInvalid
from purgatory_sources.publisher.lineage_store import LineageStore
from purgatory_sources.publisher.publisher import Publisher
from purgatory_sources.publisher.source import Source
from purgatory_sources.source_program import Supervisor, start_logging, until_stopped
from purgatory_sources.uri import SCHEMES, SourceUri

EXIT_REFUSED: Final = 2
_EXTRAS: Final = {"kafka": ("confluent_kafka", "aiokafka"), "postgres": ("psycopg",)}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Tell Purgatory daemons by yourself where Kafka and PostgreSQL stand (docs/sources.md).",
)

Where = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="HOST:PORT[,HOST:PORT...], or a whole address with ?OPTION=VALUE&...")
]
Options = Annotated[
    list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="As in the address. May be repeated.")
]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--to", envvar="PURGATORY_ADDRESS", help="A daemon to tell. May be repeated: each is told everything."
    ),
]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS towards the daemons, with public authorities.")]
TlsCa = Annotated[Path | None, typer.Option(envvar="PURGATORY_TLS_CA", help="Authorities to trust (PEM).")]
TlsCertificate = Annotated[
    Path | None, typer.Option(envvar="PURGATORY_TLS_CERTIFICATE", help="The certificate to present (PEM).")
]
TlsKey = Annotated[Path | None, typer.Option(envvar="PURGATORY_TLS_KEY", help="Its private key (PEM).")]
TokenFile = Annotated[
    Path | None, typer.Option(envvar="PURGATORY_TOKEN_FILE", help="A file with the bearer token to show.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar="PURGATORY_SOURCE_STATE_DIR",
        help="Keeps the lineages of marks, so that a break is noticed that happened meanwhile. Default: in memory.",
    ),
]
LogFormat = Annotated[str, typer.Option(envvar="PURGATORY_LOG_FORMAT", help="text or json, on stderr.")]
LogLevel = Annotated[str, typer.Option(envvar="PURGATORY_LOG_LEVEL", help="debug, info, warning or error.")]
Supervised = Annotated[bool, typer.Option("--supervised", hidden=True)]


@app.command()
def kafka(
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
    """Tell where topics end and what consumer groups have committed.

    Settings of librdkafka, such as sasl.password, stand in the file that `config` names, or in variables like
    PURGATORY_KAFKA_SASL_PASSWORD.
    """
    protection = Protection(tls, tls_ca, tls_certificate, tls_key, token_file)
    _run("kafka", address, option, to, protection, state_dir, (log_format, log_level), supervised)


@app.command()
def postgres(
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
    """Tell how far servers have replayed the log.

    User and password stand in the file that `config` names, in PGPASSFILE, or in variables like
    PURGATORY_POSTGRES_PASSWORD.
    """
    protection = Protection(tls, tls_ca, tls_certificate, tls_key, token_file)
    _run("postgres", address, option, to, protection, state_dir, (log_format, log_level), supervised)


def open_source(uri: SourceUri, state_dir: Path | None) -> Source:
    """The source of an address, which may keep what it must in a folder.

    Raises:
        SourceRefused: The address or a setting is wrong; ExtraMissing where what it reads with is not installed.
    """
    for package in _EXTRAS[uri.scheme]:
        if find_spec(package) is None:
            raise ExtraMissing(f"{uri.scheme} sources need {package}: pip install 'purgatory-waits[{uri.scheme}]'")
    opened: Source = import_module(f"purgatory_sources.{uri.scheme}").open_source(uri, state_dir)
    return opened


def main() -> None:
    """The console script `purgatory-source`."""
    app()


class Protection:
    """How the daemons are connected to. With a parent, which is a daemon, the token is what it has said."""

    def __init__(
        self, tls: bool, ca: Path | None, certificate: Path | None, key: Path | None, token_file: Path | None
    ) -> None:
        self.parent: Supervisor | None = None
        self._tls: Final = tls
        self._ca: Final = ca
        self._certificate: Final = certificate
        self._key: Final = key
        self._token_file: Final = token_file

    def client_of(self, address: str) -> Callable[[], AsyncClient]:
        """What makes a client of this daemon. Raises InvalidRequest where the options do not go together."""
        token = self._token_file if self.parent is None or not self.parent.token else self.parent.token

        def open_client() -> AsyncClient:
            return AsyncClient(
                address,
                name="source",
                tls=self._tls,
                tls_ca=self._ca,
                tls_certificate=self._certificate,
                tls_key=self._key,
                token=token,
            )

        return open_client


def _run(
    scheme: str,
    address: str,
    options: Sequence[str] | None,
    to: Sequence[str] | None,
    protection: Protection,
    state_dir: Path | None,
    log: tuple[str, str],
    supervised: bool,
) -> None:
    try:
        uri = _uri(scheme, address, options or ())
        start_logging(*log)
        if supervised:
            protection.parent = Supervisor.of_this_process()
        asyncio.run(_run_publisher(uri, list(to or (DEFAULT_ADDRESS,)), protection, state_dir))
    except (SourceRefused, InvalidRequest) as error:
        print(f"purgatory-source: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_REFUSED) from None


async def _run_publisher(uri: SourceUri, daemons: list[str], protection: Protection, state_dir: Path | None) -> None:
    source = open_source(uri, state_dir)
    if protection.parent is not None:
        protection.parent.announce(source.name)
    clients = {address: protection.client_of(address) for address in daemons}
    publisher = Publisher(source, clients, LineageStore(state_dir))
    await until_stopped(publisher.run())


def _uri(scheme: str, address: str, options: Sequence[str]) -> SourceUri:
    text = address if "://" in address else f"{scheme}://{address}"
    for option in options:
        if "=" not in option:
            raise SourceUriInvalid(f"--option {option}: write it as NAME=VALUE")
        text += ("&" if "?" in text else "?") + option.replace("&", "%26").replace("+", "%2B")
    uri = SourceUri.parse(text)
    if uri.scheme != scheme:
        raise SourceUriInvalid(f"{address!r} is no address of {scheme}; the command is one of {', '.join(SCHEMES)}")
    return uri
