"""The commands of the documentation that need PostgreSQL, or a number to poll, with real servers."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from examples.local_postgres import ROLE, LocalPostgres
from tests.docs.pages import commands_about, shell, sources_about
from tests.kit.daemon import StartDaemon


class Status(BaseHTTPRequestHandler):
    """The page of an application, as docs/sources.md has it."""

    def do_GET(self) -> None:
        body = b'{"projection": {"position": 42}, "log": {"head": 42}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def application() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Status) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def own_postgres(postgres: LocalPostgres) -> Iterator[LocalPostgres]:
    """Servers of its own: other tests expect that the log of the shared ones is short."""
    with LocalPostgres() as servers:
        servers.replica("r1", servers.primary())
        yield servers


def test_commands_of_the_pages(
    own_postgres: LocalPostgres, application: str, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Each command on a mark of PostgreSQL or of a polled number succeeds with the sources of the pages."""
    primary = own_postgres.servers["p"]
    primary.query("CREATE TABLE progress AS SELECT 'orders' AS name, 42 AS position")
    primary.query(f"GRANT SELECT ON progress TO {ROLE}")
    primary.query("SELECT pg_logical_emit_message(false, 'long', repeat('x', 24000000))")
    assert primary.position() > 0x16B3748, "the position that the pages wait for"
    polled = sources_about("poll+sql", primary.address)
    sources = [
        *("--source", own_postgres.source_uri()),
        *sources_about("poll+http", application),
        *(option.replace("/shop", "/postgres").replace("user=reader", f"user={ROLE}") for option in polled),
    ]
    daemon = start_daemon(*sources)
    commands = commands_about(" pg/", " poll/")
    script = "\n".join(["set -e", *commands]).replace("--timeout 5s", "--timeout 5m")
    done = shell(script, tmp_path, {"PURGATORY_ADDRESS": daemon.address})
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(commands) > 3
