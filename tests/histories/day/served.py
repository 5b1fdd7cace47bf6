"""The daemon of a simulated day: a real host and gRPC server on a free port, which can be replaced by a new one."""

from typing import Final, cast

import grpc.aio

from purgatory.clock import SystemClock
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.draining import drain
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Listener
from purgatory.service.settings import HostSettings, LimitsSettings, SessionSettings
from tests.histories.day.engine_tap import EngineTap
from tests.histories.day.plan import Plan
from tests.kit.proxy import NOBODY
from tests.kit.served_host import RecordingListener, start_server, with_faults

DRAIN_S: Final = 10.0


class DayClock:
    """The machine's clock, which can be moved past the sessions' time to live after the day."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Milliseconds; equal to `call_log.now_ms` until the day is over."""
        return self._clock.now_ms() + self.ahead_ms

    def ceiling_ms(self) -> int:
        return self._clock.ceiling_ms() + self.ahead_ms


class Served:
    """One daemon after another. `taps` contains one tap for each, in order."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.clock: Final = DayClock()
        self.listener: Final = RecordingListener()
        self.taps: Final[list[EngineTap]] = []
        self.address = NOBODY
        self._server: grpc.aio.Server | None = None
        self._host: Host | None = None

    @property
    def host(self) -> Host:
        assert self._host is not None, "no daemon has been started"
        return self._host

    async def start(self) -> None:
        """Start a new daemon, which has no state from earlier ones."""
        plan = self._plan
        tap = EngineTap(Engine(EngineLimits(), self.clock.now_ms()))
        settings = HostSettings(
            limits=LimitsSettings(
                unacknowledged_results_max=plan.unacknowledged_results_max,
                operations_per_batch_max=plan.operations_per_batch_max,
                sessions_max=plan.sessions_max,
            ),
            session=SessionSettings(
                heartbeat_interval_ms=plan.heartbeat_interval_ms,
                ttl_ms=plan.session_ttl_ms,
                finished_ttl_ms=plan.finished_ttl_ms,
            ),
        )
        faulty = [with_faults(Listener())] if plan.faulty_listener else []
        self._host = Host(cast(Engine, tap), self.clock, settings, *faulty, self.listener)
        tap.session_of = self._host.sessions.of_owner
        self.taps.append(tap)
        self._server, port = await start_server(self._host, [("grpc.so_reuseport", 0)])
        self.address = f"127.0.0.1:{port}"

    async def drain(self) -> None:
        """End the daemon as SIGTERM does. Call `stop` after it."""
        await drain(self.host, DRAIN_S)

    async def stop(self) -> None:
        """Stop the daemon, which loses its state. Without a preceding `drain` this corresponds to a kill."""
        self.address = NOBODY
        assert self._server is not None
        await self._server.stop(0)
        assert not any(task.done() for task in self.host._tasks), "a task of the host has ended by itself"
        await self.host.stop()
