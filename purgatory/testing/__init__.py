"""For the tests of other projects: a daemon, waits instead of sleeps, and a clock that is moved by hand.

docs/test-kit.md shows how to use it with pytest.
"""

from purgatory.testing.connector_contract import ConnectorContract, WatchedSystem
from purgatory.testing.manual_clock import ManualClock
from purgatory.testing.running_daemon import DaemonFailed, RunningDaemon, daemon_in_process, daemon_process

__all__ = [
    "ConnectorContract", "DaemonFailed", "ManualClock", "RunningDaemon", "WatchedSystem", "daemon_in_process",
    "daemon_process",
]  # fmt: skip
