"""The clients in Python, Go, Java and TypeScript follow the rules of docs/grpc.md: each client and case is a test."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc.aio
import pytest

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.conformance import cases
from tests.conformance.client_process import ClientProcess
from tests.conftest import StartDaemon
from tests.service.serving import eventually
from tests.strangers.client_builds import BUILT, build_go, build_java, build_typescript

pytestmark = [pytest.mark.xdist_group("strangers"), pytest.mark.slow]

COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "python": lambda name: [sys.executable, str(Path(__file__).with_name("python_client.py"))],
    "go": build_go,
    "java": build_java,
    "typescript": build_typescript,
}


@pytest.fixture(scope="module", params=COMMANDS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientProcess]:
    """The client of one language: one process for all cases."""
    BUILT.mkdir(parents=True, exist_ok=True)
    process = ClientProcess(COMMANDS[request.param]("conformance"), tmp_path_factory.mktemp("client"))
    yield process
    process.kill()


@pytest.mark.parametrize("case", cases.CASES)
async def test_a_client_follows_the_rule(client: ClientProcess, case: str) -> None:
    """The case does not raise."""
    try:
        await cases.CASES[case](client)
    except BaseException:
        client.kill()
        raise


async def test_a_client_keeps_to_the_message_size_of_the_real_daemon(
    client: ClientProcess, start_daemon: StartDaemon
) -> None:
    """Waits that together are larger than `grpc.message_bytes_max` are all registered; one that is larger alone is
    refused.
    """
    daemon = start_daemon("--grpc-message-bytes-max", str(cases.SMALL_BYTES))
    client.open(daemon.address)
    try:
        for number in range(40):
            client.wait(topic=f"{cases.LONG_TOPIC}{number}", partitions=20)
        assert await client.ended(client.wait(topic=cases.LONG_TOPIC, partitions=400)) == ["refused"]
        async with grpc.aio.insecure_channel(daemon.address) as channel:
            stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)

            async def all_registered() -> bool:
                status = await stub.GetStatus(wire.GetStatusRequest())
                return bool(sum(kind.registered for kind in status.kinds) == 40)

            await eventually(all_registered, "40 registered operations")
        await client.close()
    except BaseException:
        client.kill()
        raise
