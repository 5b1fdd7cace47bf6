"""`--shards`: one daemon for each core, as a child process with ports and a journal of its own.

Children are started by exec, never by fork, which gRPC does not support. A child that dies is started again. None
outlives this process: their standard input is a pipe that closes with it, and they shut down when it does.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, NoReturn

from purgatory.extension import StartupError
from purgatory.extensions.fleet.settings import FleetSettings
from purgatory.journal.directory import DATABASE
from purgatory.service.budget.shares import budget_bytes
from purgatory.service.settings import MEMORY_BYTES_MIN, Settings

LOGGER: Final = logging.getLogger(__name__)

RESTART_S: Final = 1.0
"""Minimum time between two starts of a child."""
REFUSED_TO_START: Final = frozenset({1, 2})
"""Exit codes of a daemon with wrong settings, or one that cannot use its ports or its journal."""
STDIN: Final = 0


class Supervisor:
    def __init__(self, settings: Settings, fleet: FleetSettings, shards: int) -> None:
        """Raises `StartupError`."""
        if fleet.log or fleet.targets:
            raise StartupError("shards: cannot be used with fleet.log or fleet.targets; start each daemon by itself")
        self._commands: Final = [
            [sys.executable, *sys.orig_argv[1:], *flags] for flags in _flags_of(settings, fleet, shards)
        ]
        self._running: Final[set[asyncio.subprocess.Process]] = set()

    async def run(self) -> NoReturn:
        """Run the children until this task is cancelled, and then end them.

        Raises:
            StartupError: A child could not start.
        """
        stdin, held_open = os.pipe()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        try:
            async with asyncio.TaskGroup() as children:
                for shard, command in enumerate(self._commands):
                    children.create_task(self._keep_running(shard, command, stdin), name=f"shard {shard}")
        except* StartupError as errors:
            raise errors.exceptions[0] from None
        finally:
            self._send(signal.SIGTERM)
            await asyncio.gather(*(child.wait() for child in self._running))
            os.close(held_open)
            os.close(stdin)
        raise AssertionError("children are started for ever")

    async def _keep_running(self, shard: int, command: Sequence[str], stdin: int) -> NoReturn:
        loop = asyncio.get_running_loop()
        starts = 0
        while True:
            started_s = loop.time()
            # In a session of its own: Ctrl-C would reach it too, and the signal from here would be its second one.
            child = await asyncio.create_subprocess_exec(*command, stdin=stdin, start_new_session=True)
            self._running.add(child)
            starts += 1
            code = await child.wait()
            self._running.remove(child)
            if starts == 1 and code in REFUSED_TO_START:
                raise StartupError(f"shard {shard} did not start; its log has the reason")
            LOGGER.error("shard %d ended with %d and is started again", shard, code)
            await asyncio.sleep(started_s + RESTART_S - loop.time())

    def _send(self, number: signal.Signals) -> None:
        for child in self._running:
            with suppress(ProcessLookupError):
                child.send_signal(number)


def end_with_stdin() -> None:
    """Shut down once standard input is closed."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(STDIN, 4_096):
            loop.remove_reader(STDIN)
            LOGGER.warning("standard input is closed: shutting down")
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(STDIN, read)


def _flags_of(settings: Settings, fleet: FleetSettings, shards: int) -> list[list[str]]:
    """Return the flags of each child, which override those of this process."""
    grpc_host, grpc_port = settings.grpc.address.rsplit(":", 1)
    http_host, http_port = settings.http.address.rsplit(":", 1)
    host = (fleet.address or settings.grpc.address).rpartition(":")[0]
    with suppress(ValueError):
        if ip_address(host.strip("[]")).is_unspecified:
            raise StartupError(f"shards: clients cannot connect to {host}; set fleet.address to a name of this machine")
    folder, archive = settings.journal.dir, getattr(getattr(settings, "archive", None), "uri", None)
    if folder is not None and (folder / DATABASE).exists():
        raise StartupError(f"shards: {folder} is the journal of a single daemon; use another folder")
    ports = _ports(int(grpc_port), int(http_port), shards)
    memory_bytes = max(MEMORY_BYTES_MIN, budget_bytes(settings.limits.memory_bytes_max) // shards)
    scheme = "http" if settings.tls.certificate_file is None else "https"
    found = []
    for shard, port in enumerate(ports):
        given: dict[str, object] = {
            "shards": 1,
            "fleet-targets": " ".join(f"{host}:{port}" for port, _ in ports),
            "fleet-shard": shard,
            "fleet-urls": " ".join(f"{scheme}://{http_host}:{port}" for _, port in ports),
            "grpc-address": f"{grpc_host}:{port[0]}",
            "http-address": f"{http_host}:{port[1]}",
            "limits-memory-bytes-max": memory_bytes,
        }
        if folder is not None:
            given["journal-dir"] = folder / str(shard)
        if archive:
            given["archive-uri"] = f"{archive.rstrip('/')}/{shard}"
        if settings.ready_file is not None:
            given["ready-file"] = f"{settings.ready_file}.{shard}"
        found.append(["--fleet-ends-with-stdin", *(f"--{name}={value}" for name, value in given.items())])
    return found


def _ports(grpc_port: int, http_port: int, shards: int) -> list[tuple[int, int]]:
    """Return the ports of all shards, for gRPC and for HTTP. They are consecutive, unless they would overlap: from 7440
    and 7441, the next are 7442 and 7443.
    """
    if not grpc_port or not http_port:
        raise StartupError("shards: the ports of grpc.address and http.address must not be 0")
    apart = abs(grpc_port - http_port)
    step = 1 if apart >= shards else apart + 1
    return [(grpc_port + shard * step, http_port + shard * step) for shard in range(shards)]
