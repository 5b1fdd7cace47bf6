"""Addresses of sources are parsed, and refused if they cannot be used or contain secrets."""

from pathlib import Path

import pytest
from purgatory_connectors.cli import open_source
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.postgres.postgres_settings import PostgresSettings

from purgatory.source_uri import SourceUri, SourceUriInvalid
from tests.kit.recorded import assert_recorded, cases_of

ADDRESSES = Path(__file__).with_name("addresses.txt")


def test_address_has_hosts_path_and_repeated_options() -> None:
    uri = SourceUri.parse("kafka://b1:9092,b2:9092?label=eu&topics=orders&topics=items,%20x")
    assert (uri.kind, uri.hosts, uri.path) == ("kafka", ("b1:9092", "b2:9092"), "")
    assert uri.listed("topics") == ("orders", "items", "x")
    assert uri.options["label"] == "eu"
    assert SourceUri.parse("postgresql://h/db?name=main").path == "db"
    assert [SourceUri.parse(f"{scheme}://h").kind for scheme in ("valkey", "poll+http")] == ["redis", "poll"]


def test_address_that_cannot_be_used_is_refused_without_its_secrets() -> None:
    """As in addresses.txt. Secrets are "hunter2"."""

    def reason(address: str) -> str:
        with pytest.raises((SourceRefused, SourceUriInvalid)) as refused:
            open_source(SourceUri.parse(address))
        assert "hunter2" not in str(refused.value)
        return str(refused.value)

    assert_recorded(ADDRESSES, map(reason, cases_of(ADDRESSES)))


def test_settings_come_from_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both file formats result in the same dotted keys, and environment variables take precedence."""
    plain = tmp_path / "client.properties"
    plain.write_text("# comment\nsasl.username = me\nsasl.password='a=b'\n")
    toml = tmp_path / "client.toml"
    toml.write_text('"sasl.username" = "me"\n[ssl]\nca.location = "/ca"\n')
    assert SourceUri.parse(f"kafka://h?config={plain}").config("T_") == {"sasl.username": "me", "sasl.password": "a=b"}
    assert SourceUri.parse(f"kafka://h?config={toml}").config("T_") == {"sasl.username": "me", "ssl.ca.location": "/ca"}
    monkeypatch.setenv("T_SASL_PASSWORD", "other")
    assert SourceUri.parse(f"kafka://h?config={plain}").config("T_")["sasl.password"] == "other"


def test_config_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceUriInvalid, match=r"missing\.conf"):
        SourceUri.parse(f"kafka://h?config={tmp_path / 'missing.conf'}").config("T_")
    broken = tmp_path / "broken.conf"
    broken.write_text("a = b\nnonsense\n")
    with pytest.raises(SourceUriInvalid, match="line 2"):
        SourceUri.parse(f"kafka://h?config={broken}").config("T_")


@pytest.mark.parametrize("text", ["1_0", "\u0663", "9" * 5_000])
def test_number_that_only_python_reads_is_refused(text: str) -> None:
    """The error states the range, even where Python raises one of its own."""
    with pytest.raises(SourceUriInvalid, match="must be a whole number, 1 to 50"):
        SourceUri.parse(f"kafka://h?n={text}").number("n", 7, most=50)


def postgres(text: str) -> PostgresSettings:
    return PostgresSettings.of_uri(SourceUri.parse(text))


def test_postgres_servers_are_named_by_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on one host with their ports too. PURGATORY_POSTGRES_PASSWORD is libpq's password."""
    monkeypatch.setenv("PURGATORY_POSTGRES_PASSWORD", "secret")
    settings = postgres("postgres://db1/")
    assert [(one.name, one.parameters) for one in settings.servers] == [("db1", {"host": "db1", "password": "secret"})]
    assert settings.group.finds_replicas
    assert postgres("postgres://a:1,a:2,b:3/").group.listed == ("a:1", "a:2", "b")


def test_postgres_settings_come_from_address_and_file(tmp_path: Path) -> None:
    """The address may contain own options and libpq's; the file may contain options for a single server."""
    file = tmp_path / "secrets.conf"
    file.write_text("password = secret\nserver.r1.user = other\nquorum = 1\n")
    options = f"name=eu&servers=p,r1&user=u&sslmode=require&discover=false&quorum=2&config={file}"
    settings = postgres(f"postgres://a:5433,[::1]:5434/app?{options}")
    common = {"dbname": "app", "user": "u", "sslmode": "require", "password": "secret"}
    assert [dict(one.parameters) for one in settings.servers] == [
        {**common, "host": "a", "port": "5433"},
        {**common, "host": "::1", "port": "5434", "user": "other"},
    ]
    assert settings.group.listed == ("p", "r1")
    assert (settings.group.finds_replicas, settings.group.quorum) == (False, 2)
