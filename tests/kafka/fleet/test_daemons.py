"""Daemons with a log in Kafka: two shards, and brokers that require TLS, a password and permissions."""

import uuid
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from examples.kafka_cluster import KafkaCluster
from purgatory.replicated_log.errors import FleetLogError, LogTrimmed
from purgatory.replicated_log.open_log import open_log
from tests.fleet.audit import check_files
from tests.fleet.filling import CALM, SNAPSHOTS, knows_snapshot, report, until_trimmed
from tests.kafka.clients import ClusterClients
from tests.kafka.guarded import PASSWORD_VARIABLE, PASSWORDS, GuardedBrokers
from tests.kit.commands import fleet_command
from tests.kit.daemon import run_to_end
from tests.kit.eventually import wait_until
from tests.kit.fleet import Fleet

pytestmark = pytest.mark.slow

TARGETS = "127.0.0.1:1,127.0.0.1:2 127.0.0.1:3,127.0.0.1:4"


def test_number_of_shards_must_be_that_of_partitions(
    three_brokers: KafkaCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a daemon does not start, no further shard can be verified, and `init` changes no existing topic."""
    name = f"shards-{uuid.uuid4().hex[:8]}"
    url = f"kafka://{three_brokers.bootstrap}/{name}"
    assert fleet_command(["init", url, "--shards", "2"]) == 0
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--fleet-log", url]
    targets = " ".join(f"127.0.0.1:{number}" for number in range(1, 4))
    ended = run_to_end(tmp_path, [*listen, "--data-dir", str(tmp_path / "data"), "--fleet-targets", targets])
    refusal = f"topic {name}: partitions=2, must be 3, the number of shards"
    assert (ended.returncode, refusal in ended.stderr) == (1, True), ended
    assert fleet_command(["init", url, "--shards", "3"]) == 2
    assert f"{name}: partitions=2, must be 3" in capfd.readouterr().err
    assert fleet_command(["verify", url, "--shard", "2"]) == 2
    assert f"{name}: partitions=2, so there is no shard 2" in capfd.readouterr().err


DOCUMENTED = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Delete": AclOperation.DELETE,
}


@pytest.fixture
def topics(
    guarded_brokers: GuardedBrokers, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[str, str]:
    """The two topics of a new log, for one shard or a number of them, which their creator alone may use. From here on
    the password is the daemon's.
    """
    name, shards = f"guarded-{uuid.uuid4().hex[:8]}", getattr(request, "param", 1)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORDS["admin"])
    assert fleet_command(["init", url_of(guarded_brokers, name, "admin"), "--shards", str(shards)]) == 0
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORDS["daemon"])
    return name, f"{name}-snapshots"


def url_of(guarded_brokers: GuardedBrokers, name: str, user: str = "daemon") -> str:
    return f"kafka://{guarded_brokers.bootstrap}/{name}?{guarded_brokers.config(user, **{'sasl.username': user})}"


def allow(clients: ClusterClients, topic: str, *, but: str = "") -> None:
    """Grant the documented permissions on a topic, except one."""
    clients.allow("daemon", *((ResourceType.TOPIC, topic, one) for name, one in DOCUMENTED.items() if name != but))


def refusal(url: str, shards: int | None = 1) -> str:
    """Why the log is refused; empty: it is not."""
    with closing(open_log(url)) as log:
        try:
            log.check(shards)
        except FleetLogError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("topics", [2], indirect=True)
def test_documented_permissions_are_enough_for_two_shards(
    guarded_brokers: GuardedBrokers,
    clients: ClusterClients,
    topics: tuple[str, str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With them daemons lead, store snapshots, trim the log, start from a snapshot, follow, and take over. While one
    shard does that, the other one keeps its whole log, its leader, and a file that has exactly the rows that its log
    says. A daemon knows the age of the last snapshot as a standby and as the leader. `purgatory fleet verify` reads
    either shard.
    """
    for topic in topics:
        allow(clients, topic)
    url = url_of(guarded_brokers, topics[0])
    wait_until(lambda: not refusal(url, 2), "the brokers know the permissions")
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
        wait_until(lambda: knows_snapshot(members[2]), "the standby knows the snapshot's age")
        assert fleet_command(["handover", "--address", members[1].grpc_address]) == 0
        members[2].until("/leaderz", supervised=True)
        wait_until(lambda: knows_snapshot(members[2]), "so does the new leader")
        assert members[0].answers("/leaderz")
        assert not [member.log for member in members if "authorization" in member.log]
    with closing(open_log(url, 0)) as log:
        assert log.last_snapshot() is None
        assert check_files(log, [members[0].data]) > 0
    capfd.readouterr()
    for shard, snapshot in enumerate(("no snapshot", "snapshot of position")):
        assert fleet_command(["verify", url, "--shard", str(shard)]) == 0
        assert snapshot in capfd.readouterr().out


@pytest.mark.parametrize("missing", ["Read", "Write", "DescribeConfigs", "Delete"])
def test_a_missing_permission_is_named(
    guarded_brokers: GuardedBrokers, clients: ClusterClients, topics: tuple[str, str], missing: str
) -> None:
    """A login that lacks a permission on either topic is refused with its name. Those that only write are not needed
    to read the log.
    """
    url = url_of(guarded_brokers, topics[0])
    reason = "topic {}: this daemon's login lacks permissions on it: {}"
    everything = reason.format(topics[0], "Describe, DescribeConfigs, Read, Write, Delete")
    wait_until(lambda: refusal(url) == everything, "without any permission")
    allow(clients, topics[0])
    allow(clients, topics[1], but=missing)
    wait_until(lambda: refusal(url) == reason.format(topics[1], missing), f"without {missing}")
    assert refusal(url, None) == ("" if missing in {"Write", "Delete"} else reason.format(topics[1], missing))


def test_reason_names_a_wrong_password_without_showing_it(
    guarded_brokers: GuardedBrokers, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "guessed")
    url, refusals = url_of(guarded_brokers, topics[0]), [""]

    def is_named() -> bool:
        refusals.append(refusal(url))
        return "Authentication failed" in refusals[-1]

    wait_until(is_named, "the reason is named")
    assert "guessed" not in "".join(refusals)


def test_daemon_that_may_follow_and_not_lead_does_not_start(
    guarded_brokers: GuardedBrokers, clients: ClusterClients, topics: tuple[str, str], tmp_path: Path
) -> None:
    allow(clients, topics[0], but="Write")
    allow(clients, topics[1])
    url = url_of(guarded_brokers, topics[0])
    wait_until(lambda: refusal(url).endswith(": Write"), "the brokers know the permissions")
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    ended = run_to_end(tmp_path, [*listen, "--data-dir", str(tmp_path / "data"), "--fleet-log", url])
    assert ended.returncode == 1
    assert f"topic {topics[0]}: this daemon's login lacks permissions on it: Write" in ended.stderr
