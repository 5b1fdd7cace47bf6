"""The composition root: from settings to a serving daemon, and from a signal to a clean exit. It contains no rules.

Shutdown, in this order: health says NOT_SERVING and readiness fails, new work is refused, every pending operation ends
as SHUTTING_DOWN (with a journal, sessions' operations stay for the next daemon) and results are delivered within the
grace period, streams and listeners close, archive and journal are completed, exit 0. A second signal exits at once: it
waits for nothing but receipts of an async journal that are not on disk yet.
Whatever fails on the way, what comes after it is still closed.
"""

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2

from purgatory import __version__
from purgatory.archive.vocabulary import CannotArchive
from purgatory.clock import Clock, ContinuedClock, SystemClock
from purgatory.engine import COMPILED
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.journal.errors import JournalError
from purgatory.service import garbage
from purgatory.service.access.access import Access
from purgatory.service.access.errors import AccessError
from purgatory.service.budget.memory_budget import budget_bytes
from purgatory.service.budget.memory_watch import MemoryWatch
from purgatory.service.draining import drain
from purgatory.service.errors import unauthenticated
from purgatory.service.flags import config_lines, read_command_line
from purgatory.service.host import Host
from purgatory.service.http.connect_application import ConnectCalls
from purgatory.service.http.http_calls import HttpMethods
from purgatory.service.http.metrics_page import MetricsPage
from purgatory.service.http.probes import probe_routes
from purgatory.service.http.server_sent_events import ServerSentEvents
from purgatory.service.http.site import HttpSite
from purgatory.service.listeners.archive import ArchiveListener, start_archive, writer_config
from purgatory.service.listeners.exposition import make_registry
from purgatory.service.listeners.metrics import Metrics
from purgatory.service.listeners.recovery import OpenJournal
from purgatory.service.listeners.refusal_log import RefusalLog
from purgatory.service.log import start_logging
from purgatory.service.page.live_page import LivePage
from purgatory.service.rpc.call import Context, Identify
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.rpc.handlers import SERVICE, add_standard_service, add_to_server, checked
from purgatory.service.rpc.reflection import V1, V1ALPHA, reflection_servicer
from purgatory.service.rpc.servicer import PurgatoryServicer
from purgatory.service.setting_sources import SettingsError, unknown_variables
from purgatory.service.settings import EngineLimitsSettings, HostSettings, Settings, is_loopback, split_address
from purgatory.service.sources.source_table import STATE_NAMES
from purgatory.service.sources.supervised_sources import PRINCIPAL, SupervisedSources
from purgatory.service.tracing.trace_waits import CannotTrace, trace_waits
from purgatory.service.transport.certificate_files import CannotUseCertificates
from purgatory.service.transport.grpc_options import largest_message_bytes, server_options, warn_of_few_files
from purgatory.service.transport.peer import PeerCertificate
from purgatory.service.transport.tls import Tls
from purgatory.service.webhooks.webhook_form import CannotSendWebhooks
from purgatory.service.webhooks.webhooks import Webhooks

LOGGER: Final = logging.getLogger(__name__)
STREAMS_GRACE_S: Final = 0.5
"""Once all results are delivered: time for streams that would never end by themselves."""

CLOSE_S_MIN: Final = 5.0
"""Time for the archive's last files and for the journal's last group, even if clients have used up the grace period."""

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


class CannotBind(Exception):
    """An address cannot be bound. The message is one line with the address and the reason."""


class Daemon:
    """One purgatory with its gRPC server and its HTTP site."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self.grpc_address = settings.grpc.address
        """With the real port once started."""
        self.http_address = settings.http.address
        """With the real port once started."""
        self._metrics: Final = Metrics()
        self._pauses: Final = garbage.PauseWatch()
        self._health: Final = health.aio.HealthServicer()
        self._journal: OpenJournal | None = None
        self._tls: Final = None if settings.tls.certificate_file is None else Tls(settings.tls)
        clock: Clock = SystemClock()
        if settings.journal.dir is not None:
            self._journal = OpenJournal(settings.journal.dir, is_sync=settings.journal.mode == "sync")
            clock = ContinuedClock(clock, self._journal.start_ms)
        self._engine_started_ms: Final = clock.now_ms()
        self._host: Final = make_host(settings, self._metrics, clock, self._engine_started_ms)
        self._memory_trimmer: Final = garbage.MemoryTrimmer(
            settings.gc.tidy_interval_ms, lambda: self._host.engine.pending
        )
        self._webhooks: Final = Webhooks(self._host, settings.webhooks)
        self._host.listeners.append(self._webhooks)
        self._gate: Final = CallGate(
            self._host.fair_queue,
            settings.limits,
            self._host.listeners,
            next_expiry_ms=self._host.retry_advice.next_expiry_ms,
            memory_bytes_max=self._host.shares.budget.bytes_max,
        )
        self._memory_watch: Final = MemoryWatch(
            self._host.shares.budget, end_late_calls=self._gate.incomplete_requests.end_late
        )
        self._server: Final = grpc.aio.server(options=server_options(settings))
        self._servers: Final = [self._server]
        """That one and, for the sources that this daemon runs, another, whose connections do not age."""
        self._serving = False
        self._opened = AsyncExitStack()
        """Closes what `start` opened, last opened first."""
        self._site: HttpSite | None = None
        self._http_methods: HttpMethods | None = None
        self._access: Access | None = None
        self._sources: SupervisedSources | None = None
        """Those that this daemon runs itself."""
        self._grace_until_s = 0.0
        """On the monotonic clock, once shutdown has begun."""

    async def start(self) -> None:
        """Binds both addresses and serves. Raises `CannotBind`, `CannotArchive`, `JournalError` or `AccessError`,
        with nothing left open.
        """
        async with AsyncExitStack() as opened:
            await self._open(opened)
            self._opened = opened.pop_all()
        self._serving = True

    async def _open(self, opened: AsyncExitStack) -> None:
        gate = self._gate
        peer = self._peer if self._tls is not None else None
        access = self._access = Access(self.settings.access, self._host.sessions.accounts, self._principal_of_peer)
        await access.start()
        fresh = asyncio.create_task(access.keep_fresh(), name="policy and tokens")
        opened.callback(fresh.cancel)
        identify = trace_waits(self.settings.tracing, __version__, self._host.listeners, opened, access.identify)
        if self.settings.source:
            self._servers.append(grpc.aio.server(options=server_options(self.settings, ages=False)))
        servicer = PurgatoryServicer(self._host, self._webhooks, largest_message_bytes(self.settings))
        for server in self._servers:
            add_to_server(servicer, server, gate, identify, peer)
        service = health_pb2.DESCRIPTOR.services_by_name["Health"]
        add_standard_service(self._health, self._server, gate, service, peer)
        if self.settings.grpc.reflection:
            reflection = reflection_servicer((SERVICE.full_name, health.SERVICE_NAME))
            for version in (V1, V1ALPHA):
                add_standard_service(reflection, self._server, gate, V1ALPHA, peer, name=version.full_name)
        self._site = self._make_site(access, identify)
        opened.push_async_callback(self._site.stop)
        if self._journal is not None:
            opened.push_async_callback(self._close_journal, self._journal)
        self.grpc_address = self._bind_grpc()
        if self.settings.source:
            self._sources = self._make_sources(access, opened)
        self.http_address = await self._bind_http(self._site)
        if self.settings.archive.uri is not None:
            archive = await self._start_archive()
            opened.push_async_callback(self._close_archive, archive)
            self._host.listeners.append(archive)
        if self._journal is not None:
            letters = self._journal.dead_letters()
            await self._journal.restore(self._host)
            self._webhooks.restore(letters)
        opened.push_async_callback(self._close_webhooks)
        self._webhooks.start()
        opened.push_async_callback(self._host.stop)
        self._host.start()
        for server in self._servers:
            await server.start()
        for name in (health.OVERALL_HEALTH, SERVICE.full_name):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._pauses.start()
        opened.callback(self._pauses.stop)
        garbage.tune(self.settings.gc)
        self._memory_watch.start()
        opened.callback(self._memory_watch.stop)
        self._memory_trimmer.start()
        opened.callback(self._memory_trimmer.stop)
        if self._tls is not None:
            opened.callback(asyncio.create_task(self._tls.watch(), name="TLS files").cancel)
        if self._sources is not None:
            opened.push_async_callback(self._sources.stop)
            self._sources.start()
            self._host.source_links.supervised = self._sources.sources

    def reload(self) -> None:
        """Reads the policy, the tokens, the keys and the secrets of webhooks again now, as far as they are set."""
        LOGGER.info("SIGHUP: reading the files of access and webhooks again")
        self._webhooks.reload()
        if self._access is not None:
            self._access.reload()

    async def stop(self) -> None:
        """Shuts down in the order described above."""
        grace_s = self.settings.shutdown.grace_ms / 1_000
        self._grace_until_s = time.monotonic() + grace_s
        async with self._opened:
            self._serving = False
            if self._sources is not None:
                self._sources.terminate()
            await self._health.enter_graceful_shutdown()
            await drain(self._host, grace_s)
            await self._gate.wait_quiet(self._grace_left_s())
            assert self._http_methods is not None, "the daemon has been started"
            assert self._site is not None, "as above"
            self._http_methods.is_ending = True
            grace_s = min(STREAMS_GRACE_S, self._grace_left_s())
            stopped = [server.stop(grace_s) for server in self._servers]
            await asyncio.gather(self._site.end_requests(grace_s), *stopped)

    async def exit_at_once(self, code: int) -> None:
        """Ends the process, without waiting for anything but that what was receipted is on disk: in async mode it may
        not be yet, and that is no crash.
        """
        if self._journal is not None:
            await self._journal.commit_receipted(CLOSE_S_MIN)
        os._exit(code)

    def _grace_left_s(self) -> float:
        return max(0.0, self._grace_until_s - time.monotonic())

    async def _close_archive(self, archive: ArchiveListener) -> None:
        await archive.close(self._host.time.now_ms(), max(CLOSE_S_MIN, self._grace_left_s()))

    async def _close_webhooks(self) -> None:
        await self._webhooks.stop(self._grace_left_s())

    async def _close_journal(self, journal: OpenJournal) -> None:
        if not await journal.close(max(CLOSE_S_MIN, self._grace_left_s())):
            LOGGER.error("the last changes could not be written to the journal")

    @property
    def pending(self) -> int:
        return self._host.engine.pending

    def _peer(self, context: Context) -> PeerCertificate | None:
        """The certificate that the caller presents, if it was asked for one. Raises `RpcError` for a revoked one."""
        return None if self._tls is None else self._tls.peer(context.auth_context())

    def _principal_of_peer(self, context: Context) -> str:
        peer = self._peer(context)
        return "" if peer is None else peer.principal

    def _make_site(self, access: Access, identify: Identify) -> HttpSite:
        settings = self.settings
        registry = make_registry(self._host, self._metrics, self._pauses)
        registry.register(self._gate.counts)
        if self._tls is not None:
            registry.register(self._tls)
        routes = [
            *probe_routes(self._is_ready, self._source_states),
            *MetricsPage(registry, settings.http.metrics_interval_ms).routes(),
        ]
        identify = checked(identify, None if self._tls is None else self._check_http_certificate)
        message_bytes = largest_message_bytes(settings)
        servicer = PurgatoryServicer(self._host, self._webhooks, message_bytes)
        methods = self._http_methods = HttpMethods(servicer, self._gate, identify)
        page = LivePage(self._host, self._metrics, methods)
        return HttpSite(
            settings.http,
            [*routes, *page.routes()],
            calls={
                **ConnectCalls(methods, message_bytes).applications(),
                **ServerSentEvents(methods).applications(),
                **page.applications(),
            },
            tls=self._tls,
            check_page=None if is_loopback(settings.http.address) else access.check_page,
            verifies_tokens=settings.access.policy_file is not None,
            budget=self._host.shares.budget,
            grpc_connections_max=settings.grpc.connections_max,
        )

    def _check_http_certificate(self, context: Context) -> None:
        """As gRPC does, whose handshake asks for one: the HTTP site's does not, for the probes."""
        assert self._tls is not None, "asked with TLS only"
        if self._tls.asks_clients and self._peer(context) is None:
            raise unauthenticated("a client certificate is needed")

    def _is_ready(self) -> bool:
        return self._serving and not self._host.draining and self._host.journal.why_closed() is None

    def _bind_grpc(self) -> str:
        address = self.settings.grpc.address
        reason = why_not_bindable(address)
        if reason is None:
            try:
                return f"{address.rpartition(':')[0]}:{self._add_port(address)}"
            except RuntimeError as error:
                reason = str(error)
        raise CannotBind(f"cannot listen on {address} (grpc.address): {reason}")

    def _make_sources(self, access: Access, opened: AsyncExitStack) -> SupervisedSources:
        """The sources that the daemon runs, and the socket by which they reach it."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="purgatory-"))  # for this user only
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            socket_address = f"unix:{folder / 'sources'}"
            self._servers[-1].add_insecure_port(socket_address)
        except (OSError, RuntimeError) as error:
            raise CannotBind(f"cannot listen for the sources that this daemon runs: {error}") from None
        return SupervisedSources(
            self.settings.source,
            socket=socket_address,
            token=access.make_token(PRINCIPAL),
            data_dir=self.settings.journal.dir,
            log_level=self.settings.log.level,
            on_restart=self._count_restart,
        )

    def _source_states(self) -> list[str]:
        """How each source fares that this daemon runs, in the order of the settings."""
        if self._sources is None:
            return []
        now_ms = self._host.time.now_ms()
        states = {source.name: STATE_NAMES[source.state_at(now_ms)] for source in self._host.sources}
        return [states.get(one.name, "loading") if one.is_running else "not running" for one in self._sources.sources]

    def _count_restart(self, name: str) -> None:
        restarts = self._host.source_links.restarts
        restarts[name] = restarts.get(name, 0) + 1

    def _add_port(self, address: str) -> int:
        if self._tls is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._tls.grpc_credentials())

    async def _bind_http(self, site: HttpSite) -> str:
        address = self.settings.http.address
        host, port = split_address(address)
        try:
            bound = await site.start(host, port)
        except OSError as error:
            raise CannotBind(f"cannot listen on {address} (http.address): {error.strerror or error}") from None
        return f"{address.rpartition(':')[0]}:{bound}"

    async def _start_archive(self) -> ArchiveListener:
        limits = self._host.engine.limits
        config = writer_config(
            self.settings.archive,
            self.settings.engine,
            limits,
            self._engine_started_ms,
            has_journal=self._journal is not None,
            is_continued=self._journal is not None and self._journal.is_continued,
        )
        return await start_archive(self.settings.archive, config, limits.timeout_ms_default)


def why_not_bindable(address: str) -> str | None:
    """Why an address cannot be bound, by trying a plain socket: gRPC only logs the reason. None: it can."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(resolved)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return None


def make_host(settings: Settings, metrics: Metrics, clock: Clock, started_ms: int) -> Host:
    """The engine, whose time starts at `started_ms`, and its host, each with the limits it needs."""
    limits = settings.limits.model_dump(include=set(EngineLimitsSettings.model_fields))
    engine = Engine(EngineLimits(**limits), started_ms, **settings.engine.model_dump())
    settings_of_host = HostSettings(settings.limits, settings.session, settings.shares)
    return Host(engine, clock, settings_of_host, metrics, RefusalLog(clock))


async def serve(settings: Settings) -> None:
    """Runs a daemon until SIGTERM or SIGINT, and shuts it down. Raises what `Daemon.start` raises."""
    loop = asyncio.get_running_loop()
    daemon = Daemon(settings)
    stopping = Stopping(daemon)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, daemon.reload)
    await daemon.start()
    _announce(daemon)
    received = await stopping.asked
    LOGGER.info("%s: shutting down, %d operations pending", received.name, daemon.pending)
    await daemon.stop()
    LOGGER.info("stopped")


def main(arguments: Sequence[str] | None = None, *, program: str = "server.py") -> int:
    """Runs the daemon with these command line arguments (None: the process's own); returns the exit code."""
    try:
        command_line = read_command_line(arguments, program)
    except SettingsError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_USAGE
    if command_line.print_config:
        print("\n".join(config_lines(command_line)))
        return 0
    garbage.use_one_arena()
    settings = command_line.settings
    start_logging(settings.log)
    for name in unknown_variables():
        LOGGER.warning("%s is set, but there is no such setting; see --help", name)
    try:
        uvloop.run(serve(settings))
    except (
        CannotBind, CannotUseCertificates, CannotSendWebhooks, CannotArchive, CannotTrace, JournalError, AccessError
    ) as error:  # fmt: skip
        LOGGER.critical("%s", error)
        return EXIT_FAILED
    return 0


def _announce(daemon: Daemon) -> None:
    """Logs the one line that says what runs where, and writes the ready file for programs."""
    engine = "compiled engine" if COMPILED else "UNCOMPILED engine (correct, but several times slower)"
    LOGGER.info(
        "purgatory %s, %s: gRPC on %s, HTTP on %s, %s; memory budget %d MiB, messages up to %d KiB",
        __version__,
        engine,
        daemon.grpc_address,
        daemon.http_address,
        _security(daemon.settings),
        budget_bytes(daemon.settings.limits.memory_bytes_max) >> 20,
        largest_message_bytes(daemon.settings) >> 10,
    )
    warn_of_few_files(daemon.settings.grpc.connections_max)
    path = daemon.settings.ready_file
    if path is not None:
        ready = {"pid": os.getpid(), "grpc_address": daemon.grpc_address, "http_address": daemon.http_address}
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_text(json.dumps(ready) + "\n", "utf-8")
        unfinished.replace(path)


def _security(settings: Settings) -> str:
    """What protects the connections, for the line that says what runs where."""
    if settings.tls.certificate_file is None:
        return "WITHOUT TLS (--insecure)" if settings.insecure else "without TLS, on loopback"
    return "TLS with client certificates" if settings.tls.client_auth == "required" else "TLS"


class Stopping:
    """What signals ask for: the first one a shutdown, the second an exit, the third one that waits for nothing."""

    def __init__(self, daemon: Daemon) -> None:
        self.asked: Final[asyncio.Future[signal.Signals]] = asyncio.get_running_loop().create_future()
        self._daemon: Final = daemon
        self._exiting: asyncio.Task[None] | None = None

    def on_signal(self, number: signal.Signals) -> None:
        if not self.asked.done():
            self.asked.set_result(number)
        elif self._exiting is None:
            LOGGER.warning("second signal (%s): exiting at once", number.name)
            self._exiting = asyncio.create_task(self._daemon.exit_at_once(128 + number), name="exit at once")
        else:
            os._exit(128 + number)
