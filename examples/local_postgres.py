"""PostgreSQL servers for tests and demonstrations: a primary and its replicas on free loopback ports, in one folder.

They end with the `LocalPostgres` that started them, and on Linux also when this process is killed. If this process runs
as root, the servers run as the user `postgres`, because PostgreSQL refuses to run as root.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from examples.free_ports import free_port

DEADLINE_S: Final = 60.0
ROLE: Final = "purgatory"
"""The role that the source uses in tests and demonstrations. Its only privilege is pg_monitor."""

_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "wal_keep_size": "128MB",
    "wal_retrieve_retry_interval": "100ms",
    "shared_buffers": "8MB",
    "max_connections": "40",
    "autovacuum": "off",
    # Tests kill processes, not machines, and data written by a killed process survives without fsync.
    "fsync": "off",
    "full_page_writes": "off",
}


class NoPostgres(Exception):
    """PostgreSQL's programs were not found, or they cannot run as another user than root."""


def find_programs() -> Path:
    """The folder of initdb, postgres and pg_basebackup: $PURGATORY_POSTGRES_BIN, from the path, or Debian's newest.

    Raises NoPostgres.
    """
    named = os.environ.get("PURGATORY_POSTGRES_BIN")
    on_path = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    program = Path(named, "initdb") if named else Path(on_path) if on_path else debian[-1] if debian else None
    found = program and program.resolve().parent
    if found is None or not (found / "pg_basebackup").exists():
        raise NoPostgres("no PostgreSQL found: install it (Debian, Ubuntu: apt install postgresql)")
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        raise NoPostgres("PostgreSQL does not run as root, and there is no setpriv to run it as another user")
    return found


class LocalServer:
    """One server: its data folder, its port, and its process while it runs."""

    def __init__(self, group: "LocalPostgres", name: str, port: int) -> None:
        self.name: Final = name
        self.port: Final = port
        self.data: Final = group.folder / name
        self.log_path: Final = group.folder / f"{name}.log"
        self._group: Final = group
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, is_awaited: bool = True) -> None:
        """Start the server; returns once it answers, or at once if `is_awaited` is false."""
        assert not self.is_running, self.name
        with self.log_path.open("ab") as log:
            command = [*_as_other_user(), str(self._group.programs / "postgres"), "-D", str(self.data)]
            command += ["-p", str(self.port), "-c", f"cluster_name={self.name}"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._group.folder)
        deadline = time.monotonic() + DEADLINE_S
        while is_awaited and not self.is_answering():
            assert self._process.poll() is None, f"{self.name} ended at once:\n{self.log_path.read_text('utf-8')}"
            assert time.monotonic() < deadline, f"{self.name} does not answer:\n{self.log_path.read_text('utf-8')}"
            time.sleep(0.02)

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and wait for its end: SIGINT is a fast shutdown, SIGQUIT an immediate one, SIGKILL a
        crash.
        """
        if self._process is None:
            return
        if signal_number is signal.SIGKILL:
            self._kill_all()
        elif self.is_running:
            self._process.send_signal(signal_number)
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._kill_all()
            raise AssertionError(f"{self.name} did not stop:\n{self.log_path.read_text('utf-8')}") from None
        self._process = None

    def signal_all(self, signal_number: signal.Signals) -> None:
        """Send a signal to all of its processes: SIGSTOP suspends the server, SIGCONT resumes it."""
        assert self._process is not None, self.name
        for process_id in [self._process.pid, *_children(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):  # its connection has just ended
                os.kill(process_id, signal_number)

    def is_answering(self) -> bool:
        """Whether a connection can be made and used."""
        try:
            self.query("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def save_copy(self) -> None:
        """Save a copy of the data of a stopped server."""
        assert not self.is_running, self.name
        shutil.copytree(self.data, self.data.with_suffix(".copy"), symlinks=True)

    def restore_copy(self) -> None:
        """Restore a stopped server to its saved copy."""
        assert not self.is_running, self.name
        shutil.rmtree(self.data)
        self.data.with_suffix(".copy").rename(self.data)
        for path in [self.data, *self.data.rglob("*")]:
            self._group.own(path)

    def query(self, statement: str, *, role: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement on a new connection; returns its rows."""
        with psycopg.connect(self.conninfo(role), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def position(self) -> int:
        """The position of its log: inserted on a primary, replayed on a replica."""
        one = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
        return int(self.query(f"SELECT ({one} - '0/0'::pg_lsn)::bigint")[0][0])

    def conninfo(self, role: str = ROLE) -> str:
        return f"host=127.0.0.1 port={self.port} user={role} dbname=postgres connect_timeout=5"

    def promote(self) -> None:
        """Promote it to primary, and wait until it is one."""
        assert self.query("SELECT pg_promote()") == [(True,)]

    def follow(self, primary: "LocalServer | None") -> None:
        """Replicate from this server, or from none. Takes effect at the next start, or at once if it runs."""
        where = f"host=127.0.0.1 port={primary.port} user=postgres application_name={self.name}" if primary else ""
        with (self.data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"primary_conninfo = '{where}'\n")
        (self.data / "standby.signal").touch()
        self._group.own(self.data / "standby.signal")
        if self.is_running:
            self.query("SELECT pg_reload_conf()")

    def _kill_all(self) -> None:
        """Kill the child processes too: they would end by themselves, but only after some time."""
        assert self._process is not None, self.name
        children = _children(self._process.pid)
        self._process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.wait(DEADLINE_S)


class LocalPostgres:
    """A primary "p" and the requested replicas, in a temporary folder that is removed with them."""

    def __init__(self) -> None:
        self.programs: Final = find_programs()
        self.folder: Final = Path(tempfile.mkdtemp(prefix="purgatory-postgres-"))
        self.own(self.folder)
        self.servers: Final[dict[str, LocalServer]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all servers and remove their folder."""
        for server in self.servers.values():
            server.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def primary(self, name: str = "p", *, port: int | None = None, is_started: bool = True) -> LocalServer:
        """Create a new database system with a role for the source."""
        server = self._new(name, port)
        options = ["--auth=trust", "--username=postgres", "--no-sync", "--no-locale", "--encoding=UTF8"]
        self.run("initdb", f"--pgdata={server.data}", "--wal-segsize=1", *options)
        with (server.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{setting} = '{value}'\n" for setting, value in _SETTINGS.items())
        if is_started:
            server.start()
            server.query(f"CREATE ROLE {ROLE} LOGIN IN ROLE pg_monitor")
        return server

    def replica(self, name: str, primary: LocalServer, *, port: int | None = None) -> LocalServer:
        """Create and start a replica of a server. A stopped server of the same name is rebuilt on its old port."""
        old = self.servers.get(name)
        if old is not None:
            shutil.rmtree(old.data)
        server = self._new(name, port if port is not None or old is None else old.port)
        source = f"host=127.0.0.1 port={primary.port} user=postgres"
        self.run("pg_basebackup", f"--pgdata={server.data}", f"--dbname={source}", "--checkpoint=fast", "--no-sync")
        server.follow(primary)
        server.start()
        return server

    def source_uri(self, options: str = "") -> str:
        """The value of `purgatory serve --source` for these servers."""
        hosts = ",".join(server.address for server in self.servers.values())
        return f"postgres://{hosts}/postgres?servers={','.join(self.servers)}&user={ROLE}{options}"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs to completion."""
        command = [*_as_other_user(), str(self.programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder, timeout=DEADLINE_S)
        assert done.returncode == 0, f"{program}: {done.stdout}\n{done.stderr}"

    @staticmethod
    def own(path: Path) -> None:
        """Give a file to the user that the servers run as."""
        if os.geteuid() == 0:
            shutil.chown(path, "postgres", "postgres")

    def _new(self, name: str, port: int | None) -> LocalServer:
        server = LocalServer(self, name, port or free_port())
        self.servers[name] = server
        return server


def _as_other_user() -> Sequence[str]:
    """The command prefix for a program that must not run as root and must not outlive this process."""
    if shutil.which("setpriv") is None:
        return ()
    other = ("--reuid=postgres", "--regid=postgres", "--init-groups") if os.geteuid() == 0 else ()
    return ("setpriv", *other, "--pdeathsig=QUIT")


def _children(process_id: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process_id)], capture_output=True, text=True, check=False
    )
    return [int(one) for one in re.findall(r"\d+", listed.stdout)]
