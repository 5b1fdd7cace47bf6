"""The composition root: builds a serving daemon from the settings, and shuts it down. It contains no rules.

Shutdown, in this order: health reports NOT_SERVING and readiness fails; new work is refused; every pending operation
ends as SHUTTING_DOWN (with a journal, operations of sessions are kept for the next daemon) and results are delivered
within the grace period; streams end, the host stops; extensions close, in reverse order; the journal is completed. If a
step fails, the later ones still run. With a replicated log nothing is refused or ended, apart from unary waits: the
next leader continues where this daemon stops.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2

from purgatory.clock import Clock, ContinuedClock, SystemClock
from purgatory.extension import Core, Extension, HttpParts
from purgatory.listening import bind_grpc, bind_http
from purgatory.service.access.access import Access
from purgatory.service.budget import garbage
from purgatory.service.budget.memory_watch import MemoryWatch
from purgatory.service.draining import drain
from purgatory.service.errors import unauthenticated
from purgatory.service.host import make_host
from purgatory.service.http.connect_application import ConnectCalls
from purgatory.service.http.http_calls import HttpMethods
from purgatory.service.http.monitoring import MetricsPage, probe_routes
from purgatory.service.http.server_sent_events import ServerSentEvents
from purgatory.service.http.site import HttpSite
from purgatory.service.metrics.exposition import make_registry
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.recovery import OpenJournal, Takeover
from purgatory.service.rpc import handlers
from purgatory.service.rpc.call import Context, Identify
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.rpc.grpc_options import connections_max, largest_message_bytes, server_options
from purgatory.service.rpc.reflection import V1, V1ALPHA, reflection_servicer
from purgatory.service.rpc.servicer import PurgatoryServicer
from purgatory.service.sessions.session import NO_CALLBACKS
from purgatory.service.settings import Settings, is_loopback
from purgatory.service.translate.shards import ONE_SHARD
from purgatory.service.transport.peer import PeerCertificate
from purgatory.service.transport.tls import Tls

LOGGER: Final = logging.getLogger(__name__)
STREAMS_GRACE_S: Final = 0.5
"""Once all results are delivered: time for streams that would never end by themselves, seconds."""

CLOSE_S_MIN: Final = 5.0
"""Minimum time for the journal's last group, even if clients have used up the grace period, seconds."""


class Daemon:
    """One daemon with its gRPC server, its HTTP site and its extensions."""

    def __init__(
        self,
        settings: Settings,
        extensions: Sequence[type[Extension]] = (),
        takeover: Takeover | None = None,
        end: Callable[[str, int], None] = lambda _reason, _code: None,
    ) -> None:
        """`takeover`: returned by an extension. `end`: see `Core`. Raises `StartupError`, `JournalError` or
        `AccessError`.
        """
        self.settings: Final = settings
        self._hands_over: Final = takeover is not None
        self.grpc_address = settings.grpc.address
        self.http_address = settings.http.address
        """In both addresses the port is replaced by the real one at start."""
        self._metrics: Final = Metrics()
        self._pauses: Final = garbage.PauseWatch()
        self._health: Final = health.aio.HealthServicer()
        self._journal: OpenJournal | None = None
        self._tls: Final = None if settings.tls.certificate_file is None else Tls(settings.tls)
        clock: Clock = SystemClock()
        if settings.journal.dir is not None:
            is_sync = settings.journal.mode == "sync"
            self._journal = OpenJournal(settings.journal.dir, is_sync=is_sync, takeover=takeover)
            clock = ContinuedClock(clock, self._journal.start_ms)
        started_ms = clock.now_ms()
        shards = next(filter(None, (extension.shards(settings) for extension in extensions)), ONE_SHARD)
        self._host: Final = make_host(settings, self._metrics, clock, started_ms, shards)
        self._gate: Final = CallGate(
            self._host.fair_queue,
            settings.limits,
            self._host.listeners,
            next_expiry_ms=self._host.gate.next_expiry_ms,
            shares=self._host.shares,
            on_events_refused=self._host.note_refused_events,
        )
        self._memory_watch: Final = MemoryWatch(
            self._host.shares.budget, end_late_calls=self._gate.incomplete_requests.end_late
        )
        self._server: Final = grpc.aio.server(options=server_options(settings))
        self._serving = False
        self._opened = AsyncExitStack()
        """Closes everything that `start` opened, in reverse order."""
        self._site: HttpSite | None = None
        self._http_methods: HttpMethods | None = None
        self._grace_until_s = 0.0
        """End of the grace period on the monotonic clock, once shutdown has begun."""
        self._access: Final = Access(settings.access, self._host.sessions.accounts, self._principal_of_peer)
        core = Core(
            settings,
            self._host,
            self._metrics,
            self._access,
            self._journal,
            started_ms,
            takeover,
            self._status_line,
            end,
        )
        self._extensions: Final = [extension(core) for extension in extensions]
        self._servers: Final = [self._server, *(server for one in self._extensions for server in one.servers())]

    async def start(self) -> None:
        """Bind both addresses and serve. Raises `StartupError`, `JournalError` or `AccessError`, with nothing left
        open.
        """
        async with AsyncExitStack() as opened:
            await self._open(opened)
            self._opened = opened.pop_all()
        self._serving = True

    async def _open(self, opened: AsyncExitStack) -> None:
        peer = self._peer if self._tls is not None else None
        await self._access.start()
        fresh = asyncio.create_task(self._access.keep_fresh(), name="policy and tokens")
        opened.callback(fresh.cancel)
        identify: Identify = self._access.identify
        for extension in self._extensions:
            identify = extension.identify(identify)
        methods = self._methods()
        for server in self._servers:
            handlers.add_to_server(methods, server, self._gate, identify, peer)
        self._add_standard_services(peer)
        for server in self._servers:
            server.add_generic_rpc_handlers((handlers.UnknownMethods(self._gate),))
        site = self._site = self._make_site(methods, identify)
        opened.push_async_callback(site.stop)
        if self._journal is not None:
            opened.push_async_callback(self._close_journal)
        self.grpc_address = bind_grpc(self._server, self.settings.grpc.address, self._tls)
        self.http_address = await bind_http(site, self.settings.http.address)
        for extension in self._extensions:
            opened.push_async_callback(self._close_extension, extension)
            await extension.open()
            if extension.listener is not None:
                self._host.listeners.append(extension.listener)
        if self._journal is not None:
            for extension in self._extensions:
                extension.restore(self._journal)
            await self._journal.restore(self._host)
        for extension in self._extensions:
            extension.start()
        opened.push_async_callback(self._host.stop)
        self._host.start()
        await self._host.journal.confirmed()
        for server in self._servers:
            await server.start()
        for name in (health.OVERALL_HEALTH, handlers.SERVICE.full_name):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._start_watches(opened)
        for extension in self._extensions:
            extension.serving()

    def _methods(self) -> dict[str, handlers.Method]:
        added: dict[str, handlers.Method] = {}
        for extension in self._extensions:
            added |= extension.calls()
        callbacks = next(filter(None, (extension.callbacks for extension in self._extensions)), NO_CALLBACKS)
        message_bytes_max = largest_message_bytes(self.settings)
        return handlers.service_methods(
            PurgatoryServicer(self._host, callbacks, self._status_line, message_bytes_max), added
        )

    def _status_line(self) -> str:
        return ", ".join(filter(None, (extension.status_line() for extension in self._extensions)))

    def _add_standard_services(self, peer: handlers.RefuseRevoked | None) -> None:
        """Add health and, unless it is switched off, reflection."""
        service = health_pb2.DESCRIPTOR.services_by_name["Health"]
        handlers.add_standard_service(self._health, self._server, self._gate, service, peer)
        if self.settings.grpc.reflection:
            reflection = reflection_servicer((handlers.SERVICE.full_name, health.SERVICE_NAME))
            for version in (V1, V1ALPHA):
                handlers.add_standard_service(
                    reflection, self._server, self._gate, V1ALPHA, peer, name=version.full_name
                )

    def _start_watches(self, opened: AsyncExitStack) -> None:
        """Start the tasks that watch the process itself: garbage collection, memory, the TLS files."""
        self._pauses.start()
        opened.callback(self._pauses.stop)
        trimming = garbage.trim_while_idle(lambda: self._host.engine.pending)
        tasks = {"memory watch": self._memory_watch.run(), "memory trimmer": trimming}
        if self._tls is not None:
            tasks["TLS files"] = self._tls.watch()
        for name, task in tasks.items():
            opened.callback(asyncio.create_task(task, name=name).cancel)

    def reload(self) -> None:
        """Read the policy, the tokens and the keys again, and let extensions read their files again."""
        LOGGER.info("SIGHUP: reloading the files of access and webhooks")
        for extension in self._extensions:
            extension.reload()
        self._access.reload()

    async def stop(self) -> None:
        """Shut down in the order described above."""
        grace_s = self.settings.shutdown.grace_ms / 1_000
        self._grace_until_s = time.monotonic() + grace_s
        async with self._opened:
            self._serving = False
            for extension in self._extensions:
                extension.terminate()
            await self._health.enter_graceful_shutdown()
            if not self._hands_over:
                await drain(self._host, grace_s)
                await self._gate.wait_quiet(self._grace_left_s())
            assert self._http_methods is not None and self._site is not None, "the daemon has been started"  # noqa: PT018
            self._http_methods.is_ending = True
            # At once when handing over: whatever arrived after the last group would be in no log.
            grace_s = 0.0 if self._hands_over else min(STREAMS_GRACE_S, self._grace_left_s())
            stopped = [server.stop(grace_s) for server in self._servers]
            await asyncio.gather(self._site.end_requests(grace_s), *stopped)
            if self._hands_over:
                # Before the extensions, which may take their time: until then nobody leads.
                await self._host.stop()
                await self._close_journal()

    async def exit_at_once(self, code: int) -> None:
        """End the process at once. Only receipted changes are still written to disk: in async mode they may not be
        there yet, and only a crash may lose them.
        """
        if self._journal is not None:
            await self._journal.commit_receipted()
        os._exit(code)

    def _grace_left_s(self) -> float:
        return max(0.0, self._grace_until_s - time.monotonic())

    async def _close_extension(self, extension: Extension) -> None:
        await extension.close(self._grace_left_s())

    async def _close_journal(self) -> None:
        if self._journal is not None and not await self._journal.close(max(CLOSE_S_MIN, self._grace_left_s())):
            LOGGER.error("the last changes could not be written to the journal")
        self._journal = None  # not earlier: `exit_at_once` must wait for what is still being written

    @property
    def pending(self) -> int:
        return self._host.engine.pending

    def _peer(self, context: Context) -> PeerCertificate | None:
        """Return the caller's certificate, if one was requested. Raises `RpcError` for a revoked one."""
        return None if self._tls is None else self._tls.peer(context.auth_context())

    def _principal_of_peer(self, context: Context) -> str:
        peer = self._peer(context)
        return "" if peer is None else peer.principal

    def _make_site(self, methods: dict[str, handlers.Method], identify: Identify) -> HttpSite:
        settings = self.settings
        registry = make_registry(self._host, self._metrics, self._pauses)
        registry.register(self._gate.counts)
        registry.register(self._gate.floods)
        if self._tls is not None:
            registry.register(self._tls)
        identify = handlers.checked(identify, None if self._tls is None else self._check_http_certificate)
        served = self._http_methods = HttpMethods(methods, self._gate, identify)
        parts = [
            HttpParts(
                probe_routes(self._is_ready, lambda: [line for one in self._extensions for line in one.readiness()])
            ),
            HttpParts(MetricsPage(registry).routes()),
            HttpParts(applications=ConnectCalls(served, largest_message_bytes(settings)).applications()),
            HttpParts(applications=ServerSentEvents(served).applications()),
            *(extension.routes(served) for extension in self._extensions),
        ]
        return HttpSite(
            [route for part in parts for route in part.routes],
            allowed_hosts=settings.http.allowed_hosts,
            calls={path: application for part in parts for path, application in part.applications.items()},
            tls=self._tls,
            check_page=None if is_loopback(settings.http.address) else self._access.check_page,
            verifies_tokens=settings.access.policy_file is not None,
            budget=self._host.shares.budget,
            grpc_connections_max=connections_max(),
        )

    def _check_http_certificate(self, context: Context) -> None:
        """Require a client certificate, as gRPC's handshake does. The handshake of the HTTP site does not, because of
        the probes.
        """
        assert self._tls is not None, "asked with TLS only"
        if self._tls.asks_clients and self._peer(context) is None:
            raise unauthenticated("a client certificate is needed")

    def _is_ready(self) -> bool:
        journal = self._host.journal
        return self._serving and not self._host.draining and journal.why_closed() is None and journal.is_confirmed
