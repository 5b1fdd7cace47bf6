"""The Kafka source at a broker that requires TLS, a password and rights: marks it may not see are stale with the
reason, until the right is granted.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.kafka import cluster_view, consumer_threads, group_watch
from purgatory_connectors.kafka.offset_records import OFFSETS_TOPIC
from purgatory_connectors.publisher.observation import SourceState

from examples.kafka_cluster import KafkaCluster
from examples.secure_demo.authority import Authority
from tests.kafka.clients import ClusterClients
from tests.kafka.recording_publisher import RecordingPublisher, running_source

PASSWORD_VARIABLE = "PURGATORY_KAFKA_SASL_PASSWORD"
PASSWORDS = {"admin": "of-the-admin", "watcher": "of-the-watcher", "daemon": "of-the-daemon"}
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
DESCRIBE, READ = AclOperation.DESCRIBE, AclOperation.READ


class GuardedBroker:
    """A cluster that requires TLS and a password, and grants rights only to its admin."""

    def __init__(self, cluster: KafkaCluster, folder: Path) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap
        self._folder = folder
        self.connection = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(folder / "authority.pem"),
            "sasl.mechanism": "PLAIN",
        }
        credentials = {"sasl.username": "admin", "sasl.password": PASSWORDS["admin"]}
        self.clients = ClusterClients(cluster.bootstrap, {**self.connection, **credentials})

    def config(self, name: str, **changes: str) -> str:
        """A source's option: the file with all settings except the password."""
        lines = self.connection | {"sasl.username": "watcher"} | changes
        path = self._folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), "utf-8")
        return f"config={path}"

    def file(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path


@contextmanager
def guarded_cluster(folder: Path, brokers: int) -> Iterator[GuardedBroker]:
    """Start brokers that are configured in this way."""
    authority = Authority("The broker's authority")
    issued = authority.issue("broker", hosts=["localhost", "127.0.0.1"])
    (folder / "authority.pem").write_bytes(authority.certificate_pem)
    (folder / "broker.pem").write_bytes(issued.key_pem + issued.certificate_pem)
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings: dict[str, object] = {
        "offsets.topic.num.partitions": 4,
        "broker.session.timeout.ms": 3000,  # a killed broker may register again only after it
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{module} username="admin" password="{PASSWORDS["admin"]}" {users};'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": folder / "authority.pem",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",  # connections to the controllers' listener are anonymous
    }
    with KafkaCluster(folder / "cluster", brokers, settings, listener="SASL_SSL") as cluster:
        yield GuardedBroker(cluster, folder)


@pytest.fixture(scope="module")
def guarded(kafka_brokers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """The broker with a topic and a group of each kind used in the tests."""
    with guarded_cluster(tmp_path_factory.mktemp("guarded"), 1) as broker:
        for topic in ("orders", "secret"):
            broker.clients.create(topic)
            broker.clients.produce(topic, 5)
        for group in ("billing", "closed"):
            broker.clients.commit(group, {("orders", 0): 3})
        yield broker


@pytest.fixture(autouse=True)
def password_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORDS["watcher"])


def has(feed: RecordingPublisher, **marks: int | None) -> bool:
    """Whether the marks of partition 0 have these values; None: no mark. "__" replaces "/" in names."""
    return all(feed.marks.get((f"kafka/{name.replace('__', '/')}", 0)) == at for name, at in marks.items())


async def test_what_a_user_may_not_see_is_stale_until_it_may(
    guarded: GuardedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without rights on `__consumer_offsets` groups are polled, which is logged once. A topic and a group without
    rights are stale, and the rest is seen. Revoking a right makes marks stale, not gone. Everything recovers without a
    restart.
    """
    monkeypatch.setattr(group_watch, "REFUSED_POLL_S", 0.5)
    guarded.clients.allow("watcher", (TOPIC, "orders", DESCRIBE), (GROUP, "billing", DESCRIBE))
    names = [("kafka/orders", 0), ("kafka/billing/orders", 0), ("kafka/secret", 0), ("kafka/closed/orders", 0)]
    with caplog.at_level(logging.WARNING):
        async with running_source(guarded.bootstrap, guarded.config("polls")) as (_, feed):
            feed.want(*names)
            await feed.until(lambda: has(feed, orders=5, billing__orders=3), "what may be seen")
            await feed.until(lambda: "'secret'" in feed.stale_reason("kafka/secret"), "the topic's reason")
            await feed.until(lambda: "'closed'" in feed.stale_reason("kafka/closed/orders"), "the group's reason")
            assert feed.reported[0] == SourceState.REFUSED
            assert not feed.stale_reason("kafka/orders")
            assert not feed.stale_reason("kafka/billing/orders")
            assert len([one for one in caplog.messages if OFFSETS_TOPIC in one]) == 1

            guarded.clients.revoke("watcher", TOPIC, "orders", DESCRIBE)
            await feed.until(lambda: "'orders'" in feed.stale_reason("kafka/orders"), "the topic is stale")
            await feed.until(lambda: "'orders'" in feed.stale_reason("kafka/billing/orders"), "its group is stale")
            guarded.clients.revoke("watcher", GROUP, "billing", DESCRIBE)
            await feed.until(lambda: "'billing'" in feed.stale_reason("kafka/billing/orders"), "the group is stale")
            assert not [seen for seen in feed.observed if seen.offset is None], "nobody has deleted anything"

            guarded.clients.allow("watcher", (TOPIC, "*", DESCRIBE), (GROUP, "*", DESCRIBE))
            await feed.until(lambda: has(feed, orders=5, billing__orders=3, secret=5, closed__orders=3), "all of it")
            await feed.until_live()
            assert not [seen for seen in feed.observed if seen.offset is None or seen.is_set_back_to]
    assert PASSWORDS["watcher"] not in caplog.text


async def test_who_must_read_commits_waits_for_the_right(
    guarded: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With commits=read, polling does not replace reading: groups are stale with the reason, while ends are seen.
    Commits are read as soon as the right is granted.
    """
    monkeypatch.setattr(consumer_threads, "REFUSED_RETRY_S", 0.5)
    guarded.clients.allow("watcher", (TOPIC, "orders", DESCRIBE))
    options = f"commits=read&topics=orders&{guarded.config('reads')}"
    async with running_source(guarded.bootstrap, options, is_live=False) as (_, feed):
        feed.want(("kafka/orders", 0), ("kafka/billing/orders", 0))
        await feed.until(lambda: feed.reported[0] == SourceState.REFUSED)
        await feed.until(lambda: OFFSETS_TOPIC in feed.stale_reason("kafka/billing/orders"))
        await feed.until(lambda: has(feed, orders=5) and not feed.stale_reason("kafka/orders"))
        guarded.clients.allow("watcher", (TOPIC, OFFSETS_TOPIC, READ), (GROUP, "*", DESCRIBE))
        await feed.until_live()
        await feed.until(lambda: has(feed, billing__orders=3))


async def test_a_connection_that_is_refused(guarded: GuardedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wrong password or an untrusted certificate, everything is stale, the state is REFUSED, and the reason
    names the settings to check.
    """
    monkeypatch.setattr(cluster_view, "METADATA_S", 1.0)
    monkeypatch.setenv(PASSWORD_VARIABLE, "guessed")
    another = guarded.file("another.pem", Authority("Another one").certificate_pem)
    distrusts = guarded.config("distrusts", **{"ssl.ca.location": str(another)})
    async with (
        running_source(guarded.bootstrap, guarded.config("guesses"), is_live=False) as (_, guessing),
        running_source(guarded.bootstrap, distrusts, is_live=False) as (_, distrusting),
    ):
        for feed, setting in ((guessing, "sasl.username"), (distrusting, "ssl.ca.location")):
            await feed.until(lambda feed=feed: feed.reported[0] == SourceState.REFUSED)  # type: ignore[misc]
            assert setting in feed.reported[1]
            assert feed.stale_reason("kafka/orders")
            assert "guessed" not in feed.reported[1]


async def test_a_cluster_that_is_gone_and_comes_back(guarded: GuardedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any broker everything is stale with the reason. No marks are published until they are seen again, and
    earlier commits are neither lost nor reset.
    """
    guarded.clients.allow("watcher", (TOPIC, "*", DESCRIBE), (TOPIC, OFFSETS_TOPIC, READ), (GROUP, "*", DESCRIBE))
    names = ("kafka/orders", 0), ("kafka/billing/orders", 0)
    async with running_source(guarded.bootstrap, guarded.config("outage")) as (source, feed):
        feed.want(*names)
        await feed.until(lambda: has(feed, orders=5, billing__orders=3))
        before = len(feed.observed)
        monkeypatch.setattr(cluster_view, "METADATA_S", 1.0)
        await asyncio.to_thread(guarded.cluster.kill, 1)
        await feed.until(lambda: all(feed.stale_reason(name) for name, _ in names), "stale")
        assert feed.reported[0] == SourceState.STALE
        with pytest.raises(SourceStale, match=r"broker|seen"):
            await source.ends(["kafka/orders"])
        assert len(feed.observed) == before
        await asyncio.to_thread(guarded.cluster.start, 1)
        await feed.until_live()
        await asyncio.to_thread(guarded.clients.produce, "orders")
        await asyncio.to_thread(guarded.clients.commit, "billing", {("orders", 0): 5})
        await feed.until(lambda: has(feed, orders=6, billing__orders=5))
        assert not [seen for seen in feed.observed if seen.is_set_back_to or seen.offset is None]
