"""A log on brokers that require TLS, a password and permissions."""

import uuid
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from purgatory.replicated_log.errors import FleetLogError, LogTrimmed
from purgatory.replicated_log.open_log import open_log
from tests.fleet.filling import CALM, SNAPSHOTS, knows_snapshot, until_trimmed
from tests.kafka.clients import ClusterClients
from tests.kafka.guarded import PASSWORD_VARIABLE, PASSWORDS, GuardedBrokers
from tests.kit.commands import fleet_command
from tests.kit.daemon import run_to_end
from tests.kit.eventually import wait_until
from tests.kit.fleet import Fleet

pytestmark = pytest.mark.slow

DOCUMENTED = ("Read", "Write", "Describe", "DescribeConfigs", "Delete")
OPERATIONS = dict(zip(DOCUMENTED, (
    AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.DELETE,
), strict=True))  # fmt: skip


@pytest.fixture
def topics(guarded_brokers: GuardedBrokers, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The two topics of a new log, which their creator alone may use. From here on the password is the daemon's."""
    name = f"guarded-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORDS["admin"])
    assert fleet_command(["init", url_of(guarded_brokers, name, "admin")]) == 0
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORDS["daemon"])
    return name, f"{name}-snapshots"


def url_of(guarded_brokers: GuardedBrokers, name: str, user: str = "daemon") -> str:
    return f"kafka://{guarded_brokers.bootstrap}/{name}?{guarded_brokers.config(user, **{'sasl.username': user})}"


def allow(clients: ClusterClients, topic: str, *, but: str = "") -> None:
    """Grant the documented permissions on a topic, except one."""
    granted = [OPERATIONS[name] for name in DOCUMENTED if name != but]
    clients.allow("daemon", *((ResourceType.TOPIC, topic, one) for one in granted))


def refusal(url: str, shards: int | None = 1) -> str:
    """Why the log is refused; empty: it is not."""
    with closing(open_log(url)) as log:
        try:
            log.check(shards)
        except FleetLogError as error:
            return str(error)
    return ""


def test_documented_permissions_are_enough(
    guarded_brokers: GuardedBrokers, clients: ClusterClients, topics: tuple[str, str], tmp_path: Path
) -> None:
    """With them daemons lead, store snapshots, trim the log, start from a snapshot, follow, and take over. A daemon
    knows the age of the last snapshot as a standby and as the leader.
    """
    for topic in topics:
        allow(clients, topic)
    url = url_of(guarded_brokers, topics[0])
    wait_until(lambda: not refusal(url), "the brokers know the permissions")
    with Fleet(tmp_path, url, *CALM, *SNAPSHOTS) as fleet:
        first = fleet.start("a", "/leaderz", supervised=True)
        until_trimmed(first)
        with closing(open_log(url)) as log, pytest.raises(LogTrimmed, match="after position 0"):
            wait_until(lambda: bool(log.read(0, 1.0)), "the trimmed log is read")
        second = fleet.start("b", "/readyz", supervised=True)
        assert "loaded the snapshot" in second.log
        wait_until(lambda: knows_snapshot(second), "the standby knows the snapshot's age")
        assert fleet_command(["handover", "--address", first.grpc_address]) == 0
        second.until("/leaderz", supervised=True)
        wait_until(lambda: knows_snapshot(second), "so does the new leader")
        assert fleet_command(["verify", url]) == 0
        assert not [member.log for member in fleet.members if "authorization" in member.log]


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
    """It says what is missing."""
    allow(clients, topics[0], but="Write")
    allow(clients, topics[1])
    url = url_of(guarded_brokers, topics[0])
    wait_until(lambda: refusal(url).endswith(": Write"), "the brokers know the permissions")
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    ended = run_to_end(tmp_path, [*listen, "--data-dir", str(tmp_path / "data"), "--fleet-log", url])
    assert ended.returncode == 1
    assert f"topic {topics[0]}: this daemon's login lacks permissions on it: Write" in ended.stderr
