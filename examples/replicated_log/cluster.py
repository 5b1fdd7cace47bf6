"""The processes of the demonstration: started, listened to, killed, and at the end all gone, whatever happened."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

PROJECT: Final = Path(__file__).resolve().parents[2]
START_SECONDS_MAX: Final = 30.0
END_SECONDS_MAX: Final = 15.0


Listener = Callable[[dict[str, Any]], None]
"""Hears all that the processes say."""


class ChildFailed(Exception):
    """A process ended, or stayed silent, when an event of it was due."""


class Child:
    """A started process of the log and what it says (child.py)."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, listener: Listener) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._listener = listener
        self._kept: list[dict[str, Any]] = []

    async def hear(self, event: str, seconds: float) -> dict[str, Any]:
        """Return what it says next under `event`; what else it says is kept.

        Raises ChildFailed when it ends first, or is silent for `seconds`.
        """
        for index, kept in enumerate(self._kept):
            if kept["event"] == event:
                return self._kept.pop(index)
        assert self._process.stdout is not None, f"{self.name} was started without a pipe"
        try:
            while line := await asyncio.wait_for(self._process.stdout.readline(), seconds):
                said: dict[str, Any] = json.loads(line)
                self._listener(said)
                if said["event"] == event:
                    return said
                self._kept.append(said)
        except TimeoutError:
            raise ChildFailed(
                f"{self.name} (pid {self.pid}) did not say {event!r} and was silent for {seconds:.0f} s"
            ) from None
        raise ChildFailed(
            f"{self.name} (pid {self.pid}) ended with {await self._process.wait()} before it said {event!r}"
        )

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None, f"{self.name} was started without a pipe"
        self._process.stdin.write(word.encode() + b"\n")

    async def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        await self._process.wait()

    async def end(self) -> None:
        """SIGTERM, then SIGKILL if that does not help. Harmless when it has ended already."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            if not await self.has_ended(END_SECONDS_MAX):
                await self.kill()

    async def has_ended(self, seconds: float) -> bool:
        """Whether it has ended within this time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        return self._process.returncode is not None


class Cluster:
    """Starts processes. Leaving it ends them, those started last first."""

    def __init__(self, directory: Path, listener: Listener) -> None:
        self.directory = directory
        self._listener = listener
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in reversed(self._children):
            await child.end()

    async def start_daemon(self, archive: Path | None = None) -> tuple[str, str]:
        """Start a purgatory daemon of our own on free ports; returns its gRPC and HTTP addresses."""
        ready_file = self.directory / "daemon-ready.json"
        flags = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--log-level", "warning"]
        if archive is not None:
            flags += ["--archive", str(archive)]
        daemon = await self._start("daemon", "server.py", *flags, "--ready-file", str(ready_file))
        async with asyncio.timeout(START_SECONDS_MAX):
            while not ready_file.exists():
                if await daemon.has_ended(0.02):
                    raise ChildFailed("the daemon ended before it was ready")
        ready = json.loads(ready_file.read_text())
        return ready["grpc_address"], ready["http_address"]

    async def start(self, role: str, **options: object) -> Child:
        """Start a process of the log: module `role`, with its options."""
        return await self._start(role, "-m", f"{__package__}.{role}", json.dumps(options, default=str))

    async def _start(self, name: str, *arguments: str) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=PROJECT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
        )
        self._children.append(Child(name, process, self._listener))
        return self._children[-1]
