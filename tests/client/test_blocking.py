"""The blocking client against the real daemon: the same calls without an event loop, from threads, and at exit."""

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from purgatory_client import AsyncClient, Client, Outcome, errors, events

from tests.kit.daemon import DaemonProcess, daemon_environment
from tests.kit.eventually import wait_until
from tests.kit.programs import run_program


def test_the_same_calls_without_await(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.address) as client:
        client.advance_many([events.high_watermark("blocking-1", 10), events.high_watermark("blocking-2", 1)])
        answer = client.produce_many(["blocking-1"], offsets=[1, 11], timeouts_ms=[50])
        assert answer.outcomes == [Outcome.SATISFIED, Outcome.EXPIRED]
        found = client.partitions(prefix="blocking", page_size=1)
        assert [one.name for one in found] == ["blocking-1", "blocking-2"]
        with pytest.raises(errors.InvalidRequest):
            client.produce({"no partition": 1})
    with pytest.raises(errors.ClientClosed):
        client.produce({"blocking-1": 10})


def test_one_client_serves_many_threads_until_it_is_closed(shared_daemon: DaemonProcess) -> None:
    client = Client(shared_daemon.address)
    with ThreadPoolExecutor(20) as pool:
        waits = [pool.submit(client.produce, {f"threads-{i}": 1}, timeout=60) for i in range(20)]
        for i in range(10):
            client.advance(f"threads-{i}", high_watermark=1)
        assert all(wait.result(60).satisfied for wait in waits[:10])
        wait_until(lambda: client.pending == 10)
        client.close()
        assert all(isinstance(wait.exception(60), errors.ClientClosed) for wait in waits[10:])


def test_every_public_method_has_its_blocking_form() -> None:
    """The blocking client has each public method of the asyncio client, with the same parameters.

    The exception is `attach_source`, whose link sends and receives at the same time.
    """
    for name, method in inspect.getmembers(AsyncClient, inspect.isfunction):
        if name.startswith("_") or name == "attach_source":
            continue
        assert inspect.signature(getattr(Client, name)) == inspect.signature(method), name


def test_a_program_that_forgets_to_close_still_ends(shared_daemon: DaemonProcess) -> None:
    program = (
        "import sys, threading\n"
        "from purgatory_client import Client\n"
        "client = Client(sys.argv[1])\n"
        "client.advance('forgets-1', high_watermark=1)\n"
        "assert client.produce({'forgets-1': 1}, timeout=5).satisfied\n"
        "threading.Thread(target=lambda: client.signal(['forgets'], timeout=60), daemon=True).start()\n"
        "while not list(client.operations(key='forgets')): pass\n"
    )
    run_program([sys.executable, "-c", program, shared_daemon.address], env=environment())
    with Client(shared_daemon.address) as client:
        assert list(client.operations(key="forgets")) == []


FORKING = """
import asyncio, os, sys, threading, time
from purgatory_client import AsyncClient, Client
from purgatory_client.errors import ClientClosed

def in_child(check):
    child = os.fork()
    if not child:
        try:
            check()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def is_refused(call):
    try:
        call()
    except ClientClosed:
        return True
    return False

def works():
    with Client(sys.argv[1]) as new:
        assert new.signal(["k"], timeout=0).outcome
        new.status()

async def refused_calls(client):
    for call in (client.status, lambda: client.signal(["k"], timeout=0)):
        try:
            await call()
        except ClientClosed:
            continue
        raise AssertionError(call)

def refuses():
    new = Client(sys.argv[1])
    for client in (old, new):
        assert is_refused(client.status)
        assert is_refused(lambda: client.signal(["k"], timeout=0))
    asyncio.run(refused_calls(old_async))
    asyncio.run(refused_calls(AsyncClient(sys.argv[1])))

old = Client(sys.argv[1])
in_child(works)
old.status()
old.signal(["k"], timeout=0)
old_async = old._client
for _ in range(5):
    in_child(refuses)
old.close()
# gRPC ends its own threads in the background. A child that is forked meanwhile inherits locks that nobody releases.
while len(os.listdir("/proc/self/task")) > threading.active_count():
    time.sleep(0.001)
in_child(works)
"""


@pytest.mark.slow
def test_clients_after_a_fork(shared_daemon: DaemonProcess) -> None:
    """In a child that was forked while a client was connected, every call raises ClientClosed at once. In other
    children a new client works.
    """
    variables = {**environment(), "GRPC_ENABLE_FORK_SUPPORT": "false"}  # as docs/client.md recommends
    run_program([sys.executable, "-c", FORKING, shared_daemon.address], env=variables)


def environment() -> dict[str, str]:
    """The environment in which a subprocess finds the package under test."""
    found = daemon_environment()
    path = inspect.getfile(AsyncClient).rpartition("/purgatory_client/")[0]
    return {**found, "PYTHONPATH": f"{found['PYTHONPATH']}:{path}"}
