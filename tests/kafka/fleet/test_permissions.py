"""A log on brokers that require TLS, a password and permissions."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from purgatory.replicated_log.errors import FleetLogError, LogTrimmed
from purgatory.replicated_log.open_log import open_log
from tests.kafka.fleet.filling import CALM, SNAPSHOTS, until_trimmed
from tests.kafka.test_source_rights import PASSWORD_VARIABLE, PASSWORDS, GuardedBroker, guarded_cluster
from tests.kit.commands import fleet_command
from tests.kit.daemon import run_to_end
from tests.kit.eventually import wait_until
from tests.kit.fleet import Fleet

pytestmark = pytest.mark.slow

DOCUMENTED = ("Read", "Write", "Describe", "DescribeConfigs", "Delete")
OPERATIONS = dict(zip(DOCUMENTED, (
    AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.DELETE,
), strict=True))  # fmt: skip


@pytest.fixture(scope="module")
def guarded(kafka_brokers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with guarded_cluster(tmp_path_factory.mktemp("guarded"), 3) as brokers:
        yield brokers


@pytest.fixture
def topics(guarded: GuardedBroker, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The two topics of a new log, which their creator alone may use. From here on the password is the daemon's."""
    name = f"guarded-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORDS["admin"])
    assert fleet_command(["init", url_of(guarded, name, "admin")]) == 0
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORDS["daemon"])
    return name, f"{name}-snapshots"


def url_of(guarded: GuardedBroker, name: str, user: str = "daemon") -> str:
    return f"kafka://{guarded.bootstrap}/{name}?{guarded.config(user, **{'sasl.username': user})}"


def allow(guarded: GuardedBroker, topic: str, *, but: str = "") -> None:
    """Grant the documented permissions on a topic, except one."""
    granted = [OPERATIONS[name] for name in DOCUMENTED if name != but]
    guarded.clients.allow("daemon", *((ResourceType.TOPIC, topic, one) for one in granted))


def refusal(url: str, shards: int | None = 1) -> str:
    """Why the log is refused; empty: it is not."""
    with closing(open_log(url)) as log:
        try:
            log.check(shards)
        except FleetLogError as error:
            return str(error)
    return ""


def test_documented_permissions_are_enough(guarded: GuardedBroker, topics: tuple[str, str], tmp_path: Path) -> None:
    """With them daemons lead, store snapshots, trim the log, start from a snapshot, follow, and take over."""
    for topic in topics:
        allow(guarded, topic)
    url = url_of(guarded, topics[0])
    wait_until(lambda: not refusal(url), "the brokers know the permissions")
    with Fleet(tmp_path, url, *CALM, *SNAPSHOTS) as fleet:
        first = fleet.start("a", "/leaderz", supervised=True)
        until_trimmed(first)
        with closing(open_log(url)) as log, pytest.raises(LogTrimmed, match="after position 0"):
            wait_until(lambda: bool(log.read(0, 1.0)), "the trimmed log is read")
        second = fleet.start("b", "/readyz", supervised=True)
        assert "loaded the snapshot" in second.log
        assert fleet_command(["handover", "--address", first.grpc_address]) == 0
        second.until("/leaderz", supervised=True)
        assert fleet_command(["verify", url]) == 0
        assert not [member.log for member in fleet.members if "authorization" in member.log]


@pytest.mark.parametrize("missing", ["Read", "Write", "DescribeConfigs", "Delete"])
def test_a_missing_permission_is_named(guarded: GuardedBroker, topics: tuple[str, str], missing: str) -> None:
    """A login that lacks a permission on either topic is refused with its name. Those that only write are not needed
    to read the log.
    """
    url = url_of(guarded, topics[0])
    reason = "topic {}: this daemon's login lacks permissions on it: {}"
    everything = reason.format(topics[0], "Describe, DescribeConfigs, Read, Write, Delete")
    wait_until(lambda: refusal(url) == everything, "without any permission")
    allow(guarded, topics[0])
    allow(guarded, topics[1], but=missing)
    wait_until(lambda: refusal(url) == reason.format(topics[1], missing), f"without {missing}")
    assert refusal(url, None) == ("" if missing in {"Write", "Delete"} else reason.format(topics[1], missing))


def test_a_wrong_password_is_named(
    guarded: GuardedBroker, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong password the log is unavailable, and the reason says so without the password."""
    monkeypatch.setenv(PASSWORD_VARIABLE, "guessed")
    url, refusals = url_of(guarded, topics[0]), [""]

    def is_named() -> bool:
        refusals.append(refusal(url))
        return "Authentication failed" in refusals[-1]

    wait_until(is_named, "the reason is named")
    assert "guessed" not in "".join(refusals)


def test_a_daemon_that_lacks_a_permission_ends(guarded: GuardedBroker, topics: tuple[str, str], tmp_path: Path) -> None:
    """A daemon that could follow the log, but not lead, does not start, and says what is missing."""
    allow(guarded, topics[0], but="Write")
    allow(guarded, topics[1])
    url = url_of(guarded, topics[0])
    wait_until(lambda: refusal(url).endswith(": Write"), "the brokers know the permissions")
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    ended = run_to_end(tmp_path, [*listen, "--data-dir", str(tmp_path / "data"), "--fleet-log", url])
    assert ended.returncode == 1
    assert f"topic {topics[0]}: this daemon's login lacks permissions on it: Write" in ended.stderr
