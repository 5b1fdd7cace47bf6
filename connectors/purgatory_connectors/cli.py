"""The command line `purgatory-source`."""

import asyncio
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final
from urllib.parse import quote

import click
from purgatory_client import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import InvalidRequest

from purgatory import log
from purgatory.command_line import FILE, Command, ExitCodes
from purgatory.connection_flags import SECURITY
from purgatory.source_uri import OTHER, SourceUri, SourceUriInvalid, others, shown
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.mark_lineage import LineageStore
from purgatory_connectors.publisher.publisher import Publisher, Source

LEVELS: Final = ("debug", "info", "warning", "error")
REPEATED_S: Final = 30.0
"""Seconds for which a log line is not repeated."""
LINES_MAX: Final = 1_000
"""Different lines that are remembered; above it, all are forgotten."""


class NoRepetitions(logging.Filter):
    """Passes each line at most once per `REPEATED_S`, ignoring differences in numbers. Client libraries log an
    unavailable broker hundreds of times at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed: Final[dict[tuple[str, int, str], float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = (record.name, record.levelno, re.sub(r"\d+", "", record.getMessage()))
        if record.created - self._passed.get(line, 0.0) < REPEATED_S:
            return False
        if len(self._passed) >= LINES_MAX:
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


def _supervisor_token() -> str:
    """The first line on stdin, from the daemon that started this process, is {"token": ...}.

    End of file on stdin means that the daemon has ended, for any reason. This process then exits at once; it has
    no state that a kill could damage. Raises SourceRefused if stdin has no token.
    """
    try:
        token = str(json.loads(sys.stdin.readline())["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise SourceRefused("--supervised is for `purgatory serve --source`, which starts this program") from error
    # A thread: a loop or a library that hangs must not keep an orphan alive.
    threading.Thread(target=_exit_with_stdin, name="watch supervisor", daemon=True).start()
    return token


def _exit_with_stdin() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)


EXIT_REFUSED: Final = 2
_SOURCES: Final = {
    "kafka": ("purgatory_connectors.kafka.kafka_source:KafkaSource", "confluent_kafka", "aiokafka"),
    "postgres": ("purgatory_connectors.postgres.postgres_source:PostgresSource", "psycopg"),
    "mysql": ("purgatory_connectors.mysql.mysql_source:MysqlSource", "pymysql"),
    "redis": ("purgatory_connectors.redis.redis_source:RedisSource", "redis"),
    "poll": ("purgatory_connectors.poll.poll_source:PollSource", "httpcore", "jsonpointer", "sqlalchemy"),
}
"""The connector of each kind, and the packages that it needs."""

COMMANDS: Final = {
    "kafka": "Publish the ends of topics and the committed offsets of consumer groups.\n\n"
    "Settings of librdkafka, such as sasl.password, are read from the file that the option `config` names, or from "
    "variables like PURGATORY_KAFKA_SASL_PASSWORD.",
    "postgres": "Publish how far servers have replayed the log.\n\n"
    "User and password are read from the file that the option `config` names, from PGPASSFILE, or from variables like "
    "PURGATORY_POSTGRES_PASSWORD.",
    "mysql": "Publish which transactions servers of MySQL or MariaDB have executed.\n\n"
    "User and password are read from the file that the option `config` names, or from variables like "
    "PURGATORY_MYSQL_PASSWORD.",
    "redis": "Publish the replication offsets of Redis or Valkey servers.\n\n"
    "User and password are read from the file that the option `config` names, or from variables like "
    "PURGATORY_REDIS_PASSWORD.",
    "poll": "Publish any number that only rises, from an HTTP server or a database: poll+http://..., poll+sql://...\n\n"
    "Headers, user and password are read from the file that the option `config` names, or from variables like "
    "PURGATORY_POLL_HEADER_AUTHORIZATION and PURGATORY_POLL_PASSWORD.",
    OTHER: "Publish what a connector of another installed package reads (docs/connectors.md). Takes whole addresses.",
}


@click.group(
    "purgatory-source",
    cls=ExitCodes,
    errors=(SourceRefused, SourceUriInvalid, InvalidRequest),
    failed=EXIT_REFUSED,
    context_settings={"show_default": True},
)
def app() -> None:
    """Publish positions of Kafka, PostgreSQL, Redis and others to Purgatory daemons (docs/sources.md)."""


_option: Final = partial(click.option, show_envvar=True)


def _add_command(scheme: str, text: str) -> None:
    """All connectors take the same options; settings of a single connector are part of its address."""

    @app.command(scheme, help=text, cls=Command, params=[*SECURITY.values()])
    @click.argument(
        "address", metavar="ADDRESS", help="HOST:PORT[,HOST:PORT...], or a whole address with ?OPTION=VALUE&..."
    )
    @click.option(
        "--option",
        "-o",
        "options",
        metavar="NAME=VALUE",
        multiple=True,
        help="An option of the address. Can be repeated.",
    )
    @_option(
        "--to",
        envvar="PURGATORY_ADDRESS",
        metavar="HOST:PORT[,...]",
        multiple=True,
        help="A daemon to publish to, or several of which one serves. Can be repeated; each receives all marks.",
    )
    @_option(
        "--state-dir",
        envvar="PURGATORY_SOURCE_STATE_DIR",
        type=FILE,
        metavar="DIR",
        help="Directory for the lineages of marks. With it, a restart detects breaks that happened in between. "
        "Default: in memory.",
    )
    @_option("--log-format", envvar="PURGATORY_LOG_FORMAT", default="text", help="text or json, on stderr.")
    @_option("--log-level", envvar="PURGATORY_LOG_LEVEL", default="info", help="debug, info, warning or error.")
    @click.option("--supervised", is_flag=True, hidden=True)
    def run(
        address: str,
        options: tuple[str, ...],
        to: tuple[str, ...],
        token_file: Path | None,
        state_dir: Path | None,
        log_format: str,
        log_level: str,
        supervised: bool,
        **tls: Any,  # noqa: ANN401 - as the client has them
    ) -> None:
        uri = _uri(scheme, address, options)
        start_logging(log_format, log_level)
        token = (_supervisor_token() if supervised else "") or token_file
        clients = {
            daemon: partial(AsyncClient, daemon, name="source", token=token, **tls)
            for daemon in to or (DEFAULT_ADDRESS,)
        }
        asyncio.run(_run_publisher(uri, clients, state_dir, is_supervised=supervised))


for _scheme, _text in COMMANDS.items():
    _add_command(_scheme, _text)


def open_source(uri: SourceUri) -> Source:
    """Create the connector for an address. Raises SourceRefused, SourceUriInvalid."""
    if uri.kind == OTHER:
        return _open_other(uri)
    source, *packages = _SOURCES[uri.kind]
    for package in packages:
        if find_spec(package) is None:
            raise SourceRefused(f"{uri.kind} sources need {package}: pip install 'purgatory-waits[{uri.kind}]'")
    opened: Source = resolve_name(source)(uri)
    return opened


def _open_other(uri: SourceUri) -> Source:
    [entry] = others()[uri.scheme]
    where = f"the connector of {shown(entry)}, {entry.value},"
    try:
        source = entry.load()(uri)
    except (SourceRefused, SourceUriInvalid):
        raise
    except Exception as error:
        logging.getLogger("purgatory_connectors").exception("%s failed", where)
        raise SourceRefused(f"{where} failed: {error!r}") from error
    if not isinstance(source, Source):
        raise SourceRefused(f"{where} returned {source!r} instead of a Source")
    return source


def main() -> None:
    app(prog_name=app.name)


async def _run_publisher(
    uri: SourceUri, clients: Mapping[str, Callable[[], AsyncClient]], state_dir: Path | None, *, is_supervised: bool
) -> None:
    source = open_source(uri)
    if is_supervised:  # the name under which daemons know this source
        print(json.dumps({"source": source.name}), flush=True)
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
