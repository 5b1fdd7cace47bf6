"""A small real Kafka cluster on loopback (KRaft; each broker is also a controller), for demonstrations and tests.

All its files are in one folder. The jars come from $KAFKA_JARS, or are downloaded by Maven into
.build/kafka-jars-VERSION; it needs Java 17. `with KafkaCluster(folder, brokers=3) as cluster:` starts the cluster, and
always stops it again.
"""

import base64
import fcntl
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from examples.free_ports import free_ports

VERSION: Final = "4.4.0"
ROOT: Final = Path(__file__).resolve().parent.parent
START_S: Final = 120.0
STOP_S: Final = 40.0

POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>purgatory</groupId><artifactId>kafka-jars</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


class ClusterUnavailable(Exception):
    """Brokers cannot be started: Java, Maven or the jars are missing, or a broker did not start."""


def kafka_jars() -> Path:
    """The folder of Kafka's jars, downloaded with Maven if they are missing. Raises ClusterUnavailable."""
    if shutil.which("java") is None:
        raise ClusterUnavailable("no Java found; install a JDK or JRE, version 17 or newer")
    given = os.environ.get("KAFKA_JARS")
    folder = Path(given) if given else ROOT / ".build" / f"kafka-jars-{VERSION}"
    wanted = folder / f"kafka_2.13-{VERSION}.jar"
    if wanted.exists():
        return folder
    if given:
        raise ClusterUnavailable(f"{wanted.name} is not in KAFKA_JARS={given}")
    if shutil.which("mvn") is None:
        raise ClusterUnavailable(
            "no Maven found to fetch Kafka's jars; install it, or set KAFKA_JARS to a folder of them"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # two tests may request them at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not wanted.exists():
            _fetch_into(folder)
    return folder


def _fetch_into(folder: Path) -> None:
    """Download with Maven into a temporary folder first: the jar whose presence is checked must be moved last."""
    (folder / "pom.xml").write_text(POM, "utf-8")
    partial = folder / "partial"
    fetch = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    done = subprocess.run(
        [*fetch, f"-DoutputDirectory={partial}"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    wanted = partial / f"kafka_2.13-{VERSION}.jar"
    if done.returncode or not wanted.exists():
        raise ClusterUnavailable(f"Maven could not fetch Kafka's jars: {(done.stdout + done.stderr)[-1000:]}")
    for jar in sorted(partial.iterdir(), key=lambda path: path == wanted):
        jar.replace(folder / jar.name)


class KafkaCluster:
    """Brokers 1 to `brokers`, in `folder`. `settings` are added to each broker's properties.

    `guard`: the protocol of a second listener for clients, as in a broker's properties: SASL_SSL. Java's login settings
    belong in `settings`. Raises ClusterUnavailable.
    """

    def __init__(
        self, folder: Path, brokers: int = 1, settings: Mapping[str, object] | None = None, guard: str = ""
    ) -> None:
        self._jars = kafka_jars()
        self._folder = folder.resolve()
        self._settings = dict(settings or {})
        self._guard = guard
        ports = free_ports(3 * brokers)
        self._ports, self._controller_ports = ports[:brokers], ports[brokers : 2 * brokers]
        self._guarded_ports = ports[2 * brokers :]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._cluster_id = base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode()[:22]
        self.brokers: Final = range(1, brokers + 1)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill(*self.brokers)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill(*self.brokers)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def guarded_bootstrap(self) -> str:
        """The addresses of the second listener."""
        return ",".join(f"127.0.0.1:{port}" for port in self._guarded_ports)

    def address(self, broker: int) -> str:
        return f"127.0.0.1:{self._ports[broker - 1]}"

    def start(self, *brokers: int) -> None:
        """Start these brokers, or all, and wait until they serve."""
        chosen = brokers or tuple(self.brokers)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._format([one for one in chosen if not (self._folder / f"data-{one}" / "meta.properties").exists()])
        for one in chosen:
            self._launch(one)
        for one in chosen:
            self._wait(one)

    def kill(self, *brokers: int) -> None:
        """Send SIGKILL, as in a crash."""
        self._end(brokers, signal.SIGKILL)

    def stop(self, *brokers: int) -> None:
        """Send SIGTERM and wait: a broker first hands over the partitions it leads."""
        self._end(brokers or tuple(self.brokers), signal.SIGTERM)

    def hang(self, broker: int) -> None:
        """Send SIGSTOP: the broker's connections stay open, but it does not answer. `wake` ends this."""
        self._running[broker].send_signal(signal.SIGSTOP)

    def wake(self, broker: int) -> None:
        self._running[broker].send_signal(signal.SIGCONT)

    def log(self, broker: int) -> str:
        return (self._folder / f"broker-{broker}.log").read_text("utf-8", "replace")

    def tool(self, main_class: str, *arguments: str) -> str:
        """Run one of Kafka's command line tools; returns its output. Raises ClusterUnavailable if it fails."""
        command = [*self._java(), main_class, *arguments]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            raise ClusterUnavailable(f"{main_class} failed: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def _java(self) -> list[str]:
        # Optimised for start-up: the second JIT compiler would take processor time from the program under test.
        return ["java", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*"]

    def _format(self, brokers: Iterable[int]) -> None:
        runs = []
        for one in brokers:
            properties = "".join(f"{key}={value}\n" for key, value in self._properties(one).items())
            (self._folder / f"broker-{one}.properties").write_text(properties, "utf-8")
            arguments = ["kafka.tools.StorageTool", "format", "-g", "-t", self._cluster_id, "-c"]
            command = [*self._java(), *arguments, f"broker-{one}.properties"]
            runs.append(
                subprocess.Popen(
                    command,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
        for run in runs:
            output, _ = run.communicate()
            if run.returncode:
                raise ClusterUnavailable(f"a broker's folder could not be formatted: {output[-1000:].decode()}")

    def _launch(self, broker: int) -> None:
        before = self._running.get(broker)
        if before is not None and before.poll() is None:
            return
        with (self._folder / f"broker-{broker}.log").open("wb") as log:  # of this run only, because _wait searches it
            self._running[broker] = subprocess.Popen(
                [*self._java(), "kafka.Kafka", f"broker-{broker}.properties"],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _wait(self, broker: int) -> None:
        deadline = time.monotonic() + START_S
        while "Kafka Server started" not in self.log(broker):  # logged after the broker was unfenced
            if self._running[broker].poll() is not None or time.monotonic() > deadline:
                raise ClusterUnavailable(f"broker {broker} did not start; its log ends:\n{self.log(broker)[-2000:]}")
            time.sleep(0.05)

    def _end(self, brokers: Iterable[int], how: signal.Signals) -> None:
        ending = [run for one in brokers if (run := self._running.pop(one, None)) is not None]
        for run in ending:
            run.send_signal(how)
            run.send_signal(signal.SIGCONT)
        for run in ending:
            try:
                run.wait(STOP_S)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()

    def _properties(self, broker: int) -> dict[str, object]:
        count = len(self.brokers)
        replicas = min(3, count)
        voters = (f"{one}@127.0.0.1:{port}" for one, port in zip(self.brokers, self._controller_ports, strict=True))
        listeners = f"PLAINTEXT://{self.address(broker)}"
        protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        if self._guard:
            listeners += f",{self._guard}://127.0.0.1:{self._guarded_ports[broker - 1]}"
            protocols += f",{self._guard}:{self._guard}"
        made: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": broker,
            "log.dirs": f"data-{broker}",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controller_ports[broker - 1]}",
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": protocols,
            "broker.heartbeat.interval.ms": 500,  # a broker that starts is admitted with one of its heartbeats
            "num.network.threads": 2,
            "num.io.threads": 4,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": 1,
            "default.replication.factor": replicas,
            "min.insync.replicas": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 33_554_432,
        }
        return made | self._settings
