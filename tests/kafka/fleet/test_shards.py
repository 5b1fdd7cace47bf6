"""Two shards with one log in Kafka: each has a partition of both topics."""

import uuid
from contextlib import closing
from pathlib import Path

import pytest

from examples.kafka_cluster import KafkaCluster
from purgatory.replicated_log.errors import LogTrimmed
from purgatory.replicated_log.open_log import open_log
from tests.fleet.audit import check_files
from tests.fleet.filling import CALM, SNAPSHOTS, report, until_trimmed
from tests.kit.commands import fleet_command
from tests.kit.daemon import run_to_end
from tests.kit.eventually import wait_until
from tests.kit.fleet import Fleet

pytestmark = pytest.mark.slow

TARGETS = "127.0.0.1:1,127.0.0.1:2 127.0.0.1:3,127.0.0.1:4"


@pytest.fixture
def url(three_brokers: KafkaCluster) -> str:
    """The address of a new log for two shards."""
    url = f"kafka://{three_brokers.bootstrap}/shards-{uuid.uuid4().hex[:8]}"
    assert fleet_command(["init", url, "--shards", "2"]) == 0
    return url


def test_snapshots_of_one_shard_leave_the_other_alone(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """While one shard stores snapshots, trims its partition and hands over, the other one keeps its whole log, its
    leader, and a file that has exactly the rows that its log says. `purgatory fleet verify` reads either.
    """
    shards = [("--fleet-targets", TARGETS, "--fleet-shard", str(shard), *CALM) for shard in range(2)]
    with Fleet(tmp_path, url) as fleet:
        members = fleet.members
        for shard in range(2):
            flags = (*shards[shard], *SNAPSHOTS[: 2 * shard])
            fleet.start(f"shard-{shard}", "/leaderz", *flags, supervised=True)
        report(members[0], 5)
        until_trimmed(members[1])
        report(members[0], 5)
        with closing(open_log(url, 1)) as log, pytest.raises(LogTrimmed, match="after position 0"):
            wait_until(lambda: bool(log.read(0, 1.0)), "the trimmed log is read")
        fleet.start("other", "/readyz", *shards[1], supervised=True)
        assert "loaded the snapshot" in members[2].log
        assert fleet_command(["handover", "--address", members[1].grpc_address]) == 0
        members[2].until("/leaderz", supervised=True)
        assert members[0].answers("/leaderz")
    with closing(open_log(url, 0)) as log:
        assert log.last_snapshot() is None
        assert check_files(log, [members[0].data]) > 0
    capfd.readouterr()
    for shard, snapshot in enumerate(("no snapshot", "snapshot of position")):
        assert fleet_command(["verify", url, "--shard", str(shard)]) == 0
        assert snapshot in capfd.readouterr().out


def test_number_of_shards_must_be_that_of_partitions(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A daemon of more shards than the topic has partitions does not start, nor is there a third shard to verify;
    `init` does not change a topic that exists.
    """
    name = url.rpartition("/")[2]
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--fleet-log", url]
    targets = " ".join(f"127.0.0.1:{number}" for number in range(1, 4))
    ended = run_to_end(tmp_path, [*listen, "--data-dir", str(tmp_path / "data"), "--fleet-targets", targets])
    refusal = f"topic {name}: partitions=2, must be 3, the number of shards"
    assert (ended.returncode, refusal in ended.stderr) == (1, True), ended
    assert fleet_command(["init", url, "--shards", "3"]) == 2
    assert f"{name}: partitions=2, must be 3" in capfd.readouterr().err
    assert fleet_command(["verify", url, "--shard", "2"]) == 2
    assert f"{name}: partitions=2, so there is no shard 2" in capfd.readouterr().err
