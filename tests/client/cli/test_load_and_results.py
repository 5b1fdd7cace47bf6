"""`purgatory load` and `purgatory results` as a user runs them, and the remaining time in `purgatory status`."""

import json
import re
import signal
from pathlib import Path

import pytest
from purgatory_client import Client, Outcome, errors
from purgatory_client.batches import partition_columns
from purgatory_client.results import OperationKind
from purgatory_client.views import RemainingTime

from purgatory.cli.exit_codes import Exit, exit_of_outcomes
from purgatory.cli.parsing import seconds
from purgatory.cli.render import counted, exact, remaining_line, span
from tests.client.cli.test_commands import Background, Run, looking, purgatory, run, until_waiting
from tests.kit.daemon import DaemonProcess

__all__ = ["looking", "run"]


def pending(client: Client) -> int:
    return sum(kind.pending for kind in client.status().kinds)


def test_a_load_that_is_reached_is_followed_to_its_end(run: Run, looking: Client) -> None:
    """With --advance every wait is satisfied, the exit code is 0, and a second load on the same topic continues
    after it.
    """
    for _ in range(2):
        answer = run("load", "--operations", "1234", "--topic", "reached", "--partitions", "7", "--advance", "--json")
        assert (answer.returncode, answer.stderr) == (0, "")
        document = json.loads(answer.stdout)
        assert document["operations"] == 1234
        assert document["outcomes"] == {"satisfied": 1234}
    assert looking.partition("reached-0").high_watermark == 2 * 177
    assert pending(looking) == 0


def test_a_load_that_is_left_is_collected_later_each_result_once(run: Run, looking: Client) -> None:
    """After --detach the waits stay pending at the daemon; `results` prints each result once, and then nothing is
    left.
    """
    left = run("load", "-n", "1000", "--session", "left-1", "--topic", "left", "--partitions", "10", "--detach")
    assert left.returncode == 0
    assert "purgatory results --session left-1" in left.stdout
    assert pending(looking) == 1000
    shown = run("status").stdout
    assert re.search(r"time left: 1,000 up to 10m; first expires in (9m \d+s|10m), last in", shown)
    again = run("load", "-n", "1000", "--session", "left-1", "--topic", "left", "--partitions", "10", "--detach")
    assert again.returncode == Exit.USAGE
    assert "use another id, or collect its results" in again.stderr
    for number in range(10):
        looking.advance(f"left-{number}", high_watermark=100)
    collected = run("results", "--session", "left-1", "--json")
    assert collected.returncode == 0
    lines = [json.loads(line) for line in collected.stdout.splitlines()]
    assert sorted(line["operation_id"] for line in lines) == list(range(1, 1001))
    assert {line["outcome"] for line in lines} == {"satisfied"}
    assert collected.stderr == "purgatory: session left-1: 1,000 satisfied\n"
    assert looking.status().unacknowledged_results == 0
    nothing = run("results", "--session", "left-1", "--counts")
    assert (nothing.returncode, nothing.stdout) == (0, "session left-1: no results\n")


def test_a_load_that_expires_says_so(run: Run) -> None:
    """Without --advance the waits expire: exit code 11 from `load` and from `results`."""
    answer = run("load", "-n", "50", "--timeout", "50ms", "--topic", "late", "--rate", "1000", "--batch", "10")
    assert answer.returncode == 11
    assert re.search(r"50 waits ended in \d+\.\d{3} s \([\d,]+ per second\): 50 expired", answer.stdout)
    assert (
        run("load", "-n", "50", "--timeout", "50ms", "--topic", "late", "--session", "late", "--detach").returncode == 0
    )
    collected = run("results", "--session", "late")
    assert collected.returncode == 11
    assert re.fullmatch(r"(\d+ expired after \d+\.\d{3} s\n){50}", collected.stdout)


def test_an_interrupted_load_says_what_it_leaves(shared_daemon: DaemonProcess, looking: Client) -> None:
    """Ctrl-C: exit code 130, and a message on how to end the operations that stay pending."""
    command = Background(shared_daemon.address, "load", "-n", "10", "--session", "stopped", "--topic", "stopped")
    until_waiting(looking, "stopped-9")
    command.process.send_signal(signal.SIGINT)
    code, _, error = command.end()
    advice = "the registered waits stay pending; cancel them with: purgatory cancel --session stopped"
    assert (code, error) == (130, f"purgatory: interrupted; {advice}\n")
    assert looking.cancel(session_id="stopped") == 10


def test_results_of_a_session_that_is_not_known(run: Run) -> None:
    """An unknown session gives exit code 16."""
    answer = run("results", "--session", "nobody")
    assert answer.returncode == 16
    assert "session 'nobody' has no operations" in answer.stderr


def test_a_refused_operation_is_in_the_receipt_and_among_the_results(looking: Client) -> None:
    """`register` reports refusals with reasons, and repeated ids as known; `results` returns every result once."""
    batch = partition_columns(OperationKind.PRODUCE, ["refused-1"], None, [1, -7, 3], [60_000], None)
    first = looking.register("refused", 1, batch)
    assert (first.accepted, first.already_known, list(first.refusals)) == (2, 0, [2])
    assert isinstance(first.refusals[2], errors.InvalidRequest)
    again = looking.register("refused", 1, batch)
    assert (again.accepted, again.already_known) == (0, 3)
    looking.advance("refused-1", high_watermark=3)
    ends: dict[int, int] = {}
    for collected in looking.results("refused"):
        ends |= dict(zip(collected.operation_ids, collected.results.outcomes, strict=True))
    assert ends == {1: Outcome.SATISFIED, 2: Outcome.REFUSED, 3: Outcome.SATISFIED}


def test_results_that_were_not_used_come_again(shared_daemon: DaemonProcess, looking: Client) -> None:
    """A caller that stops early has acknowledged every batch except the last, which is delivered again."""
    batch = partition_columns(OperationKind.PRODUCE, ["again-1"], None, [1, 2], [60_000], None)
    looking.register("again", 1, batch)
    looking.advance("again-1", high_watermark=1)
    looking.advance("again-1", high_watermark=2)
    assert next(looking.results("again")).operation_ids[0] == 1
    with Client(shared_daemon.address) as other:
        ids = [one for collected in other.results("again") for one in collected.operation_ids]
    assert ids == [1, 2]


def test_a_daemon_that_does_not_come_back_is_given_up(tmp_path: Path) -> None:
    """`register` and `results` raise Unavailable after `give_up_after`."""
    daemon = DaemonProcess(tmp_path)
    daemon.kill()
    batch = partition_columns(OperationKind.PRODUCE, ["p-1"], None, [1], None, None)
    with Client(daemon.address, give_up_after=0.2) as client:
        with pytest.raises(errors.Unavailable, match="no connection for"):
            client.register("s", 1, batch)
        with pytest.raises(errors.Unavailable, match="no connection for"):
            next(client.results("s"))


def test_the_gravest_end_decides() -> None:
    """The exit code for several outcomes is that of the most severe one; without outcomes it is 0."""
    assert exit_of_outcomes([]) == Exit.OK
    assert exit_of_outcomes([Outcome.SATISFIED]) == Exit.OK
    assert exit_of_outcomes([Outcome.SATISFIED, Outcome.EXPIRED]) == Exit.EXPIRED
    assert exit_of_outcomes([Outcome.EXPIRED, Outcome.REFUSED, Outcome.FAILED]) == Exit.REFUSED


def test_time_left_in_words() -> None:
    """Only non-empty buckets are shown, in units that a user would write."""
    left = RemainingTime(soonest=0.25, latest=5_400, bounds=[1, 60, 3_600], operations=[3, 0, 2, 1])
    assert remaining_line(left) == (
        "time left: 3 up to 1s, 2 up to 1h, 1 more than 1h; first expires in 250ms, last in 1h 30m"
    )
    assert remaining_line(RemainingTime(None, None, [1], [0, 0])) == "nothing is pending"


def test_durations_in_words() -> None:
    """Two units at most, rounded to the smaller one; `--timeout` accepts the words, and means the same."""
    words = {
        0: "0s", 0.001: "1ms", 0.9996: "1s", 59.5: "59.5s", 59.96: "1m", 79.02: "1m 19s", 3_599.7: "1h",
        5_400: "1h 30m", 86_399: "1d", 90_000: "1d 1h", 8_640_000: "100d",
    }  # fmt: skip
    assert {one: span(one) for one in words} == words
    assert (exact(59.9994), exact(59.9996)) == ("59.999 s", "1m"), "both forms round in the same place"
    assert [seconds(text) for text in words.values()] == pytest.approx(list(words), rel=0.01)


def test_numbers_have_their_nouns() -> None:
    """One partition, and many with separators."""
    assert [counted(count, "partition") for count in (0, 1, 200_006)] == [
        "0 partitions", "1 partition", "200,006 partitions",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_load_outlives_the_daemon(tmp_path: Path) -> None:
    """After `load --detach`, a kill and a restart, `status` shows the remaining time, and `results` returns each
    result once.
    """

    def next_daemon(number: int) -> DaemonProcess:
        return DaemonProcess(tmp_path / f"daemon-{number}", ["--data-dir", str(tmp_path / "journal")])

    daemon = next_daemon(0)
    try:
        left = purgatory(
            "load", "-n", "2000", "--session", "s", "--partitions", "2", "--detach", address=daemon.address
        )
        assert left.returncode == Exit.OK
        daemon.kill()
        daemon = next_daemon(1)
        shown = purgatory("status", "--json", address=daemon.address)
        left_over = json.loads(shown.stdout)["remaining_time"]
        assert sum(left_over["operations"]) == 2_000
        assert 0 < left_over["soonest"] <= left_over["latest"] < 600
        with Client(daemon.address) as client:
            client.advance("load-0", high_watermark=1_000)
            client.advance("load-1", high_watermark=1_000)
        daemon.kill()
        daemon = next_daemon(2)
        collected = purgatory("results", "--session", "s", "--json", address=daemon.address)
        assert collected.returncode == Exit.OK
        ids = [json.loads(line)["operation_id"] for line in collected.stdout.splitlines()]
        assert sorted(ids) == list(range(1, 2_001))
        assert purgatory("results", "--session", "s", address=daemon.address).stdout == ""
    finally:
        daemon.kill()
