"""The command line `purgatory-source`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer
from purgatory_client import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import InvalidRequest

from purgatory import log
from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.lineage_store import LineageStore
from purgatory_connectors.publisher.publisher import Publisher, Source

LEVELS: Final = ("debug", "info", "warning", "error")


class NoRepetitions(logging.Filter):
    """Passes each line at most once per `seconds`, ignoring differences in numbers. Client libraries log an unavailable
    broker hundreds of times at once.
    """

    def __init__(self, seconds: float = 30.0, lines_max: int = 1_000) -> None:
        super().__init__()
        self._seconds: Final = seconds
        self._lines_max: Final = lines_max
        self._passed: Final[dict[tuple[str, int, str], float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = (record.name, record.levelno, re.sub(r"\d+", "", record.getMessage()))
        if record.created - self._passed.get(line, 0.0) < self._seconds:
            return False
        if len(self._passed) >= self._lines_max:
            self._passed.clear()
        self._passed[line] = record.created
        return True


def start_logging(form: str, level: str) -> None:
    """Log to stderr. Raises SourceRefused if the format or the level is unknown."""
    if form not in {"text", "json"}:
        raise SourceRefused(f"--log-format {form}: must be text or json")
    if level not in LEVELS:
        raise SourceRefused(f"--log-level {level}: must be one of {', '.join(LEVELS)}")
    log.start_logging(form, level, NoRepetitions())


async def until_stopped(work: Coroutine[object, object, None]) -> None:
    """Run `work` until it ends, or until SIGTERM or SIGINT. Its exceptions propagate."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger("purgatory_connectors").info("stopped")


class Supervisor:
    """The daemon that started this process. Its first line on stdin is {"token": ...}.

    End of file on stdin means that the daemon has ended, for any reason. This process then exits at once; it has
    no state that a kill could damage.
    """

    def __init__(self, token: str) -> None:
        self.token: Final = token

    @classmethod
    def of_this_process(cls) -> Supervisor:
        """Read the token and start to watch stdin. Raises SourceRefused if stdin has no token."""
        try:
            greeting = json.loads(sys.stdin.readline())
            parent = cls(str(greeting["token"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SourceRefused("--supervised is for `purgatory serve --source`, which starts this program") from error
        # A thread: a loop or a library that hangs must not keep an orphan alive.
        threading.Thread(target=_exit_with_stdin, name="watch supervisor", daemon=True).start()
        return parent

    @staticmethod
    def announce(source_name: str) -> None:
        """Send the supervisor the name under which daemons know this source."""
        print(json.dumps({"source": source_name}), flush=True)


def _exit_with_stdin() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)


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
