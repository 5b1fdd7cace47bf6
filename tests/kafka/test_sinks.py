"""docs/sinks.md with a real Kafka Connect worker: the mark of a sink connector's group follows its flushes."""

import re
import subprocess
from functools import partial
from pathlib import Path

from purgatory_client import Client
from purgatory_client.errors import Unavailable

from examples.kafka_cluster import POM, VERSION
from tests.docs.pages import texts
from tests.kafka.clients import ClusterClients
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import wait_until
from tests.strangers.client_builds import BUILT, require, run_tool

WORKER_VERSION = "4.3.1"
"""The newest release whose file connector is on Maven Central."""
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


def connect_jars() -> Path:
    """The folder of a worker's jars, downloaded on first use."""
    require("KAFKA", "mvn", "java")
    folder = BUILT / f"connect-{WORKER_VERSION}"
    if not (folder / f"connect-runtime-{WORKER_VERSION}.jar").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pom = POM.replace("kafka_2.13", "connect-runtime").replace("kafka-tools", "connect-file")
        (folder / "pom.xml").write_text(pom.replace(VERSION, WORKER_VERSION), "utf-8")
        run_tool("KAFKA", ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=."], folder)
    return folder


def test_sink_has_the_records_when_its_group_has_caught_up(
    clients: ClusterClients, topic: str, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    [flushed_often] = [text for text in texts("docs/sinks.md", "text") if text.startswith("offset.flush")]
    worker, connector, sink = tmp_path / "worker", tmp_path / "connector", tmp_path / "sink"
    worker.write_text(
        f"bootstrap.servers={clients.bootstrap}\nkey.converter={STRINGS}\nvalue.converter={STRINGS}\n"
        f"offset.storage.file.filename={tmp_path}/offsets\nlisteners=http://127.0.0.1:0\n{flushed_often}"
    )
    kind = "org.apache.kafka.connect.file.FileStreamSinkConnector"
    connector.write_text(f"name=orders-sink\nconnector.class={kind}\ntopics={topic}\nfile={sink}\n")
    command = ["java", "-cp", f"{connect_jars()}/*", "org.apache.kafka.connect.cli.ConnectStandalone"]
    daemon = start_daemon("--source", f"kafka://{clients.bootstrap}?groups=connect-orders-sink")
    with (tmp_path / "worker.log").open("w") as log:
        running = subprocess.Popen([*command, str(worker), str(connector)], stdout=log, stderr=log)
    try:
        clients.produce(topic, 20)
        clients.produce(topic, 22, partition=1)
        with Client(daemon.address) as client:
            caught_up = partial(client.caught_up, "connect-orders-sink", [topic], timeout=120)
            result = wait_until(lambda: [caught_up()], "the source is attached", but=Unavailable)[0]
        assert result.outcome.name == "SATISFIED", (tmp_path / "worker.log").read_text()
        assert len(re.findall(r"^\d+$", sink.read_text(), re.MULTILINE)) == 42
    finally:
        running.terminate()
        running.wait(60)
