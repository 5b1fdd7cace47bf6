"""The Kafka source at a broker that requires TLS, a password and rights: marks it may not see are stale with the
reason, until the right is granted.
"""

import logging
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]
from purgatory_connectors.kafka import cluster_view, consumer_threads, group_watch
from purgatory_connectors.kafka.offset_records import OFFSETS_TOPIC
from purgatory_connectors.publisher.observation import SourceState

from examples.secure_demo.authority import Authority
from tests.kafka.clients import ClusterClients
from tests.kafka.guarded import PASSWORD_VARIABLE, PASSWORDS, GuardedBrokers
from tests.kafka.recording_publisher import running_source

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
DESCRIBE, READ = AclOperation.DESCRIBE, AclOperation.READ


@pytest.fixture(autouse=True)
def orders(clients: ClusterClients, topic: str) -> None:
    """Records and commits of a group in the topic."""
    clients.produce(topic, 5)
    clients.commit("billing", {(topic, 0): 3})


@pytest.fixture(autouse=True)
def password_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORDS["watcher"])


async def test_marks_without_rights_are_stale_until_these_are_granted(
    guarded_brokers: GuardedBrokers,
    clients: ClusterClients,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without rights on `__consumer_offsets` groups are polled, which is logged once. A topic and a group without
    rights are stale, and the rest is seen. Revoking a right makes marks stale, not gone. Everything recovers without a
    restart.
    """
    monkeypatch.setattr(group_watch, "REFUSED_POLL_S", 0.5)
    secret = f"secret-{topic}"
    clients.create(secret, 1, 3)
    clients.produce(secret, 5)
    clients.commit("closed", {(topic, 0): 3})
    clients.allow("watcher", (TOPIC, topic, DESCRIBE), (GROUP, "billing", DESCRIBE))
    ends, commits = f"kafka/{topic}", f"kafka/billing/{topic}"
    hidden, closed = f"kafka/{secret}", f"kafka/closed/{topic}"
    with caplog.at_level(logging.WARNING):
        async with running_source(guarded_brokers.bootstrap, guarded_brokers.config("polls")) as (_, feed):

            def has(**marks: int) -> bool:
                return all(feed.marks.get((name, 0)) == offset for name, offset in marks.items())

            feed.want(*((name, 0) for name in (ends, commits, hidden, closed)))
            await feed.until(lambda: has(**{ends: 5, commits: 3}), "what may be seen")
            await feed.until(lambda: f"'{secret}'" in feed.stale_reason(hidden), "the topic's reason")
            await feed.until(lambda: "'closed'" in feed.stale_reason(closed), "the group's reason")
            assert feed.reported[0] == SourceState.REFUSED
            assert not feed.stale_reason(ends)
            assert not feed.stale_reason(commits)
            assert len([one for one in caplog.messages if OFFSETS_TOPIC in one]) == 1

            clients.revoke("watcher", TOPIC, topic, DESCRIBE)
            await feed.until(lambda: f"'{topic}'" in feed.stale_reason(ends), "the topic is stale")
            await feed.until(lambda: f"'{topic}'" in feed.stale_reason(commits), "its group is stale")
            clients.revoke("watcher", GROUP, "billing", DESCRIBE)
            await feed.until(lambda: "'billing'" in feed.stale_reason(commits), "the group is stale")
            assert not [seen for seen in feed.observed if seen.offset is None], "nothing was deleted"

            clients.allow("watcher", (TOPIC, "*", DESCRIBE), (GROUP, "*", DESCRIBE))
            await feed.until(lambda: has(**{ends: 5, commits: 3, hidden: 5, closed: 3}), "all of it")
            await feed.until_live()
            assert not [seen for seen in feed.observed if seen.offset is None or seen.is_set_back_to]
    assert PASSWORDS["watcher"] not in caplog.text


async def test_commits_are_read_once_the_right_is_granted(
    guarded_brokers: GuardedBrokers, clients: ClusterClients, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With commits=read, polling does not replace reading: groups are stale with the reason, while ends are seen."""
    monkeypatch.setattr(consumer_threads, "REFUSED_RETRY_S", 0.5)
    clients.allow("watcher", (TOPIC, topic, DESCRIBE))
    options, ends, commits = f"commits=read&topics={topic}", (f"kafka/{topic}", 0), (f"kafka/billing/{topic}", 0)
    options = f"{options}&{guarded_brokers.config('reads')}"
    async with running_source(guarded_brokers.bootstrap, options, is_live=False) as (_, feed):
        feed.want(ends, commits)
        await feed.until(lambda: feed.reported[0] == SourceState.REFUSED)
        await feed.until(lambda: OFFSETS_TOPIC in feed.stale_reason(*commits))
        await feed.until(lambda: feed.marks.get(ends) == 5 and not feed.stale_reason(*ends))
        clients.allow("watcher", (TOPIC, OFFSETS_TOPIC, READ), (GROUP, "*", DESCRIBE))
        await feed.until_live()
        await feed.until(lambda: feed.marks.get(commits) == 3)


async def test_refused_connection_names_the_settings_to_check(
    guarded_brokers: GuardedBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong password or an untrusted certificate, everything is stale, and the state is REFUSED."""
    monkeypatch.setattr(cluster_view, "METADATA_S", 1.0)
    monkeypatch.setenv(PASSWORD_VARIABLE, "guessed")
    another = tmp_path / "another.pem"
    another.write_bytes(Authority("Another one").certificate_pem)
    distrusts = guarded_brokers.config("distrusts", **{"ssl.ca.location": str(another)})
    async with (
        running_source(guarded_brokers.bootstrap, guarded_brokers.config("guesses"), is_live=False) as (_, guessing),
        running_source(guarded_brokers.bootstrap, distrusts, is_live=False) as (_, distrusting),
    ):
        for feed, setting in ((guessing, "sasl.username"), (distrusting, "ssl.ca.location")):
            await feed.until(lambda feed=feed: feed.reported[0] == SourceState.REFUSED)  # type: ignore[misc]
            assert setting in feed.reported[1]
            assert feed.stale_reason("kafka/orders")
            assert "guessed" not in feed.reported[1]
