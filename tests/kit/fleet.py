"""Several daemons: over one log, or with shards of which each is a process; and connections to them that can be cut."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from examples.free_ports import free_port, free_row
from purgatory.journal.crash_points import NEVER, VARIABLE
from tests.kit.daemon import EXECUTE, StartedDaemon, StartedProcess, children_of, is_running, start_process
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.proxy import FaultyProxy


class Member(StartedProcess):
    """A daemon, of a fleet if there is a log, that can be started again whenever it has ended."""

    def __init__(
        self,
        name: str,
        folder: Path,
        log_uri: str = "",
        flags: Sequence[str] = (),
        *,
        grpc_address: str = "",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.address = self.grpc_address = grpc_address or f"127.0.0.1:{free_port()}"
        self.http_address: Final = f"127.0.0.1:{free_port()}"
        self.data: Final = folder / name
        self.log_path = folder / f"{name}.log"
        self.exit_codes: Final[list[int]] = []
        self.module = "purgatory"
        self._arguments: Final = [
            "--grpc-address", self.grpc_address, "--http-address", self.http_address, "--data-dir", str(self.data),
            *(["--fleet-log", log_uri] if log_uri else []), *flags,
        ]  # fmt: skip
        self.environment = environment or {}
        self.process = self._start(NEVER)

    def _start(self, crash_at: str) -> StartedDaemon:
        environment = {**self.environment, VARIABLE: crash_at}
        return start_process(self._arguments, self.log_path.parent, environment, self.log_path, self.module)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def start_if_ended(self, crash_at: str = NEVER) -> None:
        code = self.process.poll()
        if code is not None:
            self.exit_codes.append(code)
            self.process = self._start(crash_at)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.is_running:
            self.process.send_signal(number)
        self.process.wait(PATIENCE_S)

    def answers(self, path: str) -> bool:
        try:
            with urlopen(f"http://{self.http_address}{path}", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def until(self, path: str, *, supervised: bool = False) -> None:
        """Wait until a probe is answered with 200. If it is supervised, the daemon is started whenever it has ended."""

        def answers() -> bool:
            if supervised:
                self.start_if_ended()
            return self.answers(path)

        wait_until(answers, lambda: f"{path} is answered:\n{self.log[-2_000:]}")

    def view(self) -> dict[str, Any]:
        """The fleet as the daemon shows it. Raises OSError."""
        with urlopen(f"http://{self.http_address}/fleet", timeout=PATIENCE_S) as answer:
            shown: dict[str, Any] = json.load(answer)
            return shown


class Fleet:
    def __init__(self, folder: Path, log_uri: str, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.members: Final[list[Member]] = []
        self._folder: Final = folder
        self._log_uri: Final = log_uri
        self._flags: Final = flags
        self._environment: Final = environment

    @property
    def address(self) -> str:
        """The address of a client that knows all daemons."""
        return ",".join(member.grpc_address for member in self.members)

    def start(self, name: str, probe: str = "", *flags: str, supervised: bool = False) -> Member:
        """Start a daemon with further flags, and wait until it answers a probe, if one is given."""
        flags = (*self._flags, *flags)
        self.members.append(Member(name, self._folder, self._log_uri, flags, environment=self._environment))
        if probe:
            self.members[-1].until(probe, supervised=supervised)
        return self.members[-1]

    def start_pair(self) -> tuple[Member, Member]:
        return self.start("a", "/leaderz"), self.start("b", "/readyz")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.end()


class Links:
    """Two proxies, from entering to leaving the context.

    A log in Kafka is connected directly: its brokers tell clients their own addresses.
    """

    def __init__(self, log_uri: str) -> None:
        self.daemon_address: Final = f"127.0.0.1:{free_port()}"
        self.callers: Final = FaultyProxy(self.daemon_address)
        self._uri: Final = log_uri
        self._login, _, log_address = urlsplit(log_uri).netloc.rpartition("@")
        self.log: Final = FaultyProxy(log_address)

    @property
    def address(self) -> str:
        return self.callers.address

    @property
    def can_cut_log(self) -> bool:
        return self._uri.startswith("postgresql:")

    @property
    def log_uri(self) -> str:
        if not self.can_cut_log:
            return self._uri
        return urlsplit(self._uri)._replace(netloc=f"{self._login}@{self.log.address}").geturl()

    async def __aenter__(self) -> Self:
        await self.callers.__aenter__()
        await self.log.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:  # noqa: ANN401 - handed on
        await self.log.__aexit__(*error)
        await self.callers.__aexit__(*error)


class ShardSet(StartedProcess):
    """`purgatory serve --shards N`, once all of them serve."""

    def __init__(self, folder: Path, shards: int = 2, more: tuple[str, ...] = ()) -> None:
        first = free_row(2 * shards)
        self.targets: Final = [f"127.0.0.1:{first + 2 * shard}" for shard in range(shards)]
        self.log_path = folder / "shards.log"
        self._ready: Final = [folder / f"ready.{shard}" for shard in range(shards)]
        flags = ["--shards", str(shards), "--data-dir", str(folder / "d"), "--ready-file", str(folder / "ready")]
        flags += ["--grpc-address", self.targets[0], "--http-address", f"127.0.0.1:{first + 1}", *more]
        self.process = start_process(flags, folder, EXECUTE, self.log_path)
        self.until_ready(self._ready)

    def pid_of(self, shard: int) -> int:
        """The process of a shard, as it was ready last."""
        return int(json.loads(self._ready[shard].read_text("utf-8"))["pid"])

    def kill(self) -> None:
        """End it with SIGKILL, and return when its children have ended."""
        children = children_of(self.process.pid) if self.process.poll() is None else []
        super().kill()
        wait_until(lambda: not any(map(is_running, children)), "the children end with their supervisor")
