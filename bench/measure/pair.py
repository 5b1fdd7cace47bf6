"""Two daemons over one log: a leader and its standby, either of which is started again after it was ended."""

import contextlib
import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from bench.measure.processes import Process, WorkerFailed
from examples.free_ports import free_port

PATIENCE_S: Final = 120.0
POLL_S: Final = 0.05


class Member:
    """One daemon of the pair, which is started again after it has ended."""

    def __init__(self, folder: Path, log: str) -> None:
        self.address: Final = f"127.0.0.1:{free_port()}"
        self.data: Final = folder
        http_address = f"127.0.0.1:{free_port()}"
        self._url: Final = f"http://{http_address}/fleet"
        self._command: Final = [
            sys.executable, "-m", "purgatory", "serve", "--grpc-address", self.address, "--http-address",
            http_address, "--data-dir", str(folder), "--fleet-log", log, "--log-level", "error",
        ]  # fmt: skip
        self.process = Process(self._command, wants_input=False)

    def restart(self) -> None:
        self.process.kill()
        self.process.stop()
        self.process = Process(self._command, wants_input=False)

    def view(self) -> dict[str, Any]:
        """The answer of `/fleet`; empty while there is none."""
        with contextlib.suppress(OSError), urllib.request.urlopen(self._url, timeout=PATIENCE_S) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
            return found
        return {}


class Pair:
    """A leader and its standby, in this order."""

    def __init__(self, folder: Path, log: str) -> None:
        self.members: Final = [Member(folder / "a", log)]
        try:
            self._wait("leading", 0)
            self.members.append(Member(folder / "b", log))
            self.settle()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.stop()

    def settle(self) -> None:
        """Wait until one leads, and the other one has everything."""
        led = self._wait("leading", 0)
        self._wait("standing by", led["position"])

    def _wait(self, state: str, position: int) -> dict[str, Any]:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for at, member in enumerate(self.members):
                if member.process.has_ended:
                    member.restart()  # a leader that was cut off from its log exits
                view = member.view()
                if view.get("state") == state and view["position"] >= position:
                    if state == "leading":
                        self.members.insert(0, self.members.pop(at))
                    return view
            time.sleep(POLL_S)
        raise WorkerFailed(f"no daemon of the pair is {state}")
