"""Settings: names, precedence, sources, and errors that name the invalid setting. Nothing here starts a daemon."""

import os
import tomllib
from pathlib import Path

import pytest

from purgatory import __version__
from purgatory.cli.app import SUMMARIES, load
from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.flags import CommandLine, config_lines, read_command_line
from purgatory.service import setting_sources
from purgatory.service.settings import split_address
from tests.kit.programs import serve_command
from tests.kit.recorded import assert_recorded, assert_values_recorded, cases_of

SETTING_FILES = Path(__file__).with_name("setting_files.txt")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not depend on the environment in which they are run."""
    for name in list(os.environ):
        if name.startswith("PURGATORY_"):
            monkeypatch.delenv(name)


def read(*arguments: str) -> CommandLine:
    return read_command_line(arguments, "server.py", ALL_SETTINGS)


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "purgatory.toml"
    path.write_text("[engine]\ntick_ms = 2\nreplica_lag_time_max_ms = 30\n[limits]\npartitions_max = 7\n")
    monkeypatch.setenv("PURGATORY_ENGINE_TICK_MS", "3")
    monkeypatch.setenv("PURGATORY_ENGINE_REPLICA_LAG_TIME_MAX_MS", "40")
    monkeypatch.setenv("PURGATORY_CONFIG", str(path))
    settings = read("--engine-tick-ms", "4").settings
    assert settings.engine.tick_ms == 4
    assert settings.engine.replica_lag_time_max_ms == 40
    assert settings.limits.partitions_max == 7
    assert settings.limits.sessions_max == 10_000


def test_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURGATORY_ENGINE_TICK_MS", "")
    assert setting_sources.load_settings({}, ALL_SETTINGS).engine.tick_ms == 1


def test_every_setting_can_be_given_as_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    defaults = setting_sources.load_settings({}, ALL_SETTINGS)
    for part in setting_sources.setting_groups(ALL_SETTINGS):
        for field, value in getattr(defaults, part):
            monkeypatch.setenv(setting_sources.environment_name(f"{part}.{field}"), str(value))
    # The default conflicts with the certificate files, which are now set.
    monkeypatch.setenv("PURGATORY_TLS_CLIENT_AUTH", "required")
    monkeypatch.setenv("PURGATORY_INSECURE", "false")
    for name in ("WEBHOOKS_ALLOWED_HOSTS", "HTTP_ALLOWED_HOSTS", "LAG_GROUPS"):
        monkeypatch.setenv(f"PURGATORY_{name}", "example.org")  # the default is empty, as if it were not set
    monkeypatch.setenv("PURGATORY_FLEET_LOG", "postgresql://host/db")  # the same, as for the next three
    monkeypatch.setenv("PURGATORY_FLEET_ADDRESS", "host:7440")
    monkeypatch.setenv("PURGATORY_FLEET_TARGETS", "host:7440 host:7442")
    monkeypatch.setenv("PURGATORY_FLEET_URLS", "http://host:7441 http://host:7443")
    monkeypatch.setenv("PURGATORY_SHARDS", "1")
    monkeypatch.setenv("PURGATORY_SOURCE", "kafka://127.0.0.1:9092")
    monkeypatch.setenv("PURGATORY_EXTENSIONS", "all")
    monkeypatch.setenv("PURGATORY_READY_FILE", str(tmp_path / "ready"))
    command_line = read()
    sources = [line.rpartition("# ")[2] for line in config_lines(command_line) if "=" in line]
    assert sources
    assert [source for source in sources if not source.startswith("environment PURGATORY_")] == []
    assert setting_sources.unknown_variables(ALL_SETTINGS) == []


def test_print_config_is_a_file_that_loads_to_the_same(tmp_path: Path) -> None:
    first = read("--engine-tick-ms", "5", "--no-grpc-reflection", "--log-level", "debug")
    lines = config_lines(first)
    assert "tick_ms = 5  # flag --engine-tick-ms" in lines
    assert "replica_lag_time_max_ms = 30000  # default" in lines
    path = tmp_path / "saved.toml"
    path.write_text("\n".join(lines))
    assert tomllib.loads(path.read_text())["grpc"]["reflection"] is False
    second = read("--config", str(path))
    assert f"tick_ms = 5  # file {path}" in config_lines(second)
    assert second.settings.model_dump(exclude={"config"}) == first.settings.model_dump(exclude={"config"})


def test_print_config_hides_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings that may have a password are comments without it, so that the file can be loaded; errors hide it too."""
    monkeypatch.setenv("PURGATORY_FLEET_LOG", "postgresql://me:hunter2@h/log")
    monkeypatch.setenv("PURGATORY_SOURCE", "poll+http://h/x?k=hunter2 kafka://b")
    lines = config_lines(read())
    assert '# log = "postgresql://***h/log"  # environment PURGATORY_FLEET_LOG, not shown in full' in lines
    assert '# source = ["poll+http://h/x?***", "kafka://b"]  # environment PURGATORY_SOURCE, not shown in full' in lines
    assert "hunter2" not in str(lines)
    (tmp_path / "saved.toml").write_text("\n".join(lines))
    assert read("--config", str(tmp_path / "saved.toml")).settings.fleet == read().settings.fleet  # type: ignore[attr-defined]
    (tmp_path / "wrong.toml").write_text('[fleet]\nlog = ["postgresql://me:hunter2@h/log"]')
    monkeypatch.delenv("PURGATORY_FLEET_LOG")
    with pytest.raises(setting_sources.SettingsError, match=r"fleet\.log") as refused:
        read("--config", str(tmp_path / "wrong.toml"))
    assert "hunter2" not in str(refused.value)


IS_A_GROUP = r"^grpc: is a group of settings; .* \(environment PURGATORY_GRPC\)$"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PURGATORY_SESSION_TTL_MS", "-1", r"session\.ttl_ms: .* PURGATORY_SESSION_TTL_MS"),
        *(("PURGATORY_GRPC", value, IS_A_GROUP) for value in ("x", '"x"', "{}")),
    ],
)
def test_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(setting_sources.SettingsError, match=message):
        setting_sources.load_settings({}, ALL_SETTINGS)


def test_bad_file_is_refused(tmp_path: Path) -> None:
    """As in setting_files.txt. A misspelt key is an error and does not mean the default; a file that is not TOML is an
    error too.
    """

    def reason(text: str) -> str:
        path = tmp_path / "purgatory.toml"
        path.write_text(text.replace("; ", "\n"))
        with pytest.raises(setting_sources.SettingsError) as refused:
            read("--config", str(path))
        return str(refused.value).replace(str(path), "purgatory.toml")

    assert_recorded(SETTING_FILES, map(reason, cases_of(SETTING_FILES)))


def test_misspelt_variables_are_found_but_foreign_ones_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closest setting is named. Variables of removed groups count too; those that Kubernetes creates for a service
    named purgatory, and those of sources, do not.
    """
    monkeypatch.setenv("PURGATORY_ENGINE_TIK_MS", "1")
    monkeypatch.setenv("PURGATORY_GC_TIDY_INTERVAL_MS", "1")
    monkeypatch.setenv("PURGATORY_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("PURGATORY_SERVICE_PORT_GRPC", "7440")
    monkeypatch.setenv("PURGATORY_PORT", "tcp://10.0.0.1:7440")
    monkeypatch.setenv("PURGATORY_PORT_7440_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("PURGATORY_KAFKA_SASL_PASSWORD", "secret")
    assert setting_sources.unknown_variables(ALL_SETTINGS) == [
        "PURGATORY_ENGINE_TIK_MS: there is no such setting; did you mean PURGATORY_ENGINE_TICK_MS?",
        "PURGATORY_GC_TIDY_INTERVAL_MS: there is no such setting",
    ]
    assert setting_sources.load_settings({}, ALL_SETTINGS).engine.tick_ms == 1


def test_the_daemon_may_have_the_environment_of_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of another command, such as `purgatory ready`, is read as a setting or reported as misspelt."""
    options = [option for name in SUMMARIES for option in load(name).params]
    variables = {str(option.envvar) for option in options if option.envvar}
    assert "PURGATORY_ADDRESS" in variables
    for variable in variables:
        monkeypatch.setenv(variable, "http://purgatory")
    assert setting_sources.load_settings({}, ALL_SETTINGS) == ALL_SETTINGS()
    assert setting_sources.unknown_variables(ALL_SETTINGS) == []


def test_help_explains_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_command(["--help"]) == 0
    text = capsys.readouterr().out
    missing = [
        name
        for name in setting_sources.setting_names(ALL_SETTINGS)
        if setting_sources.flag_name(name) not in text or setting_sources.environment_name(name) not in text
    ]
    assert missing == []


def test_version_is_one_line_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_command(["--version"]) == 0
    assert capsys.readouterr().out == f"purgatory {__version__}\n"


def test_names_are_unique_in_each_spelling() -> None:
    names = setting_sources.setting_names(ALL_SETTINGS)
    assert len({setting_sources.environment_name(name) for name in names}) == len(names)
    assert len({setting_sources.flag_name(name) for name in names}) == len(names)


ADDRESSES = Path(__file__).with_name("addresses.txt")


def test_address_is_split_at_its_port() -> None:
    """As in addresses.txt."""
    assert_values_recorded(ADDRESSES, {"split_address": split_address})
    with pytest.raises(ValueError, match="must"):
        split_address(f"a:{'9' * 5_000}")
