"""Addresses: what can never be connected to is refused at once, and the wrong port is named."""

import pytest
from purgatory_client import AsyncClient, Client, errors
from purgatory_client.session.addresses import check_address

from purgatory.cli.exit_codes import Exit
from tests.client.cli.test_commands import purgatory
from tests.kit.daemon import DaemonProcess

WRONG = [
    "", "127.0.0.1", "localhost", "127.0.0.1:WRONG", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", ":7440",
    "http://127.0.0.1:7441", "https://daemon:7440", "127.0.0.1:7440/", "::1:7440", "a host:7440",
    "a:7440,", "a:7440, b:7440", "a:7440,b", "a:\u0667\u0664", "a:7440,dns:///b:7440",
]  # fmt: skip


@pytest.mark.parametrize("address", WRONG)
def test_an_address_that_can_never_be_connected_to(address: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="expected the daemon's gRPC address"):
        AsyncClient(address)
    with pytest.raises(errors.InvalidRequest), Client(address):
        pass
    answer = purgatory("status", "--address", address)
    assert (answer.returncode, answer.stdout) == (Exit.USAGE, "")
    assert "expected the daemon's gRPC address as host:port" in answer.stderr


def test_targets_that_grpc_accepts_are_addresses() -> None:
    for address in (
        "127.0.0.1:1",
        "daemon.example.org:65535",
        "[::1]:7440",
        "unix:/run/p",
        "dns:///daemon:7440",
        "a:1,[::1]:2",
    ):
        check_address(address)


def test_the_http_port_is_named_at_once(shared_daemon: DaemonProcess) -> None:
    """A client that never gives up fails too: this port will not answer gRPC later."""
    with Client(shared_daemon.http_address, give_up_after=None) as client:
        with pytest.raises(errors.Unavailable, match="answers HTTP/1 and not gRPC"):
            client.produce({"orders-3": 42}, timeout=60)
        with pytest.raises(errors.Unavailable, match="answers HTTP/1 and not gRPC"):
            client.status()
