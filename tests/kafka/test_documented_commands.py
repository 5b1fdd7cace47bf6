"""The commands and fixtures of the documentation that need Kafka, with real brokers."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import commands_about, shell, sources_about, texts
from tests.kafka.clients import ClusterClients
from tests.kit.daemon import StartDaemon, daemon_environment

PARTITIONS = 4
RECORDS = 43
UNTIL_KNOWN = "until purgatory caught-up kafka/billing/orders > /dev/null 2>&1; do sleep 0.1; done"
"""The brokers may not know the end of a new topic yet."""
PROJECT = """
import threading
import time
from types import SimpleNamespace

import pytest

from tests.kafka.clients import ClusterClients

clients, billed, Order = ClusterClients({address!r}), [], SimpleNamespace


@pytest.fixture(scope="session")
def broker():
    return SimpleNamespace(address=clients.bootstrap)


def publish(order):
    clients.produce("orders")
    threading.Thread(target=bill, args=(order,)).start()


def bill(order):
    time.sleep(0.5)
    billed.append(order.id)
    clients.commit("billing", {{("orders", 0): {offset}}})


def bills():
    return billed


"""


def processed_orders(clients: ClusterClients) -> None:
    """The topic of the pages with 43 records in each partition, all of them processed by the groups."""
    clients.create("orders", PARTITIONS, 3)
    for partition in range(PARTITIONS):
        clients.produce("orders", RECORDS, partition)
    for group in ("billing", "billing-eu", "connect-orders-sink"):
        clients.commit(group, {("orders", partition): RECORDS for partition in range(PARTITIONS)})


def test_commands_and_test_kit_of_the_pages(clients: ClusterClients, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Each command on a Kafka mark succeeds with the sources of the pages, and so does the test of docs/test-kit.md."""
    processed_orders(clients)
    try:
        daemon = start_daemon(*sources_about("kafka", clients.bootstrap))
        commands = commands_about("kafka/", "group=billing", "purgatory lag", '"$token"')
        script = "\n".join([UNTIL_KNOWN, "set -e", *commands]).replace("exec my-service", "true")
        script = script.replace("127.0.0.1:7441", daemon.http_address)
        environment = {"PURGATORY_ADDRESS": daemon.address, "PURGATORY_HTTP_URL": f"http://{daemon.http_address}"}
        done = shell(script, tmp_path, environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(commands) > 8
        run_the_test_kit(clients, tmp_path)
    finally:
        clients.delete("orders")


def run_the_test_kit(clients: ClusterClients, folder: Path) -> None:
    """Run the test and the first fixture of the page in a project whose service bills orders in a thread."""
    test, arguments, own_daemon = texts("docs/test-kit.md", "python")
    compile(own_daemon, "test-kit.md", "exec")  # tests/testing uses one like it
    project = PROJECT.format(address=clients.bootstrap, offset=RECORDS + 1)
    (folder / "test_bills.py").write_text(project + arguments + test)
    environment = daemon_environment({"PYTHONPATH": os.pathsep.join(sys.path)})
    environment = {name: text for name, text in environment.items() if not name.startswith("PYTEST_")}
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
