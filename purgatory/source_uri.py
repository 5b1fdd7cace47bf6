"""Addresses of sources: "kafka://b1:9092,b2:9092?label=kafka&topics=orders", "poll+http://host/status?pointer=/position".

Addresses contain no secrets, because other users can read a command line. Secrets are read from the file named by
`config=`, or from the environment.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

KINDS: Final = {
    "kafka": "kafka", "postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql",
    "redis": "redis", "rediss": "redis", "valkey": "redis", "valkeys": "redis", "poll+http": "poll",
    "poll+https": "poll", "poll+sql": "poll",
}  # fmt: skip
"""The connector of each scheme that the package itself has."""
OTHER: Final = "other"
"""The kind of connectors of other packages. The name of their entry point is a scheme."""
_Default = TypeVar("_Default", int, None)
_SECRET: Final = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "apikey", "api_key", "api-key",
    "api.key", "access_key", "accesskey", "signature", "sasl.username", "key.pem", "header.",
)  # fmt: skip
"""Parts of the names of options that may be secrets, as the value of any header may be."""


class SourceUriInvalid(ValueError):
    """The address of a source or of a replicated log is invalid. The message is one line that contains the remedy."""


def others() -> dict[str, list[EntryPoint]]:
    """The connectors of other packages, by scheme. Those of the package itself cannot be replaced."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group="purgatory.connectors"):
        if entry.name not in KINDS:
            found.setdefault(entry.name, []).append(entry)
    return found


def shown(entry: EntryPoint) -> str:
    """The distribution of an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


@dataclass(frozen=True, slots=True)
class SourceUri:
    """The parsed address of a source.

    Attributes:
        kind: The name of the connector: "kafka", "postgres", "mysql", "redis", "poll" or "other".
        scheme: As given: "kafka", "rediss", "poll+http".
        hosts: As given, "host:port" or "host".
        path: The path without slashes: a database.
        options: The query. The values of a repeated option are joined by commas.
        text: The whole address, which contains no secret.
    """

    kind: str
    scheme: str
    hosts: tuple[str, ...]
    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> "SourceUri":
        """Parse an address. Raises SourceUriInvalid."""
        parts = urlsplit(text)
        scheme = parts.scheme
        if scheme not in KINDS:
            installed = others()
            if scheme not in installed:
                known = ", ".join(f"{one}://" for one in (*KINDS, *installed))
                raise SourceUriInvalid(f"source {_shown(text)!r}: must begin with {known}")
            if len(installed[scheme]) > 1:
                packages = ", ".join(map(shown, installed[scheme]))
                raise SourceUriInvalid(f"{scheme}:// is a connector of several packages, uninstall others: {packages}")
        if "@" in parts.netloc:
            raise SourceUriInvalid(
                f"source {_shown(text)!r}: an address must have no user or password, because others can read it; "
                "put them into a file and name it in ?config=FILE, or into the environment"
            )
        hosts = tuple(host for host in parts.netloc.split(",") if host)
        if not hosts and scheme != "poll+sql":  # the database may be a file
            raise SourceUriInvalid(f"source {_shown(text)!r}: name at least one host: {scheme}://HOST:PORT")
        options: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if any(word in name.lower() for word in _SECRET):
                raise SourceUriInvalid(
                    f"source {_shown(text)!r}: {name} does not belong in an address, which others can read; "
                    "put it into a file and name that in ?config=FILE, or into the environment"
                )
            options[name] = f"{options[name]},{value}" if name in options else value
        return cls(KINDS.get(scheme, OTHER), scheme, hosts, unquote(parts.path).strip("/"), options, text)

    def listed(self, option: str) -> tuple[str, ...]:
        """The values of an option that accepts several, separated by commas."""
        return tuple(one.strip() for one in self.options.get(option, "").split(",") if one.strip())

    def number(self, option: str, default: _Default, least: int = 1, most: int = 2**64 - 1) -> int | _Default:
        """The value of a numeric option. Raises SourceUriInvalid."""
        text = self.options.get(option)
        if text is None:
            return default
        number = int(text) if re.fullmatch("[0-9]{1,20}", text) else -1
        if not least <= number <= most:
            raise SourceUriInvalid(f"source {self.text!r}: {option}={text!r} must be a whole number, {least} to {most}")
        return number

    def choice(self, option: str, *allowed: str) -> str:
        """The value of an option that has one of these values; the first is the default. Raises SourceUriInvalid."""
        value = self.options.get(option, allowed[0])
        if value not in allowed:
            raise SourceUriInvalid(f"source {self.text!r}: {option}={value!r} must be {' or '.join(allowed)}")
        return value

    def check_options(self, known: tuple[str, ...]) -> None:
        """Raise SourceUriInvalid for an option that is not among these."""
        for option in self.options:
            if option not in known:
                raise SourceUriInvalid(f"source {self.text!r}: unknown option {option!r}; known: {', '.join(known)}")

    def merged(self, environment_prefix: str) -> "SourceUri":
        """The address with the options of `config` added; those of the address take precedence."""
        return replace(self, options={**self.config(environment_prefix), **self.options})

    def config(self, environment_prefix: str) -> dict[str, str]:
        """The settings in the file named by `config`; environment variables take precedence.

        The file has lines of `key = value`, quoted or unquoted, like Kafka's own, or is TOML if its name ends in
        ".toml". The variable PREFIX_SASL_PASSWORD is the setting "sasl.password".

        Args:
            environment_prefix: "PURGATORY_KAFKA_".
        """
        settings: dict[str, str] = {}
        if "config" in self.options:
            settings.update(_read_config(Path(self.options["config"])))
        for name, value in os.environ.items():
            if name.startswith(environment_prefix):
                settings[name.removeprefix(environment_prefix).lower().replace("_", ".")] = value
        return settings


def _read_config(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceUriInvalid(f"config file {path}: {error}") from error
    if path.suffix == ".toml":
        try:
            return _flat(tomllib.loads(text))
        except ValueError as error:  # also of Python, for a number of more than 4,300 digits
            raise SourceUriInvalid(f"config file {path}: {error}") from error
    settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.strip()
        if not plain or plain[0] in "#;":
            continue
        name, equals, value = plain.partition("=")
        if not equals:
            raise SourceUriInvalid(f"config file {path}, line {number}: write it as key = value")
        settings[name.strip()] = _unquoted(value.strip())
    return settings


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Flatten nested tables to dotted keys, because `sasl.password = "…"` is a nested table in TOML."""
    settings: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            settings.update(_flat(value, f"{above}{name}."))
        else:
            settings[above + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _shown(text: str) -> str:
    """The address without the parts that may contain a secret."""
    scheme, colon, rest = text.partition("://")
    return f"{scheme}{colon}{rest.partition('?')[0].rpartition('@')[2]}"
