"""The clients in Python, Go, Java and TypeScript follow the rules of docs/grpc.md: each case is a test."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc.aio
import pytest

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.conformance import cases
from tests.conformance.client_process import ClientProcess
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import eventually
from tests.strangers.client_builds import BUILT, build_go, build_java, build_typescript

pytestmark = [pytest.mark.xdist_group("strangers"), pytest.mark.slow]

COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "python": lambda name: [sys.executable, str(Path(__file__).with_name("python_client.py"))],
    "go": build_go,
    "java": build_java,
    "typescript": build_typescript,
}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ClientProcess]]:
    """The client of each language whose tools are there: one process for all cases."""
    BUILT.mkdir(parents=True, exist_ok=True)
    processes = {}
    for language, build in COMMANDS.items():
        with contextlib.suppress(pytest.skip.Exception):
            processes[language] = ClientProcess(build("conformance"), tmp_path_factory.mktemp(language))
    yield processes
    for process in processes.values():
        process.kill()


async def in_each(clients: dict[str, ClientProcess], case: cases.Case) -> None:
    """Run a case with all clients at once: they mostly wait. Raises what went wrong with any of them."""

    async def run(language: str, client: ClientProcess) -> None:
        try:
            await case(client)
        except BaseException as error:
            error.add_note(f"in the client for {language}")
            client.kill()
            raise

    runs = (run(language, client) for language, client in clients.items())
    if failed := [error for error in await asyncio.gather(*runs, return_exceptions=True) if error is not None]:
        raise BaseExceptionGroup("not all clients follow the rule", failed)


@pytest.mark.parametrize("language", COMMANDS)
def test_a_client_is_there(language: str) -> None:
    """Without the tools of its language a client is left out of the other tests, and this one is skipped."""
    COMMANDS[language]("conformance")


@pytest.mark.parametrize("case", cases.CASES)
async def test_clients_follow_the_rule(clients: dict[str, ClientProcess], case: str) -> None:
    await in_each(clients, cases.CASES[case])


async def test_clients_keep_to_the_message_size_of_the_real_daemon(
    clients: dict[str, ClientProcess], start_daemon: StartDaemon
) -> None:
    """Waits that together are larger than `grpc.message_bytes_max` are all registered; one that is larger alone is
    refused.
    """
    daemon = start_daemon("--grpc-message-bytes-max", str(64 << 10))
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)

        async def all_registered() -> bool:
            status = await stub.GetStatus(wire.GetStatusRequest())
            return bool(sum(kind.registered for kind in status.kinds) == 40 * len(clients))

        async def case(client: ClientProcess) -> None:
            client.open(daemon.address)
            for number in range(40):
                client.wait(topic=f"{cases.LONG_TOPIC}{number}", partitions=20)
            assert await client.ended(client.wait(topic=cases.LONG_TOPIC, partitions=400)) == ["refused"]
            await eventually(all_registered, "40 registered operations of each")
            await client.close()

        await in_each(clients, case)
