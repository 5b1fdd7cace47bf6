"""A real Spark cluster on this machine: a master and some workers, processes of the installed PySpark, on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
DAEMON_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.master.rest.enabled=false "
    "-Dspark.deploy.maxExecutorRetries=-1"  # executors that are killed on purpose end no application
)
END_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes a process end with its parent, by a Linux signal. The process sets it itself: in a program with gRPC's threads
nothing is safe between fork and exec.
"""
START_S = 300
"""Generous for a busy machine."""


class StandaloneCluster:
    """Starts on entry and ends on exit. Its workers do not see this tree.

    `pinned`: each worker and its child processes have one processor, as on a machine of its own (Linux).
    """

    def __init__(
        self, folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g", *, pinned: bool = False
    ) -> None:
        self.folder = folder
        self._pinned = pinned
        self.url = ""
        self._sizes = ["--cores", str(cores), "--memory", memory]
        self._workers = workers
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> StandaloneCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start("master", "Master", ["--port", "0"])
            self.url = self._wait("master", r"Starting Spark master at (spark://\S+)")
            names = [f"worker-{number}" for number in range(self._workers)]
            for number, name in enumerate(names):
                options = ["--work-dir", str(self.folder / "work" / name), *self._sizes, self.url]
                self._start(name, "Worker", options, cpu=number if self._pinned else None)
            for name in names:
                self._wait(name, r"Successfully registered with master (\S+)")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends workers first; they end their executors."""
        processes = [process for _, process in sorted(self._processes.items(), reverse=True)]
        for process in processes:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def logs(self) -> str:
        """All output, and the executors' stderr."""
        paths = [*sorted(self.folder.glob("*.log")), *sorted(self.folder.glob("work/*/*/*/stderr"))]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in paths)

    def _start(self, name: str, role: str, arguments: list[str], cpu: int | None = None) -> None:
        command = [
            str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}",
            "--host", "127.0.0.1", "--webui-port", "0", *arguments,
        ]  # fmt: skip
        if sys.platform == "linux":
            command = [sys.executable, "-c", END_WITH_PARENT, *command]
        if cpu is not None:
            command = ["taskset", "-c", str(cpu), *command]
        with self._log(name).open("wb") as stream:
            self._processes[name] = subprocess.Popen(
                command, stdout=stream, stderr=stream, cwd=self.folder, env=_environment()
            )

    def _wait(self, name: str, ready: str) -> str:
        """Waits for the line in a log that shows that a process is ready, and returns its match."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._processes[name].poll() is None:
            found = re.search(ready, self._log(name).read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.1)
        raise RuntimeError(f"{name} did not start: {self._log(name).read_text(errors='replace')}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _environment() -> dict[str, str]:
    """The environment of a machine that has Spark and nothing of ours."""
    own = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, **own, "SPARK_DAEMON_JAVA_OPTS": DAEMON_OPTIONS}
