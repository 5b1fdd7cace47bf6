"""Source addresses are parsed, and refused if they contain secrets."""

from pathlib import Path

import pytest

from purgatory.source_uri import SourceUri, SourceUriInvalid


def test_parts_of_an_address() -> None:
    """Hosts, path and options are separated; a repeated option has both values."""
    uri = SourceUri.parse("kafka://b1:9092,b2:9092?label=eu&topics=orders&topics=items,%20x")
    assert (uri.kind, uri.hosts, uri.path) == ("kafka", ("b1:9092", "b2:9092"), "")
    assert uri.listed("topics") == ("orders", "items", "x")
    assert uri.options["label"] == "eu"
    assert SourceUri.parse("postgresql://h/db?name=main").path == "db"
    assert [SourceUri.parse(f"{scheme}://h").kind for scheme in ("valkey", "poll+http")] == ["redis", "poll"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mysql://h", "begin with kafka://, postgres://"),
        ("h:9092", "begin with kafka://, postgres://"),
        ("kafka://", "name at least one host"),
        ("postgres://me:hunter2@h/db", "no user or password"),
        ("kafka://?sasl.password=hunter2", "name at least one host"),
        ("kafka://h?sasl.password=hunter2", "sasl.password does not belong"),
        ("kafka://h?sasl.oauthbearer.assertion.private.key.passphrase=hunter2", "passphrase does not belong"),
        ("poll+http://h/x?header.Authorization=hunter2", "header.Authorization does not belong"),
        ("poll+http://h/x?Api-Key=hunter2", "Api-Key does not belong"),
        ("poll+sql://h/x?query=SELECT 1&PWD=hunter2", "PWD does not belong"),
        ("postgres://h?password=hunter2&name=x", "password does not belong"),
    ],
)
def test_what_is_refused_says_why_and_shows_no_secret(text: str, said: str) -> None:
    """Each message names the error and does not repeat a password."""
    with pytest.raises(SourceUriInvalid) as caught:
        SourceUri.parse(text)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


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


def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file and a line without "=" cause one-line errors with the location."""
    with pytest.raises(SourceUriInvalid, match=r"missing\.conf"):
        SourceUri.parse(f"kafka://h?config={tmp_path / 'missing.conf'}").config("T_")
    broken = tmp_path / "broken.conf"
    broken.write_text("a = b\nnonsense\n")
    with pytest.raises(SourceUriInvalid, match="line 2"):
        SourceUri.parse(f"kafka://h?config={broken}").config("T_")


@pytest.mark.parametrize("text", ["1_0", "\u0663", "9" * 5_000])
def test_numbers_of_options(text: str) -> None:
    """Refused with the range, also where Python converts the text or raises an error of its own."""
    with pytest.raises(SourceUriInvalid, match="must be a whole number, 1 to 50"):
        SourceUri.parse(f"kafka://h?n={text}").number("n", 7, most=50)


def test_unknown_options_are_refused() -> None:
    """A misspelled option is refused."""
    with pytest.raises(SourceUriInvalid, match="unknown option 'topcis'"):
        SourceUri.parse("kafka://h?topcis=x").check_options(("topics",))
