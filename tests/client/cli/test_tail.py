"""`tail`, `hot`, `--watch` and completion, with a daemon that no other test uses."""

import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from purgatory_client import Client, batches
from purgatory_client.waits import produce
from purgatory_client.waits import signal as signal_wait

from purgatory.cli.exit_codes import Exit
from tests.client.cli.test_commands import Answer, Background, purgatory
from tests.kit.daemon import DaemonProcess

EVIL = "evil:key:\x1b[31m\u202e[red]"  # ":key:" is an emoji to rich
SHOWN = "evil:key:\\x1b[31m\\u202e[red]"


@pytest.fixture(scope="module")
def quiet_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that no other test uses."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("tail"))
    yield daemon
    daemon.kill()


@pytest.fixture
def client(quiet_daemon: DaemonProcess) -> Iterator[Client]:
    """A client. Waits that are still pending are cancelled at its end."""
    with Client(quiet_daemon.address) as one:
        yield one


def followed(daemon: DaemonProcess, client: Client, *arguments: str) -> Answer:
    """Run `purgatory tail -n 1` while waits end one after another, until it prints a matching one."""
    client.advance("tailed-0", high_watermark=1)
    with ThreadPoolExecutor(1) as thread:
        tail = thread.submit(purgatory, "tail", "--count", "1", *arguments, address=daemon.address)
        while not tail.done():
            client.wait_once(signal_wait({EVIL: 1}, timeout=0.02))
            client.wait_once(produce({"tailed-0": 0}, timeout=1))
        return tail.result()


def test_tail_prints_one_escaped_line_for_a_result(quiet_daemon: DaemonProcess, client: Client) -> None:
    answer = followed(quiet_daemon, client, "--outcome", "expired")
    assert (answer.returncode, answer.stderr) == (Exit.OK, "")
    assert answer.stdout.count("\n") == 1
    assert re.search(r"expired +signal +after \d+\.\d+ s", answer.stdout)
    assert SHOWN in answer.stdout
    assert "\x1b" not in answer.stdout
    assert "\u202e" not in answer.stdout


def test_tail_as_json_has_only_the_chosen_kind(quiet_daemon: DaemonProcess, client: Client) -> None:
    told = json.loads(followed(quiet_daemon, client, "--kind", "produce", "--json").stdout)
    assert (told["kind"], told["outcome"], told["session_id"], told["operation_id"]) == ("produce", "satisfied", "", 0)
    assert told["items"][0]["name"] == "tailed-0"


def test_hot_lists_most_watched_first(quiet_daemon: DaemonProcess, client: Client) -> None:
    client.advance("cold-0", high_watermark=1)
    client.register(
        "hot", 1, batches.produce(["hot-1", "hot-2"], offsets=[9, 9, 9], indexes=[0, 1, 0], item_counts=[2, 1])
    )
    client.register("hot", 3, batches.signal([EVIL, "hot"], indexes=[0, 1], item_counts=[2]))
    answer = purgatory("hot", "--json", address=quiet_daemon.address)
    names = [(one["name"], one["is_key"], one["watched"]) for one in map(json.loads, answer.stdout.splitlines())]
    assert names[0] == ("hot-1", False, 2)
    assert sorted(names[1:]) == [(EVIL, True, 1), ("hot", True, 1), ("hot-2", False, 1)]
    table = purgatory("hot", "--limit", "1", address=quiet_daemon.address).stdout.splitlines()
    assert [line.split() for line in table] == [["watched", "what", "name"], ["2", "partition", "hot-1"]]
    assert SHOWN in purgatory("hot", address=quiet_daemon.address).stdout
    client.close_session("hot")


def test_watch_shows_it_again_until_interrupted(quiet_daemon: DaemonProcess) -> None:
    watching = Background(quiet_daemon.address, "ls", "--watch", "100ms")
    assert watching.process.stdout is not None
    heading = watching.process.stdout.readline()
    assert heading
    while watching.process.stdout.readline() != heading:
        assert watching.process.poll() is None
    watching.process.send_signal(signal.SIGINT)
    code, _, err = watching.end()
    assert code == Exit.INTERRUPTED
    assert "nothing was changed" in err
