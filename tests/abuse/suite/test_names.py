"""Names and ids are untrusted: a terminal that shows them is not affected, and ids of strangers cause no hang."""

import json

import grpc
from click.testing import CliRunner

from purgatory.cli.app import app
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.kit.daemon import DaemonProcess
from tests.kit.messages import produce, register_request

NAMES = {
    "ANSI: clears the screen": "\x1b[2J\x1b[H",
    "OSC: sets the title": "\x1b]0;pwned\x07",
    "C1: the same in one character": "\x9b2J",
    "lines that look like ours": "t\r\npurgatory: all is well",
    "bidirectional override": "t\u202e1-gnitirw",
    "beyond the basic plane": "t\U000e0041",
    "rich's markup": "[red]t[/red]",
}


def printed(daemon: DaemonProcess, *arguments: str) -> str:
    ended = CliRunner().invoke(app, [*arguments, "--address", daemon.address])
    return (ended.stdout_bytes + ended.stderr_bytes).decode()


def test_names_are_shown_escaped(shared_daemon: DaemonProcess) -> None:
    """`ls` and an error print only printable characters, and a name cannot add lines; JSON contains the exact names."""
    operations = [produce(number, topic, 9, 60_000, partition=1) for number, topic in enumerate(NAMES.values(), 1)]
    session = "".join(NAMES.values())[:60]
    with grpc.insecure_channel(shared_daemon.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        registered = stub.Register(register_request(session, *operations))
    assert registered.receipt.accepted == len(NAMES)
    listed = printed(shared_daemon, "ls", "--partitions")
    document = printed(shared_daemon, "ls", "--partitions", "--json")
    for output in (
        listed,
        document,
        printed(shared_daemon, "ls"),
        printed(shared_daemon, "cancel", "--session", f"{session}?"),
    ):
        assert all(one.isprintable() or one == "\n" for one in output), ascii(output)
        assert "purgatory: all is well" not in output.splitlines()
    assert NAMES["rich's markup"] in listed
    assert {json.loads(line)["name"] for line in document.splitlines()} >= {f"{topic}-1" for topic in NAMES.values()}
