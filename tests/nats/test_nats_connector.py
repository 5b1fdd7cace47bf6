"""The example of docs/connectors.md, a connector for NATS JetStream in a package of its own, with a real server."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any, Final

import nats
import pytest
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from examples.free_ports import free_port
from purgatory.testing import ConnectorContract, WatchedSystem, daemon_process
from tests.kit.eventually import wait_until
from tests.kit.programs import run_program, skip_unless_required

PACKAGE: Final = Path(__file__).parents[2] / "examples" / "nats_connector"
PAGE: Final = Path(__file__).parents[2] / "docs" / "connectors.md"
GO_BIN: Final = Path.home() / "go" / "bin"


class Nats(WatchedSystem):
    """A server with the stream ORDERS and its consumer `billing`, which sees a part of it. Its files outlive it."""

    def __init__(self, program: str, folder: Path, *flags: str, **login: str) -> None:
        self._port, self._login = free_port(), dict[str, Any](login)
        self._command = [program, "--jetstream", "--store_dir", str(folder), "--addr", "127.0.0.1", *flags]
        self.uri = f"nats://127.0.0.1:{self._port}?poll_ms=5&idle_poll_ms=20&timeout_ms=1000"
        self.mark, self.ends = "nats/main/ORDERS/billing-0", "nats/main/ORDERS/billing"
        self.start()
        self.begin_again()

    def run(self, what: Any) -> Any:  # noqa: ANN401 - what the function returns
        """The answer of an asynchronous function of a JetStream context."""

        async def ask() -> Any:  # noqa: ANN401
            connection = await nats.connect(f"nats://127.0.0.1:{self._port}", **self._login)
            try:
                return await what(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(ask())

    def write(self, subject: str = "orders.new") -> int:
        async def publish(jetstream: JetStreamContext) -> int:
            number = (await jetstream.publish(subject)).seq
            await jetstream.publish("orders.other")
            consumer = await jetstream.pull_subscribe_bind("billing", "ORDERS")
            for message in await consumer.fetch(1):
                await message.ack_sync()
            return number

        return int(self.run(publish))

    def position(self) -> int:
        async def floor(jetstream: JetStreamContext) -> int:
            at = (await jetstream.consumer_info("ORDERS", "billing")).ack_floor
            return at.stream_seq if at else 0

        return int(self.run(floor))

    def stop(self) -> None:
        self._process.terminate()  # killed, it would forget the last acknowledgements
        self._process.wait()

    def start(self) -> None:
        self._process = subprocess.Popen([*self._command, "--port", str(self._port)], stderr=subprocess.DEVNULL)
        wait_until(lambda: self.run(JetStreamContext.account_info), "the server answers", but=(NatsError, OSError))

    def begin_again(self) -> None:
        """Recreate the stream and its consumer."""

        async def renew(jetstream: JetStreamContext) -> None:
            if await jetstream.streams_info():
                await jetstream.delete_stream("ORDERS")
            await jetstream.add_stream(name="ORDERS", subjects=["orders.*"])
            await jetstream.add_consumer("ORDERS", durable_name="billing", filter_subject="orders.new")

        self.run(renew)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package is installed into a folder that programs of these tests import from."""
    folder = tmp_path_factory.mktemp("installed")
    copy = shutil.copytree(PACKAGE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    run_program([*pip, "--target", str(folder / "site"), str(copy)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "site"), prepend=os.pathsep)
        patch.syspath_prepend(folder / "site")
        yield


@pytest.fixture(scope="module")
def nats_server() -> str:
    """The program. Without it, the test is skipped, or fails if it is required."""
    program = shutil.which("nats-server", path=f"{os.environ['PATH']}{os.pathsep}{GO_BIN}")
    if program is None:
        skip_unless_required("NATS", "no nats-server found (go install github.com/nats-io/nats-server/v2@v2.14.3)")
    return program


@pytest.fixture(scope="module")
def system(nats_server: str, tmp_path_factory: pytest.TempPathFactory, installed: None) -> Iterator[Nats]:
    system = Nats(nats_server, tmp_path_factory.mktemp("nats"))
    yield system
    system.stop()


@pytest.mark.slow
class TestContract(ConnectorContract): ...


def test_daemon_finds_the_connector_of_an_installed_package(system: Nats) -> None:
    with daemon_process("--source", f"{system.uri}&name=served&streams=ORDERS") as daemon:
        for topic in ("nats/served/ORDERS", "nats/served/ORDERS/billing"):
            assert daemon.client.produce({(topic, 0): system.write()}, timeout=60).satisfied
            ends = daemon.client.ends([topic])
            assert daemon.client.wait_for(ends, timeout=60).satisfied


def test_login_that_the_server_refuses_is_named(nats_server: str, tmp_path: Path, installed: None) -> None:
    server = Nats(nats_server, tmp_path, "--user", "u", "--pass", "right", user="u", password="right")
    try:
        with daemon_process("--source", f"{server.uri}&user=u") as daemon:
            wait_until(lambda: "refused" in {one.state for one in daemon.client.status().sources}, "it is refused")
    finally:
        server.stop()


def test_page_shows_the_example_as_it_is() -> None:
    """docs/connectors.md."""
    files = [PACKAGE / "pyproject.toml", PACKAGE / "purgatory_nats.py", Path(__file__)]
    text = "\n".join(file.read_text("utf-8") for file in files)
    for block in re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        assert block in text or indent(block, "    ") in text
