"""Settings of a PostgreSQL source, from its address, a file and the environment."""

from pathlib import Path

import pytest
from purgatory_connectors.postgres.postgres_settings import PostgresSettings

from purgatory.source_uri import SourceUri, SourceUriInvalid


def settings_of(text: str) -> PostgresSettings:
    return PostgresSettings.of_uri(SourceUri.parse(text))


def test_plain() -> None:
    """A single host is a server of that name in the cluster "main", with libpq's defaults."""
    settings = settings_of("postgres://db1/")
    assert (settings.name, settings.poll_s, settings.idle_poll_s) == ("main", 0.02, 1.0)
    assert [(one.name, one.parameters) for one in settings.servers] == [("db1", {"host": "db1"})]
    assert settings.group.listed == ("db1",)
    assert settings.group.finds_replicas


def test_everything_in_an_address(tmp_path: Path) -> None:
    """The address may contain own options and libpq's; the file may contain options for a single server."""
    file = tmp_path / "secrets.conf"
    file.write_text("password = secret\nserver.r1.user = other\nquorum = 1\n")
    settings = settings_of(
        f"postgres://a:5433,[::1]:5434/app?name=eu&servers=p,r1&user=u&sslmode=require&discover=false&quorum=2&config={file}"
    )
    common = {"dbname": "app", "user": "u", "sslmode": "require", "password": "secret"}
    assert [dict(one.parameters) for one in settings.servers] == [
        {**common, "host": "a", "port": "5433"},
        {**common, "host": "::1", "port": "5434", "user": "other"},
    ]
    assert settings.group.listed == ("p", "r1")
    assert not settings.group.finds_replicas
    assert settings.group.quorum == 2


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable PURGATORY_POSTGRES_PASSWORD is libpq's password."""
    monkeypatch.setenv("PURGATORY_POSTGRES_PASSWORD", "secret")
    assert settings_of("postgres://a").servers[0].parameters == {"host": "a", "password": "secret"}


def test_one_host_with_several_ports() -> None:
    """Servers on one host are named with their ports."""
    assert settings_of("postgres://a:1,a:2,b:3/").group.listed == ("a:1", "a:2", "b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("postgres://a/?password=x", "config=FILE"),
        ("postgres://u:x@a/", "config=FILE"),
        ("postgres://a,b/?servers=one", "1 names in `servers` for 2 hosts"),
        ("postgres://a/?servers=all", "invalid server name 'all'"),
        ("postgres://a,b/?servers=x,x", "two servers have the same name"),
        ("postgres://a/?port=3", "unknown option 'port'"),
        ("postgres://a/?quorum=0", "quorum='0' must be a whole number"),
        ("postgres://a/?discover=maybe", "must be true or false"),
        ("postgres://a/?name=x/y", "must not be empty nor contain a slash"),
        ("postgres://a:b:c/", "is not host or host:port"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    """Each error is one line with a remedy."""
    with pytest.raises(SourceUriInvalid, match=words):
        settings_of(text)
