"""Two daemons over one log in real Kafka: they are stopped and killed, and so are its brokers.

Daemons with a log in Kafka: two shards, and brokers that require TLS, a password and permissions.

The fleet's log in real Kafka: entries, positions, settings of topics, snapshots, trimming, outages.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from examples.kafka_cluster import KafkaCluster
from purgatory.replicated_log import kafka_log
from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import FleetLogError, LogRefused, LogTrimmed, LogUnavailable
from purgatory.replicated_log.kafka_log import KafkaLog
from purgatory.replicated_log.leadership import EXIT_REPLACED
from purgatory.replicated_log.open_log import open_log
from tests.fleet.audit import check_files
from tests.fleet.filling import CALM, SNAPSHOTS, knows_snapshot, report, until_trimmed
from tests.fleet.log_contract import PATIENT_S, LogContract, OpenShard, new_writer, patient
from tests.histories.judge import Broken
from tests.histories.worlds.pair import PairWorld
from tests.kafka.clients import ClusterClients
from tests.kafka.guarded import PASSWORD_VARIABLE, PASSWORDS, GuardedBrokers
from tests.kit.daemon import run_to_end
from tests.kit.eventually import wait_until
from tests.kit.fleet import Fleet, Member
from tests.kit.programs import fleet_command

pytestmark = pytest.mark.slow

PATIENCE_S: Final = 120.0
DAEMONS: Final = ("stop", "crash point")
"""The other ways in which a daemon ends are tested over a log in PostgreSQL."""
FAULTS: Final = 5
"""One of each kind."""
IMPATIENT: Final = {"socket.timeout.ms": "2000"}
"""The broker that is asked may hang."""


class BrokerWorld(PairWorld):
    """It has faults of brokers too. After each of those, all callers are served again."""

    def __init__(self, folder: Path, log_uri: str, cluster: KafkaCluster, topic: str) -> None:
        self._faults: Final[dict[str, Callable[[], Awaitable[None]]]] = {
            "kill the leading broker": self._kill_leading,
            "hang the leading broker": self._hang_leading,
            "kill two brokers": self._kill_two,
        }
        super().__init__(folder, log_uri, 1, [*self._faults, *DAEMONS])
        self._cluster: Final = cluster
        self._topic: Final = topic
        self._clients: Final = ClusterClients(cluster.bootstrap, IMPATIENT)

    async def fault(self, kind: str, member: Member) -> None:
        if kind in self._faults:
            await self._faults[kind]()
        else:
            await super().fault(kind, member)

    async def _kill_leading(self) -> None:
        """Two brokers of three are enough. The lead moves to one of them, and back once the broker has returned."""
        await self._until(self._elects_preferred, "the preferred broker leads")
        broker = await self._until_led_by(lambda leader: leader > 0)
        self._cluster.kill(broker)
        began_s = time.monotonic()
        await self._until_led_by(lambda leader: leader not in {broker, -1})
        await self._until_served("the broker that led was killed", began_s)
        await self._during(self._cluster.start, broker)
        await self._until(self._is_in_sync, "the preferred broker is in sync again")
        began_s = time.monotonic()
        await self._until(self._elects_preferred, "the preferred broker leads again")
        await self._until_served("the lead moved to another broker", began_s)

    async def _hang_leading(self) -> None:
        """The lead moves, and the broker that led finds out when it is continued."""
        broker = await self._until_led_by(lambda leader: leader > 0)
        self._cluster.hang(broker)
        try:
            began_s = time.monotonic()
            await self._until_led_by(lambda leader: leader not in {broker, -1})
            await self._until_served("the broker that led hangs", began_s)
        finally:
            self._cluster.wake(broker)
        await self._until_served("it was continued", time.monotonic())

    async def _kill_two(self) -> None:
        """One broker of three is not enough: no daemon leads, and each exits to be restarted, until two are back."""
        broker = await self._until_led_by(lambda leader: leader > 0)
        victims = (broker, broker % len(self._cluster.brokers) + 1)
        exits = self._exits()
        self._cluster.kill(*victims)
        await self._until(lambda: self._exits() > exits, "the leader exits")
        await self._until(lambda: not any(one.answers("/leaderz") for one in self.members), "no daemon leads")
        await self._during(self._cluster.start, *victims)
        await self._until_served("two of three brokers were started again", time.monotonic())

    def _exits(self) -> int:
        return sum(member.exit_codes.count(EXIT_REPLACED) for member in self.members)

    def _partition(self) -> Any:  # noqa: ANN401 - as the library describes it
        """The partition of the log; None if no broker answers."""
        with suppress(KafkaException):
            return self._clients.admin.list_topics(self._topic, timeout=10).topics[self._topic].partitions[0]
        return None

    def _leader(self) -> int:
        """The broker that leads the partition; -1: none, or no broker answers."""
        partition = self._partition()
        return partition.leader if partition else -1

    def _is_in_sync(self) -> bool:
        partition = self._partition()
        return partition is not None and len(partition.isrs) == len(self._cluster.brokers)

    def _elects_preferred(self) -> bool:
        """Whether the preferred broker leads after its election, which fails if it leads already or is out of sync."""
        with suppress(KafkaException):
            self._clients.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(self._topic, 0)]).result()
        partition = self._partition()
        return partition is not None and partition.leader == partition.replicas[0]

    async def _during(self, call: Callable[..., None], *arguments: int) -> None:
        """Make a call that blocks, as a supervisor of the daemons."""
        running = asyncio.create_task(asyncio.to_thread(call, *arguments))
        await self._until(running.done, f"{call} returns")
        await running

    async def _until_led_by(self, is_right: Callable[[int], bool]) -> int:
        """Wait until the right broker leads the partition, and return it."""
        seen: list[int] = []

        def leads() -> bool:
            seen.append(self._leader())
            return is_right(seen[-1])

        await self._until(leads, "the right broker leads")
        return seen[-1]

    async def _until_served(self, what: str, since_s: float) -> None:
        """Wait until batches of each caller have been accepted from now on."""
        await self.load.until_all_rise(lambda caller: caller.accepted_batches, self.check, f"served ({what})")
        print(f"{what}: all callers served after {time.monotonic() - since_s:.1f} s, {self._exits()} exits so far")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, as a supervisor of the daemons."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(condition):
            self.check()
            if time.monotonic() > deadline_s:
                raise Broken(f"not within {PATIENCE_S} s: {what}\n{self.logs}")
            await asyncio.sleep(0.05)


def test_no_fault_loses_repeats_or_hastens_anything_over_kafka(three_brokers: KafkaCluster, tmp_path: Path) -> None:
    """Either daemon is stopped, and killed at a point of its commit. The broker that leads the partition is killed,
    gives the lead away, hangs, and is killed together with another. Each acknowledged wait ends once and not too early,
    all callers are served once two brokers are in sync, and each daemon's file has exactly the rows that the log says.
    """
    topic = f"brokers-{uuid.uuid4().hex[:8]}"
    url = f"kafka://{three_brokers.bootstrap}/{topic}"
    assert fleet_command(["init", url]) == 0
    run = BrokerWorld(tmp_path, url, three_brokers, topic)
    try:
        tally = asyncio.run(run.run(FAULTS))
    finally:
        three_brokers.start()
    assert min(tally["operations"], tally["groups in the log"]) > FAULTS
    assert fleet_command(["verify", url]) == 0


TARGETS = "127.0.0.1:1,127.0.0.1:2 127.0.0.1:3,127.0.0.1:4"


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


@pytest.fixture
def name() -> str:
    return f"fleet-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def log(three_brokers: KafkaCluster, name: str) -> Iterator[KafkaLog]:
    """A log with two shards, of which this is the second."""
    log = KafkaLog(three_brokers.bootstrap, name, 1)
    log.create(2)
    yield log
    log.close()


@pytest.fixture
def open_shard(three_brokers: KafkaCluster, name: str) -> OpenShard:
    with closing(KafkaLog(three_brokers.bootstrap, name)) as log:
        log.create(2)
    return lambda shard: KafkaLog(three_brokers.bootstrap, name, shard)


class TestKafkaLog(LogContract): ...


def test_settings_of_the_topics_are_checked(log: KafkaLog, clients: ClusterClients, name: str) -> None:
    """`create` makes topics that `check` accepts, and leaves those that exist; a wrong setting is named."""
    patient(lambda: log.check(2))
    log.create(2)
    with pytest.raises(LogRefused, match=rf"topic {name}: partitions=2, must be 3, the number of shards"):
        patient(lambda: log.check(3))
    with pytest.raises(LogRefused, match="partitions=2, must be 1"):
        patient(lambda: log.check(1))
    with closing(KafkaLog(clients.bootstrap, name, 2)) as third, pytest.raises(LogRefused, match="there is no shard 2"):
        patient(lambda: third.check(None))
    right = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
    clients.create(f"{name}-compacted", 1, 2, right | {"cleanup.policy": "compact", "min.insync.replicas": "1"})
    wrong = KafkaLog(clients.bootstrap, f"{name}-compacted")
    reasons = "cleanup.policy=compact, must be delete; min.insync.replicas=1, must be at least 2; replicas=2"
    with pytest.raises(LogRefused, match=reasons):
        patient(lambda: wrong.check(1))
    with pytest.raises(LogRefused, match=r"topic fleet-none: .*purgatory fleet init"):
        patient(lambda: KafkaLog(clients.bootstrap, "fleet-none").check(1))


def test_topic_that_not_every_broker_knows_yet(three_brokers: KafkaCluster, name: str) -> None:
    """A broker that says that a topic does not exist is asked again: by `init`, which has just created it, for longer
    than by a daemon.
    """
    early, log = (KafkaLog(three_brokers.bootstrap, name) for _ in range(2))
    with closing(early), closing(log):
        early._believed_s += PATIENT_S
        with ThreadPoolExecutor() as pool:
            checking = pool.submit(lambda: patient(lambda: early.check(1)))
            assert not wait([checking], timeout=0.5).done
            before_s = log._believed_s
            log.create(1)
            checking.result(PATIENT_S)
        assert log._believed_s > before_s


def test_init_tries_again_if_brokers_do_not_answer(
    three_brokers: KafkaCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, slow = KafkaLog.check, [LogUnavailable("busy")]

    def check_slowly(log: KafkaLog, shards: int | None) -> None:
        if slow:
            raise slow.pop()
        check(log, shards)

    monkeypatch.setattr(KafkaLog, "check", check_slowly)
    assert fleet_command(["init", f"kafka://{three_brokers.bootstrap}/{name}"]) == 0
    assert not slow


def test_settings_on_which_the_promises_depend_are_refused(tmp_path: Path) -> None:
    """A file may contain a login, and not how the log is written."""
    for setting in ("acks=1", "transactional.id=x", "message.max.bytes=1000"):
        (tmp_path / "kafka.properties").write_text(f"{setting}\n", "utf-8")
        with pytest.raises(LogRefused, match=f"{setting.partition('=')[0]} cannot be set"):
            open_log(f"kafka://127.0.0.1:1/x?config={tmp_path / 'kafka.properties'}")
    (tmp_path / "kafka.properties").write_text("security.protocol=nonsense\n", "utf-8")
    with pytest.raises(LogRefused, match="a setting for Kafka is invalid"):
        open_log(f"kafka://127.0.0.1:1/x?config={tmp_path / 'kafka.properties'}")


def test_garbage_and_old_snapshots(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are not snapshots are skipped. Trimming does not disturb a reader that has just found older ones."""
    writer = new_writer(log)
    writer.claim(0)
    positions = [writer.append(Kind.GROUP, 0).position for _ in range(5)]
    patient(lambda: log._produce(log._snapshots, b"garbage", PATIENT_S))
    for position in (positions[1], positions[3]):
        patient(lambda position=position: log.put_snapshot(position, [b"content"]))  # type: ignore[misc]
    patient(lambda: log.trim(positions[3]))
    first, end = patient(lambda: log._bounds(log._snapshots))
    assert first > 0
    bounds, before = log._bounds, [(0, end)]
    monkeypatch.setattr(log, "_bounds", lambda topic: before.pop() if before else bounds(topic))
    found = patient(log.last_snapshot)
    assert (found and found.position, before) == (positions[3], [])


def test_calls_without_a_broker_raise_log_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_log, "ANSWER_S", 0.2)
    away = open_log("kafka://127.0.0.1:1/fleet")
    away.begin(Entry(Kind.CLAIM, 1, b""), 0)
    for call in (away.end, away.last_snapshot, lambda: away.finish(0.2), lambda: away.check(1)):
        with pytest.raises(LogUnavailable):
            call()
    away.close()
