"""The fleet's log in real Kafka: entries, positions, settings of topics, snapshots, trimming, outages."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest

from examples.kafka_cluster import KafkaCluster
from purgatory.replicated_log import kafka_log
from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import LogLost, LogRefused, LogUnavailable
from purgatory.replicated_log.kafka_log import KafkaLog
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.standby import Standby
from tests.fleet.log_contract import PATIENT_S, LogContract, OpenShard, new_writer, patient
from tests.kafka.clients import ClusterClients
from tests.kit.commands import fleet_command
from tests.kit.eventually import wait_until

pytestmark = pytest.mark.slow


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
    right = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
    clients.create(f"{name}-compacted", 1, 2, right | {"cleanup.policy": "compact", "min.insync.replicas": "1"})
    wrong = KafkaLog(clients.bootstrap, f"{name}-compacted")
    reasons = "cleanup.policy=compact, must be delete; min.insync.replicas=1, must be at least 2; replicas=2"
    with pytest.raises(LogRefused, match=reasons):
        patient(lambda: wrong.check(1))
    with pytest.raises(LogRefused, match=r"topic fleet-none: .*purgatory fleet init"):
        patient(lambda: KafkaLog(clients.bootstrap, "fleet-none").check(1))


def test_topics_that_were_made_again(
    three_brokers: KafkaCluster, clients: ClusterClients, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last leader of the old topics is refused whenever it is started, and writes nothing to the new ones. A daemon
    with an empty folder leads.
    """
    url, topics = f"kafka://{three_brokers.bootstrap}/{name}", [name, f"{name}-snapshots"]
    assert fleet_command(["init", url]) == 0
    lead(tmp_path / "old", url)
    clients.delete(*topics)
    wait_until(lambda: not clients.admin.list_topics(timeout=10).topics.keys() & {*topics}, "they are gone")
    assert fleet_command(["init", url]) == 0
    with closing(open_log(url)) as log:
        for _ in range(2):
            with pytest.raises(LogLost, match="the log has gone back"):
                lead(tmp_path / "old", url)
            assert patient(log.end) == 1
    lead(tmp_path / "new", url)
    capsys.readouterr()
    assert fleet_command(["verify", url]) == 0
    assert "epoch 1, position 2; 0 void entries" in capsys.readouterr().out


def lead(folder: Path, url: str) -> None:
    """Lead with the file in a folder, and resign."""
    with closing(open_log(url)) as log:
        Standby(folder, log, 0.5, "", "").lead().resign()


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
